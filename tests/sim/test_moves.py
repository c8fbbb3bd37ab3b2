"""Clusters under moves, boots, drains, deaths and late reports: nobody is lost, memory adds up, all modes agree."""

from pathlib import Path

import numpy as np
import pytest

from loadgen.demand import Demand
from loadgen.tables import broken_facts
from schedulers.load import load
from schedulers.view import Tiers
from sim.fabric import DIE, DRAIN, RECOMPUTE, RETURN, Fault, Moving, Wiring
from sim.run import Setup, simulate

RESTLESS = Path(__file__).with_name("restless.py")
COSTS = np.array([0, 0.008, 1e-4, 0, 1e-9, 2e-4, 2e-8])
TIERS = Tiers(*(np.array(row, float) for row in ([0.5, 1, 2], [0.05, 0.1, 0.2], [np.inf] * 3, [3, 2, 1])))
SPECS = (
    f"fcfs-chunked+{RESTLESS}:POLICY", f"edf+llumnix+{RESTLESS}:POLICY", f"vtc+{RESTLESS}:BOTH",
    f"fcfs-chunked+least-kv+{RESTLESS}:BOTH", "srpt-limited+rebalance:low=100,high=0",
    f"slai+{RESTLESS}:POLICY", f"mlfq-skipjoin+{RESTLESS}:POLICY", f"fcfs-prefill+{RESTLESS}:BOTH",
)  # fmt: skip


def crowd(n: int, rate_per_s: float, seed: int) -> Demand:
    draw = np.random.default_rng(seed)
    output = 1 + draw.geometric(1 / 80, n)
    return Demand(
        np.cumsum(draw.exponential(1 / rate_per_s, n)), 1 + draw.geometric(1 / 300, n), output,
        output.astype(float), draw.integers(0, 3, n), draw.integers(0, 3, n), np.full(n, -1), draw.random(n),
    )  # fmt: skip


def few(*rows: tuple[float, int, int]) -> Demand:
    """Requests of (arrival, prompt, output)."""
    arrival, prompt, output = (np.array(column) for column in zip(*rows, strict=True))
    zeros, count = np.zeros(len(rows), np.int64), len(rows)
    luck = (np.arange(count) + 0.5) / count
    return Demand(arrival.astype(float), prompt, output, output.astype(float), zeros, zeros, zeros - 1, luck)


def fleet(engines: int, wiring: Wiring, blocks: int = 300, sequences: int = 16) -> Setup:
    return Setup(engines, sequences, 512, 16, blocks, 100_000, COSTS, TIERS, wiring=wiring)


def drawn(seed: int) -> tuple[Demand, str, Setup]:
    """A random crowd on a random cluster with random faults."""
    draw = np.random.default_rng(1000 + seed)
    engines, period_s = int(draw.integers(1, 6)), float(draw.choice([0.0, 0.05, 0.3]))
    faults = tuple(
        Fault(float(draw.uniform(0, 8)), int(draw.integers(0, engines)), int(draw.integers(0, 3)))
        for _ in range(int(draw.integers(0, 4)))
    )
    moving = Moving(
        bandwidth_gbps=float(draw.choice([0.05, 1, 100])), shared=bool(draw.integers(0, 2)),
        mode=int(draw.integers(0, 2)), max_stages=int(draw.integers(1, 5)), last_blocks=int(draw.choice([0, 1, 16])),
    )  # fmt: skip
    delay_s = float(draw.choice([0.0, 0.005, 0.12])) if period_s else 0.0
    start = 0 if draw.random() < 0.7 else max(1, engines - 1)
    wiring = Wiring(period_s, delay_s, 0.001, float(draw.choice([0.0, 0.3])), 1.0, start, 1, moving, faults)
    demand = crowd(int(draw.integers(5, 60)), float(draw.choice([5, 30, 200])), seed)
    place = fleet(engines, wiring, int(draw.integers(120, 400)), int(draw.choice([2, 8, 32])))
    return demand, SPECS[seed % len(SPECS)], place


def differing(one, other, exact: bool) -> list[str]:
    """Columns of facts that differ; times within 1e-9 unless ``exact``."""
    found = []
    for name in one.facts._fields:
        a, b = getattr(one.facts, name), getattr(other.facts, name)
        equal = np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
        close = a.dtype.kind == "f" and np.allclose(a, b, rtol=1e-9, atol=1e-12, equal_nan=True)
        if not (equal or (close and not exact)):
            found.append(name)
    return found


