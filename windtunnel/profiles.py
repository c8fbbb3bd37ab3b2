"""The command ``windtunnel profiles``: list, show, fit and derive step-time profiles."""

import json
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sim.profile import Memory, Profile

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MEANING = (
    "MAPE: mean absolute relative error on what was fitted, then on held-out points, percent. "
    "Roofline: how far the roofline of the same pair is off the profile, percent."
)
EXAMPLES_S = (
    ("decode, 1 sequence of 1,000 tokens", 0, 0, 1, 1000),
    ("decode, 64 sequences of 1,000 tokens", 0, 0, 64, 64_000),
    ("prefill, a prompt of 512 tokens", 512, 512 * 256, 0, 0),
    ("prefill, a prompt of 2,048 tokens", 2048, 2048 * 1024, 0, 0),
    ("both, 512 prompt tokens and 64 sequences of 1,000", 512, 512 * 256, 64, 64_000),
)


@app.callback(invoke_without_command=True, epilog="Example: windtunnel profiles list")
def profiles(ctx: typer.Context, as_json: AsJson = False) -> None:
    """Step-time profiles: what an engine's step costs, where the numbers come from, how wrong they are."""
    if ctx.invoked_subcommand is None:
        tell_all(as_json=as_json, markdown=False)


@app.command("list", epilog="Example: windtunnel profiles list --json")
def list_profiles(
    as_json: AsJson = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the table of the docs.")] = False,
) -> None:
    """List all profiles with form, error, origin and KV memory, and what the roofline knows."""
    tell_all(as_json=as_json, markdown=markdown)


@app.command(epilog="Example: windtunnel profiles show qwen2.5-0.5b/a100-80g")
def show(
    name: Annotated[
        str, typer.Argument(help="A profile, MODEL/ACCELERATOR[xCARDS] for the roofline, or a .toml file.")
    ],
    as_json: AsJson = False,
) -> None:
    """Show one profile: coefficients, origin, error, memory, and what some steps take."""
    from sim.profile import load

    tell(load(name), as_json=as_json)


