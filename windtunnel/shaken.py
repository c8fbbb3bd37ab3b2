"""How sure the simulator is of itself: every cell again with arrivals shaken by what no live system keeps.

An engine looks at arrivals only between two steps, so a live system, in which a message takes a moment, starts
requests up to a step later than the simulator. Where that alone changes who is ahead, an order is chance, and nothing
to hold against anybody.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadgen.manifest import write_whole

if TYPE_CHECKING:
    import pandas as pd

    from loadgen.plan import Plan

FILE = "shaken.json"
DRAWS = 6
"""Times that a cell is simulated; the first time with the arrivals as they are."""


def shaken(
    plan: "Plan", out: Path, metrics: tuple[str, ...], say: Callable[[str], None]
) -> "list[pd.DataFrame]":
    """Return the runs of each draw with these metrics, one row a cell; made once a study, kept in OUT/shaken.json."""
    import pandas as pd

    from analysis.validity import column_of

    path, columns = out / FILE, {column_of(metric) for metric in metrics}
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    if not rows or not columns <= rows[0].keys():  # made for other metrics
        say(f"Simulating each cell {DRAWS - 1} times more, arrivals shaken by up to a step")
        rows = list(_rows(plan, out / "sim", columns))
        write_whole(path, f"{json.dumps(rows)}\n".encode())
    table = pd.DataFrame(rows)
    return [part.drop(columns="draw") for _, part in table.groupby("draw")]


def _rows(plan: "Plan", swept: Path, columns: set[str]) -> Iterator[dict[str, Any]]:
    """Yield the metrics of every window, region, scheduler and draw."""
    from analysis.metrics import summarise
    from loadgen.demand import prepare, targets
    from loadgen.manifest import read_manifest
    from loadgen.region import place
    from loadgen.window import read_window
    from sim.calibrate import read_calibration, setup_of
    from sim.run import simulate
    from sim.runs import scheduler_of

    known, _ = read_calibration(swept)
    capacities = {one.window_id: one for one in known.values()}
    setup, graded = setup_of(plan), targets(plan)
    for line in read_manifest(Path(plan.windows)):
        window, capacity = read_window(Path(plan.windows), line), capacities[line.id]
        for rho in plan.regions:
            region = place(
                rho, requests=capacity.served, span_s=capacity.span_s, capacity_per_s=capacity.capacity_per_s
            )
            demand = prepare(window, plan, region.factor)
            late = [late_s(len(window.arrival_s), draw, step_s(setup)) for draw in range(DRAWS)]
            for spec in plan.schedulers:
                scheduler = scheduler_of(spec)
                for draw, lag_s in enumerate(late):
                    shaken_s = np.maximum.accumulate(demand.arrival_s + lag_s)
                    outcome = simulate(demand._replace(arrival_s=shaken_s), scheduler, setup)
                    told = summarise(outcome.facts, outcome.totals, window.scored, graded, plan.slo_sets)
                    yield {
                        "window_id": line.id, "region": region.name, "scheduler": scheduler.name, "draw": draw,
                        **{name: told.get(name) for name in sorted(columns)},
                    }  # fmt: skip


def late_s(count: int, draw: int, most_s: float) -> Any:
    """Return how much later each request comes in a draw, seconds, shape (count,); nothing in the first."""
    random = np.random.Generator(np.random.Philox(draw))
    return random.uniform(0.0, most_s, count) if draw else np.zeros(count)


def step_s(setup: Any) -> float:
    """Return the seconds of a usual step: decodes in half of the slots, half of the memory read."""
    from schedulers.cost import step_s as priced

    half = setup.sequences_max / 2.0
    return priced(setup.costs, 0.0, 0.0, half, half * setup.model_tokens / 4.0)
