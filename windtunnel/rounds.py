"""Live runs of a fidelity study: schedulers take turns, what is stored stays, what was disturbed is done again."""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from loadgen.manifest import write_whole
from sim.calibrate import FILE

if TYPE_CHECKING:
    from analysis.validity import Condition
    from loadgen.plan import Plan
    from loadgen.replay.run import ReplayRules
    from services.live_run import Account, Live, Target

DISTURBED = "disturbed"
"""Folder beside a repeat's results for runs whose engines missed their pressure, and which were done again."""

AGAIN_SHARE = 0.25
"""Of all runs so many may be done again for a missed pressure; then the machine is what it is."""


class Rounds(NamedTuple):
    """What is to be run: the plan, its conditions, where to, how often, and the slowness that is expected."""

    plan: "Plan"
    conditions: "tuple[Condition, ...]"
    out: Path
    repeats: int
    usual: float = 1.0
    redo: bool = False  # runs that are stored and missed their pressure are made again


def places(out: Path, repeats: int) -> list[Path]:
    """Return the folder of each repeat."""
    return [out / "live" / f"repeat-{number}" for number in range(1, repeats + 1)]


def in_turns(cells: "Sequence[Live]", turn: int) -> "list[Live]":
    """Return the runs of one repeat: condition by condition, from the other end and scheduler each time."""
    conditions: dict[tuple[str, str], list[Live]] = {}
    for live in cells:
        conditions.setdefault((live.window.line.id, live.region.name), []).append(live)
    order = list(conditions.values())[:: -1 if turn % 2 else 1]
    return [one for listed in order for one in (*listed[turn % len(listed) :], *listed[: turn % len(listed)])]


