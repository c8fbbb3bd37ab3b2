"""``windtunnel traces``: list what is published, fetch it with a digest check, inspect any traffic file."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from loadgen.catalogue import Entry
    from loadgen.describe import Description
    from loadgen.fetch import Fetched, Progress
    from loadgen.trace import Trace

app = typer.Typer(no_args_is_help=True, help="List, fetch and inspect traffic files.")

BARS = " ▁▂▃▄▅▆▇█"
PLOT_COLUMNS, PLOT_ROWS = 60, 6

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]


@app.command("list", epilog="Example: windtunnel traces list")
def list_traces(as_json: AsJson = False) -> None:
    """List the published traffic files that fetch knows."""
    from loadgen.catalogue import ENTRIES
    from loadgen.fetch import cache_folder

    folder = cache_folder()
    if as_json:
        told = [{**_entry_facts(entry), "here": (folder / entry.file).exists()} for entry in ENTRIES]
        typer.echo(json.dumps({"cache": str(folder), "traces": told}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in ("name", "rows", "bytes", "licence", "digest", "here"):
        table.add_column(name, justify="right" if name in ("rows", "bytes") else "left", no_wrap=True)
    for entry in ENTRIES:
        size = f"{entry.bytes:,}" if entry.bytes else f"~{entry.about_bytes:,}" if entry.about_bytes else "?"
        here = "yes" if (folder / entry.file).exists() else ""
        digest = entry.standing if entry.sha256 else "not known"
        rows = f"{entry.rows:,}" if entry.rows else "?"
        table.add_row(entry.name, rows, size, entry.origin.licence, digest, here)
    Console().print(table)
    typer.echo(f"\nFetched files lie in {folder}. Get one: windtunnel traces fetch azure2023-code", err=True)


@app.command(epilog="Example: windtunnel traces fetch azure2023-code")
def fetch(
    name: Annotated[str, typer.Argument(help="A name from `windtunnel traces list`.")],
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Copy from this file or folder: for machines without internet."),
    ] = None,
    unpinned: Annotated[
        bool,
        typer.Option("--unpinned", help="Take a file whose digest is not the published one, so labelled."),
    ] = False,
    base_url: Annotated[str, typer.Option(help="A mirror that holds the official file names.")] = "",
    as_json: AsJson = False,
) -> None:
    """Download a published traffic file into the cache, resumed and checked by size and digest."""
    from loadgen.catalogue import entry
    from loadgen.fetch import Fetch, adopt, cache_folder
    from loadgen.fetch import fetch as download

    wanted = entry(name)
    how = Fetch(folder=cache_folder(), unpinned=unpinned, base_url=base_url)
    if source is not None:
        fetched = adopt(wanted, source, how)
    else:
        with _progress(wanted) as progress:
            fetched = download(wanted, how, progress)
    if as_json:
        typer.echo(json.dumps(_fetched_facts(fetched)))
        return
    typer.echo(str(fetched.path))
    if fetched.fresh:
        typer.echo(f"{fetched.bytes:,} bytes, sha256 {fetched.sha256}, {fetched.label}", err=True)
        typer.echo(f"Licence: {wanted.origin.licence}. Cite: {wanted.origin.citation}.", err=True)
        typer.echo(f"Changed by Windtunnel when used: {wanted.origin.changes}.", err=True)
    else:
        typer.echo(f"It was here already, {fetched.label}.", err=True)


@app.command(
    epilog="Example: windtunnel traces inspect my.csv "
    "--columns arrival_s=ts,prompt_tokens=in,output_tokens=out,session=chat"
)
def inspect(
    file: Annotated[Path, typer.Argument(help="A traffic file: published, or your own CSV or JSONL.")],
    source: Annotated[str, typer.Option(help="auto, a family (azure2023), one file of it, or own.")] = "auto",
    columns: Annotated[str, typer.Option(help="Your column names, as ours=yours, by commas.")] = "",
    as_json: AsJson = False,
) -> None:
    """Show the rate, burstiness, lengths and dropped rows of a traffic file, with a plot of its rate."""
    from loadgen.describe import describe
    from loadgen.trace import parse_columns, read

    # Looking at a file whose digest is not published harms nobody: its label is shown.
    trace = read(file, source=source, unpinned=True, columns=parse_columns(columns) or None)
    described = describe(trace)
    if as_json:
        from dataclasses import asdict

        typer.echo(json.dumps({"trace": asdict(trace.info), "statistics": described.as_dict()}))
        return
    _show(trace, described)


def bars(values: Any, rows: int = PLOT_ROWS) -> list[str]:
    """Draw values (m,) as ``rows`` lines of eighth blocks, top line first; what is above 0 shows."""
    top = max(max(values, default=0.0), 1e-300)
    heights = [max(round(value / top * rows * 8), 1) if value > 0 else 0 for value in values]
    return [
        "".join(BARS[min(max(height - level * 8, 0), 8)] for height in heights)
        for level in reversed(range(rows))
    ]


def _entry_facts(entry: "Entry") -> dict[str, Any]:
    return {
        "name": entry.name,
        "url": entry.url,
        "bytes": entry.bytes or None,
        "rows": entry.rows or None,
        "sha256": entry.sha256 or None,
        "standing": entry.standing,
        "licence": entry.origin.licence,
        "citation": entry.origin.citation,
    }


def _fetched_facts(fetched: "Fetched") -> dict[str, Any]:
    return {
        "name": fetched.entry.name,
        "path": str(fetched.path),
        "label": fetched.label,
        "bytes": fetched.bytes,
        "sha256": fetched.sha256,
        "fresh": fetched.fresh,
        "licence": fetched.entry.origin.licence,
        "citation": fetched.entry.origin.citation,
        "changes": fetched.entry.origin.changes,
    }


@contextmanager
def _progress(entry: "Entry") -> Iterator["Progress"]:
    """Show a bar on stderr with rate and time left; silent where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    named = (
        "{task.description}",
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*named, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(entry.name, total=entry.bytes or entry.about_bytes or None)
        yield lambda so_far, total: bar.update(task, completed=so_far, total=total or None)


def _show(trace: "Trace", described: "Description") -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console, info = Console(), trace.info
    console.print(Text(f"{info.file}: {info.source}, label {info.label}", style="bold"))
    if info.label == "unpinned":
        console.print(
            "Its digest is not a published one: results from it are labelled unpinned.", style="yellow"
        )
    dropped = ", ".join(f"{count:,} {reason}" for reason, count in info.dropped.items()) or "none"
    console.print(
        f"{info.rows_read:,} rows read, {info.kept:,} kept, dropped: {dropped}. Moved: {info.moved:,}."
    )
    console.print(_sentence(described, info.t0), highlight=False)
    _plot(console, trace)
    table = Table(box=None, pad_edge=False)
    for name in ("tokens", "mean", "p10", "p50", "p90", "p99", "max"):
        table.add_column(name, justify="left" if name == "tokens" else "right")
    for name, side in (("prompt", described.prompt), ("output", described.output)):
        numbers = (side.mean, side.p10, side.p50, side.p90, side.p99, side.max)
        table.add_row(name, *(f"{number:,.0f}" for number in numbers))
    console.print(table)
    table = Table(box=None, pad_edge=False)
    for name in ("bin s", "complete bins", "IoD", "kappa", "lag 1", "peak/mean", "empty"):
        table.add_column(name, justify="right")
    for one in described.bins:
        told = (one.iod, one.kappa, one.lag_1, one.peak_to_mean, one.empty_share)
        table.add_row(f"{one.width_s:g}", f"{one.bins:,}", *(_short(number) for number in told))
    console.print(table)
    if described.reuse is not None:
        reuse = described.reuse
        console.print(
            f"Prefix reuse without a limit: {reuse.token_share:.1%} of tokens, {reuse.block_share:.1%} of "
            f"{reuse.blocks:,} blocks of {reuse.block_tokens}."
        )
    if info.licence:
        console.print(f"Licence {info.licence}. Cite: {info.citation}.", highlight=False)


def _sentence(described: "Description", t0: str) -> str:
    rate = "" if described.rate_per_s is None else f", {described.rate_per_s:.3g} requests/s"
    sessions = f" {described.sessions:,} sessions." if described.sessions else ""
    return (
        f"From {t0}, {described.span_s:,.0f} s{rate}. Gap CV {_short(described.gap_cv)}, Gamma shape "
        f"{_short(described.gamma_shape)}. {described.prompt_to_output:.3g} prompt tokens an output "
        f"token.{sessions}"
    )


def _plot(console: Any, trace: "Trace") -> None:
    from loadgen.describe import rate_series

    rates, width_s = rate_series(trace.arrival_ns, PLOT_COLUMNS)
    console.print(
        f"requests/s, peak {rates.max():.3g}, a column is {width_s:.3g} s", style="dim", highlight=False
    )
    for line in bars(rates.tolist()):
        console.print(line, style="cyan", highlight=False)


def _short(number: float | None) -> str:
    return "-" if number is None else f"{number:.3g}"
