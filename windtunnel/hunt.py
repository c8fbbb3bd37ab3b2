"""`windtunnel hunt`: the mildest change of workload under which one scheduler beats another."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from loadgen.plan import Plan
    from loadgen.reshape import Change
    from loadgen.window import Window
    from sim.hunt import Contest, Fresh, Hunt

KNOBS = ("rate", "burstiness", "lengths", "slo")
BASE_RHO = 0.85


def hunt(
    holder: Annotated[str, typer.Argument(metavar="A", help="Scheduler that holds its place.")],
    challenger: Annotated[str, typer.Argument(metavar="B", help="Scheduler that is to beat A.")],
    plan: Annotated[
        str, typer.Option("--plan", help="Plan with fleet, tiers and metric: a file, or one that ships.")
    ] = "quick",
    windows: Annotated[Path | None, typer.Option("--windows", help="Folder of frozen windows.")] = None,
    origin: Annotated[
        Path | None, typer.Option("--from", help="A sweep's folder: its plan and windows are used.")
    ] = None,
    window: Annotated[
        str, typer.Option("--window", help="Id of the window to change; the first if unsaid.")
    ] = "",
    region: Annotated[float, typer.Option("--region", help="Pressure (rho) to start from.")] = BASE_RHO,
    metric: Annotated[str, typer.Option("--metric", help="Beat A by this; the plan's if unsaid.")] = "",
    knob: Annotated[
        list[str] | None,
        typer.Option("--knob", help="Change only this: rate, burstiness, lengths, slo. Repeatable."),
    ] = None,
    budget: Annotated[int, typer.Option("--budget", min=10, help="Changed workloads to try.")] = 300,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="Another seed has other luck and looks elsewhere.")
    ] = 1,
    out: Annotated[Path, typer.Option("--out", help="Folder for the counter-example.")] = Path("out/hunt"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")
    ] = False,
) -> None:
    """Look for the mildest change of a window's workload that makes B beat A by more than the margin.

    Pressure, burstiness of the gaps, lengths and targets may change; how far is the norm of the logarithms of
    their ratios. What is found must hold under fresh luck. The fewest requests that still show it are frozen in
    OUT/windows with OUT/plan.toml, so that `windtunnel sweep OUT/plan.toml --out DIR` runs the example again.
    Exits with 0 if B can beat A, with 1 if no such change was found: then it says how hard it looked.

    Example: windtunnel hunt sjf-pred fcfs-chunked --from out/demo --region 0.85 --budget 300
    """
    import time

    from windtunnel.attribute import cpu_s

    asked = (plan, windows, origin, metric)
    contest, column = contest_of(holder, challenger, asked, window, region)
    started_s, burnt_s = time.monotonic(), cpu_s()
    found = looked(contest, tuple(knob or KNOBS), budget, seed)
    answer = told(contest, column, found, {"budget": budget, "seed": seed, "out": str(out)})
    answer |= {"took_s": round(time.monotonic() - started_s, 3), "cpu_s": round(cpu_s() - burnt_s, 3)}
    write(contest.plan, (holder, challenger), found, answer, out)
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        show(answer, out)
    if not answer["found"]:
        raise typer.Exit(1)


def contest_of(
    holder: str,
    challenger: str,
    asked: tuple[str, Path | None, Path | None, str],
    window: str,
    rho: float,
) -> tuple["Contest", str]:
    """Return the contest and the metric's column; raises InputError for whatever is not there."""
    import numpy as np

    from analysis.declared import read_declared
    from analysis.metrics import expand, orient, split_column, summarise
    from analysis.ranks import one_sided
    from loadgen.plan import plain
    from schedulers.errors import InputError
    from schedulers.load import load
    from sim.hunt import RHO_RANGE, Contest

    plan, base = base_of(*asked[:3], window)
    loser, winner = load(holder), load(challenger)
    if not RHO_RANGE[0] <= rho <= RHO_RANGE[1]:
        fix = f"start between {RHO_RANGE[0]:g} and {RHO_RANGE[1]:g}"
        raise InputError(f"rho {rho:g} is no place to start from", where="--region", fix=fix)
    name, slo = split_column(asked[3] or plan.primary)
    column = f"{name}_{slo}" if slo else name
    sets = expand((slo,)) if slo else ("tier",)

    def score(facts: Any, totals: Any, scored: tuple[int, int], tiers: Any) -> float:
        targets = [(tier.ttft_s, tier.tpot_s, tier.e2e_s, tier.weight) for tier in tiers]
        value = summarise(facts, totals, scored, targets, sets)[column]
        return float(orient(np.array([np.nan if value is None else value]), column)[0])

    margin = read_declared(plain(plan)).margin(column)
    return (
        Contest(
            winner, loser, plan, base, rho, margin, score, lambda found: float(one_sided(found[None, :])[0])
        ),
        column,
    )