def replay_all(
    rounds: Rounds, target: "Target", rules: "ReplayRules", seconds: float, say: Callable[[str], None]
) -> "list[Account]":
    """Make every run that is not stored yet; ``seconds`` is what a round of all cells takes."""
    from dataclasses import replace

    from loadgen.region import name
    from windtunnel.replay import cells, is_stored

    todo: list[Live] = []
    ids, regions = {window for window, _ in rounds.conditions}, {region for _, region in rounds.conditions}
    plan = replace(rounds.plan, regions=tuple(one for one in rounds.plan.regions if name(one) in regions))
    for turn, place in enumerate(places(rounds.out, rounds.repeats)):
        _take_capacities(rounds.out / "sim", place)
        every = cells(plan, place, ids, target, rules, "absolute")
        wanted = [one for one in every if (one.window.line.id, one.region.name) in rounds.conditions]
        todo += in_turns(wanted, turn)
    if rounds.redo:
        for live in todo:
            _forget_missed(live, rounds.usual, say)
    left = [live for live in todo if not is_stored(live)]
    if len(left) < len(todo):
        say(f"{len(todo) - len(left)} of {len(todo)} runs are stored already")
    again, each_s, accounts = int(AGAIN_SHARE * len(todo)), seconds / max(1, len(todo) // rounds.repeats), []
    began_s = time.monotonic()
    for number, live in enumerate(left):
        rest = f"{_left_s(number, len(left), time.monotonic() - began_s, each_s) / 60.0:.0f} min left"
        repeat = live.task.job.out.name.replace("-", " ")
        say(f"run {number + 1} of {len(left)}: {title(live)}, {repeat}, {rest}")
        account, again = _tried(live, rounds.usual, again, say)
        accounts.append(account)
    return accounts


def _take_capacities(simulated: Path, place: Path) -> None:
    """Let a repeat begin with the capacities that the simulator's runs were given: regions mean the same in both."""
    measured, own = simulated / FILE, place / FILE
    if measured.exists() and not own.exists():
        write_whole(own, measured.read_bytes())


def title(live: "Live") -> str:
    """Name a run."""
    return f"{live.spec} on {live.window.line.id} at rho {live.region.name}"


def _left_s(done: int, total: int, took_s: float, each_s: float) -> float:
    """Return the seconds that the rest takes: by the estimate at first, later by what was seen."""
    seen_s = took_s / done if done else each_s
    weight = min(1.0, done / 10.0)
    return (total - done) * (weight * seen_s + (1.0 - weight) * each_s)


def _made(live: "Live") -> "Account":
    """Make a run; raises InputError if an engine died in it: what is left of the fleet is another one."""
    from schedulers.errors import InputError
    from windtunnel.aims import Watch
    from windtunnel.replay import one_run

    account = one_run(live, Watch("none"))
    if account.summary["engines_gone"]:
        set_aside(live, account.run_id)
        fix = "windtunnel down, windtunnel up, then the same command again"
        raise InputError("an engine died", where=title(live), fix=fix)
    return account


def _tried(live: "Live", usual: float, again: int, say: Callable[[str], None]) -> "tuple[Account, int]":
    """Make a run, once more if it was invalid or missed its pressure; returns it and how many more may be."""
    account = _made(live)
    if account.kept_in != "runs":
        say(f"  invalid ({'; '.join(account.summary['faults'])}), once more")
        return _made(live), again
    slowness = account.summary["slowness"]
    if not missed(slowness, usual) or not again:
        return account, again
    assert slowness is not None
    say(f"  engines took {slowness / usual:.2f} times what was expected of them, once more")
    set_aside(live, account.run_id)
    return _made(live), again - 1


def missed(slowness: float | None, usual: float) -> bool:
    """Return whether a run missed its pressure: its steps took another time than the model's by more than MISS."""
    from analysis.fidelity_study import MISS

    return slowness is not None and abs(slowness / usual - 1.0) > MISS


def _forget_missed(live: "Live", usual: float, say: Callable[[str], None]) -> None:
    """Set a stored run aside if it missed its pressure, whatever it measured."""
    from services.live_run import live_key

    run_id = live_key(live).run_id
    told = live.task.job.out / "replays" / f"{run_id}.json"
    if told.exists() and missed(json.loads(told.read_text(encoding="utf-8"))["slowness"], usual):
        say(f"{title(live)}, {live.task.job.out.name.replace('-', ' ')}, missed its pressure: again")
        set_aside(live, run_id)


def set_aside(live: "Live", run_id: str) -> None:
    """Move a run's shards out of the results; its summary goes with them."""
    out = live.task.job.out
    name = f"{live.window.line.id}-{live.region.name}-{run_id}"
    for part in ("runs", "requests", "replays"):
        shard = out / part / (f"{run_id}.json" if part == "replays" else f"{name}.parquet")
        if shard.exists():
            (out / DISTURBED / part).mkdir(parents=True, exist_ok=True)
            shard.replace(out / DISTURBED / part / shard.name)


def pilot(plan: "Plan", out: Path, ids: set[str], target: "Target", rules: "ReplayRules") -> float:
    """Return how much slower raw engines are than their profile just now: one run of the neutral policy, not ranked.

    It is made once a study, and warms the engines up. 1 if the engines don't say.
    """
    from dataclasses import replace

    from sim.calibrate import NEUTRAL
    from windtunnel.aims import Watch
    from windtunnel.replay import cells, one_run

    told = out / "pilot.json"
    if not told.exists():
        alone = replace(plan, schedulers=(f"{NEUTRAL}+least-requests",), regions=(1.0,))
        listed = cells(alone, out / "pilot", ids, target, rules, "absolute")
        live = min(listed, key=lambda one: (one.window.line.span_s * one.region.factor, one.window.line.id))
        summary = one_run(live, Watch("none")).summary
        kept = {name: summary[name] for name in ("window", "scheduler", "region", "slowness", "took_s")}
        write_whole(told, f"{json.dumps(kept, indent=1, sort_keys=True)}\n".encode())
    found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    return float(found["slowness"] or 1.0)


def slowed(plan: "Plan", slowness: float, out: Path) -> "Plan":
    """Return the plan with a profile as slow as the engines were in the pilot, written to OUT/profile.toml.

    So simulated and live engines are pushed alike, which is what a region promises.
    """
    from dataclasses import replace

    from sim.profile import load, save

    known, path = load(plan.fleet.profile), out / "profile.toml"
    if not path.exists():
        coefficients = tuple(value * slowness for value in known.coefficients)
        note = (
            f"{slowness:.4f} times the coefficients of {known.name}, as slow as a pilot run found the engines"
        )
        save(replace(known, coefficients=coefficients, notes=(*known.notes, note)), path)
    return replace(plan, fleet=replace(plan.fleet, profile=str(path)))
