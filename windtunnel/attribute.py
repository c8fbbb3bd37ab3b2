"""`windtunnel attribute`: which axis of the traffic moves the order from one source of a sweep to another."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.ranks import AsJson, Metric, Results
from windtunnel.sweep import Jobs

if TYPE_CHECKING:
    from rich.table import Table

    from analysis.attribution import Mixtures
    from analysis.scores import Study
    from loadgen.plan import Plan, TierSpec
    from sim.swap import Sides, Swap

USUAL_RHO = 0.95


def attribute(
    folder: Results,
    sources: Annotated[
        tuple[str, str], typer.Option("--sources", help="Base and other source.", metavar="A B")
    ],
    region: Annotated[float, typer.Option("--region", help="Pressure of every mixture (rho).")] = USUAL_RHO,
    windows: Annotated[
        int, typer.Option("--windows", min=0, help="Windows of each source; 0 is as many as both have.")
    ] = 0,
    slo: Annotated[
        str,
        typer.Option(
            "--slo",
            help="What the SLO axis swaps: tightness (targets beside idle service), absolute (the plan's "
            "targets for both: nothing), or a plan whose tiers are the other source's.",
        ),
    ] = "tightness",
    frozen: Annotated[
        Path | None, typer.Option("--frozen", help="Folder of the sweep's windows, if it was moved.")
    ] = None,
    metric: Metric = "",
    jobs: Jobs = 0,
    as_json: AsJson = False,
) -> None:
    """Say which axis of the traffic moves the order from one source to another, and turns which pairs.

    Every mixture of both sources' arrivals, lengths and SLOs (and tenants, where sessions are told) is brought
    to one pressure and run by the sweep's schedulers: 8 mixtures, or 16. The distance between the orders is
    then shared out over the axes (Shapley), and so is the swing of each reversed pair. The answer is added to
    DIR/attribution.json, the runs lie in DIR/attribution/. Stopped, the same command goes on.

    Example: windtunnel attribute out/demo --sources azure_surrogate burstgpt_surrogate --region 0.95
    """
    from analysis.attribution import FILE, read_attributions, replaced
    from analysis.findings import plain
    from analysis.scores import study
    from sim.calibrate import write_text
    from windtunnel.ranks import _results_folder

    folder = _results_folder(folder)
    known = study(folder, metric)
    listed = read_attributions(folder)
    plan, other = plans_of(folder, known, region, slo, frozen)
    answer = plain(answered(folder, known, plan, (sources, windows, slo, other), jobs))
    write_text(folder / FILE, json.dumps(replaced(listed, answer), indent=1, allow_nan=False) + "\n")
    if as_json:
        typer.echo(json.dumps(answer, allow_nan=False))
    else:
        show(answer, folder / FILE)
    if answer["failures"]:
        raise typer.Exit(1)


def plans_of(
    folder: Path, known: "Study", region: float, slo: str, frozen: Path | None
) -> tuple["Plan", tuple["TierSpec", ...]]:
    """Return the sweep's plan for this one region, and the other source's tiers where ``slo`` names a plan.

    Raises InputError where the frozen windows are not those that were swept.
    """
    from dataclasses import replace

    from loadgen.manifest import manifest_sha256
    from loadgen.plan import REGION_LIMITS, read_plan
    from schedulers.errors import InputError
    from schedulers.load import load
    from sim.swap import ABSOLUTE, TIGHTNESS
    from windtunnel.sweep import named_plan

    low, high = REGION_LIMITS
    if not low <= region <= high:
        raise InputError(f"rho {region:g} is no pressure", where="--region", fix=f"use {low:g} to {high:g}")
    plan = read_plan(str(folder / "plan.toml"), windows=frozen)
    if not plan.windows:
        fix = "name the folder of its windows: --frozen DIR"
        raise InputError("the sweep's plan does not say where its windows lie", where=str(folder), fix=fix)
    swept = {str(one) for one in known.runs["manifest_sha256"].unique()}
    if manifest_sha256(Path(plan.windows)) not in swept:
        fix = "name the folder of the windows that were swept: --frozen DIR"
        raise InputError("these windows are not those of the sweep", where=plan.windows, fix=fix)
    ranked = tuple(spec for spec in plan.schedulers if load(spec).name in known.schedulers)
    other = () if slo in (TIGHTNESS, ABSOLUTE) else named_plan(slo, None).tiers
    return replace(plan, schedulers=ranked, regions=(region,)), other


def answered(
    folder: Path, known: "Study", plan: "Plan", asked: tuple[tuple[str, str], int, str, Any], jobs: int
) -> dict[str, Any]:
    """Run the mixtures and return the attribution as attribution.json holds it."""
    import time

    from analysis.attribution import as_json, attribute, refuse_few
    from analysis.metrics import summarise
    from loadgen.manifest import read_manifest
    from loadgen.region import name
    from sim.crew import Crew
    from sim.swap import lay_out, pick_sides, run_swap
    from windtunnel.progress import Meter
    from windtunnel.sweep import cores, revision

    sources, count, slo, other = asked
    sides = pick_sides(plan, read_manifest(Path(plan.windows)), sources, count)
    refuse_few(len(plan.schedulers), len(sides.windows[0]))
    started_s, burnt_s = time.monotonic(), cpu_s()
    swap = lay_out(plan, sides, folder / "attribution", slo, other)
    with Meter() as meter, Crew(cores(jobs)) as crew:
        ran = run_swap(swap, crew, meter, summarise, revision())
    of, left_out = mixtures(swap, sources, known.primary, name(plan.regions[0]), known.schedulers)
    found = attribute(of)
    labels = known.labels
    return {
        **as_json(of, found),
        "labels": {source: labels.get(source, "") for source in sources},
        "region": name(plan.regions[0]),
        "left_out": left_out,
        "slo": {
            "mode": slo if not other else f"plan:{slo}",
            "words": slo_words(slo, sources, known.primary),
            "idle_s": {source: idle._asdict() for source, idle in zip(sources, swap.idle, strict=True)},
            "same": swap.same_slo,
        },
        "unlike_the_sweep": unlike(known, sides, swap, name(plan.regions[0])),
        "runs": ran.total,
        "runs_now": ran.now,
        "failures": [failure._asdict() for failure in ran.failures],
        "took_s": round(time.monotonic() - started_s, 3),
        "cpu_s": round(cpu_s() - burnt_s, 3),
        "made_by": {"git_rev": revision(), "plan_digest": plan.digest},
    }


def cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    import os

    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def mixtures(
    swap: "Swap", sources: tuple[str, str], column: str, region: str, names: tuple[str, ...]
) -> tuple["Mixtures", list[str]]:
    """Return the scores of every mixture, over the schedulers and pairs of windows that none of them lacks."""
    import numpy as np

    from analysis.attribution import Mixtures
    from analysis.scores import scores, study

    studies = {path: study(path, column) for path in swap.plans}
    found = {
        taken: scores(studies[cell.folder], cell.source, region, column, names)
        for taken, cell in swap.cells.items()
    }
    kept = tuple(name for name in names if all(name in one.schedulers for one in found.values()))
    places = {
        taken: np.array(
            [one.windows.index(name) if name in one.windows else -1 for name in swap.cells[taken].windows]
        )
        for taken, one in found.items()
    }
    whole = np.all([place >= 0 for place in places.values()], axis=0)
    values = {}
    for taken, one in found.items():
        rows = np.array([one.schedulers.index(name) for name in kept], np.int64)
        values[taken] = one.values[rows][:, places[taken][whole]]
    margin = next(iter(found.values())).margin
    return Mixtures(sources, swap.axes, kept, column, margin, values), [
        one for one in names if one not in kept
    ]


def unlike(known: "Study", sides: "Sides", swap: "Swap", region: str) -> int | None:
    """Return how many runs of pure traffic differ from the sweep's own, None where it has none of this region.

    All axes from one source are that source: a difference means that the code has changed since the sweep.
    """
    from analysis.scores import study

    column, differ, compared = known.primary, 0, 0
    for taken in (frozenset[str](), frozenset(swap.axes)):
        cell = swap.cells[taken]
        again = study(cell.folder, column).runs.set_index(["window_id", "region", "scheduler"])
        before = known.runs.set_index(["window_id", "region", "scheduler"])
        both = again.index.intersection(before.index)
        both = both[[key[0] in cell.windows and key[1] == region for key in both]]
        same_tiers = again.loc[both, "tiers"].eq(before.loc[both, "tiers"])
        pairs = again.loc[both, column].eq(before.loc[both, column]) | again.loc[both, column].isna()
        compared += int(same_tiers.sum())
        differ += int((same_tiers & ~pairs).sum())
    return differ if compared else None


def slo_words(slo: str, sources: tuple[str, str], column: str) -> str:
    """Say what the SLO axis swaps."""
    base, other = sources
    words = {
        "tightness": "how tight the plan's targets are beside the source's median idle service (TTFT, TPOT, "
        f"E2E each): {base}'s tightness on {other}'s lengths scales the targets by the ratio of the two",
        "absolute": "nothing: both sources have the plan's targets",
    }.get(slo, f"the plan's tiers for {base}, those of {slo} for {other}")
    if column.rpartition("_")[2] in ("S1", "S2", "S3") or "_S4" in column:
        words += f"; {column} reads fixed targets, so only schedulers that read theirs are moved"
    return words


def show(answer: dict[str, Any], path: Path) -> None:
    """Print an attribution as two tables."""
    from windtunnel.ranks import _console

    console = _console()
    base, other = answer["sources"]
    whole = " ".join(told(answer["distance"]))
    console.print(
        f"From {base} to {other}, rho {answer['region']}, by {answer['metric']}: {answer['windows']} pairs of "
        f"windows, distance {whole} beyond a noise floor of {number(answer['floor'])}",
        highlight=False,
    )
    console.print(parts_table(answer))
    console.print(f"The SLO axis swaps {answer['slo']['words']}.", highlight=False)
    if answer["reversals"]:
        console.print(turned_table(answer))
    else:
        console.print(f"None of {answer['pairs']} pairs changes sides.")
    if answer["unlike_the_sweep"]:
        console.print(
            f"{answer['unlike_the_sweep']} runs of unmixed traffic differ from the sweep's: the code has changed "
            "since. Sweep again for comparable numbers.",
            style="yellow",
        )
    for failure in answer["failures"]:
        console.print("failed: " + ", ".join(failure.values()), style="red", markup=False)
    console.print(
        f"{answer['runs']} runs, {answer['runs_now']} now, {answer['took_s']:.1f} s ({answer['cpu_s']:.1f} CPU s). "
        f"Written: {path}",
        highlight=False,
    )


def parts_table(answer: dict[str, Any]) -> "Table":
    """Return the table of the axes' parts in the distance."""
    from rich.table import Table

    table = Table(title="Parts of the distance, by axis", title_justify="left")
    for column in ("axis", "part", "95%", "share", "alone", "last"):
        table.add_column(column, justify="left" if column == "axis" else "right")
    for one in answer["shares"]:
        share = "-" if one["share"] is None else f"{one['share']:.0%}"
        table.add_row(one["axis"], *told(one), share, number(one["alone"]), number(one["last"]))
    return table


def turned_table(answer: dict[str, Any]) -> "Table":
    """Return the table of the pairs that change sides, and what turns each."""
    from rich.markup import escape
    from rich.table import Table

    base, other = answer["sources"]
    table = Table(
        title=f"{len(answer['reversals'])} of {answer['pairs']} pairs change sides", title_justify="left"
    )
    for column in (f"better on {base}", f"better on {other}", "D before", "D after", "parts", "cause"):
        table.add_column(column)
    for one in answer["reversals"]:
        parts = ", ".join(f"{part['axis']} {part['value']:+.2g}" for part in one["axes"])
        table.add_row(
            escape(one["better_on_a"]),
            escape(one["better_on_b"]) + ("" if one["material"] else " (within the margin)"),
            " ".join(told(one["d_a"])),
            " ".join(told(one["d_b"])),
            parts,
            one["cause"] or "no axis clearly",
        )
    return table


def told(one: dict[str, Any]) -> tuple[str, str]:
    """Return an estimate's value and interval as text."""
    return number(one["value"]), f"({number(one['low'])} to {number(one['high'])})"


def number(value: float | None) -> str:
    """Return a number to three decimals; what is undefined says so."""
    return "undefined" if value is None else f"{value:.3f}"
