"""Controls: schedulers whose place is known beforehand, so that a broken measurement shows itself."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from analysis.metrics import natural
from analysis.scores import Study, scores

Floats = npt.NDArray[np.float64]

LEAST_RHO = 0.85
"""Expectations are checked over conditions pushed at least so hard: below, queues are short and order
decides little.
"""

FIRST, LAST, NO_BETTER = (
    "ahead of policies that know less",
    "behind arrival order",
    "no better than the median",
)
KEPT, BROKEN, UNKNOWN = "as expected", "BROKEN", "can't tell"


REFERENCES = ("random", "lifo", "fcfs-chunked", "fcfs-prefill", "sjf-pred")
"""Engine policies that know less than an oracle by construction; only these must come out behind it.

Shortest-remaining-first by true length isn't optimal on an engine that batches, so another scheduler may
rightly beat it.
"""


IN_ORDER = ("fcfs-chunked",)
"""Engine policies that differ from ``lifo`` in the order alone; the newest first must come out behind them.

Whoever goes by length or by past service may make a few wait longer still, and so may one that forms smaller steps
and serves less a second; neither is a fault of the measurement.
"""


class Expectation(NamedTuple):
    """Where a control must come out; ``slack`` is on the compared scale (0.01 of a logarithm is 1 %)."""

    control: str  # name of its engine policy
    column: str
    place: str  # among the ranked schedulers; FIRST: among those of REFERENCES, LAST: of IN_ORDER
    slack: float
    why: str


EXPECTATIONS = (
    Expectation(
        "oracle-srpt", "e2e_mean_s", FIRST, 0.01, "it knows true lengths and serves the shortest remaining"
    ),
    Expectation("lifo", "e2e_p95_s", LAST, 0.01, "serving the newest first spreads waiting widest"),
    Expectation("random", "ttft_p99_s", NO_BETTER, 0.05, "it looks at nothing"),
)
"""Checked on every sweep that runs these controls.

Of orders that ignore length, last-come-first-served has the widest waiting time, so its late requests are
the latest. End-to-end latency shows that; the tail of TTFT doesn't tell it from shortest-first, which
starves the long.
"""


class Check(NamedTuple):
    """What became of one expectation."""

    control: str
    column: str
    place: str
    status: str
    says: str
    note: str = ""  # what is worth knowing and breaks nothing


def check_controls(of: Study) -> tuple[Check, ...]:
    """Return one check for each expectation and control that it names, in the order of ``EXPECTATIONS``."""
    checks = []
    policies = (
        of.runs[of.runs["control"]].drop_duplicates("scheduler").set_index("scheduler")["engine_policy"]
    )
    for wanted in EXPECTATIONS:
        named = [
            str(name) for name, policy in policies.items() if str(policy).split(":")[0] == wanted.control
        ]
        checks += [_check(of, wanted, name) for name in named] or [
            _unknown(wanted, wanted.control, "was not run")
        ]
    return tuple(checks)


def broken(checks: tuple[Check, ...]) -> tuple[Check, ...]:
    """Return the checks whose control came out elsewhere than it must."""
    return tuple(check for check in checks if check.status == BROKEN)


def beaten(of: Study) -> tuple[tuple[str, int, int], ...]:
    """Return (control, ranked schedulers that it beats, ranked schedulers) by the primary metric.

    Means over conditions with rho >= 0.85; a control whose metric is undefined in one is left out.
    """
    pooled = _pooled(of, of.primary)
    ranked = [pooled[name] for name in of.schedulers if name in pooled]
    return tuple(
        (name, sum(pooled[name] > value + 1e-9 for value in ranked), len(ranked))
        for name in of.controls
        if name in pooled and ranked
    )


def _references(of: Study, control: str, policies: tuple[str, ...]) -> set[str]:
    """Return schedulers and controls of these policies that send requests to engines as ``control`` does."""
    once = of.runs.drop_duplicates("scheduler").set_index("scheduler")
    alike = once[once["cluster_policy"] == once.loc[control, "cluster_policy"]]
    known_less = {
        str(name)
        for name, policy in alike["engine_policy"].items()
        if str(policy).split(":")[0] in policies and name != control
    }
    return known_less | {name for name, same in of.twins.items() if known_less & set(same)}


def _check(of: Study, wanted: Expectation, control: str) -> Check:
    pooled = _pooled(of, wanted.column)
    # A control is held against what is ranked; which of two controls is the worse says nothing.
    others = {name: value for name, value in pooled.items() if name in of.schedulers}
    note = ""
    if wanted.place == FIRST and control in pooled:
        known_less = _references(of, control, REFERENCES)
        beaten_by = [
            name
            for name, value in others.items()
            if name not in known_less and value > pooled[control] + wanted.slack
        ]
        if beaten_by:
            note = (
                f"{', '.join(beaten_by)} beats {control} on {wanted.column}: "
                "the oracle is a strong policy, not a bound"
            )
        others = {name: value for name, value in pooled.items() if name in known_less}
    if wanted.place == LAST and control in pooled:
        in_order = _references(of, control, IN_ORDER)
        behind = [
            name
            for name, value in others.items()
            if name not in in_order and value < pooled[control] - wanted.slack
        ]
        if behind:
            note = (
                f"{', '.join(behind)} comes out behind {control} on {wanted.column}: it starves some requests"
            )
        others = {name: value for name, value in others.items() if name in in_order}
    if control not in pooled or not others:
        return _unknown(
            wanted,
            control,
            f"{wanted.column} is not known for it and one to compare it with at rho >= {LEAST_RHO}",
        )
    own = pooled[control]
    if wanted.place == FIRST:
        rival = max(others, key=lambda name: others[name])
        kept = own >= others[rival] - wanted.slack
    elif wanted.place == LAST:
        rival = min(others, key=lambda name: others[name])
        kept = own <= others[rival] + wanted.slack
    else:
        ranked = sorted(others, key=lambda name: others[name])
        rival = ranked[len(ranked) // 2]
        kept = own <= others[rival] + wanted.slack
    says = f"{_shown(own, wanted.column)} against {_shown(others[rival], wanted.column)} of {rival}"
    return Check(control, wanted.column, wanted.place, KEPT if kept else BROKEN, says, note)


def _unknown(wanted: Expectation, control: str, why: str) -> Check:
    return Check(control, wanted.column, wanted.place, UNKNOWN, why)


def _shown(value: float, column: str) -> str:
    return f"{float(natural(np.asarray(value), column)):.3g} s"


def _pooled(of: Study, column: str) -> dict[str, float]:
    """Return the mean over conditions with rho >= 0.85 a scheduler, on the compared scale.

    Every condition counts alike; only schedulers that have the metric in all of them take part.
    """
    if column not in of.runs:
        return {}
    rhos = of.runs.drop_duplicates("region").set_index("region")["rho"]
    cells = [
        scores(of, source, region, column, of.schedulers + of.controls)
        for source in of.sources
        for region in of.regions
        if rhos[region] >= LEAST_RHO - 1e-9
    ]
    cells = [cell for cell in cells if cell.windows]
    names = [name for name in of.schedulers + of.controls if all(name in cell.schedulers for cell in cells)]
    if not cells:
        return {}
    return {
        name: float(np.mean([cell.means[cell.schedulers.index(name)] for cell in cells])) for name in names
    }
