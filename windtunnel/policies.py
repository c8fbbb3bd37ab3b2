"""What each policy declares, as plain values, and the pages of Markdown that are generated from it."""

import inspect
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from schedulers.load import Found

CANON = (
    "fcfs-prefill", "fcfs-chunked", "sarathi", "edf", "least-slack", "sjf-pred", "srpt-limited", "mlfq-skipjoin",
    "vtc", "kv-peak", "slai", "slo-guard", "hybrid-ageing",
)  # fmt: skip
"""The thirteen that are ranked unless others are named."""

SETS = {
    "canon": "the thirteen engine policies that are ranked",
    "second": "engine policies beyond the canon",
    "as-published": "the thirteen of a published study, as they were coded there, defects included",
    "cluster": "which engine takes a request",
    "control": "run and reported, never ranked",
}
"""Each set of policies and what is in it."""

FIDELITY = ("faithful", "choice", "unverified")
"""What is said of a policy's nearness to its source: what it keeps, what is our choice, what nobody checked."""

FIDELITY_FILE = Path(__file__).resolve().parent.parent / "schedulers" / "fidelity.toml"

PAGE_OPENING = """\
# The schedulers that ship

This page is generated from the policy files by `windtunnel schedulers pages --write`; don't edit it. How to write
a policy of your own, and what each hook is asked: `schedulers/README.md`. A worked example of any of them, as a
timeline: `windtunnel schedulers show NAME`. Name a scheduler as `ENGINE[:k=v,k=v][+CLUSTER[:k=v]]`, for instance
`sarathi:phi=0.8+least-requests`.
"""


@cache
def fidelity() -> dict[str, dict[str, str]]:
    """Return, by policy, what is faithful to its source, what is our choice and what is unverified."""
    with FIDELITY_FILE.open("rb") as file:
        return tomllib.load(file)


def shipped() -> list[dict[str, Any]]:
    """Return the facts of all policies that ship, set by set, the canon first."""
    from schedulers.load import find, shipped_names

    told = [facts(find(name)) for name in shipped_names()]
    return sorted(told, key=lambda policy: list(SETS).index(policy["set"]))


def facts(found: "Found") -> dict[str, Any]:
    """Return what a policy declares, in plain values; an infinite number is the text "inf"."""
    from schedulers.checks import ENGINE_HOOKS
    from schedulers.policy import CLUSTER_HOOKS, EnginePolicy

    policy = found.policy
    engine = isinstance(policy, EnginePolicy)
    hooks = [hook for hook in (ENGINE_HOOKS if engine else CLUSTER_HOOKS) if getattr(policy, hook)]
    layer = "engine" if engine else "cluster"
    return {
        "name": policy.name,
        "set": set_of(found, layer),
        "layer": layer,
        "kind": layer + (", control" if policy.control else ""),
        "idea": found.idea,
        "remarks": inspect.cleandoc(found.module.__doc__ or "").partition("\n")[2].strip(),
        "hooks": hooks,
        "rule": {hook: inspect.cleandoc(getattr(policy, hook).__doc__ or "") for hook in hooks},
        "params": [
            {
                "name": param.name,
                "value": plain(value),
                "low": plain(param.low),
                "high": plain(param.high),
                "unit": param.unit,
                "meaning": param.meaning,
            }
            for param, value in zip(policy.params, found.values, strict=True)
        ],
        "reads": list(policy.reads),
        "control": policy.control,
        "oracle": policy.oracle,
        "version": policy.version,
        "source": policy.source,
        "fidelity": fidelity().get(policy.name, {}) if set_of(found, layer) != "own" else {},
        "file": str(found.module.__file__),
    }


def first_budget(found: "Found", plan: str) -> dict[str, Any] | None:
    """Return the tokens that a policy lets the first step of an engine carry, on a plan's fleet under its tiers.

    For sarathi that is the budget B* that it derives from the tightest pace. None for a policy that leaves the
    budget to the engine. Raises InputError for a plan that can't be read.
    """
    from loadgen.plan import read_plan
    from schedulers.policy import EnginePolicy
    from sim.calibrate import setup_of
    from sim.checks import around, ask
    from sim.engine import read_budget
    from sim.run import build

    if not isinstance(found.policy, EnginePolicy) or found.policy.budget is None:
        return None
    known = read_plan(plan)
    setup = setup_of(known)
    rig = build(ask([0.0], [1], [1]), around(found.policy, found.values), setup, jump=True, audit=False)
    return {
        "plan": known.name,
        "profile": known.fleet.profile,
        "limit_tokens": int(rig.known.engines.budget_max[0]),
        "tightest_tpot_s": plain(float(setup.tiers.tpot_s.min())),
        "tokens": read_budget(rig, 0, 0.0),
    }


