"""`windtunnel bench live`: what the dispatcher adds and carries, beside the same requests sent past it."""

import asyncio
import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from math import inf
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from windtunnel.bench_paths import Fleet, Paced, cpu_of
from windtunnel.compare import WIDTH
from windtunnel.up import AsJson

if TYPE_CHECKING:
    from loadgen.replay.run import Replayed
    from loadgen.replay.schedule import Schedule
    from services.local import Running, State

CHUNKS, CHUNK_TOKENS = 8, 8
"""Chunks of an answer in the latency rows, one every 50 ms after the first 20 ms, and the tokens of each."""

DIRECT, HTTP, GRPC, ROUTER = (
    "no dispatcher, HTTP",
    "dispatcher, HTTP",
    "dispatcher, gRPC",
    "vllm-router, HTTP",
)


class Cell(NamedTuple):
    """One measured path: latencies in seconds, CPU seconds a request of the dispatcher, tokens a second."""

    path: str
    requests: int
    finished: int
    ttft_p50_s: float
    ttft_p99_s: float
    lag_p99_s: float
    cpu_s: float  # of the dispatcher, a request
    client_cpu_s: float  # of the load generator, a request
    tokens_per_s: float
    open_most: int


def live(
    rates: Annotated[
        list[float] | None, typer.Option("--rate", help="Requests a second of the latency rows.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=1.0, help="Length of each latency row.")] = 6.0,
    runs: Annotated[int, typer.Option(min=1, help="Rounds; medians are printed.")] = 3,
    streams: Annotated[int, typer.Option(min=1, help="Streams held open at once.")] = 2000,
    router: Annotated[
        str,
        typer.Option(
            "--router", help="Path of a vllm-router to measure beside; found on the PATH if unsaid."
        ),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """TTFT that the dispatcher adds, tokens through it, streams, CPU a request, and the load generator's own lag.

    The same Poisson arrivals go to a worker that makes 8 chunks of 8 tokens by the clock: directly, through the
    dispatcher by HTTP and by gRPC, and through vllm-router where there is one, turn by turn; added is the difference
    of medians, and of 99th percentiles. Then each figure is held against its target. Everything runs on this
    machine, so ratios travel and milliseconds do not.

    Example: windtunnel bench live --rate 100 --rate 500 --runs 3
    """
    from windtunnel.bench_targets import judged

    told: dict[str, Any] = {"machine": machine(), "runs": runs}
    with Paced(router) as place:
        told["latency"] = [latency(place, rate, seconds, runs) for rate in rates or (100.0, 500.0)]
        told["streams"] = hold(place.dispatcher, streams)
    with Fleet(speed=200.0) as state:
        told["through"] = median_of([through(state) for _ in range(runs)], "tokens_per_s")
    told["load_generator"] = median_of([own_lag(1000.0, seconds) for _ in range(runs)], "lag_p99_s")
    told["targets"] = judged(told)
    if as_json:
        typer.echo(json.dumps(told))
    else:
        show(told)


def machine() -> dict[str, Any]:
    """Cores and what else they do."""
    return {"cores": os.cpu_count(), "load": round(os.getloadavg()[0], 1)}


def arrivals(rate_per_s: float, count: int, output: int, *, poisson: bool = True) -> "Schedule":
    """So many requests of 8 prompt tokens; Poisson, always the same draw, or evenly spaced."""
    import numpy as np

    from loadgen.demand import Demand
    from loadgen.replay.schedule import Schedule

    draw = np.random.default_rng(20_28)
    gaps = draw.exponential(1.0, count) if poisson else np.ones(count)
    due_s = np.cumsum(gaps) / rate_per_s
    zeros = np.zeros(count, np.int64)
    demand = Demand(
        due_s,
        zeros + 8,
        zeros + output,
        np.full(count, float(output)),
        zeros,
        zeros,
        zeros - 1,
        np.full(count, 0.5),
    )
    return Schedule(
        secrets.token_hex(4),
        "bench",
        "bench",
        1.0,
        demand,
        due_s.copy(),
        zeros - 1,
        np.zeros(count),
        None,
        None,
        0,
    )


def measure(path: str, schedule: "Schedule", sender: Any, dispatcher: "Running | None") -> Cell:
    """Replay a schedule and read what it cost."""
    import numpy as np

    from loadgen.facts import FINISHED
    from loadgen.replay.run import Replay, ReplayRules

    most = 0

    async def work() -> "Replayed":
        nonlocal most

        def seen(tick: Any) -> None:
            nonlocal most
            most = max(most, tick.open)

        async with sender as open_sender:
            rules = ReplayRules(drain_s=120.0, progress_s=0.1)
            return await Replay(schedule, open_sender, rules, ((inf, inf, inf),)).run(seen)

    before, own = cpu_of(dispatcher), time.process_time()
    with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
        told = runner.run(work())
    spent, own = cpu_of(dispatcher) - before, time.process_time() - own
    trails = told.trails
    ttft_s = trails.first_s - trails.due_s
    ttft_s = ttft_s[~np.isnan(ttft_s)]
    p50, p99 = np.quantile(ttft_s, [0.5, 0.99]) if len(ttft_s) else (np.nan, np.nan)
    span_s = float(np.nanmax(trails.last_s) - np.nanmin(trails.first_s)) if len(ttft_s) else inf
    return Cell(
        path, len(trails.outcome), int((trails.outcome == FINISHED).sum()), float(p50), float(p99), told.lag.p99_s,
        spent / len(trails.outcome), own / len(trails.outcome), float(trails.tokens.sum() / span_s), most,
    )  # fmt: skip


def latency(place: "Paced", rate_per_s: float, seconds: float, runs: int) -> dict[str, Any]:
    """The paths at one rate, turn by turn; medians over the rounds and what each adds to none."""
    from loadgen.replay.http_sender import HttpSender
    from services.sender import GrpcSender

    count, door = int(rate_per_s * seconds), place.dispatcher

    def by_http(path: str, one: "Running", counted: "Running | None") -> Cell:
        asked = arrivals(rate_per_s, count, CHUNKS * CHUNK_TOKENS)
        return measure(path, asked, HttpSender(f"http://{one.http}", asked), counted)

    def by_grpc() -> Cell:
        asked = arrivals(rate_per_s, count, CHUNKS * CHUNK_TOKENS)
        return measure(GRPC, asked, GrpcSender(door.grpc, asked), door)

    paths: dict[str, Callable[[], Cell]] = {
        DIRECT: lambda: by_http(DIRECT, place.direct, None),
        HTTP: lambda: by_http(HTTP, door, door),
        GRPC: by_grpc,
    }
    other = place.router
    if other is not None:
        paths[ROUTER] = lambda: by_http(ROUTER, other, other)
    cells: dict[str, list[Cell]] = {path: [] for path in paths}
    for turn in range(runs):
        for path, run in paths.items():
            cells[path].append(run())
        typer.echo(f"{rate_per_s:g}/s: round {turn + 1} of {runs} done", err=True)
    rows = [merged(found) for found in cells.values()]
    base = rows[0]
    for row in rows[1:]:
        row["added_p50_ms"] = (row["ttft_p50_s"] - base["ttft_p50_s"]) * 1e3
        row["added_p99_ms"] = (row["ttft_p99_s"] - base["ttft_p99_s"]) * 1e3
    return {"rate_per_s": rate_per_s, "requests": count, "paths": rows}


def merged(cells: list[Cell]) -> dict[str, Any]:
    """Medians over rounds of one path; what finished is the least of them."""
    told: dict[str, Any] = {"path": cells[0].path, "requests": cells[0].requests}
    told["finished"] = min(cell.finished for cell in cells)
    for name in ("ttft_p50_s", "ttft_p99_s", "lag_p99_s", "cpu_s", "client_cpu_s"):
        told[name] = median(getattr(cell, name) for cell in cells)
    return told


def hold(dispatcher: "Running", streams: int) -> dict[str, Any]:
    """So many streams open at once through the dispatcher, by gRPC: each lasts for as long as all need to begin."""
    from services.sender import GrpcSender

    begin_s = 5.0
    tokens = CHUNK_TOKENS * (1 + int(1.5 * begin_s / 0.05))
    schedule = arrivals(streams / begin_s, streams, tokens, poisson=False)
    cell = measure("streams", schedule, GrpcSender(dispatcher.grpc, schedule), dispatcher)
    typer.echo(f"{streams} streams done", err=True)
    return cell._asdict()


def through(state: "State") -> dict[str, Any]:
    """Tokens a second through the dispatcher, engines and client no faster than they can."""
    from services.sender import GrpcSender

    schedule = arrivals(1000.0, 400, 1000, poisson=False)
    cell = measure("through", schedule, GrpcSender(state.dispatcher.grpc, schedule), state.dispatcher)
    typer.echo("a round of tokens through done", err=True)
    return cell._asdict()


def own_lag(rate_per_s: float, seconds: float) -> dict[str, Any]:
    """The load generator against a stub that answers at once, in a process of its own."""
    import multiprocessing

    from loadgen.replay.http_sender import HttpSender
    from windtunnel.stub import serve

    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, CHUNKS), daemon=True)
    process.start()
    try:
        port = ours.recv()
        schedule = arrivals(rate_per_s, int(rate_per_s * seconds), CHUNKS)
        cell = measure("stub", schedule, HttpSender(f"http://127.0.0.1:{port}", schedule, model="stub"), None)
    finally:
        process.kill()
        process.join()
    typer.echo("a round against the stub done", err=True)
    return cell._asdict()


def median_of(rows: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The row whose value is the median."""
    return sorted(rows, key=lambda row: row[name])[len(rows) // 2]


def show(told: dict[str, Any]) -> None:
    """Print the tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    known = told["machine"]
    where = f"{known['cores']} cores, load {known['load']}"
    title = f"{CHUNKS} chunks of {CHUNK_TOKENS} tokens a request, medians of {told['runs']} rounds; {where}"
    table = Table(title=title, title_justify="left", box=None)
    for head in (
        "req/s",
        "path",
        "finished",
        "TTFT ms p50/p99",
        "added ms p50/p99",
        "CPU ms/req",
        "lag p99 ms",
    ):
        table.add_column(head, justify="left" if head == "path" else "right")
    for block in told["latency"]:
        for row in block["paths"]:
            added = f"{row['added_p50_ms']:.1f}/{row['added_p99_ms']:.1f}" if "added_p50_ms" in row else "-"
            spent = f"{row['cpu_s'] * 1e3:.2f}" if row["cpu_s"] else "-"
            cells = [
                f"{row['finished']}/{row['requests']}",
                f"{row['ttft_p50_s'] * 1e3:.1f}/{row['ttft_p99_s'] * 1e3:.1f}",
            ]
            table.add_row(
                f"{block['rate_per_s']:g}", row["path"], *cells, added, spent, f"{row['lag_p99_s'] * 1e3:.1f}"
            )
    console.print(table)
    held, carried, own = told["streams"], told["through"], told["load_generator"]
    spent_ms = carried["cpu_s"] * 1e3
    console.print(
        f"{held['open_most']} streams at once: {held['finished']} of {held['requests']} finished.\n"
        f"{carried['tokens_per_s']:,.0f} tokens/s through the dispatcher, {spent_ms:.1f} CPU ms per 1,000 tokens.\n"
        f"Load generator alone at 1,000/s against a stub: lag p99 {own['lag_p99_s'] * 1e3:.1f} ms, "
        f"{own['client_cpu_s'] * 1e3:.2f} CPU ms a request, {own['finished']} of {own['requests']} finished.",
        highlight=False,
    )
    for row in told["targets"]:
        word = "reached" if row["reached"] else f"NOT reached: {row['limit']}"
        console.print(
            f"{row['what']}: {row['measured']:,.2f} {row['unit']}, wanted {row['wanted']} {word}",
            highlight=False,
        )
