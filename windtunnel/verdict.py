"""What one cluster run came to: by tier, by engine and as a whole, as plain values and as rows to store."""

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

    from schedulers.view import Floats
    from sim.film import Timeline
    from sim.outcome import Outcome
    from windtunnel.scene import Scene

QUANTILES = (50, 95, 99)


def verdict(scene: "Scene", outcome: "Outcome", shown: "Timeline") -> dict[str, Any]:
    """Return the run in plain values; tiers are scored over the window's middle, everything else over all of it."""
    from analysis.metrics import latencies
    from analysis.metrics import met as has_met
    from loadgen.demand import targets
    from sim.runs import scored_facts

    facts, totals, moves = outcome.facts, outcome.totals, outcome.moves
    scored = scored_facts(outcome, scene.demand)
    met, low_high = has_met("tier", scored, targets(scene.plan)), scene.window.scored
    held, graded = totals.engine_s, (met, latencies(facts))
    return {
        "window": scene.window.line.id,
        "source": scene.window.line.source,
        "label": scene.window.line.label,
        "scheduler": scene.plan.schedulers[0],
        "requests": len(facts.arrival_s),
        "scored_rows": list(low_high),
        "span_s": float(facts.arrival_s[-1] - facts.arrival_s[0]),
        "end_s": float(np.nanmax(facts.finished_s, initial=float(facts.arrival_s[-1]))),
        "region": scene.region.name,
        "rho": scene.region.rho,
        "stretch": scene.region.factor,
        "capacity_per_s": scene.capacity.capacity_per_s,
        "tiers": [one_tier(scene, outcome, graded, tier) for tier in range(len(scene.plan.tiers))],
        "engines": [one_engine(scene, outcome, shown, engine) for engine in range(scene.setup.engines)],
        "attainment": float(met[slice(*low_high)].mean()),
        "gap_p50_s": gap(outcome, "p50"),
        "gap_p99_s": gap(outcome, "p99"),
        "evictions": totals.evictions,
        "moves": {
            "started": moves.started, "committed": moves.committed, "aborted": moves.aborted,
            "gbytes": moves.bytes / 1e9,
            "downtime_mean_s": float(moves.downtime_s.sum() / moves.committed) if moves.committed else None,
            "seconds": moves.seconds,
        },
        "boots": moves.boots,
        "drains": moves.drains,
        "deaths": moves.deaths,
        "engine_s": held,
        "engine_s_per_attained": held / int(met.sum()) if met.any() else None,
        "busy_share": totals.busy_s / held if held else None,
        "batch_mean": totals.batch_mean,
        "kv_peak": totals.kv_peak,
    }  # fmt: skip


def gap(outcome: "Outcome", stat: str) -> float | None:
    """Return a quantile of the gaps between tokens, over all requests; None if there was none."""
    from analysis.metrics import gap_quantile

    return gap_quantile(outcome.totals.gaps, stat)


def one_tier(scene: "Scene", outcome: "Outcome", graded: tuple[Any, Any], tier: int) -> dict[str, Any]:
    """Return how one tier fared, over the scored rows; ``graded`` = which requests met their targets, latencies."""
    met, known = graded
    facts, (low, high) = outcome.facts, scene.window.scored
    inside = np.zeros(len(facts.tier), bool)
    inside[low:high] = True
    rows = inside & (scene.demand.tier == tier)
    spec, done = scene.plan.tiers[tier], rows & (facts.outcome == 0)
    found: dict[str, Any] = {
        "tier": tier,
        "name": spec.name,
        "arrivals": int(rows.sum()),
        "attainment": float(met[rows].mean()) if rows.any() else None,
        "finished": int(done.sum()),
        "rejected": int((facts.outcome[rows] == 1).sum()),
        "preemptions": int(facts.preemptions[rows].sum()),
        "migrations": int(facts.migrations[rows].sum()),
        "ttft_target_s": spec.ttft_s if np.isfinite(spec.ttft_s) else None,
        "tpot_target_s": spec.tpot_s if np.isfinite(spec.tpot_s) else None,
        "e2e_target_s": spec.e2e_s if np.isfinite(spec.e2e_s) else None,
    }
    for name in ("ttft", "tpot", "longest_gap", "e2e"):
        for q in QUANTILES:
            found[f"{name}_p{q}_s"] = quantile(known[name][done], q)
    return found


def quantile(values: "Floats", q: int) -> float | None:
    """Return a quantile of those that are numbers; None if there are none."""
    known = values[np.isfinite(values)]
    return float(np.percentile(known, q)) if len(known) else None


def one_engine(scene: "Scene", outcome: "Outcome", shown: "Timeline", engine: int) -> dict[str, Any]:
    """Return what one engine did; means are over time, up to the last request's end."""
    from sim.log import DISPATCHED, MOVED

    facts = outcome.facts
    blocks, span_s = int(shown.blocks[engine]), np.diff(shown.at_s, append=shown.at_s[-1])
    moved = shown.kind == MOVED
    weights = span_s if span_s.sum() > 0 else np.ones(len(span_s))
    return {
        "engine": engine,
        "name": scene.engines[engine],
        "blocks": blocks,
        "dispatched": int(((shown.kind == DISPATCHED) & (shown.engine == engine)).sum()),
        "finished": int(((facts.engine == engine) & (facts.outcome == 0)).sum()),
        "moved_in": int((moved & (shown.other == engine)).sum()),
        "moved_out": int((moved & (shown.engine == engine)).sum()),
        "batch_mean": float(np.average(shown.batch[:, engine], weights=weights)),
        "kv_mean": float(np.average(shown.used[:, engine], weights=weights) / blocks),
        "kv_peak": float((shown.used[:, engine] + shown.kept[:, engine]).max() / blocks),
    }


def store(scene: "Scene", outcome: "Outcome", place_text: str, out: "Path") -> str:
    """Write the run as a row of ``runs`` and its requests under ``out``; return the run's id."""
    import hashlib

    from analysis.metrics import summarise
    from loadgen.demand import targets
    from loadgen.result import run_row, write_shard
    from sim.calibrate import fleet_json
    from sim.runs import Job, Task, key_of, region_columns, scored_facts
    from windtunnel.sweep import revision

    spec, costs = scene.plan.schedulers[0], np.atleast_2d(scene.setup.costs)
    alike = scene.setup._replace(
        costs=costs[0]
    )  # work is priced on the first engine: only shares of it count
    fleet = fleet_json(scene.plan, scene.setup)[:-1] + f',"place":{place_text}}}'
    digest = hashlib.sha256(scene.window.line.content_sha256.encode()).hexdigest()
    job = Job(scene.plan, out, alike, fleet, digest, scene.capacity.sha256, revision(), summarise)
    task = Task(job, scene.window.line, scene.capacity, ())
    key = key_of(task, scene.region, spec)
    facts = scored_facts(outcome, scene.demand)
    graded = targets(scene.plan)
    metrics = summarise(facts, outcome.totals, scene.window.scored, graded, scene.plan.slo_sets)
    row = run_row(key, facts, outcome.totals, metrics, region_columns(task, scene.window, scene.region))
    write_shard(out, f"{scene.window.line.id}-{key.run_id[:8]}", [row], [(key.run_id, facts)])
    return key.run_id