@pytest.mark.parametrize("seed", range(24))
def test_everybody_ends_once_and_memory_adds_up(seed):
    """E1 to E6 are audited at every step; jumps agree; what was begun was committed or taken back."""
    demand, spec, place = drawn(seed)
    told = simulate(demand, load(spec), place, "interpreted", audit=True)
    assert np.isin(told.facts.outcome, (0, 1, 2, 3)).all()
    assert broken_facts(told.facts) == []
    done = told.facts.outcome == 0
    assert (told.facts.output_tokens[done] == demand.output_tokens[done]).all(), "token streams are whole"
    assert told.moves.started == told.moves.committed + told.moves.aborted
    assert differing(told, simulate(demand, load(spec), place, "interpreted-jumped", audit=True), False) == []


@pytest.mark.slow  # compiles the clusters' loop
@pytest.mark.parametrize("seed", [8, 11, 12, 13, 17, 22])
def test_compiled_is_interpreted_to_the_last_bit(seed):
    demand, spec, place = drawn(seed)
    told = simulate(demand, load(spec), place, "interpreted")
    assert differing(told, simulate(demand, load(spec), place, "stepped"), True) == []
    assert differing(told, simulate(demand, load(spec), place, "jumped"), False) == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 220))
def test_many_more_clusters(seed):
    test_everybody_ends_once_and_memory_adds_up(seed)


def test_one_engine_is_the_single_engine_run_to_the_last_bit():
    demand = crowd(80, 20.0, 3)
    alone = simulate(demand, load("edf"), fleet(1, Wiring()), "interpreted")
    for wiring in (Wiring(), Wiring(period_s=0.05, delay_s=0.005)):
        told = simulate(demand, load("edf+round-robin+rebalance"), fleet(1, wiring), "interpreted")
        assert differing(alone, told, True) == []
        assert told.totals._replace(gaps=None) == alone.totals._replace(gaps=None)


def test_a_move_costs_what_its_stages_take():
    """One request of 160 tokens decodes on engine 0, which drains at 1 s; 1 Gbit/s is 0.0010486 s a token.

    The first copy begins at the tick at 1.0 s, after the fault, and takes (tokens then) * 0.0010486 + 0.005 s.
    What was decoded meanwhile is less than 16 blocks, so the next is the last: it stands still for those tokens
    and 0.023 s.
    """
    moving = Moving(bandwidth_gbps=1.0)
    wiring = Wiring(moving=moving, faults=(Fault(1.0, 0, DRAIN),))
    demand, token_s = few((0.0, 160, 400)), 131072 * 8 / 1e9
    told = simulate(
        demand, load("fcfs-chunked+rebalance:high=0"), fleet(2, wiring), "interpreted", audit=True
    )
    assert told.moves.committed == 1
    assert told.facts.engine[0] == 1
    assert told.facts.migrations[0] == 1
    alone_s = 0.008 + 2e-4 + 2e-8 * 161  # the first decode; each later one reads a token more
    first_s = 0.008 + 1e-4 * 160 + 1e-9 * 160 * 80
    made = 0
    while first_s + made * alone_s + 2e-8 * made * (made - 1) / 2 <= 1.0:
        made += 1
    tokens = 160 + made - 1  # whose KV is there at 1.0 s
    copy_s = tokens * token_s + 0.005
    left = copy_s / (1.01 * (alone_s + 2e-8 * made))  # decoded while the copy ran, slowed by 1 %
    downtime_s = told.moves.downtime_s[0]
    assert downtime_s == pytest.approx(left * token_s + 0.023, abs=1.5 * token_s)
    assert told.moves.bytes == pytest.approx((tokens + left) * 131072, rel=0.02)
    assert told.facts.longest_gap_s[0] == pytest.approx(downtime_s + alone_s, rel=0.05)


def test_recompute_pays_a_prefill_and_no_bytes():
    wiring = Wiring(moving=Moving(mode=RECOMPUTE), faults=(Fault(1.0, 0, DRAIN),))
    told = simulate(
        few((0.0, 160, 400)),
        load("fcfs-chunked+rebalance:high=0"),
        fleet(2, wiring),
        "interpreted",
        audit=True,
    )
    assert (told.moves.committed, told.moves.bytes, told.facts.preemptions[0]) == (1, 0.0, 0)
    assert told.totals.recomputed_tokens > 160
    assert told.facts.output_tokens[0] == 400


