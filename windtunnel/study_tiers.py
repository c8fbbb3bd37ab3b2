"""`windtunnel study tiers`: how many priority tiers pay, for whom, by which mechanism, and whether that travels."""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from windtunnel.sweep import AsJson, Jobs, On, complete, named_plan
from windtunnel.windows import From

EPILOG = (
    "Example: windtunnel study tiers --plan tiers-quick --out out/tiers\n\n"
    "Real traffic: windtunnel study tiers --from azure2023=traces/azure --out out/tiers-azure\n\n"
    "Burstiness: windtunnel study tiers --plan tiers-bursts --cv 1 --cv 4 --cv 8 --out out/tiers-bursts"
)

ANSWER = "tiers.json"


def tiers(
    out: Annotated[Path, typer.Option("--out", help="Folder of windows, results, answer and report.")],
    plan: Annotated[
        str,
        typer.Option("--plan", help="tiers (a quarter of an hour), tiers-quick (a minute), or a plan file."),
    ] = "tiers",
    from_: From = None,
    windows: Annotated[
        Path | None,
        typer.Option("--windows", help="Windows that are frozen already, in place of the plan's set."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Windows a source, in place of the plan's number.")
    ] = None,
    cv: Annotated[
        list[float] | None,
        typer.Option("--cv", min=0.1, max=16.0, help="Gamma arrivals of this variation; repeatable."),
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write the answer in long form, as Markdown, here too.")
    ] = None,
    jobs: Jobs = 0,
    on: On = "",
    as_json: AsJson = False,
) -> None:
    """Say how many tiers are worth having at equal resources, with the set of all numbers that may be best.

    Runs 1 to 10 nested tiers x mixes x loads x sources under the factorial of dispatch, queue order, headroom and
    migration, all on the same requests; then tests effects, marginal tiers, the price that lower tiers pay, and
    whether the answer travels. Without --from and --windows traffic is generated. The same command goes on after a
    stop.
    """
    started_s = time.monotonic()
    known = settled(plan, out, (from_ or [], windows, count, cv or []))
    swept, took_s = complete(known, out / "results", jobs, as_json, on)
    told = answered(out, page)
    spent = {"sweep_s": round(took_s, 1), "whole_s": round(time.monotonic() - started_s, 1)}
    if as_json:
        counts = {"runs": swept.total, "now": swept.stored_now, "failures": len(swept.failures)}
        typer.echo(
            json.dumps({"plan": known.name, **counts, **spent, "report": str(out / "report.html"), **told})
        )
    else:
        for sentence in told["sentences"]:
            typer.echo(sentence)
        typer.echo(f"\n{swept.total:,} runs, {swept.stored_now:,} of them now, in {took_s:.1f} s.")
        typer.echo(f"Report: {out / 'report.html'}\nResults: {out / 'results'}\nAnswer: {out / ANSWER}")
    if swept.failures:
        raise typer.Exit(1)


def settled(named: str, out: Path, given: tuple[list[str], Path | None, int | None, list[float]]) -> Any:
    """Return the plan on its windows, frozen now if they are not there; raises InputError for misuse."""
    from windtunnel.study import misuse, settle

    from_, windows, count, cvs = given
    known = named_plan(named, windows)
    if not known.arms:
        raise misuse("the plan has no arms", named, "name a plan for tiers: tiers, tiers-quick, tiers-bursts")
    if known.windows:
        if from_ or count or cvs:
            raise misuse(
                "windows that are frozen are taken as they are",
                "--from, --count, --cv",
                "leave out --windows",
            )
        return known
    folder = settle(known, out / "windows", from_, count)
    if cvs:
        from loadgen.bursty import freeze_bursty

        folder = freeze_bursty(folder, out / "bursty", cvs)
    return replace(known, windows=str(folder))


def answered(out: Path, page: Path | None) -> dict[str, Any]:
    """Analyse the results, write answer, report and page; return the answer as JSON can hold it."""
    from analysis.tiers_answer import answer, plain
    from analysis.tiers_report import page_text, report_text
    from loadgen.manifest import write_whole
    from loadgen.plan_arms import runs_as

    typer.echo("Comparing numbers of tiers", err=True)
    found = answer(out / "results", runs_as)
    told = plain(found)
    write_whole(out / ANSWER, (json.dumps(told, allow_nan=False) + "\n").encode())
    typer.echo("Writing the report", err=True)
    write_whole(out / "report.html", report_text(found).encode())
    if page is not None:
        write_whole(page, page_text(found).encode())
    return told
