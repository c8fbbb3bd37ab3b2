"""A small worked example of any scheduler: six requests through the simulator, step by step, drawn as rows."""

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from loadgen.demand import Demand
    from schedulers.policy import Scheduler
    from schedulers.view import View
    from sim.rig import Rig
    from sim.run import Setup

WAITING, PREFILL, DECODE, HELD, EVICTED, ABSENT = "·", "▒", "█", "-", "x", " "
LEGEND = {WAITING: "waits", PREFILL: "prefill", DECODE: "decode", HELD: "held back", EVICTED: "evicted"}
COLOURS = {WAITING: "dim", PREFILL: "yellow", DECODE: "green", HELD: "magenta", EVICTED: "bold red"}

WIDTH = 64
"""Most columns of a timeline; a longer one has several steps a column."""

ROWS = (
    (0.000, 120, 14, 12.0, 1, 0),
    (0.000, 60, 22, 30.0, 0, 1),
    (0.020, 200, 6, 7.0, 1, 0),
    (0.040, 30, 16, 12.0, 0, 1),
    (0.060, 90, 8, 9.0, 1, 2),
    (0.110, 40, 10, 10.0, 0, 0),
)
"""The example's requests: arrival (s), prompt and output tokens, forecast of the output, tier, tenant."""

ALIKE: tuple[tuple[int, ...], ...] = ((0, 1, 2, 3), (10, 11, 12), (0, 1, 2, 3), (), (10, 11, 12), ())
"""Blocks of 16 prompt tokens that a request shares with another one, by number."""


class Mark(NamedTuple):
    """What happened to a request in one step."""

    request: int
    start_s: float
    end_s: float
    sign: str

    @property
    def middle_s(self) -> float:
        """Moment by which the step is told from its neighbours."""
        return (self.start_s + self.end_s) / 2.0


class Timeline(NamedTuple):
    """The whole example: edges of the columns in seconds, and one text of signs a request."""

    edges_s: list[float]
    rows: list[str]
    facts: list[dict[str, Any]]
    column: str  # what one column is


class Recorder:
    """Stands where ``observe`` is called, passes on what the policy watches, and notes every step's end."""

    def __init__(self, rig: "Rig") -> None:
        self.rig, self.watches = rig, rig.rules.watches
        self.marks: list[Mark] = []
        self.edges_s: list[float] = []
        self.before = self.counts(rig.known)

    def counts(self, view: "View") -> list[tuple[int, ...]]:
        """What tells a prefill from a decode from an eviction, a request."""
        table = view.requests
        columns = (table.computed_tokens, table.evictions, table.prefill_tokens)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def __call__(self, view: "View", ids: Any, count: int, event: int, now_s: float) -> None:
        """Take the place of ``observe`` over many requests."""
        from schedulers.view import STEP

        if (self.watches >> event) & 1:
            self.rig.hooks.observe(view, ids, count, event, now_s)
        if event == STEP:
            self.note(view, int(ids[0]), now_s)

    def note(self, view: "View", engine: int, now_s: float) -> None:
        """Compare the requests of an engine with what they were after its step before."""
        from schedulers.view import RUNNING

        start_s = now_s - float(view.engines.step_s[engine])
        self.edges_s += [start_s, now_s]
        for request, after in enumerate(self.counts(view)):
            if view.requests.engine[request] != engine:
                continue
            computed, evictions, _ = self.before[request]
            computed_now, evictions_now, prefill = after
            sign = ABSENT
            if evictions_now > evictions:
                sign = EVICTED
            elif computed_now > computed:
                sign = PREFILL if computed < prefill else DECODE
            elif view.requests.state[request] == RUNNING:
                sign = HELD
            if sign != ABSENT:
                self.marks.append(Mark(request, start_s, now_s, sign))
            self.before[request] = after


def example(engines: int, prefixes: bool = False) -> tuple["Demand", "Setup"]:
    """Return the six requests and engines that are short of memory, slots and budget.

    With ``prefixes`` C begins with 64 of A's tokens, E with 48 of B's, and an engine keeps what it has computed.
    """
    import numpy as np

    from loadgen.demand import Demand
    from loadgen.prefixes import shared
    from schedulers.view import Tiers
    from sim.checks import COSTS
    from sim.run import Setup

    columns = [np.array(column) for column in zip(*ROWS, strict=True)]
    arrival_s, prompts, outputs, forecasts, tiers, tenants = columns
    luck = np.array([0.61, 0.17, 0.83, 0.35, 0.92, 0.48])
    demand = Demand(
        arrival_s, prompts, outputs, forecasts, tiers, tenants, np.array([0, 1, 0, 2, 1, 2]), luck
    )
    if prefixes:
        blocks = np.array([block for row in ALIKE for block in row])
        demand = demand._replace(prefixes=shared(np.cumsum([0, *map(len, ALIKE)]), blocks, 16))
    targets = Tiers(
        np.array([0.15, 0.5]), np.array([0.015, 0.1]), np.array([np.inf, np.inf]), np.array([2.0, 1.0])
    )
    return demand, Setup(engines, 4, 64, 16, 20, 4096, COSTS, targets)


