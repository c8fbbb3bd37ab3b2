"""An engine driven from outside steps as the simulator's, and keeps its books when requests come, leave and move."""

from math import inf

import numpy as np
import pytest

from loadgen.result import FAILED, FINISHED, REJECTED
from schedulers.load import engine_names, load
from services.worker.engine import Engine
from services.worker.rows import Ask
from sim.checks import setup, traffic
from sim.rig import KV_PEAK, RECOMPUTED
from sim.run import simulate

SCARCE = setup(blocks=90, sequences=10, budget=128)
AMPLE = setup(blocks=4000, sequences=40)


def asks(demand, oracle=False):
    """Each row of a demand as a worker gets it."""
    for row in range(len(demand.arrival_s)):
        yield Ask(
            arrival_s=demand.arrival_s[row],
            prompt_tokens=int(demand.prompt_tokens[row]),
            output_tokens=int(demand.output_tokens[row]),
            forecast_tokens=float(demand.output_tokens[row] if oracle else demand.forecast_tokens[row]),
            tier=int(demand.tier[row]),
            tenant=int(demand.tenant[row]),
            session=int(demand.session[row]),
            luck=float(demand.luck[row]),
        )


def drain(engine, now_s, limit=200_000):
    """Run an engine by its own timer until nobody is left."""
    told = []
    for _ in range(limit):
        due_s = engine.next_s(now_s)
        if due_s == inf:
            return told
        now_s = due_s
        told += engine.advance(now_s)
    raise AssertionError("the engine does not come to an end")


def play(engine, demand, oracle=False):
    """Let a demand arrive and drain; times of tokens and the ends by key."""
    told = []
    for number, ask in enumerate(asks(demand, oracle)):
        told += engine.advance(ask.arrival_s, before=True)
        end = engine.add(str(number), ask, ask.arrival_s)
        told += [end] if end else []
    return told + drain(engine, demand.arrival_s[-1])


def empty(engine):
    """Nothing is held, owed or known any more."""
    fleet, plant = engine.rig.known.engines, engine.rig.plant
    assert engine.load == (0, 0)
    known = (engine.row_of, engine.key_of, engine.forecasts, engine.frozen, engine.reserved)
    assert not any(known)
    assert fleet.blocks_free[0] == fleet.blocks_total[0]
    assert fleet.pending_tokens[0] == fleet.queued_blocks[0] == plant.kv_tokens[0] == 0
    assert not engine.rig.known.tenants.waiting.any()
    assert len(engine.free) == len(engine.told)


@pytest.mark.parametrize("name", engine_names())
def test_the_same_steps_as_the_simulator(name):
    """One request's tokens come at the very times at which the interpreter makes them, rows used again."""
    demand, scheduler = traffic(50, 20.0, seed=5), load(name)
    facts = simulate(demand, scheduler, SCARCE, "interpreted").facts
    engine = Engine(scheduler, SCARCE)
    told = play(engine, demand, scheduler.engine.oracle)
    empty(engine)
    ends = {int(one.key): one for one in told if one.outcome >= 0}
    firsts = {int(one.key): one.time_s for one in reversed(told) if one.made and one.offset == 0}
    assert sorted(ends) == list(range(50))
    for row, end in ends.items():
        assert end.outcome == facts.outcome[row]
        assert end.offset + end.made == facts.output_tokens[row]
        if end.outcome == FINISHED:
            assert end.time_s == facts.finished_s[row]
            assert end.started_s == facts.started_s[row]
            assert firsts[row] == facts.first_token_s[row]
            assert end.evictions == facts.preemptions[row]


def test_tokens_are_told_once_and_in_order():
    """Offsets of a request are contiguous from 0, through evictions too."""
    demand = traffic(150, 30.0, seed=6)
    engine = Engine(load("fcfs-chunked"), SCARCE)
    told = play(engine, demand)
    seen = {}
    for one in told:
        assert one.offset == seen.get(one.key, 0)
        seen[one.key] = one.offset + one.made
    fits = demand.prompt_tokens < SCARCE.capacity_tokens
    assert [seen[str(row)] for row in range(150)] == np.where(fits, demand.output_tokens, 0).tolist()
    assert engine.rig.known.engines.steps[0] > 0
    assert sum(one.evictions for one in told) > 0, "memory was never short"


