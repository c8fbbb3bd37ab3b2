"""Plays a scene before an audience: a live table while it runs, then tables, trace, picture and stored results."""

import json
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import typer

from sim.fabric import BOOTING, DEAD, DRAINING, OFF, SERVING

if TYPE_CHECKING:
    from rich.console import Group

    from analysis.tables import Table
    from schedulers.policy import Scheduler
    from sim.film import Timeline
    from sim.outcome import Outcome
    from sim.rig import Rig
    from windtunnel.scene import Scene

BAR = 24
"""Cells of a bar."""

FRAME_S = 0.08
"""Least time between two frames on a terminal."""

LOOK_LEAST_S = 1e-4
"""Between two looks at a run whose requests come all at once: a step of an engine takes longer."""

LIVES = {OFF: "off", BOOTING: "boots", SERVING: "", DRAINING: "drains", DEAD: "dead"}
ENGINES_SHOWN = 32


class Wanted(NamedTuple):
    """What is wanted of a run beside its numbers."""

    show_s: float = 0.0
    out: Path | None = None
    trace: Path | None = None
    timeline: Path | None = None
    fleet: str = ""
    faults: str = ""


def perform(scene: "Scene", wanted: Wanted) -> dict[str, Any]:
    """Play a scene, write what is wanted, and return what it came to."""
    from schedulers.load import load
    from sim.film import SAMPLES, Film
    from sim.run import simulate
    from windtunnel.verdict import store, verdict

    for made in (wanted.trace, wanted.timeline):
        if made is not None and made.is_dir():
            raise_folder(made)
    scheduler = load(scene.plan.schedulers[0])
    load_all(scene, scheduler)
    span_s = float(scene.demand.arrival_s[-1]) or 1.0
    with ExitStack() as stack:
        watch = stack.enter_context(Audience(scene, span_s, wanted.show_s)) if on_terminal(wanted) else None
        film = Film(max(LOOK_LEAST_S, span_s / SAMPLES), watch)
        start_s = time.perf_counter()
        outcome = simulate(scene.demand, scheduler, scene.setup, film=film)
        took_s = time.perf_counter() - start_s - (watch.rested_s if watch else 0.0)
    shown = film.timeline()
    told = verdict(scene, outcome, shown) | {"took_s": took_s, "events_lost": shown.lost}
    if wanted.out is not None:
        place = json.dumps({"fleet": wanted.fleet, "faults": wanted.faults}, sort_keys=True)
        told |= {"out": str(wanted.out), "run_id": store(scene, outcome, place, wanted.out)}
    if wanted.trace is not None:
        told["trace"] = str(write_events(scene, outcome, shown, wanted.trace))
    if wanted.timeline is not None:
        told["timeline"] = str(write_picture(scene, told, shown, wanted.timeline))
    return told


def load_all(scene: "Scene", scheduler: "Scheduler") -> None:
    """Compile, or load, what the run needs: a run of its first request takes the same code."""
    from loadgen.demand import part
    from sim.film import Film
    from sim.run import simulate

    one = scene.setup._replace(wiring=scene.setup.wiring._replace(faults=()))
    simulate(part(scene.demand, np.zeros(1, np.int64)), scheduler, one, film=Film(1.0))


def raise_folder(path: Path) -> None:
    """Refuse a folder where a file is to be written."""
    from schedulers.errors import InputError

    raise InputError("a folder stands where a file is to be written", where=str(path), fix="name a file")


def on_terminal(wanted: Wanted) -> bool:
    """True if there is somebody to watch: a terminal, and time to show it."""
    return wanted.show_s > 0.0 and sys.stderr.isatty()


class Audience:
    """Shows the state of a run on a terminal, no faster than can be read; use as a context, call at each look."""

    def __init__(
        self, scene: "Scene", span_s: float, show_s: float, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        from rich.console import Console
        from rich.live import Live

        self.scene, self.span_s, self.show_s, self.clock = scene, span_s, show_s, clock
        self.rested_s = 0.0
        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)
        self._begun_s = self._drawn_s = -1.0

    def __enter__(self) -> "Audience":
        self._live.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._live.__exit__(*error)

    def __call__(self, rig: "Rig", now_s: float) -> None:
        """Draw a frame if the last one is old enough, and wait until its moment has come."""
        clock_s = self.clock()
        if self._begun_s < 0.0:
            self._begun_s = clock_s
        due_s = self._begun_s + min(1.0, now_s / self.span_s) * self.show_s
        if max(clock_s, due_s) - self._drawn_s < FRAME_S:
            return
        self._live.update(frame(self.scene, rig, now_s), refresh=True)
        time.sleep(max(0.0, due_s - self.clock()))
        self._drawn_s = self.clock()
        self.rested_s += self._drawn_s - clock_s