@app.command(
    epilog="Example: windtunnel profiles fit steps.csv --model llama-3.1-8b --accelerator h100 --out my.toml"
)
def fit(
    rows: Annotated[
        Path,
        typer.Argument(help="CSV with prefill_tokens, attention, decodes, kv_tokens, seconds; a row a step."),
    ],
    model: Annotated[str, typer.Option(help="Model: a known name, or the path of a config.json or .toml.")],
    accelerator: Annotated[str, typer.Option(help="Accelerator: a known name, or the path of a .toml.")],
    out: Annotated[Path, typer.Option(help="Profile file to write.")],
    cards: Annotated[int, typer.Option(min=1, help="Cards of one engine (tensor parallel).")] = 1,
    form: Annotated[str, typer.Option(help="best, five-term or hinge.")] = "best",
    blocks: Annotated[int, typer.Option(min=0, help="KV blocks of 16 tokens; 0 computes them.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the split into halves.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Fit a profile on your own timed steps, half of them held out.

    attention is the sum over prompt chunks of tokens x (cached tokens + tokens / 2); kv_tokens is the context
    of all decoding sequences together.
    """
    from schedulers.errors import InputError
    from sim import fit as fitting
    from sim.profile import FORMS, save

    if form not in ("best", *FORMS):
        raise InputError(f"no form {form!r}", where="--form", fix=f"use best, {' or '.join(FORMS)}")
    name, memory = name_and_memory(model, accelerator, cards, blocks)
    found = fitting.read_rows(rows)
    profile = fitting.fit(found, name, memory, form=form, origin=f"own rows: {rows.name}", seed=seed)
    save(profile, out)
    typer.echo(f"Wrote {out}; use it as the profile of a fleet.", err=True)
    tell(profile, as_json=as_json)


@app.command(epilog="Example: windtunnel profiles roofline qwen3-14b h100 --cards 2 --out my.toml")
def roofline(
    model: Annotated[str, typer.Argument(help="A known name, or the path of a config.json or .toml.")],
    accelerator: Annotated[str, typer.Argument(help="A known name, or the path of a .toml.")],
    cards: Annotated[int, typer.Option(min=1, help="Cards of one engine (tensor parallel).")] = 1,
    out: Annotated[Path | None, typer.Option(help="Profile file to write and edit.")] = None,
    as_json: AsJson = False,
) -> None:
    """Derive a profile of any model on any accelerator from its shape and the datasheet."""
    from sim import roofline as rates
    from sim.profile import save

    profile = rates.roofline(rates.find_model(model), rates.find_accelerator(accelerator), cards)
    if out is not None:
        save(profile, out)
        typer.echo(f"Wrote {out}; use it as the profile of a fleet.", err=True)
    tell(profile, as_json=as_json)


def name_and_memory(model: str, accelerator: str, cards: int, blocks: int) -> "tuple[str, Memory]":
    """Name of a user's own profile, and its KV memory: as given, else computed from shape and datasheet."""
    from dataclasses import replace

    from sim.roofline import capacity, find_accelerator, find_model

    shape, card = find_model(model), find_accelerator(accelerator)
    suffix = f"x{cards}" if cards > 1 else ""
    memory = capacity(shape, card, cards)
    if blocks:
        memory = replace(memory, kv_blocks=blocks, kv_from="given by hand")
    return f"{shape.name}/{card.name}{suffix}@own", memory


def tell_all(*, as_json: bool, markdown: bool) -> None:
    """Print every profile that ships and what the roofline knows."""
    from sim.profile import load, names
    from sim.roofline import accelerators, models

    if markdown:
        typer.echo(table_markdown(), nl=False)
        return
    if as_json:
        known = {"models": list(models()), "accelerators": list(accelerators())}
        typer.echo(json.dumps({"profiles": [facts(load(name)) for name in names()], "roofline": known}))
        return
    screen = console()
    screen.print(table_for(screen.width))
    lines = (
        "Any other pair of these is a roofline (windtunnel profiles show MODEL/ACCELERATOR[xCARDS]):",
        f"  models: {', '.join(models())}",
        f"  accelerators: {', '.join(accelerators())}",
    )
    for line in lines:
        screen.print(line, highlight=False, markup=False)


def table_for(width: int) -> Any:
    """The table of all profiles for a terminal so wide: a narrow one gets fewer columns, never cut names."""
    from rich.box import SIMPLE
    from rich.table import Table

    shown = {0: "profile", 3: "MAPE", 4: "held out", 6: "roofline", 7: "KV tokens"}
    if width >= 100:
        shown |= {1: "form", 2: "fitted on", 5: "R2"}
    if width >= 140:
        shown |= {8: "origin"}
    table = Table(box=SIMPLE, pad_edge=False, collapse_padding=True, caption=MEANING, caption_justify="left")
    for place in sorted(shown):
        justify: Any = "right" if 3 <= place <= 7 else "left"
        table.add_column(shown[place], justify=justify, no_wrap=place != 8, ratio=1 if place == 8 else None)
    for row in table_rows():
        table.add_row(*(row[place] for place in sorted(shown)))
    return table


def console() -> Any:
    """Where tables go: as wide as the terminal, or wide enough not to wrap in a file."""
    from rich.console import Console

    screen = Console()
    return screen if screen.is_terminal else Console(width=200)


def table_rows() -> list[tuple[str, ...]]:
    """Cells of the table of all profiles that ship, a tuple a profile."""
    from sim.fit import gap_percent
    from sim.profile import load, names

    rows: list[tuple[str, ...]] = []
    for name in names():
        profile = load(name)
        error = profile.error
        rough = load(f"{name.partition('@')[0]}@roofline")
        errors = (f"{error.mape_percent:.1f}", _cell(error.held_out_percent, ".1f"), _cell(error.r2, ".3f"))
        rest = (f"{gap_percent(profile, rough):.0f}", f"{profile.kv_tokens:,}", profile.origin)
        rows.append((name, profile.form, profile.level, *errors, *rest))
    return rows


def table_markdown() -> str:
    """The table of docs/profiles.md."""
    titles = (
        "profile",
        "form",
        "fitted on",
        "MAPE %",
        "held out %",
        "R2",
        "roofline off by %",
        "KV tokens",
        "origin",
    )
    lines = [titles, ("---",) * len(titles), *table_rows()]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _cell(value: float, style: str) -> str:
    return format(value, style) if isfinite(value) else "-"


def coefficients(profile: "Profile") -> dict[str, float]:
    """Coefficients of a profile by the keys of its file, which name their units."""
    from sim.profile import FORMS

    return {
        key: float(f"{profile.coefficients[columns[0]] / unit:.6g}")
        for key, (columns, unit) in FORMS[profile.form].items()
    }


def facts(profile: "Profile") -> dict[str, Any]:
    """A profile as plain values for JSON; what is unknown is null."""
    plain = {
        key: getattr(profile, key)
        for key in ("name", "model", "accelerator", "cards", "form", "level", "origin")
    }
    for part in ("error", "memory"):
        values = vars(getattr(profile, part))
        plain[part] = {
            key: None if isinstance(value, float) and not isfinite(value) else value
            for key, value in values.items()
        }
    plain |= {
        "notes": list(profile.notes),
        "coefficients": coefficients(profile),
        "kv_tokens": profile.kv_tokens,
    }
    return plain | {"costs": list(profile.coefficients), "steps_ms": examples(profile)}


def examples(profile: "Profile") -> dict[str, float]:
    """What some steps take, in milliseconds."""
    return {text: round(profile.step_s(*work) * 1e3, 3) for text, *work in EXAMPLES_S}


def tell(profile: "Profile", *, as_json: bool) -> None:
    """Print one profile."""
    if as_json:
        typer.echo(json.dumps(facts(profile)))
        return
    screen, error, memory = console(), profile.error, profile.memory
    mape = f"MAPE {error.mape_percent:g} %" if isfinite(error.mape_percent) else "unmeasured"
    held_out = f", {error.held_out_percent:g} % held out" if isfinite(error.held_out_percent) else ""
    fit_r2 = f", R2 {error.r2:g}" if isfinite(error.r2) else ""
    count = f" {error.points:,} points;" if error.points else ""
    card = f"{profile.cards} x " if profile.cards > 1 else ""
    lines = [
        f"{profile.name}: {profile.model} on {card}{profile.accelerator}, {profile.form} form",
        f"origin   {profile.level}: {profile.origin}",
        f"error    {mape}{held_out}{fit_r2};{count} {error.note}",
        f"memory   {memory.kv_blocks:,} blocks of 16 = {profile.kv_tokens:,} KV tokens: {memory.kv_from}",
        f"         a card: {memory.used_share:g} x {memory.card_gib:g} GiB, weights {memory.weights_gib:.2f} "
        f"GiB, activations {memory.activations_gib:.2f} GiB",
        "costs    " + ", ".join(f"{key} {value:g}" for key, value in coefficients(profile).items()),
        *(f"step     {time_ms:8.2f} ms  {text}" for text, time_ms in examples(profile).items()),
        *(f"note     {note}" for note in profile.notes),
    ]
    for line in lines:
        screen.print(line, highlight=False, markup=False, soft_wrap=True)
