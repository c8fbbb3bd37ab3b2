"""On a clock that jumps the dispatcher orders, drains and undrains as the simulator does, at the same times."""

import asyncio

import numpy as np
import pytest

from schedulers.decisions import DRAIN, ORDER, REFUSED, SCALE, SEND, STOP, UNDRAIN
from schedulers.load import load
from schedulers.view import Tiers
from services.config import Config, Keys, Scaling, Scheduling, StoreConfig, Timeouts
from services.dispatcher.process import Parts
from services.dispatcher.upkeep import TICK_S
from services.worker.config import WorkerConfig, setup_of
from services.worker.worker import Worker
from sim import log
from sim.checks import traffic
from sim.fabric import Wiring
from sim.film import Film
from sim.run import simulate
from tests.services.test_dispatcher_virtual import FLEET, TIERS, JumpingLoop, linked, offered, row_of

PLACES, START, LEAST, BOOT_S = 4, 2, 1, 0.6
KINDS = {ORDER: log.ORDERED, DRAIN: log.DRAINS_OFF, UNDRAIN: log.SERVES_ON, STOP: log.SWITCHED_OFF}
SWING = "fcfs-chunked+tests.services.swing:POLICY:high=3,low=2.5"


def waves(n, seed):
    """Arrivals that come thick, then thin, and thick again."""
    demand = traffic(n, 1.0, seed=seed)
    rng = np.random.default_rng(seed)
    rate = np.where(np.arange(n) * 4 // n % 2 == 0, 60.0, 6.0)
    return demand._replace(arrival_s=np.cumsum(rng.exponential(1.0, n) / rate))


class Crew:
    """Plays the scaler: an order is a worker after its boot, a stop ends one at once."""

    def __init__(self, parts):
        self.parts, self.loop, self.tasks, self.born = parts, asyncio.get_running_loop(), {}, 0

    async def join(self):
        """A worker that nobody knows is there."""
        heart, name = self.parts.heart, f"w{self.born}"
        self.born += 1
        worker = Worker(WorkerConfig(worker_id=name, fleet=FLEET), heart.config.targets, self.loop.time)
        self.tasks[name] = [
            asyncio.create_task(worker.run()), asyncio.create_task(linked(self.parts, worker))
        ]  # fmt: skip
        while name not in self.parts.links.workers:
            await asyncio.sleep(0)

    def carry_out(self, decision):
        if decision.kind == ORDER:
            self.loop.call_at(self.loop.time() + BOOT_S, lambda: self.loop.create_task(self.join()))
        elif decision.kind == STOP:
            for task in self.tasks.pop(self.parts.heart.engines[decision.engine].worker_id):
                task.cancel()


async def played(demand, scheduler):
    """What the live services did: sent (request, engine), the fleet's changes (s, kind, engine), the end."""
    config = Config(
        scheduling=Scheduling(scheduler=scheduler, report_each_step=True, busy_reports=1e9, tick_s=0.0),
        tiers=TIERS, timeouts=Timeouts(silence_s=1e9, engine_grace_s=1e-6), store=StoreConfig(flush_s=0.05),
        scaling=Scaling(LEAST, PLACES, settle_s=1e-9), keys=Keys(scaler="s"),
    )  # fmt: skip
    loop, parts = asyncio.get_running_loop(), Parts(config)
    sent, changes, crew = [], [], Crew(parts)

    def decided(now_s, decision):
        if decision.kind in KINDS:
            changes.append((now_s, KINDS[decision.kind], decision.engine))
            loop.call_soon(crew.carry_out, decision)
        elif decision.kind != SCALE:
            assert decision.kind in (SEND, REFUSED)
            sent.append((row_of(parts.heart.answers[decision.number]), decision.engine))

    parts.heart.decided = decided
    await parts.journal.open()
    parts.upkeep.start()
    for _ in range(START):
        await crew.join()
    await offered(parts, demand, loop)
    working = [task for pair in crew.tasks.values() for task in pair]
    for task in working:
        task.cancel()
    await asyncio.gather(*working, return_exceptions=True)
    await parts.upkeep.stop()
    await parts.journal.close()
    return sent, changes, max(answer.ended_s for answer in parts.heart.answers.values())


def simulated(demand, scheduler):
    """The same of the simulator."""
    targets = [(tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in TIERS]
    tiers = Tiers(*(np.array(column) for column in zip(*targets, strict=True)))
    place = setup_of(WorkerConfig(fleet=FLEET), tiers)
    wiring = Wiring(boot_s=BOOT_S, start=START, least=LEAST)
    film = Film(1000.0)
    simulate(demand, load(scheduler), place._replace(engines=PLACES, wiring=wiring), "interpreted", film=film)
    line = film.timeline()
    rows = list(zip(line.event_s.tolist(), line.kind.tolist(), line.engine.tolist(), strict=True))
    sent = line.kind == log.DISPATCHED
    return (
        list(zip(line.request[sent].tolist(), line.engine[sent].tolist(), strict=True)),
        [row for row in rows if row[1] in KINDS.values()],
    )


RHO = "fcfs-chunked+scale-rho:window_s=2,out_s=0.5,in_s=1,aim=0.3"
FREE = "fcfs-chunked+scale-freeness:window_s=0.5,out_s=1,in_s=1,hold_s=0,low=12,high=16"


@pytest.mark.parametrize(
    ("scheduler", "seed"),
    [
        (SWING, 2),
        (FREE, 3),
        pytest.param(RHO, 3, marks=pytest.mark.slow),
        pytest.param(SWING, 6, marks=pytest.mark.slow),
    ],
)
def test_the_fleet_changes_as_the_simulators(scheduler, seed):
    """Same requests to same engines; orders, drains and undrains at the same times, stops no later than a tick."""
    demand, loop = waves(120, seed), JumpingLoop()
    try:
        sent, changes, end_s = loop.run_until_complete(played(demand, scheduler))
    finally:
        loop.close()
    wanted, others = simulated(demand, scheduler)
    assert sent == wanted
    ours = [one for one in changes if one[0] < end_s]
    theirs = [one for one in others if one[0] < end_s]

    def parted(rows):
        return [one for one in rows if one[1] != log.SWITCHED_OFF], sorted(
            (one[2], one[0]) for one in rows if one[1] == log.SWITCHED_OFF
        )

    (made, stopped), (asked, off) = parted(ours), parted(theirs)
    assert [one[1:] for one in made] == [one[1:] for one in asked]
    assert [one[0] for one in made] == pytest.approx([one[0] for one in asked], rel=1e-9)
    assert [one[0] for one in stopped] == [one[0] for one in off]
    assert all(early[1] < at[1] + TICK_S for early, at in zip(stopped, off, strict=True)), (
        "sim: at its next event"
    )
    if scheduler == SWING:
        assert {one[1] for one in made} == {log.ORDERED, log.DRAINS_OFF, log.SERVES_ON}
    assert stopped
    assert len({engine for _, engine in sent}) > START