def frame(scene: "Scene", rig: "Rig", now_s: float) -> "Group":
    """Return the live tables: engines with batch, memory and queue, and tiers with what they have got so far."""
    from rich.console import Group
    from rich.text import Text

    done, total = int((rig.plant.outcome >= 0).sum()), len(rig.plant.outcome)
    arrived = int(np.searchsorted(scene.demand.arrival_s, now_s, side="right"))
    moving = int((rig.fabric.request >= 0).sum())
    line = f"{now_s:8.2f} s   {arrived}/{total} arrived   {done} ended   {rig.plant.held_count[0]} held"
    line += f"   {moving} moving   {int(rig.fabric.events[1])} moved"
    return Group(Text(line, style="bold"), engine_frame(rig), tier_frame(scene, rig))


def engine_frame(rig: "Rig") -> Any:
    """Return the live table of engines; of many, the first."""
    from rich.table import Table

    fleet, grid = rig.known.engines, Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("engine", "batch", "waits"):
        grid.add_column(title, justify="right", no_wrap=True)
    grid.add_column("KV memory", no_wrap=True)
    grid.add_column("", no_wrap=True)
    for engine in range(min(len(fleet.alive), ENGINES_SHOWN)):
        share = 1.0 - fleet.blocks_free[engine] / fleet.blocks_total[engine]
        target, origin = int(rig.fabric.target[engine]), int(rig.fabric.origin[engine])
        notes = [LIVES[int(rig.fabric.life[engine])]]
        notes += [f"gives to {target}"] if rig.fabric.request[engine] >= 0 else []
        notes += [f"takes from {origin}"] if origin >= 0 else []
        grid.add_row(
            str(engine), str(fleet.running[engine]), str(fleet.waiting[engine]), f"{bar(share)} {share:4.0%}",
            " ".join(note for note in notes if note),
        )  # fmt: skip
    if len(fleet.alive) > ENGINES_SHOWN:
        grid.add_row("...", "", "", f"and {len(fleet.alive) - ENGINES_SHOWN} more", "")
    return grid


def bar(share: float) -> str:
    """A bar of so full a share."""
    full = round(max(0.0, min(1.0, share)) * BAR)
    return "█" * full + "░" * (BAR - full)


def tier_frame(scene: "Scene", rig: "Rig") -> Any:
    """Return the live table of tiers: how many of those that have ended met their targets."""
    from rich.table import Table

    from analysis.metrics import within

    table, plant = rig.known.requests, rig.plant
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    grid.add_column("tier", no_wrap=True)
    for title in ("waits", "runs", "ended", "met so far"):
        grid.add_column(title, justify="right", no_wrap=True)
    ended, finished = plant.outcome >= 0, plant.outcome == 0
    latency = {"ttft": table.first_token_s - table.arrival_s, "e2e": plant.finished_s - table.arrival_s}
    gaps = np.where(table.generated_tokens > 1, table.generated_tokens - 1, np.nan)
    latency["tpot"] = (latency["e2e"] - latency["ttft"]) / gaps
    for tier, spec in enumerate(scene.plan.tiers):
        rows = scene.demand.tier == tier
        met = finished & within(latency, np.array([spec.ttft_s, spec.tpot_s, spec.e2e_s]))
        over = int((rows & ended).sum())
        share = f"{(met & rows).sum() / over:.0%}" if over else "-"
        states = [int((rows & (table.state == state)).sum()) for state in (1, 2)]
        grid.add_row(spec.name, *map(str, states), str(over), share)
    return grid


def write_events(scene: "Scene", outcome: "Outcome", shown: "Timeline", path: Path) -> Path:
    """Write the trace file."""
    from windtunnel.perfetto import events, write_trace

    told = {
        "window": scene.window.line.id, "label": scene.window.line.label, "scheduler": scene.plan.schedulers[0],
        "region": scene.region.name, "time": "seconds of the simulated run, from its first arrival",
        "events_lost": shown.lost,
    }  # fmt: skip
    facts = outcome.facts._replace(tier=scene.demand.tier)
    write_trace(path, events(shown, facts, scene.engines, [tier.name for tier in scene.plan.tiers]), told)
    return path


def write_picture(scene: "Scene", told: dict[str, Any], shown: "Timeline", path: Path) -> Path:
    """Write the page of the timeline."""
    from analysis.lanes import Lanes, Move, Span, page
    from sim.calibrate import write_text
    from windtunnel.perfetto import LIVES as LIFE_NAMES
    from windtunnel.perfetto import moved, spans

    blocks = shown.blocks.astype(float)
    away = [one for one in spans(shown, float(shown.at_s[-1])) if one[1] != SERVING and one[3] > one[2]]
    lanes = Lanes(
        at_s=shown.at_s.tolist(), memory=shown.used / blocks, reserved=shown.kept / blocks, batch=shown.batch,
        waiting=shown.waiting.sum(axis=1) + shown.centre,
        engines=scene.engines,
        tiers=tuple(tier.name for tier in scene.plan.tiers),
        spans=tuple(Span(engine, LIFE_NAMES[life], low, high) for engine, life, low, high in away),
        moves=tuple(Move(*one) for one in moved(shown)),
    )  # fmt: skip
    title = f"{told['scheduler']} on {told['window']}"
    write_text(path, page(lanes, title, headlines(told), result_tables(told)))
    return path


