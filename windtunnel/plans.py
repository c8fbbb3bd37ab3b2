"""`windtunnel plan`: what a plan would run and what it declares, before it runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer

from windtunnel.sweep import AsJson, PlanName, Specs, WindowsDir, named_plan, routing

if TYPE_CHECKING:
    from loadgen.plan import Plan

plan_app = typer.Typer(no_args_is_help=True, help="List plans, and show what one would run and ask.")


class Counts(NamedTuple):
    """How much a plan runs: windows and sources are 0 where no folder and no set says them."""

    schedulers: int
    controls: int
    regions: int
    windows: int
    sources: int
    requests: int  # rows of all windows together

    @property
    def runs(self) -> int:
        """Runs of the schedulers that are ranked."""
        return self.schedulers * self.regions * self.windows

    @property
    def control_runs(self) -> int:
        """Runs of the controls."""
        return self.controls * self.regions * self.windows


@plan_app.callback()
def plan() -> None:
    """List plans, and show what one would run and ask."""


@plan_app.command("show", epilog="Example: windtunnel plan show canon")
def show(
    plan: PlanName, windows: WindowsDir = None, scheduler: Specs = None, as_json: AsJson = False
) -> None:
    """Print a plan as it would run, with its digest and counts; the output without --json is a plan file.

    What it declares (metrics, margins, families of hypotheses, planned pairs) is part of the digest, which each
    result carries: it can't be chosen after the results are there.
    """
    from loadgen.plan import plain, toml

    known = named_plan(plan, windows, scheduler or ())
    counts = counts_of(known)
    if as_json:
        told = plain(known) | {"digest": known.digest, "counts": plain_counts(counts)}
        typer.echo(json.dumps(told | {"hypotheses": hypotheses(known, counts)}))
        return
    notes = [f"digest {known.digest}", *size_words(counts), *family_words(known, counts), routing(known)]
    typer.echo("".join(f"# {note}\n" for note in notes if note) + toml(known), nl=False)


@plan_app.command("list", epilog="Example: windtunnel plan list")
def list_plans(as_json: AsJson = False) -> None:
    """List the plans that ship: what each runs, on which windows, and its digest."""
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from loadgen.plan import read_plan, shipped

    plans = [read_plan(name) for name in shipped()]
    rows = [(one, counts_of(one)) for one in plans]
    if as_json:
        told = [
            {
                "name": one.name,
                "digest": one.digest,
                "window_set": one.study.window_set,
                "primary": one.primary,
            }
            | {"counts": plain_counts(counts), "hypotheses": hypotheses(one, counts)}
            for one, counts in rows
        ]
        typer.echo(json.dumps({"plans": told}))
        return
    table = Table(box=SIMPLE, pad_edge=False)
    for title in ("plan", "windows", "runs", "controls", "regions", "primary", "digest"):
        table.add_column(title, justify="right" if title in ("runs", "controls", "regions") else "left")
    for one, counts in rows:
        numbers = [f"{n:,}" if counts.windows else "-" for n in (counts.runs, counts.control_runs)]
        named = one.study.window_set or "any (--windows)"
        table.add_row(one.name, named, *numbers, str(counts.regions), one.primary, one.digest[:12])
    screen = Console()
    (screen if screen.is_terminal else Console(width=120)).print(table)


def counts_of(plan: "Plan") -> Counts:
    """Return how much a plan runs, on its folder of windows if it names one that is there, else on its set."""
    from loadgen.candidate import KINDS
    from loadgen.manifest import MANIFEST, read_manifest
    from loadgen.sets import find_set

    windows = sources = requests = 0
    if plan.windows and (Path(plan.windows) / MANIFEST).is_file():
        lines = read_manifest(Path(plan.windows))
        windows, sources = len(lines), len({line.source for line in lines})
        requests = sum(line.rows for line in lines)
    elif not plan.windows and plan.study.window_set:
        of = find_set(plan.study.window_set)
        sources = len(of.sources)
        windows = sources * of.recipe.count
        requests = windows * KINDS[of.recipe.kind].rows
    return Counts(len(plan.schedulers), len(plan.controls), len(plan.regions), windows, sources, requests)


def plain_counts(counts: Counts) -> dict[str, Any]:
    """Return the counts for JSON, with the numbers of runs and of requests simulated."""
    per_window = (counts.schedulers + counts.controls) * counts.regions
    totals = {"runs": counts.runs, "control_runs": counts.control_runs}
    return counts._asdict() | totals | {"simulated_requests": per_window * counts.requests}


def hypotheses(plan: "Plan", counts: Counts) -> dict[str, int]:
    """Return how many hypotheses each declared family holds (reference/statistics.md 6.5).

    Pairs of schedulers x pairs of conditions that differ in the family's one axis, the primary metric and the
    other axes held; ``planned``: the named pairs, sources against each other, in the planned regions.
    """
    from math import comb

    from analysis.metrics import expand

    pairs = comb(counts.schedulers, 2)
    places = counts.sources * counts.regions
    across = {
        "sources": comb(counts.sources, 2) * counts.regions,
        "regions": counts.sources * comb(counts.regions, 2),
        "metrics": places * len(plan.study.panel),
        "slo": places * (len(expand(plan.slo_sets)) - 1),
    }
    told = {name: pairs * across[name] for name in plan.study.families}
    if plan.study.planned_pairs:
        regions = len(plan.study.planned_regions) or counts.regions
        told["planned"] = len(plan.study.planned_pairs) * comb(counts.sources, 2) * regions
    return told


def size_words(counts: Counts) -> list[str]:
    """Say how much will run."""
    if not counts.windows:
        return [f"{counts.schedulers} schedulers and {counts.controls} controls in {counts.regions} regions"]
    ranked = f"{counts.schedulers} schedulers x {counts.windows} windows x {counts.regions} regions"
    controls = f", and {counts.control_runs:,} of {counts.controls} controls" if counts.controls else ""
    total = plain_counts(counts)["simulated_requests"]
    return [f"{ranked} = {counts.runs:,} runs{controls}; {total:,} requests are simulated"]


def family_words(plan: "Plan", counts: Counts) -> list[str]:
    """Say which families of hypotheses are declared, and how large they are."""
    told = hypotheses(plan, counts) if counts.windows else {}
    words = {"planned": "planned pairs across sources"}
    return [f"family {words.get(name, f'across {name}')}: {size:,} hypotheses" for name, size in told.items()]
