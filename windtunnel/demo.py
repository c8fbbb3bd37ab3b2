"""`windtunnel demo`: the whole way from traffic to a ranking, on surrogates of three sources."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

SOURCES = ("azure_surrogate", "burstgpt_surrogate", "bailian_surrogate")
REAL = "azure2023"
"""Joins the surrogates where WINDTUNNEL_TRACES names a folder with its files."""

SEED = 1


def demo(
    out: Annotated[Path, typer.Option("--out", help="Folder for windows, results and report.")],
    count: Annotated[int, typer.Option("--windows", min=1, help="Windows a source.")] = 10,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Worker processes; 0 is one a core.")] = 0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")
    ] = False,
) -> None:
    """Freeze windows of three sources, measure capacity, run 5 schedulers and 3 controls in 6 regions, rank.

    Without WINDTUNNEL_TRACES all traffic is surrogate: generated, and fitted to published statistics. With
    it, and the Azure 2023 files in that folder, real windows join. The same command goes on after Ctrl-C.

    Example: windtunnel demo --out out/demo
    """
    from analysis.findings import as_json as plain_findings
    from analysis.findings import find
    from analysis.report import write_report
    from loadgen.plan import read_plan
    from windtunnel.ranks import show
    from windtunnel.sweep import complete

    windows, results = out / "windows", out / "results"
    freeze(windows, count)
    swept, took_s = complete(read_plan("demo", windows=windows), results, jobs, as_json)
    found = find(results)
    report = write_report(results, out / "report.html", findings=found)
    if as_json:
        typer.echo(json.dumps({"report": str(report), "runs": swept.total, **plain_findings(found)}))
    else:
        show(found)
        typer.echo(f"\n{swept.total} runs, {swept.stored_now} of them now, in {took_s:.0f} s.")
        typer.echo(f"Windows: {windows}\nResults: {results}\nReport: {report}")
        typer.echo(f"Next: windtunnel rank {results}")
    if swept.failures:
        raise typer.Exit(1)


def freeze(folder: Path, count: int) -> None:
    """Freeze windows of each source into the folder; what is there already stays as it is."""
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze as freeze_windows
    from windtunnel.traffic import generated, read_all

    recipe = Recipe(count=count, seed=SEED)
    for source in SOURCES:
        typer.echo(f"Freezing {count} windows of {source}", err=True)
        freeze_windows(generated(source, count, recipe.kind, SEED), folder, recipe)
    named = os.environ.get("WINDTUNNEL_TRACES")
    if named:
        typer.echo(f"Freezing {count} windows of {REAL} from {named}", err=True)
        freeze_windows(read_all(REAL, Path(named), unpinned=False, columns={}), folder, recipe)