def headlines(told: dict[str, Any]) -> list[str]:
    """Return what a run is, in a few short texts."""
    moves = told["moves"]
    return [
        f"{told['source']} ({told['label']})",
        f"{told['requests']:,} requests over {told['span_s']:.0f} s, rho {told['rho']:.2f}",
        f"{len(told['engines'])} engines, {told['engine_s'] / 3600:.2f} engine-hours",
        f"attainment {told['attainment']:.1%}",
        f"{moves['committed']} moves, {moves['aborted']} given up, {told['evictions']} evictions",
    ]


def result_tables(told: dict[str, Any]) -> "list[Table]":
    """Return tiers and engines as tables of a page."""
    from analysis.tables import Table

    keys = {"name": "text", "arrivals": "count", "attainment": "share", "rejected": "count", "preemptions": "count",
            "migrations": "count"}  # fmt: skip
    times = [f"{name}_p{q}_s" for name in ("ttft", "tpot", "e2e") for q in (50, 95, 99)]
    keys |= dict.fromkeys(times, "number")
    tiers = tuple(tuple(row[key] for key in keys) for row in told["tiers"])
    titles = tuple(
        key.removesuffix("_s").replace("_", " ") + (" s" if key.endswith("_s") else "") for key in keys
    )
    own = {"name": "text", "dispatched": "count", "finished": "count", "moved_in": "count", "moved_out": "count",
           "batch_mean": "number", "kv_mean": "share", "kv_peak": "share"}  # fmt: skip
    engines = tuple(tuple(row[key] for key in own) for row in told["engines"])
    return [
        Table("tiers", "Tiers, over the scored requests", titles, tuple(keys.values()), tiers),
        Table(
            "engines", "Engines", tuple(key.replace("_", " ") for key in own), tuple(own.values()), engines
        ),
    ]


def tell(told: dict[str, Any]) -> None:
    """Print what a run came to."""
    from rich.console import Console

    console = Console()
    for line in headlines(told):
        console.print(line, highlight=False, markup=False)
    console.print(tier_table(told))
    busy = f"{told['busy_share']:.0%} busy" if told["busy_share"] is not None else "never busy"
    cost = told["engine_s_per_attained"]
    per = f", {cost:.2f} engine-seconds for each that met its targets" if cost else ""
    gaps = [f"{told[key] * 1e3:.1f} ms" if told[key] else "-" for key in ("gap_p50_s", "gap_p99_s")]
    console.print(
        f"{told['engine_s']:,.0f} engine-seconds ({busy}){per}; gaps between tokens P50 {gaps[0]}, P99 {gaps[1]}; "
        f"KV at most {told['kv_peak']:.0%} of an engine", highlight=False,
    )  # fmt: skip
    moves = told["moves"]
    if moves["started"]:
        still = (
            f"{told['moves']['downtime_mean_s'] * 1e3:.0f} ms still on average, "
            if moves["committed"]
            else ""
        )
        console.print(f"moves: {moves['started']} begun, {still}{moves['gbytes']:.1f} GB", highlight=False)
    if told["boots"] or told["drains"] or told["deaths"]:
        console.print(
            f"{told['boots']} boots, {told['drains']} drains, {told['deaths']} deaths", highlight=False
        )
    console.print(f"simulated {told['end_s']:.1f} s in {told['took_s']:.2f} s", highlight=False)
    for key in ("out", "trace", "timeline"):
        if key in told:
            typer.echo(f"{key}: {told[key]}", err=True)
    if told["events_lost"]:
        typer.echo(f"{told['events_lost']} events found no room in the timeline", err=True)


def tier_table(told: dict[str, Any]) -> Any:
    """Return the table of tiers, medians and 99th percentiles side by side: it fits 80 columns."""
    from rich.table import Table

    grid = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    grid.add_column("tier", overflow="ellipsis", max_width=12)
    titles = ("n", "met", "TTFT P50 P99", "TPOT P50 P99", "E2E P50 P99", "evict", "move", "deny")
    for title in titles:
        grid.add_column(title, justify="right", no_wrap=True)
    for row in told["tiers"]:
        times = [
            f"{seconds(row[f'{name}_p50_s'])} {seconds(row[f'{name}_p99_s']):>6}"
            for name in ("ttft", "tpot", "e2e")
        ]
        counts = [f"{row[key]:,}" for key in ("preemptions", "migrations", "rejected")]
        met = f"{row['attainment']:.1%}" if row["attainment"] is not None else "-"
        grid.add_row(row["name"], f"{row['arrivals']:,}", met, *times, *counts)
    return grid


def seconds(value: float | None) -> str:
    """A time, short."""
    if value is None:
        return "-"
    return f"{value * 1e3:.0f}ms" if value < 1.0 else f"{value:.1f}s"
