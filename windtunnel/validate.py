"""`windtunnel validate`: are the simulator's ranks those of the running testbed, real engines above all?"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.gpus import Gpu
from windtunnel.up import DEFAULT_FOLDER, AsJson, Folder

if TYPE_CHECKING:
    from services.live_run import Target
    from windtunnel.claims import Claims, Wanted
    from windtunnel.rounds import Rounds

POLICIES = ("fcfs-chunked", "sjf-pred", "edf", "strict-tiers:preempt=1", "vtc", "lifo")
"""Compared unless others are named: all run inside vLLM, and they differ."""

REGIONS = (0.85, 1.0, 1.2, 1.5)
"""Pressures from which conditions are picked unless some are named: below 0.85 hardly anybody waits."""

NO_VERDICT = 1


def validate(
    windows: Annotated[Path, typer.Argument(help="Folder of frozen windows.", metavar="WINDOWS")],
    out: Annotated[Path, typer.Option("--out", help="Folder of the study: sim, live, claims and the page.")],
    region: Annotated[
        list[float] | None, typer.Option(help="Pressure (rho) to pick from; several may be given.")
    ] = None,
    scheduler: Annotated[list[str] | None, typer.Option(help="ENGINE+CLUSTER; several.")] = None,
    window: Annotated[
        list[str] | None, typer.Option(help="Ids of windows to pick from, if not all of the folder.")
    ] = None,
    conditions: Annotated[
        int,
        typer.Option(min=0, help="Windows with a pressure to run live; 0: all that tell schedulers apart."),
    ] = 2,
    repeats: Annotated[int, typer.Option(min=1, help="Live runs of each cell.")] = 3,
    minutes: Annotated[
        float,
        typer.Option(min=1.0, help="Pick conditions whose runs take no longer, where there is a choice."),
    ] = 30.0,
    metric: Annotated[
        str, typer.Option(help="Rank by this; the plan's if unsaid, or one that tells schedulers apart.")
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Simulate, register, list what would run; raw engines make one run."),
    ] = False,
    redo_missed: Annotated[
        bool,
        typer.Option("--redo-missed", help="Make stored runs again whose engines missed their pressure."),
    ] = False,
    lag_p99_ms: Annotated[float, typer.Option(help="Most lag of a valid run, 99th percentile.")] = 50.0,
    gpu: Gpu = "",
    profile: Annotated[
        str,
        typer.Option(
            help="With --gpu: a profile of your own (`windtunnel profile --gpu`), not the roofline."
        ),
    ] = "",
    folder: Folder = DEFAULT_FOLDER,
    as_json: AsJson = False,
) -> None:
    """Simulate, write down what is claimed, replay that on the testbed again and again, and judge the ranks.

    Every window is simulated at every pressure; the conditions with the sharpest reversals between them are picked,
    and what is claimed of them is written to OUT/registered.json before anything runs live, and never changed. All
    schedulers take turns. The same command goes on after a stop. Exits 1 if the order does not hold, holds in part,
    or if nothing can be said: repeats differ more than schedulers do, or a random order agrees as well.

    With --gpu (untested) the preset's own testbed is started in OUT/testbed and stopped afterwards.

    Example: windtunnel validate windows --conditions 2 --repeats 3 --out out/fidelity
    """
    from contextlib import nullcontext

    from schedulers.errors import InputError
    from windtunnel.claims import Wanted
    from windtunnel.gpus import running

    if profile and not gpu:
        raise InputError(
            "the testbed has its own profile", where="--profile", fix="leave it out, or add --gpu"
        )
    specs = tuple(scheduler or [f"{name}+least-requests" for name in POLICIES])
    wanted = Wanted(metric, conditions, repeats, minutes, frozenset(window or ()))
    asked = (specs, tuple(region or REGIONS))
    with running(gpu, out / "testbed", profile) if gpu else nullcontext(folder) as place:
        rounds, target, claims = _prepared(place, windows, asked, out, wanted)
        rounds = rounds._replace(redo=redo_missed)
        _played(rounds, target, claims, (wanted, dry_run, as_json, lag_p99_ms))


def _played(
    rounds: "Rounds", target: "Target", claims: "Claims", told_how: "tuple[Wanted, bool, bool, float]"
) -> None:
    """Tell what will run, run it, judge it and tell the answer; exits 1 if the order does not hold."""
    from analysis.fidelity_study import judged, write
    from analysis.validity import HOLDS
    from windtunnel.rounds import replay_all

    wanted, dry_run, as_json, lag_p99_ms = told_how
    out = rounds.out
    if not as_json or dry_run:
        typer.echo(json.dumps(claims.told) if as_json else listing(claims, wanted), err=not dry_run)
    if dry_run:
        return
    replay_all(
        rounds, target, _rules(target, lag_p99_ms), claims.seconds, lambda words: typer.echo(words, err=True)
    )
    told = judged(out, wanted.repeats, target.driver, rounds.usual)
    write(told, out)
    if as_json:
        typer.echo(json.dumps(told, allow_nan=False))
    else:
        typer.echo((out / "fidelity.md").read_text(encoding="utf-8"))
        typer.echo(f"The page: windtunnel report {out}")
    if told["verdict"]["says"] != HOLDS:
        raise typer.Exit(NO_VERDICT)


def _prepared(
    folder: Path, windows: Path, asked: tuple[tuple[str, ...], tuple[float, ...]], out: Path, wanted: "Wanted"
) -> tuple[Any, Any, "Claims"]:
    """Simulate and register; return what is to be run, the testbed that is asked, and what is claimed."""
    from windtunnel.aims import Aims
    from windtunnel.claims import claimed, simulate
    from windtunnel.replay import about
    from windtunnel.rounds import Rounds, pilot, slowed

    target, known = Aims(folder, "", "", "", "", "", 1.0, False, "").resolve()
    plan, usual = about(known, windows, *asked, target.driver), 1.0
    out.mkdir(parents=True, exist_ok=True)
    if target.driver == "vllm":
        typer.echo("One run to see how fast the engines are just now", err=True)
        usual = pilot(plan, out, set(wanted.ids), target, _rules(target, 50.0))
        plan = slowed(plan, usual, out)
    runs = len(plan.schedulers) * len(plan.regions)
    typer.echo(f"Simulating {runs} runs a window", err=True)
    simulate(plan, out)
    claims = claimed(plan, out, wanted, target.speed)
    return Rounds(plan, claims.conditions, out, wanted.repeats, usual), target, claims


def _rules(target: Any, lag_p99_ms: float) -> Any:
    from loadgen.replay.lag import LagLimits
    from loadgen.replay.run import ReplayRules

    limits = LagLimits(0.05, lag_p99_ms / 1e3)
    return ReplayRules(limits=limits, drain_s=300.0, stop_open=0, checked=target.driver == "live")


def listing(claims: "Claims", wanted: "Wanted") -> str:
    """Tell what will run, why, and how long it takes."""
    told, count = claims.told, len(claims.conditions) * len(claims.told["schedulers"])
    lines = [
        f"Ranked by {claims.metric} ({told['metric_why']}). Picked from {told['candidates']} conditions: "
        f"{told['why']}.",
        *(
            f"  {one['window']} at rho {one['region']}: schedulers lie {one['spread']:.1f} units of "
            f"{one['unit']:.3g} apart, {one['seconds'] / 60.0:.1f} min a round"
            for one in told["conditions"]
        ),
        f"{len(told['pairs'])} claims are registered: "
        + ", ".join(
            f"{sum(pair['kind'] == kind for pair in told['pairs'])} {kind}"
            for kind in dict.fromkeys(pair["kind"] for pair in told["pairs"])
        ),
        f"{count * wanted.repeats} live runs ({len(told['schedulers'])} schedulers x {len(claims.conditions)} "
        f"conditions x {wanted.repeats} repeats), about {claims.seconds * wanted.repeats / 60.0:.0f} min",
    ]
    return "\n".join(lines)
