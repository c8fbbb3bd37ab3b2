"""`windtunnel metrics`: every metric that the services show, from their own registries, and the page made of it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

DOCS = Path(__file__).resolve().parent.parent / "docs" / "metrics.md"

LABELS = {
    "tier": "service class, 0 the most important; as many as the configuration has",
    "engine": "at the dispatcher the engine's row, at a worker its id; at most 1,024",
    "engine_row": "the row of a worker's engine at the dispatcher, put there by discovery",
    "model_name": "the profile's model, one a worker",
    "worker": "id of a worker, one an engine",
    "profile": "step-time profile of an engine, one a worker",
    "state": "a fixed list for each metric",
    "outcome": "finished, rejected, expired or failed",
    "reason": "one of the reasons that errors carry",
    "finished_reason": "stop or length",
    "target": "ttft, tpot, e2e or dropped",
    "cause": "why requests move: policy, or what an operator named",
    "direction": "in or out; worker for what workers sent; out or in of the fleet",
    "decision": "send, refuse, expire, lost, stall, move or scale; of engines order, drain, undrain or stop",
    "hook": "arrive, tick or offer",
    "side": "dispatcher or driver",
    "version": "one",
    "scheduler": "one at a time",
    "run": "id of the run that a load generator replays, as in the results; one at a time",
    "window": "id of its window, one at a time",
    "region": "its pressure, one at a time",
    "speed": "its time factor, one at a time",
    "quantile": "0.5, 0.99 and 1 (the most)",
    "block_size": "one", "num_gpu_blocks": "one",
}  # fmt: skip
"""Every label that any metric has, and what bounds its values. None is a request, a session or a tenant."""

OPENING = """\
# Metrics

This page is made from the services' own registries by `windtunnel metrics --write`; don't edit it. Prometheus finds
workers, load generators and the scaler by the dispatcher's `/targets` (http_sd);
`deploy/prometheus/prometheus.yml` is a configuration that works. Histograms of latencies have vLLM's own edges, so
that ours and an engine's can be held against each other.
"""


class Family(NamedTuple):
    """One metric."""

    name: str
    kind: str
    labels: tuple[str, ...]
    says: str


def metrics(
    write: Annotated[bool, typer.Option("--write", help="Write docs/metrics.md, in a checkout.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object and nothing else on stdout.")
    ] = False,
) -> None:
    """List every metric that dispatcher, workers and load generator show, with its labels.

    Example: windtunnel metrics --json
    """
    from schedulers.errors import InputError

    text = page()
    if write and not DOCS.parent.is_dir():
        raise InputError("docs/ is not here", where=str(DOCS.parent), fix="run it in a checkout")
    changed = write and (not DOCS.exists() or DOCS.read_text(encoding="utf-8") != text)
    if changed:
        DOCS.write_text(text, encoding="utf-8")
    if as_json:
        told = {source: [one._asdict() for one in found] for source, found in families().items()}
        typer.echo(json.dumps({"changed": changed, "metrics": told}))
    elif write:
        typer.echo("Rewrote docs/metrics.md." if changed else "docs/metrics.md is current.")
    else:
        typer.echo(text, nl=False)


def page() -> str:
    """Return the page in Markdown."""
    parts = [OPENING]
    for source, found in families().items():
        parts.append(f"\n## {source}\n\n| name | kind | labels | what |\n| --- | --- | --- | --- |\n")
        for one in found:
            labels = ", ".join(f"`{label}`" for label in one.labels) or "-"
            parts.append(f"| `{one.name}` | {one.kind} | {labels} | {one.says} |\n")
    used = {label for found in families().values() for one in found for label in one.labels}
    parts.append("\n## Labels\n\n| label | values |\n| --- | --- |\n")
    parts += [f"| `{label}` | {says} |\n" for label, says in LABELS.items() if label in {*used, "engine_row"}]
    return "".join(parts)


def families() -> dict[str, list[Family]]:
    """Return the metrics of each service, by name."""
    return {
        "Dispatcher": sorted(of(dispatcher_registry())),
        "Worker": sorted(of(worker_registry())),
        "Load generator": sorted(of(generator_registry())),
        "Scaler": sorted(of(scaler_registry())),
    }


def of(registry: "CollectorRegistry") -> Iterator[Family]:
    """Yield the metrics of a registry; labels as declared, or as its samples have them."""
    declared: dict[str, tuple[str, ...]] = {}
    for collector in list(registry._collector_to_names):
        names: Any = getattr(collector, "_labelnames", None)
        if names is not None:
            declared[collector._name] = tuple(names)  # type: ignore[attr-defined]
    for family in registry.collect():
        seen = {label: None for sample in family.samples for label in sample.labels if label != "le"}
        name = family.name + ("_total" if family.type == "counter" else "")
        yield Family(name, family.type, declared.get(family.name, tuple(seen)), family.documentation)


def dispatcher_registry() -> "CollectorRegistry":
    """A dispatcher's metrics before its first request."""
    from services.config import TierConfig
    from services.dispatcher.metrics import Metrics

    return Metrics((TierConfig("any", ttft_s=1.0, tpot_s=1.0, e2e_s=1.0),), "any", "any").registry


def worker_registry() -> "CollectorRegistry":
    """An idle worker's metrics."""
    from services.worker.config import WorkerConfig
    from services.worker.process import UNTOLD
    from services.worker.worker import Worker

    return Worker(WorkerConfig(), UNTOLD).gauges.registry


def scaler_registry() -> "CollectorRegistry":
    """All that a scaler shows."""
    from services.scaler.metrics import Metrics

    return Metrics(1).registry


def generator_registry() -> "CollectorRegistry":
    """A load generator's metrics with one request that was never sent."""
    import numpy as np
    from prometheus_client import CollectorRegistry

    from loadgen.demand import Demand
    from loadgen.replay.health import Health
    from loadgen.replay.lag import lag_of
    from loadgen.replay.run import Replay, Replayed, ReplayRules
    from loadgen.replay.schedule import Schedule
    from services.generator import RunPage, Shown

    seconds, whole = np.zeros(1), np.zeros(1, np.int64)
    demand = Demand(seconds, whole + 1, whole + 1, seconds, whole, whole, whole, seconds)
    schedule = Schedule("any", "any", "any", 1.0, demand, seconds, whole - 1, seconds, None, None, 1)
    replay = Replay(schedule, None, ReplayRules(), ((1.0, 1.0, 1.0),))  # type: ignore[arg-type] # nobody sends
    replay.trails.close("unsent")
    lag = lag_of(replay.trails.due_s, replay.trails.sent_s)
    told = Replayed(replay.trails, lag, Health(0.0, 0.0, 0.0, ()), 0.0, "", ())
    page, registry = RunPage(), CollectorRegistry()
    registry.register(page)
    page.show(Shown("any", ("any",) * 4, replay, (0, 1), told))
    return registry
