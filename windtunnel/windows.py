"""The command ``windtunnel windows``: freeze slices of traffic, list them, verify them."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from schedulers.errors import InputError
from windtunnel.traffic import SURROGATE, generated, read_all

if TYPE_CHECKING:
    from loadgen.manifest import Frozen, Verdict
    from loadgen.trace import Trace
    from loadgen.window import ManifestLine
    from windtunnel.sets import FrozenSet, Reading

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

COUNT = 80
"""Windows of a source if nothing is said."""
NAMES = ("window", "trace", "label", "split", "stratum")
TITLES = (*NAMES, "from row", "rows", "span s", "req/s", "work", "kappa 1 s", "in p99", "output")
BY_WORTH = (
    *("window", "label", "split", "rows", "span s", "req/s", "work", "kappa 1 s"),
    *("stratum", "in p99", "output", "from row", "trace"),
)
"""Which columns of `windows list` stay where there is no room for all."""

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Source = Annotated[
    str,
    typer.Option(
        help="Family of the files (azure2023, azure2024, burstgpt, bailian, mooncake), own for your CSV "
        "or JSONL, or azure_surrogate, burstgpt_surrogate, bailian_surrogate, which need no files."
    ),
]
Set = Annotated[
    str,
    typer.Option(
        "--set", help="All sources of a window set: published-120 or windtunnel-240, or -surrogate."
    ),
]
From = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        help="Traffic file, or folder with the family's files. With --set: SOURCE=PATH, or the name of a "
        "surrogate; repeatable, in place of the set's own sources.",
    ),
]
Count = Annotated[
    int | None,
    typer.Option(min=1, help="Windows wanted a source, 80 if unsaid; fewer if the files hold no more."),
]
Folder = Annotated[Path, typer.Argument(help="Folder that holds manifest.jsonl and windows/.")]


@app.callback()
def windows() -> None:
    """Windows: frozen slices of traffic, chosen before any scheduler has run. The unit of replication."""


@app.command(
    epilog="Example: windtunnel windows freeze --source azure2023 --from traces/azure --out windows\n\n"
    "Without files: windtunnel windows freeze --source azure_surrogate --count 20 --out windows\n\n"
    "A set: windtunnel windows freeze --set published-120-surrogate --out windows\n\n"
    "A set from files: windtunnel windows freeze --set windtunnel-240 --from azure2023=traces/azure "
    "--from mooncake=traces/mooncake --from mine=mine.csv --out windows"
)
def freeze(
    out: Annotated[Path, typer.Option(help="Folder of windows; what it holds stays.")],
    source: Source = "",
    set_: Set = "",
    from_: From = None,
    count: Count = None,
    kind: Annotated[
        str,
        typer.Option(help="main (1,250 rows), tier (2,500), short (625), published (200) or brief (125)."),
    ] = "main",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the choice and of the windows' luck.")] = 0,
    unpinned: Annotated[
        bool,
        typer.Option("--unpinned", help="Take files other than the published ones; labelled so."),
    ] = False,
    columns: Annotated[
        str,
        typer.Option(help="Names in your own file: arrival_s=ts,prompt_tokens=in,output_tokens=out."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Choose windows of one source, or of each source of a set, cut them and add them to a folder.

    Blind to outcomes: strata of work rate and burstiness, or of time, by a seeded draw.
    """
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze as freeze_windows
    from loadgen.trace import parse_columns
    from windtunnel.sets import Reading

    if bool(source) == bool(set_):
        raise InputError(
            "name a source or a set",
            where="--source, --set",
            fix="--source azure_surrogate, or --set published-120",
        )
    named = parse_columns(columns)
    if set_:
        if (kind, seed) != ("main", 0):
            raise InputError("a set has its own kind and seed", where="--kind, --seed", fix="leave them out")
        tell_set(frozen_set(set_, out, from_ or [], count, Reading(named, unpinned)), as_json)
        return
    path = one_path(from_)
    recipe = Recipe(kind=kind, count=count or COUNT, seed=seed)
    if source.endswith(SURROGATE):
        if path is not None or named or unpinned:
            raise InputError(
                f"{source} is generated, not read",
                where="--from, --columns, --unpinned",
                fix=f"leave them out, or name {source.removesuffix(SURROGATE)} files with --source",
            )
        traces = generated(source, recipe.count, kind, seed)
    else:
        traces = read_all(source, path, unpinned=unpinned, columns=named)
    frozen = freeze_windows(traces, out, recipe)
    if as_json:
        typer.echo(json.dumps(facts(frozen, traces)))
    else:
        tell(frozen, traces)


def one_path(from_: list[str] | None) -> Path | None:
    """Return the path of a single source."""
    if from_ and len(from_) > 1:
        raise InputError(
            "one source has one path", where="--from", fix="name a folder with the source's files"
        )
    return Path(from_[0]) if from_ else None