def test_rows_grow_with_those_that_are_there_not_with_those_that_came():
    """Five hundred requests one after the other fit the first rows; two hundred at once do not."""
    engine = Engine(load("sarathi"), AMPLE)
    for number in range(500):
        assert engine.add(str(number), Ask(float(number), 20, 3, 3.0), float(number)) is None
        drain(engine, float(number))
    assert len(engine.told) == 64
    for number in range(200):
        engine.add(f"again {number}", Ask(1000.0, 20, 3, 3.0, tenant=number % 7), 1000.0)
    told = drain(engine, 1000.0)
    assert sum(one.outcome == FINISHED for one in told) == 200
    assert len(engine.told) == 256
    empty(engine)


def test_what_can_never_fit_is_turned_away_at_once():
    """The engine holds 90 blocks of 16 tokens."""
    engine = Engine(load("edf"), SCARCE)
    end = engine.add("long", Ask(0.0, 5000, 5, 5.0), 0.0)
    assert end is not None
    assert (end.outcome, end.reason) == (REJECTED, 1)
    empty(engine)


@pytest.mark.parametrize(
    "name", ["fcfs-chunked", "vtc", "proserve", "mlfq-skipjoin", "kv-peak", "static-batch"]
)
def test_a_cancelled_request_leaves_no_trace(name):
    """Waiting, prefilling, decoding and in the middle of a step, cancelled requests free what they held."""
    demand, engine = traffic(120, 60.0, seed=3), Engine(load(name), SCARCE)
    draw, ended = np.random.default_rng(4), {}
    for number, ask in enumerate(asks(demand)):
        told = engine.advance(ask.arrival_s, before=True)
        refused = engine.add(str(number), ask, ask.arrival_s)
        told += [refused] if refused else []
        if number % 2:
            there = list(engine.row_of)
            gone = engine.cancel(there[draw.integers(len(there))], ask.arrival_s)
            assert gone.outcome == FAILED
            told.append(gone)
        ended |= {one.key: one.outcome for one in told if one.outcome >= 0}
    ended |= {one.key: one.outcome for one in drain(engine, demand.arrival_s[-1]) if one.outcome >= 0}
    assert len(ended) == 120
    assert sum(outcome == FAILED for outcome in ended.values()) == 60
    assert engine.cancel("3", 1e6) is None
    empty(engine)


def test_a_request_begun_elsewhere_goes_on_at_its_next_token():
    """It owes prompt and the tokens made before, and makes only those that are left."""
    engine = Engine(load("fcfs-chunked"), AMPLE)
    engine.add("half", Ask(0.0, 100, 30, 30.0, generated_tokens=10), 0.0)
    assert engine.rig.known.engines.pending_tokens[0] == 110
    told = drain(engine, 0.0)
    assert (told[0].offset, told[-1].offset + told[-1].made) == (10, 30)
    assert sum(one.made for one in told) == 20
    empty(engine)


def moved(steps):
    """A request that decoded a while on one engine, taken out of it with its state."""
    source = Engine(load("fcfs-chunked"), AMPLE)
    source.add("a", Ask(0.0, 100, 40, 40.0), 0.0)
    source.add("b", Ask(0.0, 60, 40, 40.0), 0.0)
    now_s = 0.0
    for _ in range(steps):
        now_s = source.next_s(now_s)
        source.advance(now_s)
    return source, source.freeze("a"), now_s


