"""`windtunnel chaos`: break real processes under load, count what gets lost, and write the reliability page."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.up import AsJson

if TYPE_CHECKING:
    from services.chaos import Scenario, Told

PAGE_HEAD = """\
# What happens when things break

Each row is a testbed of its own, started as processes on one machine: a dispatcher with its journal and two simulated
workers. A synthetic window is sent open loop over the gRPC door while something breaks. The client counts: every
request must end once, with an answer or with a reason, and every token must come once, at its index, and be the one
that (request, index) determines. *Lost* counts requests that never ended, tokens that never came, and answers that
finished short; *repeated* counts tokens that came twice or were false.

"""


def chaos(
    scenario: Annotated[
        list[str] | None, typer.Option(help="Scenarios to play; all if unsaid. --list names them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Markdown page to write, e.g. docs/reliability.md.")
    ] = None,
    folder: Annotated[Path, typer.Option("--dir", help="Folder of the testbeds' logs.")] = Path(
        ".windtunnel-chaos"
    ),
    listed: Annotated[bool, typer.Option("--list", help="Name the scenarios and stop.")] = False,
    as_json: AsJson = False,
) -> None:
    """Play faults against real processes under load and count requests and tokens; exits 5 if anything got lost.

    Scenarios take half a minute each. Redis joins where `redis-server` is on the PATH.

    Example: windtunnel chaos --scenario worker-kill --scenario dispatcher-kill
    """
    import asyncio

    known = scenarios(folder)
    if listed:
        told = [{"name": one.name, "says": one.says} for one in known.values()]
        typer.echo(
            json.dumps(told) if as_json else "\n".join(f"{row['name']:20} {row['says']}" for row in told)
        )
        return
    rows: list[Told] = []
    for name in scenario or list(known):
        if name not in known:
            from schedulers.errors import InputError

            raise InputError(f"no scenario {name!r}", where="--scenario", fix=f"one of {', '.join(known)}")
        typer.echo(f"{name}: {known[name].says}", err=True)
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            rows.append(runner.run(played(known[name], folder / name)))
        typer.echo(f"  {line(rows[-1])}", err=True)
    if out is not None:
        from sim.calibrate import write_text

        write_text(out, page(rows))
    if as_json:
        typer.echo(json.dumps([{**one._asdict(), "good": one.good} for one in rows]))
    else:
        typer.echo(table(rows))
    if not all(one.good for one in rows):
        raise typer.Exit(5)


def scenarios(folder: Path) -> "dict[str, Scenario]":
    """All scenarios by name; Redis joins where its server is there."""
    import shutil

    from services.chaos import Redis
    from services.scenarios import SCENARIOS, redis_scenario

    known = {one.name: one for one in SCENARIOS}
    if shutil.which("redis-server"):
        from services.doors import free_port

        one = redis_scenario(Redis(folder / "redis-data", free_port()))
        known[one.name] = one
    return known


async def played(scenario: "Scenario", folder: Path) -> "Told":
    """Play one scenario; its Redis, if it has one, lives only so long."""
    from services.chaos import Redis, run
    from services.scenarios import redis_scenario
    from windtunnel.up import live_plan

    plan = live_plan("quick", 2)
    if not scenario.store:
        return await run(scenario, folder, plan)
    redis = Redis(folder / "redis-data", int(scenario.store.rpartition(":")[2]))
    redis.start()
    try:
        return await run(redis_scenario(redis), folder, plan)
    finally:
        redis.kill()


def line(told: "Told") -> str:
    """One account in words."""
    parts = [f"{told.requests} asked", f"{told.finished} finished"]
    parts += [f"{count} {reason}" for reason, count in (told.refused | told.failed).items()]
    word = "good" if told.good else f"NOT GOOD {told.fault}".rstrip()
    parts.append(
        f"lost {told.lost_requests} requests and {told.lost_tokens} tokens, repeated {told.repeated_tokens}"
    )
    notes = "".join(f"; {name}: {value}" for name, value in told.notes)
    return ", ".join(parts) + f", longest gap {told.longest_gap_s:.1f} s: {word}{notes}"


def table(rows: "list[Told]") -> str:
    """The accounts as a Markdown table."""
    titles = (
        "what breaks",
        "asked",
        "finished",
        "refused",
        "failed, with reason",
        "lost requests",
        "lost tokens",
    )
    head = [*titles, "repeated tokens", "moves", "longest gap s"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for one in rows:
        says = f"{one.says} (the fault did not come about: {one.fault})" if one.fault else one.says
        cells: list[Any] = [says, one.requests, one.finished, counts(one.refused), counts(one.failed)]
        cells += [
            one.lost_requests,
            one.lost_tokens,
            one.repeated_tokens,
            one.migrations,
            f"{one.longest_gap_s:.2f}",
        ]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def counts(reasons: dict[str, int]) -> str:
    """Counts by reason; 0 if there are none."""
    return ", ".join(f"{count} {reason}" for reason, count in reasons.items()) or "0"


def page(rows: "list[Told]") -> str:
    """The reliability page."""
    from services.chaos import Load
    from windtunnel.sweep import revision

    load = Load()
    made = (
        f"Made by `windtunnel chaos --out docs/reliability.md` at revision {revision()[:12]}, {machine()}. "
        f"Load, unless the row says otherwise: {load.requests} requests, one every {load.gap_s * 1e3:.0f} ms, about "
        f"{load.prompt_tokens} prompt and {load.output_tokens} answer tokens each, real time.\n\n"
    )
    figures = [
        f"* {one.says}: " + "; ".join(f"{name}: {value}" for name, value in one.notes) + "."
        for one in rows
        if one.notes
    ]
    beside = "## Figures beside the counts\n\n" + "\n".join(figures) + "\n\n" if figures else ""
    return PAGE_HEAD + made + table(rows) + "\n\n" + beside + PAGE_TAIL


def machine() -> str:
    """This machine in words."""
    import os
    import platform

    load = os.getloadavg()[0]
    return f"Python {platform.python_version()}, {os.cpu_count()} cores with a load of {load:.0f} from other work"


PAGE_TAIL = """\
## How it holds

* A worker keeps every answer by its indexes until the dispatcher has journalled it; a cut link resumes from the index
  that is missing. Tokens carry (request, attempt, index): duplicates are dropped, gaps are asked for again.
* A request whose engine died goes on at another one, from the token after the last that was delivered: prompt and
  tokens so far are computed again. What waits for a first token ends with `no_engine` or `queue_timeout` if none
  comes.
* A migration reserves, copies while decoding goes on, stops, copies the rest and commits; whatever dies before the
  commit, the source goes on, and the destination frees what it set aside.
* A restarted dispatcher reads its journal, takes the workers' links back and lets clients resume at an index.

## Not covered

* Packet loss and reordering below TCP. A cut is played twice: at the worker's end of its link, and by a proxy through
  which nothing passes while both ends live.
* A machine that dies, and a disk that loses what it acknowledged.
* A jump of the dispatcher's own wall clock: durations there are on the monotonic clock; only the age of requests that
  a restarted dispatcher takes over comes from the wall clock.
* Prefix caches: simulated workers have none, so the recall of prefixes changes where requests go and not how fast.
"""
