"""The command ``windtunnel cluster``: one window on one fleet, watched while it is simulated."""

import json
from pathlib import Path
from typing import Annotated

import typer

from windtunnel.scene import ROWS, Place, Traffic, scene_of

app = typer.Typer(no_args_is_help=True, help="Simulate one window on one fleet, and watch it.")

SCHEDULER = "strict-tiers+llumnix+rebalance"
ALIKE = "llama-3.1-8b/a100-80g"

Wiring = Annotated[
    str,
    typer.Option(
        help="As in a plan: period_s, delay_s, link_s, detect_s, boot_s, start, least, bandwidth_gbps,"
        " shared, recompute; e.g. period_s=0.5,start=2"
    ),
]
Show = Annotated[
    float, typer.Option(min=0.0, help="Seconds that the live table lasts on a terminal; 0: no table.")
]


@app.callback()
def cluster() -> None:
    """Simulate one window on one fleet, and watch it."""


@app.command(
    epilog="Example: windtunnel cluster run --engines 4 --rho 0.95 --timeline run.html --trace run.json\n\n"
    "A file, a mixed fleet, a death: windtunnel cluster run traffic.csv --rate true "
    "--fleet 2xllama-3.1-8b/a100-80g,2xllama-3.1-8b/h100 --faults 12.5:die:2,40:return:2\n\n"
    "Tiers of one's own: windtunnel cluster run --tiers "
    "'gold:ttft=0.5,tpot=0.05,share=0.2;rest:ttft=2,tpot=0.1,share=0.8'"
)
def run(
    file: Annotated[Path | None, typer.Argument(help="Traffic file; its family is recognised.")] = None,
    source: Annotated[
        str,
        typer.Option(
            help="A surrogate in place of a file: azure2023 (if nothing is named), burstgpt, bailian."
        ),
    ] = "",
    windows: Annotated[Path | None, typer.Option(help="Folder of frozen windows in place of a file.")] = None,
    window: Annotated[str, typer.Option(help="Id of the window in that folder, or its beginning.")] = "",
    first_row: Annotated[int, typer.Option(min=0, help="First request of the file or surrogate.")] = 0,
    rows: Annotated[int, typer.Option(min=2, max=200_000, help="Requests to cut.")] = ROWS,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the surrogate and of the window's luck.")] = 0,
    columns: Annotated[
        str, typer.Option(help="Names in your own file: arrival_s=ts,prompt_tokens=in,...")
    ] = "",
    unpinned: Annotated[
        bool, typer.Option("--unpinned", help="Take a file that isn't the published one.")
    ] = False,
    scheduler: Annotated[str, typer.Option(help="Engine policy, then cluster policies, by +.")] = SCHEDULER,
    rho: Annotated[
        float, typer.Option(help="Pressure: offered work over the fleet's measured capacity.")
    ] = 0.85,
    rate: Annotated[
        str, typer.Option(help="Requests a second in place of --rho, or true: as recorded.")
    ] = "",
    engines: Annotated[int, typer.Option(min=1, max=1024, help="Engines of one profile.")] = 4,
    profile: Annotated[str, typer.Option(help="Their profile.")] = ALIKE,
    fleet: Annotated[str, typer.Option(help="Engines of several profiles: COUNTxPROFILE by commas.")] = "",
    tiers: Annotated[str, typer.Option(help="Tiers as NAME:ttft=S,tpot=S,share=P;... or a TOML file.")] = "",
    mix: Annotated[str, typer.Option(help="In place of tiers: ten importance classes by this mix.")] = "",
    levels: Annotated[int, typer.Option(min=1, max=10, help="Tiers in which the mix is shown.")] = 4,
    faults: Annotated[str, typer.Option(help="SECONDS:die|return|drain:ENGINE by commas.")] = "",
    limits: Annotated[
        str, typer.Option(help="Of each engine, as in a plan: blocks=3500,sequences_max=64")
    ] = "",
    wiring: Wiring = "",
    show: Show = 5.0,
    out: Annotated[Path | None, typer.Option(help="Folder for the usual result tables.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome trace, for ui.perfetto.dev.")] = None,
    timeline: Annotated[Path | None, typer.Option(help="Write a picture of the run, one HTML page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Simulate one window on one fleet: per tier attainment, latencies, preemptions, moves, and what it cost.

    On a terminal a live table of engines and tiers is shown while it is simulated, slowed down so that it can be
    read: simulating takes a fraction of a second, and says how much. Arrivals are stretched to --rho times the
    capacity that this fleet is measured to have on this window. Tiers are scored over the middle 80 % of arrivals.
    """
    from windtunnel.staging import Wanted, perform, tell

    asked = Traffic(file, source, windows, window, first_row, rows, seed, columns, unpinned)
    place = Place(fleet, profile, engines, tiers, mix, levels, faults, wiring, limits)
    scene = scene_of(asked, place, scheduler, (rho, rate))
    told = perform(scene, Wanted(show if not as_json else 0.0, out, trace, timeline, fleet, faults))
    if as_json:
        typer.echo(json.dumps(told))
        return
    tell(told)