def base_of(named: str, windows: Path | None, origin: Path | None, wanted: str) -> tuple["Plan", "Window"]:
    """Return the plan and the window that a hunt starts from."""
    from loadgen.manifest import read_manifest
    from loadgen.plan import read_plan
    from loadgen.window import read_window
    from schedulers.errors import InputError
    from sim.sweep import NAME_WINDOWS
    from windtunnel.ranks import _results_folder
    from windtunnel.sweep import named_plan

    if origin is not None:
        plan = read_plan(str(_results_folder(origin) / "plan.toml"), windows=windows)
    else:
        plan = named_plan(named, windows)
    if not plan.windows:
        raise InputError("no windows to change", where="--windows", fix=NAME_WINDOWS)
    lines = read_manifest(Path(plan.windows))
    chosen = [line for line in lines if not wanted or line.id == wanted]
    if not chosen:
        near = ", ".join(line.id for line in lines[:3])
        fix = f"`windtunnel windows list` shows them: {near} ..."
        raise InputError(f"no window is called {wanted}", where="--window", fix=fix)
    return plan, read_window(Path(plan.windows), chosen[0])


def looked(contest: "Contest", knobs: tuple[str, ...], budget: int, seed: int) -> "Hunt":
    """Compile, and hunt with progress on stderr."""
    import sys

    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from schedulers.load import load
    from sim.calibrate import NEUTRAL
    from sim.hunt import hunt as run
    from sim.run import prepare_compiled

    for scheduler in (load(NEUTRAL), contest.loser, contest.winner):
        prepare_compiled(scheduler)
    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("Changed workloads tried", total=budget)

        def notice(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)
            if not console.is_terminal and done % max(1, of // 4) == 0:
                console.print(f"Changed workloads tried: {done} of {of}", highlight=False)

        return run(contest, knobs, budget, seed, notice)


def told(contest: "Contest", column: str, found: "Hunt", asked: dict[str, Any]) -> dict[str, Any]:
    """Return a hunt as one JSON object: the answer, how far it is, how hard was looked, the smallest example."""
    import numpy as np

    from analysis.findings import plain
    from sim.hunt import SEARCH_DRAWS, change_at
    from sim.search import farthest

    seen = found.looked
    largest = int(np.argmax(np.nan_to_num(found.means, nan=-np.inf)))
    line = contest.window.line
    answer: dict[str, Any] = {
        "found": found.found is not None,
        "a": contest.loser.name,
        "b": contest.winner.name,
        "metric": column,
        "margin": contest.margin,
        "window": line.id,
        "source": line.source,
        "label": line.label,
        "base": {"rho": contest.rho, "d": float(found.means[0])},
        "distance": "norm of the natural logarithms of the four ratios",
        "edge": found.edge and change_told(contest, found.edge),
        "change": found.found and change_told(contest, found.found),
        "fresh": found.fresh and fresh_told(found.fresh, contest.margin),
        "looked": {
            **asked,
            "evaluations": len(seen.points),
            "draws_of_luck": SEARCH_DRAWS,
            "space": {
                knob: [float(np.exp(found.space.low[n])), float(np.exp(found.space.high[n]))]
                for n, knob in enumerate(found.space.knobs)
            },
            "farthest": farthest(seen, found.space, 1),
            "largest_d": float(found.means[largest]),
            "largest_at": change_told(contest, change_at(found.space, seen.points[largest])),
            "undefined": int(np.isnan(found.means).sum()),
            "failures": found.failures,
            "subsets": found.tried,
        },
        "smallest": None,
    }
    if found.smallest is not None:
        one = found.smallest
        answer["smallest"] = {
            "window": one.window.line.id,
            "rows": len(one.window.arrival_s),
            "of": line.rows,
            "rho": one.rho,
            "d": one.difference,
            "fresh": fresh_told(one.fresh, contest.margin),
            "tiers": [
                {"name": tier.name, "ttft_s": tier.ttft_s, "tpot_s": tier.tpot_s} for tier in one.tiers
            ],
        }
    return dict(plain(answer))


def change_told(contest: "Contest", change: "Change") -> dict[str, Any]:
    """Return a change as its distance, its ratios, and the pressure that it means."""
    ratios = change.ratios
    return {"distance": change.distance, "ratios": ratios, "rho": contest.rho * ratios["rate"]}


def fresh_told(fresh: "Fresh", margin: float) -> dict[str, Any]:
    """Return what fresh luck showed."""
    found = fresh.differences
    return {
        "draws": len(found),
        "mean_d": fresh.mean,
        "least_d": float(found.min()),
        "above_margin": int((found > margin).sum()),
        "p": fresh.p,
    }


def write(plan: "Plan", names: tuple[str, str], found: "Hunt", answer: dict[str, Any], out: Path) -> None:
    """Write hunt.json, and the counter-example as a window with a plan that runs both schedulers on it."""
    from loadgen.hybrid import freeze_made
    from loadgen.plan import Study, toml
    from sim.calibrate import write_text

    if found.smallest is not None:
        one = found.smallest
        freeze_made(out / "windows", [one.window])
        again = replace(
            plan, name="hunted", schedulers=names, controls=(), regions=(one.rho,), tiers=one.tiers,
            windows="windows", keep="requests", study=Study(margins=plan.study.margins),
        )  # fmt: skip
        write_text(out / "plan.toml", toml(again))
    write_text(out / "hunt.json", json.dumps(answer, indent=1, allow_nan=False) + "\n")


def show(answer: dict[str, Any], out: Path) -> None:
    """Print a hunt: what was changed and by how much, or how hard was looked."""
    from windtunnel.ranks import _console

    console = _console()
    looked_at = answer["looked"]
    a, b, metric = answer["a"], answer["b"], answer["metric"]
    console.print(
        f"{b} against {a} by {metric} on {answer['window']} ({answer['label']}), from rho {answer['base']['rho']:g}: "
        f"D = {number(answer['base']['d'])} as it is; the margin is {answer['margin']:g}.",
        highlight=False,
    )
    if answer["found"]:
        show_found(answer, console)
        rows = answer["smallest"]
        console.print(
            f"Smallest example: {rows['rows']} of {rows['of']} requests, D = {rows['d']:+.3f} "
            f"({rows['fresh']['above_margin']} of {rows['fresh']['draws']} fresh draws of luck above the margin, "
            f"mean {rows['fresh']['mean_d']:+.3f}), frozen as {rows['window']}.",
            highlight=False,
        )
        console.print(f"Next: windtunnel sweep {out}/plan.toml --out {out}/results", highlight=False)
    else:
        why = "something was seen, but not under fresh luck" if answer["edge"] else "nothing was seen"
        console.print(f"Not found: {why}. Largest D {number(looked_at['largest_d'])} at", highlight=False)
        ratios(console, answer["looked"]["largest_at"], looked_at["space"])
    bounds = ", ".join(
        f"{knob} x{low:.2f} to x{high:.2f}" for knob, (low, high) in looked_at["space"].items()
    )
    console.print(
        f"Looked at {looked_at['evaluations']} changed workloads ({looked_at['draws_of_luck']} draws of luck each), "
        f"{bounds}; no point of that box is farther than {looked_at['farthest']:.2f} from one of them. "
        f"{answer['took_s']:.1f} s ({answer['cpu_s']:.1f} CPU s).",
        highlight=False,
    )
    for what, count in looked_at["failures"].items():
        console.print(f"{count} runs undefined: {what}", style="yellow", markup=False)


def show_found(answer: dict[str, Any], console: "Console") -> None:
    """Print the mildest change that holds."""
    change, fresh = answer["change"], answer["fresh"]
    if not change["distance"]:
        console.print(f"{answer['b']} beats {answer['a']} without any change.", highlight=False)
    else:
        console.print(
            f"{answer['b']} beats {answer['a']} at distance {change['distance']:.3f}:", highlight=False
        )
        ratios(console, change, answer["looked"]["space"])
    console.print(
        f"Under {fresh['draws']} fresh draws of luck: mean D {fresh['mean_d']:+.3f}, least {fresh['least_d']:+.3f}, "
        f"{fresh['above_margin']} above the margin, p = {fresh['p']:.2g}.",
        highlight=False,
    )
    if answer["edge"]["distance"] < change["distance"]:
        console.print(
            f"(Seen from distance {answer['edge']['distance']:.3f} on, where fresh luck does not confirm it.)",
            highlight=False,
        )


def ratios(console: "Console", change: dict[str, Any], knobs: dict[str, Any]) -> None:
    """Print the ratios of a change, a line a knob that was turned."""
    words = {
        "rate": f"pressure x{change['ratios']['rate']:.3f} (rho {change['rho']:.3f})",
        "burstiness": f"coefficient of variation of the gaps x{change['ratios']['burstiness']:.3f}",
        "lengths": f"mean tokens a request x{change['ratios']['lengths']:.3f}",
        "slo": f"targets x{change['ratios']['slo']:.3f}",
    }
    for knob in knobs:
        console.print(f"  {words[knob]}", highlight=False)


def number(value: float | None) -> str:
    """Return a difference as text; what is undefined says so."""
    return "undefined" if value is None else f"{value:+.3f}"
