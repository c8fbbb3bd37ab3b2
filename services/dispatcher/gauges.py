"""The dispatcher's gauges, and where Prometheus finds the others: worked out when somebody scrapes."""

from typing import TYPE_CHECKING, Any

import numpy as np

from schedulers.view import RUNNING

if TYPE_CHECKING:
    from services.dispatcher.links import Worker
    from services.dispatcher.process import Parts

ENGINE_STATES = ("serving", "draining", "away", "lost", "left")
"""States of a worker: away while its link is cut and it may come back, lost if it did not, left if it said so."""


def bring_up_to_date(parts: "Parts") -> None:
    """Set the gauges to what is now."""
    of_requests(parts)
    of_engines(parts)
    metrics = parts.metrics
    if parts.config.scaling.most:
        for state, count in parts.scaling.sizes().items():
            metrics.fleet.labels(state).set(count)
    metrics.journal_away.set(int(parts.journal.away))
    metrics.migrations_open.set(len(parts.links.migrations.moves))
    metrics.policy_faults.set(len(parts.heart.desk.faults))


def of_requests(parts: "Parts") -> None:
    """Open requests by tier: how many in which state, how long the first waits."""
    heart, metrics = parts.heart, parts.metrics
    board, table, now_s = heart.desk.board, heart.desk.board.view.requests, heart.clock()
    open_rows = board.number >= 0
    moving = [
        heart.answers[number].submission.tier for number in heart.desk.moving if number in heart.answers
    ]
    for tier, name in enumerate(metrics.names):
        mine = open_rows & (table.tier == tier)
        silent = mine & np.isnan(table.first_token_s) & (table.generated_tokens == 0)
        metrics.queue_depth.labels(name).set(int(silent.sum()))
        metrics.queue_tokens.labels(name).set(int(table.prompt_tokens[silent].sum()))
        oldest = now_s - float(table.arrival_s[silent].min()) if silent.any() else 0.0
        metrics.oldest.labels(name).set(max(0.0, oldest))
        for state, count in (
            ("queued", int((mine & (table.engine < 0)).sum())),
            ("dispatched", int((mine & (table.engine >= 0) & (table.state != RUNNING)).sum())),
            ("streaming", int((mine & (table.state == RUNNING)).sum())),
            ("migrating", moving.count(tier)),
        ):
            metrics.in_flight.labels(name, state).set(count)


def of_engines(parts: "Parts") -> None:
    """Workers by row: state, load, memory, how old their word is. A worker that is gone has no load."""
    metrics, fleet, now_s = parts.metrics, parts.heart.desk.board.view.engines, parts.heart.clock()
    for family in (
        metrics.engine_info, metrics.engine_load, metrics.engine_kv, metrics.engine_step, metrics.report_age,
    ):  # fmt: skip
        family.clear()
    for worker in parts.links.workers.values():
        row, name, now = worker.row, str(worker.row), state_of(worker, bool(fleet_drains(parts, worker.row)))
        for state in ENGINE_STATES:
            metrics.engine_state.labels(name, state).set(int(state == now))
        if now in ("lost", "left"):
            continue
        metrics.engine_info.labels(name, worker.worker_id, worker.said.profile).set(1)
        metrics.engine_load.labels(name, "running").set(int(fleet.running[row]))
        metrics.engine_load.labels(name, "waiting").set(int(fleet.waiting[row]))
        used = 1.0 - float(fleet.blocks_free[row]) / max(1, int(fleet.blocks_total[row]))
        metrics.engine_kv.labels(name).set(used)
        metrics.engine_step.labels(name).set(float(fleet.step_s[row]))
        metrics.report_age.labels(name).set(max(0.0, now_s - float(fleet.reported_s[row])))


def fleet_drains(parts: "Parts", row: int) -> bool:
    """True if an engine takes nothing new."""
    return bool(parts.heart.desk.board.view.engines.draining[row])


def state_of(worker: "Worker", draining: bool) -> str:
    """Which of ``ENGINE_STATES`` a worker is in."""
    if worker.connected:
        return "draining" if draining else "serving"
    if worker.leaving:
        return "left"
    return "away" if worker.death is not None else "lost"


def scrape_targets(parts: "Parts") -> list[dict[str, Any]]:
    """Prometheus' http_sd: each worker that is here, and each load generator and scaler that said so lately."""
    workers = [
        {
            "targets": [worker.said.metrics_address],
            "labels": {"job": "windtunnel-worker", "worker": worker.worker_id, "engine_row": str(worker.row)},
        }
        for worker in parts.links.workers.values()
        if worker.connected and worker.said.metrics_address
    ]
    announced = parts.announced.now(parts.clock())
    return workers + [{"targets": [at], "labels": {"job": job}} for at, job in announced.items()]


class Announced:
    """Addresses that somebody announced for a while, the latest ``most``; who does not come again is forgotten."""

    def __init__(self, most: int = 16) -> None:
        self.most = most
        self.until_s: dict[str, float] = {}
        self.jobs: dict[str, str] = {}

    def note(self, address: str, until_s: float, job: str = "windtunnel-replay") -> None:
        """Keep an address until a moment; one that is over forgets it."""
        self.until_s.pop(address, None)
        self.until_s[address], self.jobs[address] = until_s, job
        while len(self.until_s) > self.most:
            del self.until_s[next(iter(self.until_s))]

    def now(self, now_s: float) -> dict[str, str]:
        """The addresses that still hold, each with its job."""
        self.until_s = {address: until_s for address, until_s in self.until_s.items() if until_s > now_s}
        self.jobs = {address: self.jobs[address] for address in self.until_s}
        return dict(self.jobs)
