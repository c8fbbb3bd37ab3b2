"""The Chrome trace of a run: what the format asks for, and that it says what the run did."""

import json
from collections import Counter

import pytest

from schedulers.load import load
from sim.fabric import DIE, DRAIN, RETURN, Fault, Moving, Wiring
from sim.film import Film
from sim.run import simulate
from tests.sim.test_moves import RESTLESS, crowd, fleet
from windtunnel import perfetto
from windtunnel.perfetto import events, moved, write_trace

TIERS = ("gold", "silver", "rest")


def problems(made) -> list[str]:
    """What breaks the trace event format (required fields of each phase, pairs, arrows that bind to slices)."""
    found, open_, slices = [], Counter(), {}
    for one in made:
        if one["ph"] not in "MXCsfbne" or not isinstance(one["pid"], int):
            found.append(f"unknown: {one}")
        if one["ph"] != "M" and not one["ts"] >= 0.0:
            found.append(f"no time: {one}")
        if one["ph"] == "X":
            slices.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
            if not one["dur"] > 0.0:
                found.append(f"no length: {one}")
        if one["ph"] == "C" and not all(isinstance(value, int) for value in one["args"].values()):
            found.append(f"no numbers: {one}")
        if one["ph"] in "be":
            open_[one["cat"], one["id"]] += 1 if one["ph"] == "b" else -1
    found += [f"left open: {key}" for key, count in open_.items() if count]
    ends = {ph: {one["id"]: one for one in made if one["ph"] == ph} for ph in "sf"}
    if set(ends["s"]) != set(ends["f"]):
        found.append("arrows without an end")
    for one in (*ends["s"].values(), *ends["f"].values()):
        near = slices.get((one["pid"], one["tid"]), [])
        if not any(low <= one["ts"] < high for low, high in near):
            found.append(f"an arrow binds to nothing: {one}")
    named = {one["pid"] for one in made if one["ph"] == "M" and one["name"] == "process_name"}
    if named != {one["pid"] for one in made}:
        found.append("a process without a name")
    return found


@pytest.fixture(scope="module")
def ran():
    faults = (Fault(0.6, 0, DRAIN), Fault(1.0, 1, DIE), Fault(1.8, 1, RETURN))
    wiring = Wiring(0.05, 0.005, 0.001, 0.2, 1.0, 0, 1, Moving(bandwidth_gbps=1.0), faults)
    film = Film(0.05)
    told = simulate(
        crowd(80, 40.0, 3),
        load(f"fcfs-chunked+{RESTLESS}:POLICY"),
        fleet(4, wiring),
        "interpreted",
        film=film,
    )
    return told, film.timeline()


def test_the_trace_keeps_the_format_and_says_what_the_run_did(ran):
    told, shown = ran
    made = events(shown, told.facts, [f"engine {e}" for e in range(4)], TIERS)
    assert problems(made) == []
    arrows = [one for one in made if one["ph"] == "s"]
    assert len(arrows) == told.moves.committed > 0
    lives = Counter(one["name"] for one in made if one["ph"] == "X" and one["tid"] == 1)
    assert {"serving", "draining", "dead"} <= set(lives)
    assert sum(one["ph"] == "b" for one in made) == (told.facts.outcome == 0).sum()
    peak = max(one["args"]["held"] for one in made if one["ph"] == "C" and one["name"] == "KV blocks")
    assert peak == shown.used.max()


def test_a_broken_trace_is_found(ran):
    told, shown = ran
    made = events(shown, told.facts, [f"engine {e}" for e in range(4)], TIERS)
    for broken in (
        [one for one in made if one["ph"] != "f"],
        [one for one in made if one["ph"] != "e"],
        [{**one, "ts": 1e15} if one["ph"] == "f" else one for one in made],
        [one for one in made if one["ph"] != "M"],
    ):
        assert problems(broken)


def test_every_move_is_whole(ran):
    told, shown = ran
    ended = list(moved(shown))
    assert len(ended) == told.moves.started
    assert sum(one[-1] for one in ended) == told.moves.committed
    for _, source, target, began_s, stop_s, end_s, _ in ended:
        assert source != target
        assert began_s <= stop_s <= end_s
    still_s = sum(end_s - stop_s for *_, stop_s, end_s, _ in ended)
    assert still_s == pytest.approx(told.moves.downtime_s.sum(), abs=1e-9)


def test_long_runs_leave_their_requests_out(ran, monkeypatch):
    told, shown = ran
    monkeypatch.setattr(perfetto, "REQUESTS_MAX", 10)
    assert not any(one["ph"] in "bne" for one in events(shown, told.facts, list("abcd"), TIERS))


def test_the_file_is_one_json_object(ran, tmp_path):
    told, shown = ran
    path = tmp_path / "run.json"
    write_trace(path, events(shown, told.facts, list("abcd"), TIERS), {"scheduler": "x"})
    read = json.loads(path.read_text())
    assert read["otherData"]["scheduler"] == "x"
    assert problems(read["traceEvents"]) == []
