"""A film of a run: it changes nothing, and what it shows is what the run's own books say."""

import numpy as np
import pytest

from schedulers.errors import InputError
from schedulers.lives import DEAD, OFF, SERVING
from schedulers.load import load
from sim import film as films
from sim.fabric import DIE, DRAIN, RETURN, Fault, Moving, Wiring
from sim.film import Film
from sim.log import BEGUN, DIED, DISPATCHED, DRAINS_OFF, HALTED, MISSED, MOVED, SERVES, TAKEN_BACK
from sim.run import simulate
from tests.sim.test_moves import crowd, differing, drawn, few, fleet


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("every_s", [0.013, 1.0])
def test_a_filmed_run_is_the_run(seed, every_s):
    demand, spec, place = drawn(seed)
    told = simulate(demand, load(spec), place, "interpreted-jumped")
    film = Film(every_s)
    seen = simulate(demand, load(spec), place, "interpreted-jumped", film=film)
    assert differing(told, seen, True) == []
    assert told.totals._replace(gaps=None) == seen.totals._replace(gaps=None)
    shown = film.timeline()
    count = {kind: int((shown.kind == kind).sum()) for kind in range(12)}
    assert count[BEGUN] == told.moves.started
    assert count[MOVED] == told.moves.committed
    assert count[TAKEN_BACK] == told.moves.aborted
    assert count[DRAINS_OFF] == told.moves.drains
    assert (np.diff(shown.at_s) > 0).all()
    assert ((shown.used + shown.kept >= 0) & (shown.used + shown.kept <= shown.blocks)).all()
    assert shown.lost == 0


def test_a_run_that_lasts_long_is_looked_at_more_seldom(monkeypatch):
    """A film of looks a millisecond apart keeps a bounded number of them, in order, and loses no event."""
    demand, spec, place = drawn(3)
    told = simulate(demand, load(spec), place, "interpreted-jumped")
    monkeypatch.setattr(films, "LOOKS_MOST", 40)
    film = Film(1e-3)
    seen = simulate(demand, load(spec), place, "interpreted-jumped", film=film)
    shown = film.timeline()
    assert differing(told, seen, True) == []
    assert 10 < len(shown.at_s) <= 41
    assert (np.diff(shown.at_s) > 0).all()
    assert int((shown.kind == DISPATCHED).sum()) >= len(demand.arrival_s)


def test_a_plain_fleet_can_be_filmed():
    demand, place = crowd(60, 30.0, 4), fleet(3, Wiring())
    told = simulate(demand, load("edf+least-kv"), place, "interpreted")
    film = Film(0.1)
    assert (
        differing(told, simulate(demand, load("edf+least-kv"), place, "interpreted", film=film), True) == []
    )
    shown = film.timeline()
    assert (shown.kind == DISPATCHED).all()
    assert np.array_equal(shown.request, np.arange(60))
    assert np.array_equal(shown.engine, told.facts.engine)
    np.testing.assert_array_equal(shown.event_s, told.facts.dispatched_s)


def test_looks_say_what_waits_where():
    """Two slots for five requests at once: three wait, by tier, until somebody ends."""
    demand = few(*((0.0, 100, 60) for _ in range(5)), (1.0, 100, 60))._replace(
        tier=np.array([0, 1, 1, 2, 2, 0])
    )
    place = fleet(1, Wiring(), sequences=2)
    film = Film(0.5)
    simulate(demand, load("strict-tiers"), place, "interpreted", film=film)
    shown = film.timeline()
    first = shown.at_s == 0.0
    assert shown.waiting[first].sum() + shown.batch[first].sum() == 5
    assert shown.waiting[shown.at_s == 1.0].sum(axis=(0, 1)).tolist()[0] == 1
    assert shown.waiting[-1].sum() == shown.batch[-1].sum() == shown.used[-1].sum() == 0


def test_lives_and_moves_in_order():
    moving = Moving(bandwidth_gbps=1.0)
    faults = (Fault(1.0, 0, DRAIN), Fault(3.0, 1, DIE), Fault(4.0, 0, RETURN))
    wiring = Wiring(detect_s=0.25, moving=moving, faults=faults)
    film = Film(0.1)
    told = simulate(
        few((0.0, 160, 400), (3.5, 50, 5)), load("fcfs-chunked+rebalance:high=0"), fleet(2, wiring),
        "interpreted", film=film,
    )  # fmt: skip
    shown = film.timeline()
    of = [(int(kind), int(engine)) for kind, engine in zip(shown.kind, shown.engine, strict=True)]
    moves = [one for one in of if one[0] in (BEGUN, HALTED, MOVED)]
    assert moves == [(BEGUN, 0), (HALTED, 0), (MOVED, 0)]
    assert shown.other[shown.kind == MOVED].tolist() == [1]
    stood_s = float(shown.event_s[shown.kind == MOVED][0] - shown.event_s[shown.kind == HALTED][0])
    assert stood_s == pytest.approx(told.moves.downtime_s[0])
    assert of.index((DIED, 1)) < of.index((MISSED, 1))
    assert shown.event_s[shown.kind == MISSED].tolist() == [3.25]
    assert shown.began.tolist() == [SERVING, SERVING]
    assert shown.life[-1].tolist() == [OFF, DEAD]
    assert (SERVES, 0) not in of, "an engine that drained off is not dead, so no return brings it back"


def test_a_crowded_log_is_emptied_in_between(monkeypatch):
    monkeypatch.setattr(films, "LOG_ROWS", 8)
    film = Film(1e6)
    simulate(crowd(60, 30.0, 4), load("edf+least-kv"), fleet(3, Wiring()), "interpreted", film=film)
    shown = film.timeline()
    assert len(shown.kind) == 60
    assert shown.lost == 0


def test_what_finds_no_room_is_counted(monkeypatch):
    """Eighty at one moment and a log of eight: the rest is told, not hidden."""
    monkeypatch.setattr(films, "LOG_ROWS", 8)
    film = Film(1e6)
    demand = few(*((0.0, 10, 2) for _ in range(80)))
    simulate(demand, load("fcfs-chunked"), fleet(2, Wiring()), "interpreted", film=film)
    shown = film.timeline()
    assert len(shown.kind) + shown.lost == 80
    assert shown.lost == 72


@pytest.mark.parametrize("every_s", [0.0, -1.0, float("inf"), float("nan")])
def test_looks_need_a_time_between_them(every_s):
    with pytest.raises(InputError, match="looks"):
        Film(every_s)


@pytest.mark.slow  # compiles the clusters' loop
@pytest.mark.parametrize("seed", [8, 12, 13])
def test_a_filmed_compiled_run_is_the_run(seed):
    demand, spec, place = drawn(seed)
    film, plain = Film(0.05), Film(0.05)
    told = simulate(demand, load(spec), place)
    assert differing(told, simulate(demand, load(spec), place, film=film), True) == []
    simulate(demand, load(spec), place, "interpreted", film=plain)
    stepped = Film(0.05)
    simulate(demand, load(spec), place, "stepped", film=stepped)
    for one, other in zip(stepped.timeline(), plain.timeline(), strict=True):
        np.testing.assert_array_equal(one, other)
