"""The live testbed's targets of speed: what was measured against each, and what stands in the way of one missed."""

from typing import Any, NamedTuple

ADDED_MS = {100.0: (3.0, 10.0), 500.0: (8.0, 60.0)}
"""TTFT that the dispatcher may add, p50 and p99, by requests a second."""

CPU_MS, TOKENS_PER_S, STREAMS, LAG_MS = 2.0, 50_000.0, 2000, 10.0
"""CPU of the dispatcher a request at the highest rate; tokens a second; open streams; p99 lag at 1,000 a second."""

CORES = "dispatcher and load generator use {used:.2f} of {cores} cores beside the worker: "
LIFT = (
    "one Python process does the dispatcher's work on one core; more cores for the others, a longer tokens' tick, "
    "or dispatchers by hash of the session lift it"
)
BUSY = (
    "other work had a load of {load} on {cores} cores, so this is what was left over, and no limit of the testbed: "
    "measure again when the machine is quiet"
)
CLIENT = "the load generator is one Python process; several of them, each with a part of the window, lift it"


class Target(NamedTuple):
    """One figure: reached if it is below ``most``, or with ``least`` above it."""

    what: str
    measured: float
    unit: str
    wanted: str
    reached: bool
    limit: str


def judged(told: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each target that the measurements bear on."""
    machine, found = told["machine"], list[Target]()
    for block in told["latency"]:
        rate, limits = block["rate_per_s"], ADDED_MS.get(block["rate_per_s"])
        for row in block["paths"] if limits else ():
            if not row["path"].startswith("dispatcher"):
                continue
            why = used(row, rate, machine) + LIFT
            for name, most in zip(("p50", "p99"), limits or (), strict=False):
                added = row[f"added_{name}_ms"]
                what = f"TTFT added at {rate:g}/s, {row['path'].partition(', ')[2]}, {name}"
                found.append(Target(what, added, "ms", f"below {most:g}:", added < most, why))
    busiest = max(told["latency"], key=lambda block: block["rate_per_s"])
    for row in busiest["paths"]:
        if row["path"].startswith("dispatcher"):
            cpu_ms = row["cpu_s"] * 1e3
            what = (
                f"dispatcher CPU a request at {busiest['rate_per_s']:g}/s, {row['path'].partition(', ')[2]}"
            )
            found.append(Target(what, cpu_ms, "ms", f"below {CPU_MS:g}:", cpu_ms < CPU_MS, LIFT))
    tokens, held, own = told["through"]["tokens_per_s"], told["streams"], told["load_generator"]
    found.append(Target("tokens/s", tokens, "", f"{TOKENS_PER_S:,.0f}:", tokens >= TOKENS_PER_S, LIFT))
    streams = held["open_most"] if held["finished"] == held["requests"] else 0
    found.append(Target("streams at once", streams, "", f"{STREAMS:,}:", streams >= 0.95 * STREAMS, LIFT))
    lag_ms = own["lag_p99_s"] * 1e3
    what = "load generator's lag p99 at 1,000/s"
    found.append(Target(what, lag_ms, "ms", f"below {LAG_MS:g}:", lag_ms < LAG_MS, CLIENT))
    if machine["load"] > machine["cores"] / 2.0:
        found = [one._replace(limit=BUSY.format(**machine)) for one in found]
    return [one._asdict() for one in found]


def used(row: dict[str, Any], rate: float, machine: dict[str, Any]) -> str:
    """How busy a row kept the machine."""
    share = (row["cpu_s"] + row["client_cpu_s"]) * rate
    return CORES.format(used=share, cores=machine["cores"], load=machine["load"])