def frozen_set(name: str, out: Path, given: list[str], count: int | None, reading: "Reading") -> "FrozenSet":
    """Freeze a window set, or the first windows of each of its sources, and say what is being frozen."""
    from loadgen.sets import find_set, of_size
    from windtunnel.sets import freeze_set, sources_of

    of = find_set(name)
    taken = sources_of(of, given)
    of = of if count is None else of_size(of, count)
    return freeze_set(of, out, taken, lambda words: typer.echo(words, err=True), reading)


def tell_set(done: "FrozenSet", as_json: bool) -> None:
    """Print what was frozen, and whether it is what ships."""
    if as_json:
        each = [facts(frozen, traces) for frozen, traces in done.sources]
        counts = {"as_shipped": done.as_shipped, "shipped": done.shipped}
        digests = {"recipe_sha256": done.of.digest, "manifest_sha256": done.manifest_sha256}
        typer.echo(json.dumps({"set": done.of.name, **digests, **counts, "sources": each}))
        return
    for frozen, traces in done.sources:
        tell(frozen, traces)
    total = sum(len(frozen.lines) for frozen, _ in done.sources)
    shipped = f"; {done.as_shipped} of the {done.shipped} that ship are equal" if done.shipped else ""
    typer.echo(f"{done.of.name}: {total} windows, recipe {done.of.digest[:12]}{shipped}")


@app.command("list", epilog="Example: windtunnel windows list windows")
def list_windows(folder: Folder, as_json: AsJson = False) -> None:
    """List the windows of a folder with where they come from and what they are like."""
    from loadgen.manifest import manifest_sha256, read_manifest

    lines, digest = read_manifest(folder), manifest_sha256(folder)
    if as_json:
        plain = [vars(line) for line in lines]
        typer.echo(json.dumps({"folder": str(folder), "manifest_sha256": digest, "windows": plain}))
        return
    screen = console()
    screen.print(table_for(lines, screen.width))
    screen.print(f"{counted_windows(len(lines))}, manifest {digest[:12]}: {spread(lines)}", markup=False)
    screen.print("work: engine seconds a second at the reference prices; output: its share of all tokens.")


def table_for(lines: "Iterable[ManifestLine]", width: int) -> Any:
    """The table of windows for a terminal so wide: a narrow one gets fewer columns, never cut names."""
    from rich.box import SIMPLE
    from rich.table import Table

    ordered = sorted(lines, key=lambda line: (line.source, line.kind, line.trace, line.first_row))
    rows = [cells(line) for line in ordered]
    sizes = {title: max([len(title), *(len(row[title]) for row in rows)]) for title in TITLES}
    shown: set[str] = set()
    for title in BY_WORTH:
        if title != "window" and sum(sizes[one] + 2 for one in {*shown, title}) > width:
            break
        shown.add(title)
    table = Table(box=SIMPLE, pad_edge=False, collapse_padding=True)
    titles = [title for title in TITLES if title in shown]
    for title in titles:
        table.add_column(title, justify="left" if title in NAMES else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[title] for title in titles))
    return table


def cells(line: "ManifestLine") -> dict[str, str]:
    """What the table says of one window, by title, in the order of the titles."""
    found = line.descriptors
    told = (
        *(line.id, line.trace, line.label, line.split, line.stratum),
        *(f"{line.first_row:,}", f"{line.rows:,}", f"{line.span_s:,.0f}"),
        number(found.get("requests_per_s"), ".2f"),
        number(found.get("work_per_s"), ".2f"),
        number(found.get("kappa_1s"), ".3f"),
        number(found.get("prompt_p99_tokens"), ",.0f"),
        number(found.get("output_share"), ".0%"),
    )
    return dict(zip(TITLES, told, strict=True))


