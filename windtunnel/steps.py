"""`windtunnel steps`: two logs of engine steps held against each other, step by step."""

import json
from math import inf
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel.up import AsJson

SHOWN = 3
"""How many differing steps of a pair of logs are printed."""


def steps(
    ours: Annotated[Path, typer.Argument(help="A log, or a folder of logs.", metavar="STEPS_A")],
    theirs: Annotated[Path, typer.Argument(help="Another one.", metavar="STEPS_B")],
    within: Annotated[
        float, typer.Option(min=0.0, help="Starts may differ by so many seconds; unsaid: they may at will.")
    ] = inf,
    as_json: AsJson = False,
) -> None:
    """Compare logs of `up --steps`: who got how many tokens in each step, who was evicted; exit 1: they differ.

    Requests have the dispatcher's numbers: both testbeds must be fresh and replay the same. Starts are counted from
    each log's first step. Of folders, logs of the same name are compared. Where a log was cut short (it was full, or
    its worker died), only steps that both hold are compared.

    Example: windtunnel steps out/steps-sim out/steps-real
    """
    told = [held(name, *pair, within) for name, pair in pairs(ours, theirs).items()]
    if as_json:
        typer.echo(json.dumps({"same": not any(one["differing"] for one in told), "logs": told}))
    else:
        typer.echo("\n".join(words(one) for one in told))
    if any(one["differing"] for one in told):
        raise typer.Exit(1)


def pairs(ours: Path, theirs: Path) -> dict[str, tuple[Path, Path]]:
    """Return which logs to compare, by name; raises InputError for folders whose logs have other names."""
    from schedulers.errors import InputError

    if not (ours.is_dir() and theirs.is_dir()):
        return {theirs.stem: (ours, theirs)}
    names = [{path.name for path in folder.glob("*.jsonl")} for folder in (ours, theirs)]
    if not names[0] or names[0] != names[1]:
        what = f"{', '.join(sorted(names[0])) or 'no log'} against {', '.join(sorted(names[1])) or 'no log'}"
        fix = "name folders with logs of the same names, or two files"
        raise InputError(what, where=f"{ours}, {theirs}", fix=fix)
    return {Path(name).stem: (ours / name, theirs / name) for name in sorted(names[0])}


def held(name: str, ours: Path, theirs: Path, within: float) -> dict[str, Any]:
    """Compare two logs; returns counts, and the first steps that differ."""
    from services.worker.steps import differences, read_log

    read = read_log(ours), read_log(theirs)
    sides = [from_zero(one.steps) for one in read]
    counts = [len(one) for one in sides]
    if any(one.cut for one in read):
        sides = [one[: min(counts)] for one in sides]
    found = differences(sides[0], sides[1], within)
    return {
        "log": name,
        "steps": counts,
        "cut": any(one.cut for one in read),
        "differing": len(found),
        "first": [
            {
                "step": one.place,
                "a": one.ours and one.ours._asdict(),
                "b": one.theirs and one.theirs._asdict(),
            }
            for one in found[:SHOWN]
        ],
    }


def from_zero(told: list[Any]) -> list[Any]:
    """Return steps with their times counted from the first one's start."""
    zero_s = told[0].start_s if told else 0.0
    return [one._replace(start_s=one.start_s - zero_s, end_s=one.end_s - zero_s) for one in told]


def words(told: dict[str, Any]) -> str:
    """A pair of logs as text."""
    a, b = told["steps"]
    short = ", one is cut short" if told["cut"] else ""
    lines = [f"{told['log']}: {a} and {b} steps{short}, {told['differing'] or 'none'} of them differ"]
    for one in told["first"]:
        lines.append(f"  step {one['step']}")
        lines += [f"    {side}: {said(one[side])}" for side in ("a", "b")]
    return "\n".join(lines)


def said(step: dict[str, Any] | None) -> str:
    """A step as text: its start, who got how many tokens, who left."""
    if step is None:
        return "no step"
    shares = " ".join(f"{key}:{count}" for key, count in step["tokens"].items())
    gone = f" evicted {' '.join(step['evicted'])}" if step["evicted"] else ""
    return f"{step['start_s']:.4f} s  {shares}{gone}"
