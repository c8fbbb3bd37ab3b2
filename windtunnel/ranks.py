"""`windtunnel rank`, `report` and `results verify`: what a sweep shows, on screen, as a page, as JSON."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from analysis.findings import Findings

Results = Annotated[Path, typer.Argument(help="Folder given to `windtunnel sweep --out`.", metavar="DIR")]
Metric = Annotated[
    str,
    typer.Option("--metric", help="Rank by this, e.g. attainment:S2 or ttft_p95_s; the plan's if unsaid."),
]
Region = Annotated[
    str, typer.Option("--region", help="Show this region, or all; the one nearest 0.95 if unsaid.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")]

USUAL_REGION = 0.95
"""The region shown in detail if none is named: just below saturation, where order matters most."""

results_app = typer.Typer(no_args_is_help=True, help="Verify the result tables of a sweep.")


@results_app.callback()
def results() -> None:
    """Verify the result tables of a sweep."""


def rank(folder: Results, metric: Metric = "", region: Region = "", as_json: AsJson = False) -> None:
    """Rank the schedulers of a sweep, with intervals and the noise ceiling beside agreement.

    Without --region the table shows the region nearest rho 0.95.

    Example: windtunnel rank out/demo --metric attainment:S2 --region 0.95
    """
    from analysis.findings import as_json as plain_findings
    from analysis.findings import find

    found = find(_results_folder(folder), metric)
    regions = _regions(found, region)
    if as_json:
        typer.echo(json.dumps(_only(plain_findings(found), regions if region else None), allow_nan=False))
        return
    show(found, regions)


def show(found: "Findings", regions: tuple[str, ...] = ()) -> None:
    """Print findings as tables: first places, one ranking a source and region, the summary, controls."""
    from rich.markup import escape

    from analysis.words import SAME_FIRST, metric_words, summary

    console = _console()
    of = found.study
    shown = regions or _regions(found, "")
    console.print(f"\n[bold]Ranked by {metric_words(of.primary)}[/bold]")
    _warn_of_missing(of.incomplete, console)
    _warn_of_failures(found, console)
    console.print(_first_places(found))
    if len(shown) < len(of.regions):
        console.print(
            f"Below: rho {', '.join(shown)} of {', '.join(of.regions)}; without --region the one nearest "
            f"{USUAL_REGION:g} is shown, --region all shows every one.",
            highlight=False,
        )
    for region in shown:
        for source in of.sources:
            console.print(_ranking(found, source, region))
    console.print(SAME_FIRST, highlight=False)
    for sentence in summary(found):
        said = escape(f"({sentence.stands}): {sentence.text}")
        console.print(f"[bold]{sentence.about}[/bold] {said}", highlight=False)
    _warn_of_controls(found, console)


def report(
    folder: Results,
    out: Annotated[
        Path | None, typer.Option("--out", help="The page to write; DIR/report.html if unsaid.")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="Write figures (SVG, PDF), tables (CSV, LaTeX) and methods here too."),
    ] = None,
    fidelity: Annotated[
        Path | None,
        typer.Option("--fidelity", help="Folder of `windtunnel validate`, whose answer the page shows too."),
    ] = None,
    metric: Metric = "",
    as_json: AsJson = False,
) -> None:
    """Write one self-contained HTML page about a sweep; it opens from disk without network.

    DIR may be the folder of `windtunnel validate`: then the page is about its simulated runs, and whether they hold
    live.

    Example: windtunnel report out/demo --out demo.html --figures figures
    """
    from analysis.controls import broken
    from analysis.export import write_figures
    from analysis.findings import find
    from analysis.report import write_report
    from analysis.statistics import statistics

    results_in, live = _study_folder(folder, fidelity)
    found = find(results_in, metric)
    stats = statistics(found)
    path = write_report(results_in, out or folder / "report.html", findings=found, stats=stats, fidelity=live)
    files = write_figures(results_in, figures, found, stats, live) if figures else ()
    lost = [check.control for check in broken(found.checks)]
    if as_json:
        answer = {"report": str(path), "bytes": path.stat().st_size, "broken_controls": lost}
        answer["incomplete"] = found.study.incomplete or None
        answer["figures"] = [str(file) for file in files]
        answer["failures"] = [run._asdict() for run in found.study.failures]
        typer.echo(json.dumps(answer))
        return
    typer.echo(f"Report: {path}")
    if figures:
        typer.echo(f"Figures, tables and methods: {len(files)} files in {figures}")
    _warn_of_missing(found.study.incomplete, _console())
    _warn_of_failures(found, _console())
    _warn_of_controls(found, _console())


@results_app.command("verify", epilog="Example: windtunnel results verify out/demo")
def verify(folder: Results, as_json: AsJson = False) -> None:
    """Check that every result is whole, is what its key says, and breaks no law; exits 1 if not.

    A sweep in the middle is said to be incomplete and is no failure.
    """
    from analysis.completeness import expected_runs, incomplete_words
    from loadgen.result import done_ids, read_failures
    from loadgen.result import verify as problems_of

    folder = _results_folder(folder)
    problems = problems_of(folder)
    stored = None if problems else len(done_ids(folder))
    expected = expected_runs(folder) or None
    failed = () if problems else read_failures(folder)
    missing = incomplete_words(stored, expected or 0, len(failed)) if stored is not None else ""
    if as_json:
        answer = {"folder": str(folder), "good": not problems, "problems": problems}
        counts = {"stored": stored, "expected": expected, "incomplete": bool(missing)}
        typer.echo(json.dumps({**answer, **counts, "failures": [run._asdict() for run in failed]}))
    elif problems:
        for problem in problems:
            typer.echo(problem, err=True)
        typer.echo(f"{len(problems)} problems in {folder}.", err=True)
    else:
        typer.echo(f"{stored} runs in {folder} are whole and keep every law.")
        if failed:
            names = ", ".join(sorted({run.scheduler for run in failed}))
            typer.echo(f"{len(failed)} more runs failed and left no result ({names}): see `windtunnel rank`.")
        _warn_of_missing(missing, _console())
    if problems:
        raise typer.Exit(1)


def _results_folder(folder: Path) -> Path:
    """Return the folder itself, or its ``results`` if that is where the sweep lies (as in a demo's folder)."""
    inner = folder / "results"
    own = (folder / "plan.json").is_file() or (folder / "runs").is_dir()
    return inner if not own and (inner / "plan.json").is_file() else folder


def _study_folder(folder: Path, fidelity: Path | None) -> tuple[Path, dict[str, Any] | None]:
    """Return the folder of simulated results and the answer of a fidelity study, None without one.

    Raises InputError if a folder that was named as such holds none.
    """
    from analysis.fidelity_study import read_study
    from loadgen.result import InputError

    if fidelity is not None:
        told = read_study(fidelity)
        if told is None:
            fix = "name the --out of a `windtunnel validate` that ran to its end"
            raise InputError("no answer of a fidelity study lies here", where=str(fidelity), fix=fix)
        return _results_folder(folder), told
    own = read_study(folder)
    return (_results_folder(folder), None) if own is None else (folder / "sim", own)


def _regions(found: "Findings", wanted: str) -> tuple[str, ...]:
    """Return the regions to show; raises InputError for one that was not run."""
    from loadgen.result import InputError

    regions = found.study.regions
    if wanted == "all":
        return regions
    if not wanted:
        return (min(regions, key=lambda region: abs(float(region) - USUAL_REGION)),)
    named = [region for region in regions if region == wanted or _same_number(region, wanted)]
    if not named:
        raise InputError(
            f"no region {wanted} in these results",
            where="--region",
            fix=f"name one of {', '.join(regions)}, or all",
        )
    return tuple(named)


def _same_number(region: str, wanted: str) -> bool:
    try:
        return float(region) == float(wanted)
    except ValueError:
        return False


def _only(answer: dict[str, Any], regions: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the answer with rankings of the named regions only, and whether a control is broken."""
    from analysis.controls import BROKEN

    if regions is not None:
        answer["rankings"] = [one for one in answer["rankings"] if one["region"] in regions]
    answer["controls_broken"] = [
        one["control"] for one in answer["controls_checked"] if one["status"] == BROKEN
    ]
    return answer


def _console() -> "Console":
    """Return a console on stdout; where that isn't a terminal, wide enough not to fold tables."""
    from rich.console import Console

    console = Console()
    return console if console.is_terminal else Console(width=140)


def _first_places(found: "Findings") -> "Table":
    from rich.markup import escape
    from rich.table import Table

    from analysis.findings import top_set

    of = found.study
    table = Table(title="First place (and how many more are in the top set)", title_justify="left")
    table.add_column("source", min_width=max(map(len, of.sources)))
    for region in of.regions:
        table.add_column(f"rho {region}")
    for source in of.sources:
        cells = []
        for region in of.regions:
            ranking = found.rankings[source, region, of.primary]
            names = top_set(ranking)
            more = f" +{len(names) - 1}" if len(names) > 1 else ""
            mark = "" if ranking.testable or len(names) < 2 else " untestable"
            text = escape(f"{names[0]}{more}{mark}" if names else "-")
            cells.append(text if ranking.informative else f"[dim]{text}[/dim]")
        table.add_row(_labelled(found, source), *cells)
    return table


def _ranking(found: "Findings", source: str, region: str) -> "Table":
    from rich.markup import escape
    from rich.table import Table

    from analysis.findings import control_mean
    from analysis.numerals import ceiling, interval, number
    from analysis.words import untestable_words

    of = found.study
    key = (source, region, of.primary)
    ranking = found.rankings[key]
    testable = ranking.testable or len(ranking.rows) < 2
    noise = ceiling(found.ceilings[key])
    table = Table(
        title=f"{_labelled(found, source)}, rho {region}: {ranking.windows} windows, noise ceiling {noise}",
        title_justify="left",
        caption=None if testable else untestable_words(ranking.windows, ranking.windows_needed),
    )
    for name, side in (
        ("rank", "right"), ("95%", "right"), ("scheduler", "left"), ("mean", "right"), ("95%", "right"),
        ("to best", "right"), ("95%", "right"), ("top set", "left"),
    ):  # fmt: skip
        table.add_column(name, justify="right" if side == "right" else "left")
    for row in ranking.rows:
        table.add_row(
            str(row.rank),
            f"{row.rank_low:g}-{row.rank_high:g}",
            _twins(found, row.scheduler),
            number(row.mean),
            interval(row.low, row.high),
            number(row.difference),
            interval(row.difference_low, row.difference_high),
            ("yes" if row.in_top else "") if testable else "untestable",
        )
    for name, count in found.cells[key].left_out.items():
        table.add_row("-", "", escape(name), "", f"undefined in {count}", style="dim")
    for one in found.cells[key].failed:
        table.add_row("-", "", escape(one.scheduler), "", escape(one.words), style="red")
    for name in of.controls:
        table.add_row("-", "", escape(name), number(control_mean(found, key, name)), "control", style="dim")
    return table


def _labelled(found: "Findings", source: str) -> str:
    """Return a source with its label, unless it is real or its name says it."""
    from rich.markup import escape

    label = found.study.labels[source]
    return escape(source if label == "real" or label in source else f"{source} ({label})")


def _twins(found: "Findings", name: str) -> str:
    from rich.markup import escape

    return escape(" = ".join((name, *found.study.twins.get(name, ()))))


def _warn_of_missing(incomplete: str, console: "Console") -> None:
    """Print loudly that runs of the plan are missing, if any."""
    from rich.panel import Panel

    if incomplete:
        text = f"{incomplete}. Run the same `windtunnel sweep` again for the rest."
        console.print(Panel(text, title="INCOMPLETE SWEEP", border_style="red"))


def _warn_of_failures(found: "Findings", console: "Console") -> None:
    """Print loudly which schedulers failed in some runs, if any."""
    from rich.markup import escape
    from rich.panel import Panel

    from analysis.words import failure_lines

    if found.study.failures:
        text = escape("\n".join(failure_lines(found.study)))
        title = f"{len(found.study.failures)} RUNS FAILED"
        console.print(Panel(text, title=title, border_style="red"))


def _warn_of_controls(found: "Findings", console: "Console") -> None:
    """Print loudly which controls came out wrongly, if any."""
    from rich.markup import escape
    from rich.panel import Panel

    from analysis.controls import broken

    lost = broken(found.checks)
    if lost:
        lines = [f"{check.control} must be {check.place} on {check.column}: {check.says}" for check in lost]
        text = escape("\n".join(["Do not trust this sweep before this is explained.", *lines]))
        console.print(Panel(text, title="CONTROLS CAME OUT WRONGLY", border_style="red"))