def test_the_dead_engines_requests_go_on_elsewhere():
    """Engine 0 dies at 1 s and is missed at 1.5 s: its request computes again what it had, and loses no token."""
    wiring = Wiring(detect_s=0.5, faults=(Fault(1.0, 0, DIE),))
    told = simulate(few((0.0, 160, 400)), load("fcfs-chunked"), fleet(2, wiring), "interpreted", audit=True)
    assert told.facts.outcome[0] == 0
    assert told.facts.engine[0] == 1
    assert told.facts.first_token_s[0] < 0.1, "what was delivered stays delivered"
    assert told.facts.longest_gap_s[0] > 0.5
    assert told.moves.deaths == 1


def test_with_all_engines_dead_requests_fail_and_with_one_back_they_end():
    dead = Wiring(faults=(Fault(1.0, 0, DIE),))
    told = simulate(few((0.0, 160, 400), (2.0, 50, 5)), load("fcfs-chunked"), fleet(1, dead), "interpreted")
    assert told.facts.outcome.tolist() == [3, 3]
    back = Wiring(faults=(Fault(1.0, 0, DIE), Fault(3.0, 0, RETURN)))
    told = simulate(few((0.0, 160, 400), (2.0, 50, 5)), load("fcfs-chunked"), fleet(1, back), "interpreted")
    assert told.facts.outcome.tolist() == [0, 0]


def test_held_requests_wait_for_a_return_however_late_it_comes():
    """Ten thousand ticks and more at which nobody serves are no stall while a return is still to come."""
    wiring = Wiring(period_s=0.05, delay_s=0.005, faults=(Fault(1.0, 0, DIE), Fault(600.0, 0, RETURN)))
    told = simulate(
        few((0.0, 160, 400), (2.0, 50, 5)), load("fcfs-chunked+least-kv"), fleet(1, wiring), "interpreted"
    )
    assert told.facts.outcome.tolist() == [0, 0]
    assert told.facts.finished_s.min() > 600.0


def test_an_engine_is_billed_from_its_order_to_its_stop():
    """Two serve; one drains at 1 s and is empty at once: it costs a second, the other until the last token."""
    wiring = Wiring(faults=(Fault(1.0, 1, DRAIN),))
    told = simulate(few((0.0, 160, 400)), load("fcfs-chunked"), fleet(2, wiring), "interpreted")
    assert told.facts.engine[0] == 0
    assert told.totals.engine_s == pytest.approx(1.0 + told.facts.finished_s[0])


def test_late_reports_are_completed_by_what_was_sent():
    """With a report a minute the dispatcher knows only what it sent itself: four in turn, two on each engine."""
    wiring = Wiring(period_s=60.0, delay_s=1.0)
    demand = few(*((0.01 * k, 100, 50) for k in range(4)))
    told = simulate(demand, load("fcfs-chunked+least-requests"), fleet(2, wiring), "interpreted", audit=True)
    assert sorted(told.facts.engine.tolist()) == [0, 0, 1, 1]


def test_stale_reports_change_choices():
    demand = crowd(200, 40.0, 5)
    fresh, late = (
        simulate(demand, load("fcfs-chunked+least-kv"), fleet(4, wiring), "interpreted").facts
        for wiring in (Wiring(), Wiring(period_s=2.0, delay_s=0.5))
    )
    assert (fresh.engine != late.engine).any()


def test_engines_may_differ():
    """An engine with a third of the memory and one twice as slow: least-kv gives them less."""
    costs = np.stack([COSTS, COSTS, COSTS * 2])
    place = fleet(3, Wiring())._replace(blocks=np.array([600, 200, 600]), costs=costs)
    told = simulate(crowd(150, 30.0, 2), load("fcfs-chunked+least-kv"), place, "interpreted", audit=True)
    share = np.bincount(told.facts.engine, minlength=3)
    assert share[0] > share[1]
    assert share[0] > share[2]
    assert told.facts.outcome.max() == 0


def test_a_reservation_binds():
    """The engine that takes has room for the moving request or for the newcomer, not both: the newcomer waits."""
    wiring = Wiring(moving=Moving(bandwidth_gbps=0.5), faults=(Fault(0.5, 0, DRAIN),))
    place = fleet(2, wiring, blocks=40)
    demand = few((0.0, 400, 239), (1.0, 300, 20))
    told = simulate(demand, load("fcfs-chunked+rebalance:high=0"), place, "interpreted", audit=True)
    assert told.facts.engine.tolist() == [1, 1]
    assert told.facts.started_s[1] > 1.1
    assert told.facts.outcome.tolist() == [0, 0]