def test_a_moved_request_loses_no_token_and_computes_nothing_again():
    """Source and destination together make each token once, and count no recomputed one."""
    source, parcel, now_s = moved(11)
    target = Engine(load("fcfs-chunked"), AMPLE)
    assert target.reserve("a", 9)
    assert target.receive("a", parcel, now_s)
    source.cancel("a", now_s)
    there = drain(target, now_s)
    here = drain(source, now_s)
    assert there[0].offset == parcel.ask.generated_tokens == 10
    assert there[-1].offset + there[-1].made == 40
    assert here[-1].key == "b"
    assert here[-1].outcome == FINISHED
    assert source.rig.plant.tally[0, RECOMPUTED] == target.rig.plant.tally[0, RECOMPUTED] == 0
    empty(source)
    empty(target)


def test_a_move_called_off_goes_on_where_it_was():
    """Frozen, it makes no token while the other does; thawed, it makes all that are left."""
    source, _, now_s = moved(11)
    held = source.rig.known.requests.blocks[source.row_of["a"]]
    for _ in range(3):
        now_s = source.next_s(now_s)
        assert {one.key for one in source.advance(now_s)} <= {"b"}
    assert source.rig.known.requests.blocks[source.row_of["a"]] == held > 0
    source.thaw("a")
    told = [one for one in drain(source, now_s) if one.key == "a"]
    assert (told[0].offset, told[-1].offset + told[-1].made) == (10, 40)
    assert source.freeze("a") is None
    empty(source)


def test_a_reservation_binds_and_is_given_back():
    """Blocks that are kept for a request on its way can't be had by another."""
    target = Engine(load("fcfs-chunked"), SCARCE)
    assert target.reserve("x", 80)
    assert not target.reserve("y", 20)
    assert target.reserve("x", 85)
    target.add("local", Ask(0.0, 100, 10, 10.0), 0.0)
    target.advance(0.0)
    assert target.load == (1, 0), "its prompt needs more than the 5 blocks left"
    target.release("x")
    target.release("x")
    drain(target, 0.0)
    assert target.rig.plant.tally[0, KV_PEAK] <= 90
    empty(target)


@pytest.mark.parametrize(
    ("old", "new"),
    [("fcfs-chunked", "edf"), ("mlfq-skipjoin", "vtc"), ("slai", "drr"), ("edf", "kv-peak"), ("vtc", "orca")],
)
def test_a_policy_is_switched_under_load(old, new):
    """The new policy starts with a fresh memo, knows who waits and who runs, and ends them all."""
    demand, engine = traffic(60, 60.0, seed=8), Engine(load(old), SCARCE)
    told = []
    for number, ask in enumerate(asks(demand)):
        told += engine.advance(ask.arrival_s, before=True)
        refused = engine.add(str(number), ask, ask.arrival_s)
        told += [refused] if refused else []
        if number == 40:
            steps = int(engine.rig.known.engines.steps[0])
            before = engine.load
            assert min(before) > 0
            engine.switch(load(new), ask.arrival_s)
            assert engine.load == before
    told += drain(engine, demand.arrival_s[-1])
    assert engine.rig.known.engines.steps[0] > steps
    made = {}
    for one in told:
        assert one.offset == made.get(one.key, 0)
        made[one.key] = one.offset + one.made
    ends = [one for one in told if one.outcome >= 0]
    assert len(ends) == 60
    fits = demand.prompt_tokens < SCARCE.capacity_tokens
    assert sum(made.values()) == demand.output_tokens[fits].sum()
    empty(engine)


def test_an_oracle_that_takes_over_knows_the_lengths_and_leaves_none_behind():
    """Forecasts are the caller's again once a policy that may not know lengths comes back."""
    engine = Engine(load("fcfs-chunked"), SCARCE)
    engine.add("a", Ask(0.0, 10, 5, 77.0), 0.0)
    forecast = engine.rig.known.requests.forecast_tokens
    engine.switch(load("oracle-srpt"), 0.0)
    assert engine.rig.known.requests.forecast_tokens[engine.row_of["a"]] == 5
    engine.switch(load("edf"), 0.0)
    assert engine.rig.known.requests.forecast_tokens[engine.row_of["a"]] == 77
    assert forecast is not engine.rig.known.requests.forecast_tokens