@app.command(epilog="Example: windtunnel windows verify windows --from traces/azure")
def verify(
    folder: Folder,
    from_: Annotated[
        Path | None,
        typer.Option("--from", help="Traffic file or folder to cut the windows again from."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute every digest, and cut windows again from their files; surrogates are generated again.

    Answers equal, differs (exit code 1) or cannot tell (the source is not here).
    """
    from loadgen.manifest import CANNOT_TELL, DIFFERS, EQUAL
    from loadgen.manifest import verify as verify_windows

    verdicts = verify_windows(folder, from_)
    counted = Counter(verdict.answer for verdict in verdicts)
    if as_json:
        summary = {answer.replace(" ", "_"): counted[answer] for answer in (EQUAL, DIFFERS, CANNOT_TELL)}
        plain = [verdict._asdict() for verdict in verdicts]
        typer.echo(json.dumps({"folder": str(folder), **summary, "windows": plain}))
    else:
        tell_verdicts(verdicts, counted)
    if counted[DIFFERS]:
        raise typer.Exit(1)


def facts(frozen: "Frozen", traces: "Iterable[Trace]") -> dict[str, Any]:
    """What a freeze did, as plain values for JSON."""
    choice = frozen.choice
    return {
        "folder": str(frozen.folder),
        "manifest_sha256": frozen.manifest_sha256,
        "source": frozen.lines[0].source,
        "kind": frozen.lines[0].kind,
        "labels": sorted({line.label for line in frozen.lines}),
        "asked": choice.asked,
        "frozen": len(frozen.lines),
        "written": frozen.written,
        "kept": len(frozen.lines) - frozen.written,
        "in_folder": frozen.total,
        "candidates": choice.candidates,
        "pool": choice.pool,
        "rejected": choice.rejected,
        "too_close": choice.too_close,
        "ramp_rows": choice.ramp_rows,
        "strata": choice.strata,
        "splits": dict(Counter(line.split for line in frozen.lines)),
        "traces": [read_facts(trace) for trace in sorted(traces, key=lambda trace: trace.info.source)],
        "windows": [line.id for line in frozen.lines],
    }


def read_facts(trace: "Trace") -> dict[str, Any]:
    """How a file was read, as plain values."""
    names = (
        "source",
        "label",
        "file",
        "sha256",
        "rows_read",
        "kept",
        "dropped",
        "moved",
        "licence",
        "citation",
    )
    return {name: getattr(trace.info, name) for name in names}


def tell(frozen: "Frozen", traces: "Iterable[Trace]") -> None:
    """Print what a freeze did; whose data it is goes to stderr."""
    choice, lines, screen = frozen.choice, frozen.lines, console()
    for trace in sorted(traces, key=lambda trace: trace.info.source):
        info = trace.info
        dropped = ", ".join(f"{reason} {rows:,}" for reason, rows in info.dropped.items())
        moved = f", {info.moved:,} sorted into place" if info.moved else ""
        screen.print(
            f"{info.source} ({info.label}): {info.kept:,} of {info.rows_read:,} rows kept"
            f"{f', dropped: {dropped}' if dropped else ''}{moved}",
            markup=False,
        )
    for licence, citation in sorted({(line.licence, line.citation) for line in lines if line.citation}):
        typer.echo(f"{licence}. {citation}", err=True)
    labels = ", ".join(sorted({line.label for line in lines}))
    already = f", {len(lines) - frozen.written} there already" if frozen.written < len(lines) else ""
    screen.print(
        f"[bold]{counted_windows(len(lines), lines[0].kind)} of {lines[0].source}[/bold] "
        f"({labels}): {spread(lines)}{already}",
        highlight=False,
    )
    rejected = ", ".join(f"{reason} {number:,}" for reason, number in choice.rejected.items()) or "none"
    screen.print(
        f"chosen from {choice.pool:,} of {choice.candidates:,} candidates; rejected: {rejected}"
        f"{f'; too close to a chosen one: {choice.too_close:,}' if choice.too_close else ''}"
        f"{f'; quiet rows left out at the head: {choice.ramp_rows:,}' if choice.ramp_rows else ''}",
        markup=False,
    )
    empty = [name for name, number in choice.strata.items() if not number]
    if empty:
        screen.print(f"strata without a window: {', '.join(empty)}", markup=False)
    if len(lines) < choice.asked:
        shorter = shorter_kinds(lines[0].kind)
        names = " or ".join(filter(None, (", ".join(shorter[:-1]), *shorter[-1:])))
        hint = f" Shorter windows are more: --kind {names}." if shorter else ""
        screen.print(f"{choice.asked} were asked for; there are no more.{hint}", markup=False)
    digest = frozen.manifest_sha256[:12]
    screen.print(f"{frozen.folder}: {counted_windows(frozen.total)}, manifest {digest}", markup=False)


def shorter_kinds(kind: str) -> list[str]:
    """Return the kinds of window with fewer rows, the longest first."""
    from loadgen.candidate import KINDS

    rows = {name: known.rows for name, known in KINDS.items() if known.rows < KINDS[kind].rows}
    return sorted(rows, key=lambda name: -rows[name])


def tell_verdicts(verdicts: "Iterable[Verdict]", counted: Mapping[str, int]) -> None:
    """Print how many windows got which answer, and each that is not as it should be."""
    screen = console()
    notes = Counter((verdict.answer, verdict.note) for verdict in verdicts)
    for verdict in verdicts:
        if verdict.answer == "differs":
            screen.print(f"{verdict.id} differs: {verdict.note}", style="red", markup=False)
    for (answer, note), number_of in sorted(notes.items()):
        if answer != "differs":
            screen.print(f"{number_of} {answer}: {note}", markup=False)
    total = "  ".join(f"{answer} {number_of}" for answer, number_of in sorted(counted.items()))
    screen.print(total or "no windows", style="bold", highlight=False)


def spread(lines: "Iterable[ManifestLine]") -> str:
    """How many windows of which split, and of which source where there are several."""
    counted = Counter((line.source, line.split) for line in lines)
    several = len({source for source, _ in counted}) > 1
    return ", ".join(
        f"{number_of} {f'{source} ' if several else ''}{split}"
        for (source, split), number_of in sorted(counted.items())
    )


def counted_windows(total: int, kind: str = "") -> str:
    return " ".join([str(total), *kind.split(), "window" if total == 1 else "windows"])


def number(value: float | None, style: str) -> str:
    """A number in this style, "-" if unknown."""
    return "-" if value is None else format(value, style)


def console() -> Any:
    """Where tables go: as wide as the terminal, or wide enough not to wrap in a file."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=200)