def set_of(found: "Found", layer: str) -> str:
    """Return the set that a policy belongs to; a file of the user's own is "own"."""
    home = found.module.__name__.rpartition(".")[0]
    if not home.startswith("schedulers"):
        return "own"
    if found.policy.control:
        return "control"
    if home == "schedulers.published":
        return "as-published"
    return "cluster" if layer == "cluster" else "canon" if found.policy.name in CANON else "second"


def plain(value: float) -> float | int | str:
    """Return a number as JSON can hold it, whole ones without a point."""
    if value in (float("inf"), float("-inf")):
        return str(value)
    return int(value) if value == int(value) else value


def table() -> str:
    """Return the table in Markdown that stands in schedulers/README.md: controls last, none as published."""
    lines = ["| name | kind | idea | reads | parameters (default, range) |", "|---|---|---|---|---|"]
    listed = sorted(
        shipped(), key=lambda policy: (policy["control"], policy["layer"] == "cluster", policy["name"])
    )
    for policy in listed:
        if policy["set"] == "as-published":
            continue
        params = [
            f"`{p['name']}` {p['value']} {p['unit']} ({p['low']}..{p['high']})" for p in policy["params"]
        ]
        reads = ", ".join(policy["reads"])
        cells = (f"`{policy['name']}`", policy["kind"], policy["idea"], reads, "; ".join(params))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """Return docs/schedulers.md: a table a set, then each policy with its rule in the words of its hooks."""
    policies = shipped()
    parts = [PAGE_OPENING]
    for name, meaning in SETS.items():
        members = [policy for policy in policies if policy["set"] == name]
        lines = [
            f"## {name}: {meaning} ({len(members)})\n",
            "| name | idea | needs | paper |",
            "|---|---|---|---|",
        ]
        for policy in members:
            link = f"[`{policy['name']}`](#{anchor(policy['name'])})"
            cells = (link, policy["idea"], ", ".join(policy["reads"]), policy["source"])
            lines.append(f"| {' | '.join(cells)} |")
        parts.append("\n".join(lines) + "\n")
    parts.append(nearness(policies))
    parts.append("## Each policy\n")
    parts += [section(policy) for policy in policies]
    return "\n".join(parts)


def nearness(policies: list[dict[str, Any]]) -> str:
    """Return the table in Markdown of what each policy keeps of its source, as schedulers/fidelity.toml says."""
    lines = [
        "## How near each policy is to its source\n",
        "The as-published set keeps a study's defects on purpose: each is a parameter of its policy, below.\n",
        "| policy | faithful | our choice | unverified |",
        "|---|---|---|---|",
    ]
    for policy in policies:
        if said := policy["fidelity"]:
            cells = (
                f"[`{policy['name']}`](#{anchor(policy['name'])})",
                *(said[key] or "nothing" for key in FIDELITY),
            )
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def anchor(name: str) -> str:
    """Return the anchor that a heading of this text gets on code hosts."""
    return "".join(letter for letter in name.lower() if letter.isalnum() or letter in "-_")


def section(policy: dict[str, Any]) -> str:
    """Return one policy in Markdown."""
    head = f"{policy['layer']} policy, {policy['set']}, version {policy['version']}"
    lines = [
        f"### {policy['name']}\n",
        f"{policy['idea']}\n",
        f"{head}; source: {policy['source'] or 'our own'}.\n",
    ]
    if policy["remarks"]:
        lines.append(f"{policy['remarks']}\n")
    for hook, words in policy["rule"].items():
        first, *rest = words.split("\n\n")
        lines += [
            f"* **{hook}**: {' '.join(first.split())}",
            *(f"  {' '.join(more.split())}" for more in rest),
        ]
    if not policy["rule"]:
        lines.append("No hook of its own: all the engine's defaults.")
    if policy["params"]:
        lines += ["", "| parameter | default | range | meaning |", "|---|---|---|---|"]
    for p in policy["params"]:
        unit = f" {p['unit']}" if p["unit"] else ""
        lines.append(f"| `{p['name']}` | {p['value']}{unit} | {p['low']}..{p['high']} | {p['meaning']} |")
    return "\n".join(lines) + "\n"
