"""The live services on a clock that jumps: dispatcher, links and simulated workers decide as the simulator."""

import asyncio
from contextlib import suppress

import numpy as np
import pytest

from loadgen.plan import Fleet
from loadgen.result import REJECTED
from schedulers.decisions import REFUSED, SEND
from schedulers.load import cluster_names, load
from schedulers.view import Tiers
from services.config import Config, Scheduling, StoreConfig, TierConfig, Timeouts
from services.dispatcher.answer import Refused
from services.dispatcher.process import Parts
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.worker.config import WorkerConfig, setup_of
from services.worker.link import Link
from services.worker.worker import Worker
from sim.checks import traffic
from sim.run import simulate
from tests.services.live_stage import asking

FLEET = Fleet(sequences_max=6, budget_max=512, block_tokens=16, blocks=120, model_tokens=4096)
TIERS = (TierConfig("fast", ttft_s=0.5, tpot_s=0.03), TierConfig("slow", ttft_s=2.0, tpot_s=0.1))
ENGINES = 3


class JumpingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer, exactly.

    looptime rounds to a grain, so a timer may ring before its time; a worker that then finds nothing due would
    set the same timer for ever.
    """

    def __init__(self):
        super().__init__()
        self.now_s = 0.0
        self._selector.select = self.jump

    def time(self):
        return self.now_s

    def jump(self, timeout):
        if timeout is None:
            raise RuntimeError("nothing will ever happen")
        if timeout > 0:
            self.now_s = max(self.now_s, self._scheduled[0].when())
        return []

    async def sleep_until(self, at_s):
        done = self.create_future()
        self.call_at(at_s, done.set_result, None)
        await done


def window(seed, rate_per_s, n):
    return traffic(n, rate_per_s, seed=seed)._replace(session=np.arange(n) % 7 - 1)


async def linked(parts, worker):
    """Join a worker to a dispatcher by two queues instead of a connection."""
    wire, side = asyncio.Queue(), Link(worker, 1)

    async def to_dispatcher():
        yield link.WorkerMessage(register=side._register())
        while True:
            yield await wire.get()

    async def forward():
        while True:
            wire.put_nowait(await side._out.get())

    pump = None
    try:
        async for message in parts.links.converse(to_dispatcher()):
            if message.WhichOneof("kind") == "welcome":
                side._enter(message.welcome)
                pump = asyncio.create_task(forward())
            else:
                side._follow(message)
    finally:
        if pump is not None:
            pump.cancel()


def row_of(answer):
    return int(answer.request_id.removeprefix("r"))


class Deaf:
    """A client that takes whatever comes."""

    def notify(self, answer):
        pass


async def offered(parts, demand, loop):
    """Submit a demand at its times, and wait until every answer has ended."""
    client = parts.heart.doorkeeper.client("")

    async def submitted(row):
        asked = asking(
            f"r{row}", int(demand.output_tokens[row]), int(demand.prompt_tokens[row]), int(demand.tier[row]),
            tenant=f"t{demand.tenant[row]}", session=int(demand.session[row]), luck=float(demand.luck[row]),
            forecast_tokens=float(demand.forecast_tokens[row]),
        )  # fmt: skip
        with suppress(Refused):
            parts.heart.listen(await parts.heart.submit(asked, client), Deaf(), 0)

    tasks = []
    for row, at_s in enumerate(demand.arrival_s.tolist()):
        await loop.sleep_until(at_s)
        tasks.append(asyncio.create_task(submitted(row)))
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    while any(answer.ending is None for answer in parts.heart.answers.values()):
        await asyncio.sleep(0.5)


async def played(demand, scheduler):
    """Decisions of the live services, (request, engine, reason) in their order."""
    config = Config(
        scheduling=Scheduling(scheduler=scheduler, report_each_step=True, busy_reports=1e9, tick_s=0.0),
        tiers=TIERS, timeouts=Timeouts(silence_s=1e9), store=StoreConfig(flush_s=0.05),
    )  # fmt: skip
    parts, log = Parts(config), []
    loop = asyncio.get_running_loop()

    def decided(now_s, decision):
        log.append((row_of(parts.heart.answers[decision.number]), decision.engine, decision.reason))
        assert decision.kind in (SEND, REFUSED)

    parts.heart.decided = decided
    await parts.journal.open()
    parts.upkeep.start()
    workers = []
    for number in range(ENGINES):
        worker = Worker(WorkerConfig(worker_id=f"w{number}", fleet=FLEET), config.targets, loop.time)
        workers += [asyncio.create_task(worker.run()), asyncio.create_task(linked(parts, worker))]
        while len(parts.links.workers) <= number:
            await asyncio.sleep(0)
    await offered(parts, demand, loop)
    for task in workers:
        task.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await parts.upkeep.stop()
    await parts.journal.close()
    return log, {row_of(answer): answer for answer in parts.heart.answers.values()}


def simulated(demand, scheduler):
    place = setup_of(WorkerConfig(fleet=FLEET), Tiers(*(np.array(column) for column in zip(
        *((tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in TIERS), strict=True))))  # fmt: skip
    facts = simulate(demand, load(scheduler), place._replace(engines=ENGINES), "interpreted").facts
    reasons = {1: "too_long", 2: "shed"}
    rejected = facts.outcome == REJECTED
    rows = range(len(facts.outcome))
    told = [reasons[int(facts.reason[row])] if rejected[row] else "" for row in rows]
    return facts, [(row, int(facts.engine[row]) if told[row] != "shed" else -1, told[row]) for row in rows]


QUICK = ("least-requests", "llumnix", "early-reject")
# Moves have a test of their own. What tier-degrade holds is offered again when a step ends: in the simulator before
# the engine's next step begins, live when the report of that end has come, and by then the next step has begun.
ELSEWHERE = ("rebalance", "tier-degrade")
SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in cluster_names() if name not in (*QUICK, *ELSEWHERE)
]


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_the_live_services_decide_as_the_simulator(name):
    """Same arrivals, same decision log; times of first token and end agree."""
    scheduler, demand = f"fcfs-chunked+{name}", window(3, 90.0, 60)
    loop = JumpingLoop()
    try:
        log, answers = loop.run_until_complete(played(demand, scheduler))
    finally:
        loop.close()
    facts, wanted = simulated(demand, scheduler)
    assert log == wanted
    for row, answer in answers.items():
        assert len(answer.tokens) == facts.output_tokens[row]
        assert answer.first_s == pytest.approx(facts.first_token_s[row], rel=1e-9)
        assert answer.ended_s == pytest.approx(facts.finished_s[row], rel=1e-9)
