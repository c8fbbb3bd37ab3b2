"""The simulator half of the contract suite: run anybody's policy on small windows, report what breaks the rules.

The other half, ``schedulers.checks``, asks hooks one by one on drawn views; this one needs whole runs. Each rule
is a function that says in words what is broken, '' if nothing is, so that tests and users ask the same question.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

from loadgen.demand import Demand
from loadgen.prefixes import shared
from loadgen.result import FINISHED, REJECTED
from schedulers.answers import Policy
from schedulers.checks import Finding, defaults
from schedulers.errors import PolicyError
from schedulers.load import PUBLISHED, find
from schedulers.policy import ClusterPolicy, EnginePolicy, Scheduler
from schedulers.view import Floats, Tiers
from sim.outcome import Outcome
from sim.rig import REASON_POLICY
from sim.run import Setup, prepare_compiled, simulate

COSTS = np.array([0.0, 9.66e-3, 64.7e-6, 0.0, 6.4e-9, 44.5e-6, 0.0883e-6])
HINGE = np.array([11.41e-3, 8.355e-3, 66.85e-6, 66.85e-6, 5.77e-9, 0.0, 0.0758e-6])
"""Step-time coefficients of an 8-billion-parameter model on one accelerator, in both published forms."""

TIERS = Tiers(np.array([0.5, 2.0]), np.array([0.03, 0.1]), np.array([inf, inf]), np.ones(2))
OTHER_TIERS = Tiers(np.array([3.0, 0.1]), np.array([0.5, 0.011]), np.array([inf, inf]), TIERS.weight)

LOADS_PER_S = (4.0, 12.0, 36.0, 108.0)
"""Requests a second an engine: from nearly idle to several times what it can do."""

NOISE, FALL = 0.05, 0.1
"""Attainment may rise by this share of requests between two loads, and falls by at least that over all."""

STEPPED_SUMS = ("steps", "evictions", "recomputed_tokens", "prefill_tokens", "decode_tokens", "queue_peak")
STEPPED_MEANS = ("busy_s", "batch_mean", "kv_mean", "kv_peak", "queue_mean", "engine_s")
"""Totals that a jump keeps exactly, and to 1e-9."""


class Trial(NamedTuple):
    """One run to be made: who schedules what, and where."""

    scheduler: Scheduler
    demand: Demand
    place: Setup

    def told(self, mode: str = "stepped", audit: bool = False) -> Outcome:
        """Run it."""
        return simulate(self.demand, self.scheduler, self.place, mode, audit)


def check(policy: Policy, *, values: tuple[float, ...] | None = None, seed: int = 0) -> list[Finding]:
    """Return what the policy does against the contract in whole runs, one finding a rule; empty is good.

    ``values`` are its parameters (default: its defaults). A cluster policy runs over three engines of
    fcfs-chunked, an engine policy under round-robin. Raises nothing that a policy does: that is a finding.
    """
    scheduler = around(policy, defaults(policy) if values is None else values)
    noted: dict[str, Finding] = {}

    def apply(rule: str, question: Callable[[], str]) -> None:
        try:
            said = question()
        except PolicyError as error:
            rule, said = (rule if rule == "compiles" else "runs"), str(error)
        except AssertionError as error:
            rule, said = "invariant", str(error)
        if said:
            noted.setdefault(rule, Finding(policy.name, "", rule, said))

    apply("compiles", lambda: prepared(scheduler))
    if noted:
        return list(noted.values())  # nothing else can be asked
    for trial in _hardships(scheduler, seed):
        apply("ends", lambda trial=trial: unended(trial))  # type: ignore[misc]
    for trial in _extremes(scheduler, policy, seed):
        apply("ends", lambda trial=trial: unended(trial))  # type: ignore[misc]
    usual = _usual(scheduler)
    for place in (setup(blocks=90, sequences=10, budget=128), setup(costs=HINGE)):
        apply("compiled", lambda place=place: mistranslated(_short(usual, place, 45)))  # type: ignore[misc]
    for rate_per_s in (3.0, 9.0, 30.0):
        apply("jumps", lambda rate=rate_per_s: misjumped(_long(usual, rate)))  # type: ignore[misc]
    scarce = _short(usual, setup(blocks=120, sequences=12), 80)
    if not (scheduler.engine.oracle or scheduler.cluster.oracle):
        for blocks in (60, 2000):
            trial = _short(usual, setup(blocks=blocks, sequences=12), 60)
            apply("oracle", lambda trial=trial: foreseen(trial, (5, 20, 40)))  # type: ignore[misc]
    if not policy.name.endswith(PUBLISHED):  # the constants of a study are part of what it published
        apply("units", lambda: unscaled(scarce))
    if "targets" not in (*scheduler.engine.reads, *scheduler.cluster.reads):
        apply("reads targets", lambda: retargeted(scarce))
    apply("load", lambda: unburdened(_long(usual, 1.0)))
    return list(noted.values())


def prepared(scheduler: Scheduler) -> str:
    """Compile the hooks; '' (an error is raised)."""
    prepare_compiled(scheduler)
    return ""


def around(policy: Policy, values: tuple[float, ...]) -> Scheduler:
    """Return a scheduler of this policy and the plainest one of the other family."""
    if isinstance(policy, EnginePolicy):
        cluster = find("round-robin")
        assert isinstance(cluster.policy, ClusterPolicy)
        return Scheduler(policy.name, policy, cluster.policy, values, cluster.values)
    engine = find("fcfs-chunked")
    assert isinstance(engine.policy, EnginePolicy)
    return Scheduler(policy.name, engine.policy, policy, engine.values, values)


def unended(trial: Trial) -> str:
    """E1 to E5: audited at every step, stepped and jumped, each request ends once and with all its tokens."""
    stepped = trial.told("stepped", audit=True)
    facts, demand, room = stepped.facts, trial.demand, trial.place.capacity_tokens
    if not set(facts.outcome.tolist()) <= {FINISHED, REJECTED}:
        return "E3: a request neither finished nor was rejected"
    done, fits = facts.outcome == FINISHED, demand.prompt_tokens + 1 <= room
    if (done & ~fits).any() or (facts.reason[~done & fits] != REASON_POLICY).any():
        return "E5: a prompt that fits was rejected for its length, or one that does not fit was taken"
    wanted = np.minimum(demand.output_tokens, np.maximum(room - demand.prompt_tokens, 1))
    if (facts.output_tokens[done] != wanted[done]).any():
        return "E3: a finished request lacks tokens"
    times = (facts.arrival_s, facts.dispatched_s, facts.started_s, facts.first_token_s, facts.finished_s)
    if any((earlier[done] > later[done]).any() for earlier, later in pairwise(times)):
        return "E4: a request started before it arrived, or ended before it started"
    if stepped.totals.kv_peak > 1.0:
        return "E1: more blocks are held than there are"
    differ = close(stepped, trial.told("jumped", audit=True))
    return f"jumped and stepped runs differ in {', '.join(differ)}" + _REMEDY if differ else ""


_REMEDY = (
    ": an answer changes while only decodes run; declare dynamic, return the moment in wake or watch STEP"
)


def mistranslated(trial: Trial) -> str:
    """Compiled and interpreted runs are equal bit for bit, stepped and jumped, and the latter agree."""
    slow, fast = trial.told("interpreted", audit=True), trial.told("stepped", audit=True)
    slow_jump, fast_jump = trial.told("interpreted-jumped"), trial.told("jumped")
    for one, other, how in ((slow, fast, "stepped"), (slow_jump, fast_jump, "jumped")):
        differ = same(one, other)
        if not differ and one.totals[:-1] != other.totals[:-1]:
            differ = ["totals"]
        if not differ and not np.array_equal(one.totals.gaps, other.totals.gaps):
            differ = ["gaps"]
        if differ:
            text = f"compiled and interpreted runs differ ({how}) in {', '.join(differ)}"
            return text + ": see the dialect in schedulers/README.md"
    differ = close(slow, slow_jump)
    return f"jumped and stepped runs differ in {', '.join(differ)}" + _REMEDY if differ else ""


def misjumped(trial: Trial) -> str:
    """Jumped and stepped runs agree to 1e-9 relative, in facts and totals; gaps but for those on an edge."""
    stepped, jumped = trial.told("stepped", audit=True), trial.told("jumped", audit=True)
    differ, one, other = close(stepped, jumped), stepped.totals, jumped.totals
    differ += [name for name in STEPPED_SUMS if getattr(one, name) != getattr(other, name)]
    differ += [
        name
        for name in STEPPED_MEANS
        if not np.isclose(getattr(one, name), getattr(other, name), rtol=1e-9, atol=0.0)
    ]
    moved = np.abs(np.cumsum(one.gaps - other.gaps)).max()
    if one.gaps.sum() != other.gaps.sum() or moved > one.gaps.sum() * 1e-4:
        differ.append("gaps")
    return f"jumped and stepped runs differ in {', '.join(differ)}" + _REMEDY if differ else ""


def foreseen(trial: Trial, requests: tuple[int, ...]) -> str:
    """E7: a longer answer changes nothing that happened before the shorter one ended."""
    before = trial.told().facts
    for request in requests:
        longer = trial.demand.output_tokens.copy()
        longer[request] += 25
        after = trial._replace(demand=trial.demand._replace(output_tokens=longer)).told().facts
        end_s = before.finished_s[request]
        for column in ("dispatched_s", "started_s", "first_token_s", "finished_s"):
            was, now = getattr(before, column), getattr(after, column)
            early = was < (end_s if end_s == end_s else inf)
            if not np.array_equal(was[early], now[early]):
                return f"E7: {column} changes before request {request} ends when only its true length does"
    return ""


def unscaled(trial: Trial) -> str:
    """E8: doubling all times, step costs and parameters in seconds doubles every result, to the last bit."""
    place, engine, cluster = trial.place, trial.scheduler.engine, trial.scheduler.cluster
    tiers = place.tiers
    slow = trial._replace(
        demand=trial.demand._replace(arrival_s=trial.demand.arrival_s * 2),
        place=place._replace(
            costs=place.costs * 2,
            wiring=place.wiring.slower(2.0),
            tiers=Tiers(tiers.ttft_s * 2, tiers.tpot_s * 2, tiers.e2e_s * 2, tiers.weight),
        ),
        scheduler=trial.scheduler._replace(
            cluster=cluster._replace(period_s=cluster.period_s * 2),
            engine_params=doubled(engine, trial.scheduler.engine_params),
            cluster_params=doubled(cluster, trial.scheduler.cluster_params),
        ),
    )
    once, twice = trial.told().facts, slow.told().facts
    for column in ("started_s", "first_token_s", "finished_s", "longest_gap_s"):
        if not np.array_equal(getattr(once, column) * 2, getattr(twice, column), equal_nan=True):
            text = f"E8: {column} is not twice as large once all times are"
            return text + ": a number in seconds hides in the code; make it a parameter with unit s or 1/s"
    return ""


def doubled(policy: Policy, values: tuple[float, ...]) -> tuple[float, ...]:
    """Return parameter values with seconds twice as long: unit "s" doubles, "1/s" halves, "s/s" stays."""
    powers = [
        (above == "s") - (below == "s") for above, _, below in (p.unit.partition("/") for p in policy.params)
    ]
    return tuple(value * 2.0**power for value, power in zip(values, powers, strict=True))


def retargeted(trial: Trial) -> str:
    """E8: other targets, same decisions; for policies that do not read targets."""
    other = trial._replace(place=trial.place._replace(tiers=OTHER_TIERS))
    differ = same(trial.told(), other.told())
    return (
        f"E8: {', '.join(differ)} changes when only targets do: declare reads=('targets',)" if differ else ""
    )


def unburdened(trial: Trial) -> str:
    """Attainment falls as load rises: the same requests, arriving at the rates of ``LOADS_PER_S``."""
    kept = []
    for rate_per_s in LOADS_PER_S:
        demand = trial.demand._replace(arrival_s=trial.demand.arrival_s / rate_per_s)
        kept.append(attainment(trial._replace(demand=demand)))
    told = ", ".join(f"{share:.0%} at {rate:g}/s" for rate, share in zip(LOADS_PER_S, kept, strict=True))
    if any(later > earlier + NOISE for earlier, later in pairwise(kept)):
        return f"more requests meet their targets as load rises: {told} an engine"
    return f"attainment does not fall with load: {told} an engine" if kept[0] - kept[-1] < FALL else ""


def attainment(trial: Trial) -> float:
    """Return the share of requests that meet the first-token and pace targets of their tier."""
    facts, tiers = trial.told("jumped").facts, trial.place.tiers
    pace_s = (facts.finished_s - facts.first_token_s) / np.maximum(facts.output_tokens - 1, 1)
    good = facts.first_token_s - facts.arrival_s <= tiers.ttft_s[facts.tier]
    good &= pace_s <= tiers.tpot_s[facts.tier]  # NaN of a rejected one is no success
    return float(np.mean(good))


def _hardships(scheduler: Scheduler, seed: int) -> Iterator[Trial]:
    """Yield drawn cases, most of them short of memory, slots or budget; every third on three engines."""
    draw = np.random.default_rng((seed, 77))
    for turn in range(24):
        count = int(draw.integers(1, 25))
        gaps_s = draw.choice([0.0, 0.001, 0.02, 0.3, 5.0], count)
        demand = ask(np.cumsum(gaps_s), draw.integers(1, 501, count), draw.integers(1, 91, count), turn)
        place = setup(
            blocks=int(draw.choice([20, 37, 64, 200])),
            sequences=int(draw.choice([1, 3, 16])),
            budget=int(draw.choice([16, 100, 512])),
            costs=(COSTS, HINGE)[turn % 2],
        )
        demand = related(scheduler, demand, turn)
        yield Trial(scheduler, demand, place._replace(engines=3 if turn % 3 == 2 else 1))


def _extremes(scheduler: Scheduler, policy: Policy, seed: int) -> Iterator[Trial]:
    """Yield a few hardships with each parameter at both ends of its range."""
    engine = isinstance(policy, EnginePolicy)
    values = scheduler.engine_params if engine else scheduler.cluster_params
    for at, param in enumerate(policy.params):
        for end in (float(param.low), float(param.high)):
            changed = (*values[:at], end, *values[at + 1 :])
            other = scheduler._replace(**{"engine_params" if engine else "cluster_params": changed})  # type: ignore[arg-type]
            yield from (trial for turn, trial in enumerate(_hardships(other, seed)) if turn in (2, 3, 4))


def _usual(scheduler: Scheduler) -> Trial:
    """Three hundred requests at one a second; three engines for a cluster policy, which one would not show."""
    plain = scheduler.cluster.name == "round-robin"
    demand = related(scheduler, traffic(300, 1.0, seed=7), 7)
    return Trial(scheduler, demand, setup(engines=1 if plain else 3))


def _short(usual: Trial, place: Setup, count: int) -> Trial:
    engines = usual.place.engines
    demand = related(usual.scheduler, traffic(count, 9.0 * engines, seed=count), count)
    return usual._replace(demand=demand, place=place._replace(engines=engines))


def _long(usual: Trial, rate_per_s: float) -> Trial:
    """The usual requests at another rate an engine, whose batch and memory are limited."""
    engines = usual.place.engines
    demand = usual.demand._replace(arrival_s=usual.demand.arrival_s / (rate_per_s * engines))
    return usual._replace(demand=demand, place=setup(blocks=900, sequences=40, engines=engines))


def setup(
    blocks: int = 29205,
    engines: int = 1,
    sequences: int = 256,
    budget: int = 2048,
    costs: Floats = COSTS,
    tiers: Tiers = TIERS,
) -> Setup:
    """An engine like Llama-3.1-8B on an A100, or a smaller one."""
    return Setup(engines, sequences, budget, 16, blocks, 131072, costs, tiers)


def ask(arrival_s: object, prompt_tokens: object, output_tokens: object, seed: int = 0) -> Demand:
    """Return a demand with forecasts, tiers, tenants and luck drawn; the three columns are array-like."""
    outputs = np.asarray(output_tokens, np.int64)
    draw, n = np.random.default_rng(seed), len(outputs)
    return Demand(
        np.asarray(arrival_s, np.float64),
        np.asarray(prompt_tokens, np.int64),
        outputs,
        np.maximum(1.0, outputs * draw.lognormal(0.0, 0.3, n)),
        draw.integers(0, 2, n),
        draw.integers(0, 3, n),
        np.full(n, -1),
        draw.random(n),
    )


def traffic(n: int, rate_per_s: float, seed: int = 0, prompt: float = 300, output: float = 40) -> Demand:
    """Return Poisson arrivals with log-normal lengths of these means."""
    draw = np.random.default_rng(seed)
    prompts = np.maximum(1, draw.lognormal(np.log(prompt) - 0.3, 0.8, n)).astype(int)
    outputs = np.maximum(1, draw.lognormal(np.log(output) - 0.3, 0.8, n)).astype(int)
    return ask(np.cumsum(draw.exponential(1.0 / rate_per_s, n)), prompts, outputs, seed)


def related(scheduler: Scheduler, demand: Demand, seed: int) -> Demand:
    """Return the demand for a scheduler: one that reads prefixes gets prompts that share some."""
    reads = (*scheduler.engine.reads, *scheduler.cluster.reads)
    return kindred(demand, seed) if "prefix" in reads else demand


def kindred(demand: Demand, seed: int = 0, block_tokens: int = 16) -> Demand:
    """Return the demand with prompts of which two in three begin as an earlier one does, up to some block.

    One in five of those ends there, so that nothing of it is new.
    """
    draw, fresh = np.random.default_rng((seed, 16)), 0
    rows: list[list[int]] = []
    prompts = demand.prompt_tokens.copy()
    for request in range(len(prompts)):
        other = int(draw.integers(0, max(1, request)))
        least = int(min(prompts[request], prompts[other])) // block_tokens
        begun = int(draw.integers(0, least + 1)) if request and draw.random() < 2 / 3 else 0
        if begun and draw.random() < 1 / 5:
            prompts[request] = begun * block_tokens
        left = -(-int(prompts[request]) // block_tokens) - begun
        rows.append([*(rows[other][:begun] if begun else []), *range(fresh, fresh + left)])
        fresh += left
    offsets = np.cumsum([0, *map(len, rows)])
    ids = np.array([one for row in rows for one in row], np.int64)
    return demand._replace(prompt_tokens=prompts, prefixes=shared(offsets, ids, block_tokens))


def same(a: Outcome, b: Outcome) -> list[str]:
    """Columns of the facts that are not equal bit for bit."""
    return [name for name, one, two in _columns(a, b) if not np.array_equal(one, two, equal_nan=True)]


def close(a: Outcome, b: Outcome) -> list[str]:
    """Columns of the facts that differ by more than 1e-9 relative."""
    return [
        name
        for name, one, two in _columns(a, b)
        if not np.allclose(one, two, rtol=1e-9, atol=1e-9, equal_nan=True)
    ]


def _columns(a: Outcome, b: Outcome) -> Iterator[tuple[str, Any, Any]]:
    yield from zip(a.facts._fields, a.facts, b.facts, strict=True)
