"""`windtunnel study`: from traffic to an answer in one command that can be stopped at any moment."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windtunnel.study_tiers import EPILOG, tiers
from windtunnel.sweep import AsJson, Jobs, On, Specs, complete, named_plan
from windtunnel.windows import From

if TYPE_CHECKING:
    from analysis.headline import Headline
    from loadgen.plan import Plan
    from loadgen.sets import WindowSet

app = typer.Typer(
    no_args_is_help=True, help="Run a whole study: windows, capacity, runs, statistics, report."
)

STATISTICS = "statistics.json"


@app.callback()
def study() -> None:
    """Run a whole study: windows, capacity, runs, statistics, report."""


@app.command(
    epilog="Example: windtunnel study portability --plan published --out out/published\n\n"
    "Real traffic: windtunnel study portability --plan canon --from azure2023=traces/azure "
    "--from mooncake=traces/mooncake --out out/real"
)
def portability(
    out: Annotated[Path, typer.Option("--out", help="Folder of windows, results, statistics and report.")],
    plan: Annotated[
        str, typer.Option("--plan", help="published, canon, quick, or a plan file.")
    ] = "published",
    from_: From = None,
    windows: Annotated[
        Path | None,
        typer.Option("--windows", help="Windows that are frozen already, in place of the plan's set."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Only the first windows of each source: a try, not the study.")
    ] = None,
    scheduler: Specs = None,
    jobs: Jobs = 0,
    on: On = "",
    as_json: AsJson = False,
) -> None:
    """Freeze or verify windows, measure capacity, run the plan, test what it declares, and write the report.

    Without --from the traffic is generated, and labelled so everywhere. With --from SOURCE=PATH (repeatable) the
    named files are the sources; a surrogate's name adds a surrogate. The same command goes on after a stop, at the
    stage where it was.
    """
    from analysis.headline import headline

    started_s = time.monotonic()
    known = named_plan(plan, windows, scheduler or ())
    if not known.windows:
        known = replace(known, windows=str(settle(known, out / "windows", from_ or [], count)))
    elif from_ or count:
        raise misuse(
            "windows that are frozen are taken as they are", "--from, --count", "leave out --windows"
        )
    swept, took_s = complete(known, out / "results", jobs, as_json, on)
    found, stats, report = analyse(out)
    told = headline(found, stats)
    spent = {"sweep_s": round(took_s, 1), "whole_s": round(time.monotonic() - started_s, 1)}
    if as_json:
        counts = {"runs": swept.total, "now": swept.stored_now, "failures": len(swept.failures)}
        paths = {"report": str(report), "results": str(out / "results"), "statistics": str(out / STATISTICS)}
        typer.echo(json.dumps({"plan": known.name, **counts, **spent, **paths, "headline": plain(told)}))
    else:
        show(told)
        typer.echo(f"\n{swept.total:,} runs, {swept.stored_now:,} of them now, in {took_s:.1f} s.")
        typer.echo(f"Report: {report}\nResults: {out / 'results'}\nStatistics: {out / STATISTICS}")
    if swept.failures:
        raise typer.Exit(1)


app.command("tiers", epilog=EPILOG)(tiers)


def settle(plan: "Plan", folder: Path, given: list[str], count: int | None) -> Path:
    """Freeze the plan's window set into the folder, or find it frozen there; return the folder.

    Raises InputError if the plan names no set, if the folder holds another one, or if a window is damaged.
    """
    from loadgen.sets import SURROGATE, find_set, of_size
    from windtunnel.sets import freeze_set, sources_of

    named = plan.study.window_set
    if not named:
        raise misuse(
            f"the plan {plan.name} names no window set",
            "window_set",
            'add window_set = "windtunnel-240" to it, or --windows DIR',
        )
    of = find_set(named if given else f"{named}{SURROGATE}")
    taken = sources_of(of, given)
    count = count or plan.study.window_count
    of = of_size(of, count) if count else of
    if frozen_here(folder, of, taken):
        typer.echo(f"Windows: {folder} holds {of.name} as frozen", err=True)
        return folder
    done = freeze_set(of, folder, taken, lambda words: typer.echo(words, err=True))
    if done.total != sum(len(frozen.lines) for frozen, _ in done.sources):
        raise misuse(
            "other windows lie in this folder too", str(folder), "use a new --out, or delete this folder"
        )
    return folder


def frozen_here(folder: Path, of: "WindowSet", taken: dict[str, Path | None]) -> bool:
    """Return whether the folder holds all of this set; raises InputError if what it holds is another one.

    Each window is checked against its digest when it is read, so that this looks at the manifest alone.
    """
    from loadgen.manifest import manifest_sha256, read_manifest
    from loadgen.sets import read_set

    told = read_set(folder)
    if not told:
        return False  # nothing yet, or stopped on the way: freezing goes on from there
    sources = {source.removesuffix("_short") for source in told.get("taken", {})}
    if (told.get("recipe_sha256"), sources) != (of.digest, {*taken}):
        held = f"{told.get('set')} of {', '.join(sorted(sources))}"
        raise misuse(f"this folder holds {held}", str(folder), "use a new --out, or the options as they were")
    if told.get("manifest_sha256") != manifest_sha256(folder):
        raise misuse(
            f"the manifest is not the one of the set ({len(read_manifest(folder))} windows are there)",
            str(folder),
            "use a new --out, or delete this folder of windows",
        )
    return True


def misuse(what: str, where: str, fix: str) -> Exception:
    """Return the error that says so."""
    from schedulers.errors import InputError

    return InputError(what, where=where, fix=fix)


def analyse(out: Path) -> tuple[Any, Any, Path]:
    """Test what the results show, write STATISTICS and the report; return findings, statistics, the page's path."""
    from analysis.findings import find
    from analysis.report import write_report
    from analysis.statistics import statistics, statistics_json
    from loadgen.manifest import write_whole

    typer.echo("Comparing conditions", err=True)
    found = find(out / "results")
    typer.echo("Testing the declared families", err=True)
    stats = statistics(found)
    write_whole(out / STATISTICS, (json.dumps(statistics_json(stats), allow_nan=False) + "\n").encode())
    typer.echo("Writing the report", err=True)
    return found, stats, write_report(out / "results", out / "report.html", findings=found, stats=stats)


def plain(told: "Headline") -> dict[str, Any]:
    """Return the headline for JSON."""
    tiles = [tile._asdict() for tile in told.tiles]
    return {"doubts": list(told.doubts), "sentences": list(told.sentences), "numbers": tiles}


def show(told: "Headline") -> None:
    """Print the headline: doubts first, then the answer, then its numbers."""
    from rich.console import Console
    from rich.markup import escape

    screen = Console()
    screen = screen if screen.is_terminal else Console(width=120)
    for doubt in told.doubts:
        screen.print(f"[bold red]{escape(doubt)}[/bold red]", highlight=False)
    for sentence in told.sentences:
        screen.print(f"[bold]{escape(sentence)}[/bold]", highlight=False)
    for tile in told.tiles:
        screen.print(f"  {tile.value:>12}  {tile.about}: {tile.says}", markup=False, highlight=False)