def play(scheduler: "Scheduler", engines: int) -> Timeline:
    """Run the example, interpreted and stepwise; raises PolicyError for what a policy does wrong."""
    from schedulers.view import STEP
    from sim.kernel import run
    from sim.outcome import facts
    from sim.run import build, report_fault

    reads = (*scheduler.engine.reads, *scheduler.cluster.reads)
    demand, place = example(engines, "prefix" in reads)
    rig = build(demand, scheduler, place, jump=False, audit=True)
    recorder = Recorder(rig)
    watches = rig.rules.watches | (1 << STEP)
    recorded = rig._replace(
        hooks=rig.hooks._replace(observe=recorder), rules=rig.rules._replace(watches=watches)
    )
    run(recorded)
    report_fault(recorded, scheduler)
    told = facts(demand, recorded, place)
    kept = [
        {name: _plain(getattr(told, name)[request]) for name in told._fields} for request in range(len(ROWS))
    ]
    edges_s, column = columns_of(recorder.edges_s, engines)
    rows = [row(request, kept[request], recorder.marks, edges_s) for request in range(len(ROWS))]
    return Timeline(edges_s, rows, kept, column)


def _plain(value: Any) -> float | int | None:
    number = value.item()
    return None if number != number else number


def columns_of(steps_s: list[float], engines: int) -> tuple[list[float], str]:
    """Return the edges of the columns and what one is: steps of one engine, even spans over several."""
    end_s = max(steps_s)
    if engines > 1:
        return [end_s * place / WIDTH for place in range(WIDTH + 1)], f"a column {end_s / WIDTH * 1e3:.1f} ms"
    edges_s = sorted({round(step_s, 9) for step_s in steps_s})  # where one step ends the next one starts
    every = -(-(len(edges_s) - 1) // WIDTH)
    return [*edges_s[:-1:every], end_s], "a column a step" if every == 1 else f"a column {every} steps"


def row(request: int, fact: dict[str, Any], marks: list[Mark], edges_s: list[float]) -> str:
    """Draw one request: in each column what happened in its middle; an eviction anywhere in it is shown."""
    own = [mark for mark in marks if mark.request == request]
    signs = []
    for start_s, end_s in pairwise(edges_s):
        middle_s = (start_s + end_s) / 2.0
        here = [mark for mark in own if mark.start_s <= middle_s < mark.end_s]
        thrown = [mark for mark in own if mark.sign == EVICTED and start_s <= mark.middle_s < end_s]
        end = fact["finished_s"]
        there = fact["arrival_s"] <= middle_s and (end is None or middle_s < end)
        signs.append((thrown or here)[0].sign if thrown or here else WAITING if there else ABSENT)
    return "".join(signs)


def draw(timeline: Timeline, engines: int) -> list[str]:
    """Return the lines of the drawing: a heading, a row a request, a legend."""
    lines = [f"{'':4}{'prompt':>6}{'output':>8}{'tier':>6}{'engine' if engines > 1 else '':>8}".rstrip()]
    for name, fact, signs, asked in zip("ABCDEF", timeline.facts, timeline.rows, ROWS, strict=True):
        where = "" if engines == 1 else f"{'-' if fact['engine'] < 0 else fact['engine']:>8}"
        end = "refused" if fact["outcome"] else f"{fact['finished_s'] * 1e3:.0f} ms"
        lines.append(f"{name:4}{asked[1]:>6}{asked[2]:>8}{asked[4]:>6}{where} |{signs}| {end}")
    kept = ", ".join(f"{sign} {word}" for sign, word in LEGEND.items())
    span = f"0 to {timeline.edges_s[-1] * 1e3:.0f} ms, {timeline.column}"
    return [*lines, "", f"{kept}; {span}; tier 0 is the strict one"]


def story(found: Any) -> tuple[Timeline, int]:
    """Return the worked example of a policy that was found, and over how many engines it ran."""
    from schedulers.policy import EnginePolicy
    from sim.checks import around

    engines = 1 if isinstance(found.policy, EnginePolicy) else 3
    return play(around(found.policy, found.values), engines), engines
