"""The contract suite for anybody's policy: ask every hook on small views and report what breaks the rules."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from math import inf
from typing import NamedTuple

import numpy as np

from schedulers.answers import EVENTS, Fault, Policy, Question, ask, same, wrong
from schedulers.policy import CLUSTER_HOOKS, HOLD, WAIT, ClusterPolicy, EnginePolicy, Memo, Param
from schedulers.samples import KNOWLEDGE, NOW_S, SHAPES, changed, copied, draw, level, renamed
from schedulers.view import STEP, View

ENGINE_HOOKS = ("order", "admit", "serve", "budget", "evict", "preempt", "observe", "wake")
WIDE = ("preempt", "observe")
"""Hooks that take four arguments; all others take three."""

LATER_S = (0.01, 0.1, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0)
"""How long nothing happens when answers are asked again."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(@published)?")


class Finding(NamedTuple):
    """One rule that a policy breaks, with an example."""

    policy: str
    hook: str  # "" if it is about the policy as a whole
    rule: str  # name, arity, raises, kind, writes, repeat, reads tier, renaming, time, stall ...
    message: str


Report = Callable[[str, str, str], None]


def check(policy: Policy, *, idea: str | None = None, seed: int = 0) -> list[Finding]:
    """Return what the policy does against the contract, one finding a hook and rule; empty is good.

    ``idea`` is its sentence (default: the docstring of the module that defines its hooks). Views are drawn
    from ``seed``: equal seeds, equal findings. Raises nothing: what a hook raises is a finding.
    """
    found = declared(policy)
    if found:
        return found  # hooks of a policy that isn't well formed can't be asked
    noted: dict[tuple[str, str], Finding] = {}

    def report(hook: str, rule: str, message: str) -> None:
        noted.setdefault((hook, rule), Finding(policy.name, hook, rule, message))

    _idea(policy, idea, report)
    for label, values in _settings(policy):
        for shape in SHAPES if label == "" else SHAPES[:1]:
            view = draw(shape, policy, values, np.random.default_rng(seed))
            _sound(policy, view, shape.label + label, report)
    for turn in range(2):
        luck = np.random.default_rng((seed, turn))
        view = draw(SHAPES[0], policy, defaults(policy), luck)
        _honest(policy, view, luck, report)
        _nameless(policy, view, luck, report)
        for _, values in _settings(policy):
            _timely(policy, view._replace(params=np.array([*values, 0.0])), report)
    _alive(policy, seed, report)
    return list(noted.values())


def declared(policy: Policy) -> list[Finding]:
    """Return what is wrong with the declarations alone; no hook is called."""
    found: list[Finding] = []

    def report(hook: str, rule: str, message: str) -> None:
        found.append(Finding(str(policy.name), hook, rule, message))

    if not isinstance(policy.name, str) or not NAME.fullmatch(policy.name):
        report("", "name", f"{policy.name!r} is no name: letters, digits, - _ . and a letter or digit first")
    for hook in _hooks(policy):
        _arity(policy, hook, report)
    if not isinstance(policy.reads, tuple) or set(policy.reads) - set(KNOWLEDGE):
        report("", "reads", f"reads is {policy.reads!r}: a tuple out of {', '.join(KNOWLEDGE)}")
    if not isinstance(policy.watches, tuple) or set(policy.watches) - set(EVENTS):
        report("observe", "watches", f"watches is {policy.watches!r}: a tuple of events, 0..{max(EVENTS)}")
    elif (policy.observe is None) != (not policy.watches):
        report("observe", "watches", "observe and watches go together, one is declared without the other")
    if policy.oracle and not policy.control:
        report("", "oracle", "a policy that sees true lengths must declare control=True: it is never ranked")
    _params(policy, report)
    if not isinstance(policy.memo, Memo) or min(policy.memo) < 0:
        report("", "memo", f"memo is {policy.memo!r}: Memo(requests=, engines=, tenants=), none negative")
    if isinstance(policy, EnginePolicy):
        if policy.scan not in ("stop", "skip"):
            report("", "scan", f"scan is {policy.scan!r}: 'stop' or 'skip'")
    elif (policy.migrate or policy.scale) and policy.period_s <= 0.0:
        report("", "period", "migrate and scale are asked every period_s, which is not above 0")
    return found


def defaults(policy: Policy) -> tuple[float, ...]:
    """Return the parameters' defaults."""
    return tuple(float(param.default) for param in policy.params)


def _hooks(policy: Policy) -> tuple[str, ...]:
    names = ENGINE_HOOKS if isinstance(policy, EnginePolicy) else CLUSTER_HOOKS
    return tuple(name for name in names if getattr(policy, name) is not None)


def _arity(policy: Policy, hook: str, report: Report) -> None:
    function, count = getattr(policy, hook), 4 if hook in WIDE else 3
    if not callable(function):
        report(hook, "arity", f"{hook} is a {type(function).__name__}, not a function")
        return
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # a builtin that keeps its signature to itself
    try:
        signature.bind(*range(count))
    except TypeError:
        takes = {"preempt": "(view, waiting, running, now_s)", "observe": "(view, request, event, now_s)"}
        report(hook, "arity", f"{hook}{signature} must take {takes.get(hook, '(view, request, now_s)')}")


def _params(policy: Policy, report: Report) -> None:
    if not all(isinstance(param, Param) for param in policy.params):
        report("", "parameter", "params is a tuple of Param(name, default, low, high, unit, meaning)")
        return
    for param in policy.params:
        if not re.fullmatch(r"[A-Za-z_]\w*", param.name) or not param.low <= param.default <= param.high:
            report("", "parameter", f"parameter {param.name!r} needs a plain name and low <= default <= high")
    if len({param.name for param in policy.params}) < len(policy.params):
        report("", "parameter", "two parameters have the same name")


def _idea(policy: Policy, idea: str | None, report: Report) -> None:
    if idea is None:
        modules = (getattr(getattr(policy, hook), "__module__", None) for hook in _hooks(policy))
        known = [sys.modules[name] for name in modules if name in sys.modules]
        if not known:
            return  # all defaults: no function tells where it was written
        idea = known[0].__doc__ or ""
    opening = idea.strip().partition("\n\n")[0]
    if not opening.endswith((".", "?", "!")):
        report("", "idea", "its module does not open with a docstring whose first sentence says the idea")


def _settings(policy: Policy) -> Iterator[tuple[str, tuple[float, ...]]]:
    """Yield the defaults, then each parameter at both ends of its range."""
    values = defaults(policy)
    yield "", values
    for place, param in enumerate(policy.params):
        for end in sorted({float(param.low), float(param.high)} - {float(param.default)}):
            yield f", {param.name}={end:g}", (*values[:place], end, *values[place + 1 :])


def _sound(policy: Policy, view: View, label: str, report: Report) -> None:
    """Answers are of the right kind, repeat, and nothing but declared memo columns is written."""
    used, again = copied(view), copied(view)
    answers = ask(policy, used)
    for (hook, subject), answer in answers.items():
        why = wrong(hook, answer, view, isinstance(policy, ClusterPolicy))
        if why:
            report(
                hook, "raises" if isinstance(answer, Fault) else "kind", f"{hook}{subject} {why} [{label}]"
            )
    for name in _differing(view, used, policy.memo):
        report("", "writes", f"{name} was written: a hook may write to declared memo columns only [{label}]")
    for (hook, subject), answer in ask(policy, again).items():
        first = answers[hook, subject]
        if not same(answer, first):
            text = f"{hook}{subject} gave {first!r}, then {answer!r} on an equal view [{label}]"
            report(hook, "repeat", text + ": state belongs in memo, chance in luck")
    if _differing(used, again, Memo()):
        report("", "repeat", f"equal questions on equal views left different columns behind [{label}]")


def _differing(before: View, after: View, memo: Memo) -> list[str]:
    """Return the columns that differ, the memo columns of ``memo`` left out."""
    differ = []
    for table in View._fields:
        old, new = getattr(before, table), getattr(after, table)
        if not isinstance(old, tuple):
            if not np.array_equal(old, new):
                differ.append(table)
            continue
        for name in type(old)._fields:  # type: ignore[attr-defined]
            own = name == "memo" and getattr(memo, table) > 0
            if not own and not np.array_equal(getattr(old, name), getattr(new, name), equal_nan=True):
                differ.append(f"{table}.{name}" + (" (undeclared)" if name == "memo" else ""))
    return differ


def _difference(policy: Policy, one: View, other: View) -> Question | None:
    """Return the first question that two views answer differently, memo set back."""
    answers, others = (ask(policy, copied(view, fresh=True)) for view in (one, other))
    return next((asked for asked in others if not same(others[asked], answers.get(asked))), None)


def _honest(policy: Policy, view: View, luck: np.random.Generator, report: Report) -> None:
    """What ``reads`` leaves out changes no answer."""
    for what in KNOWLEDGE:
        if what in policy.reads:
            continue
        ground = (
            level(view) if what == "tier" else view
        )  # the targets of a tier are knowledge of another kind
        asked = _difference(policy, ground, changed(ground, what, luck))
        if asked:
            text = f"{asked[0]}{asked[1]} changes when nothing but {what} does"
            report(asked[0], f"reads {what}", text + f": declare reads=({what!r},) or leave it alone")


def _nameless(policy: Policy, view: View, luck: np.random.Generator, report: Report) -> None:
    """Renaming engines renames the answer.

    Left out are cluster policies that answer by their history (engine memo), by luck or by session: they may
    go by the numbers of engines, since their choices are spread alike under any names.
    """
    if isinstance(policy, ClusterPolicy):
        by_chance = any(_difference(policy, view, changed(view, "luck", luck)) for _ in range(4))
        if policy.memo.engines > 0 or by_chance:
            return
    order = (2, 0, 1)
    others = ask(policy, renamed(view, order))
    for (hook, subject), answer in ask(policy, copied(view)).items():
        engine = hook in ("budget", "wake", "migrate") or (hook == "observe" and subject[1] == STEP)
        asked = (order[subject[0]], *subject[1:]) if engine else subject
        expected = answer
        if hook in ("dispatch", "migrate") and not wrong(hook, answer, view) and answer != HOLD:
            expected = order[int(answer)]
        other = others.get((hook, asked))
        if not same(other, expected):
            text = f"{hook}{subject} is {answer!r}; once engines 0, 1, 2 are called {order} it is {other!r}"
            report(hook, "renaming", text)


def _timely(policy: Policy, view: View, report: Report) -> None:
    """Until ``wake`` the queue keeps its order and what is held stays held, if nothing happens."""
    if isinstance(policy, ClusterPolicy):
        return  # a dispatcher is asked anew at each event and each report
    now = ask(policy, copied(view))
    for engine in range(len(view.engines.alive)):
        wake_s = now.get(("wake", (engine,)), inf)
        if wrong("wake", wake_s, view):
            continue
        queue = view.waiting[engine, : view.engines.waiting[engine]].tolist()
        batch = view.running[engine, : view.engines.running[engine]].tolist()
        for after_s in LATER_S:
            if NOW_S + after_s >= wake_s:
                break
            later = ask(policy, copied(view), NOW_S + after_s)
            for hook, ids in (("order", queue), ("admit", queue), ("serve", batch)):
                was, will = ([found.get((hook, (r,)), 0.0) for r in ids] for found in (now, later))
                if not any(wrong(hook, one, view) for one in was + will) and _moved(hook, was, will):
                    text = f"{hook} answers otherwise {after_s:g} s later, though nothing happened"
                    report(hook, "time", text + ": wake must return the moment at which it changes")


def _moved(hook: str, was: list[float], will: list[float]) -> bool:
    """Tell whether answers about one list changed in a way that an engine would notice."""
    if hook == "admit":
        return was != will
    moved = [key == inf for key in was] != [key == inf for key in will]
    if hook == "order":
        moved = moved or np.argsort(was, kind="stable").tolist() != np.argsort(will, kind="stable").tolist()
    return moved


def _alive(policy: Policy, seed: int, report: Report) -> None:
    """Whoever is alone is served: an empty engine takes it, and nothing holds it for ever."""
    for shape in SHAPES[2:4]:
        view = draw(shape, policy, defaults(policy), np.random.default_rng(seed))
        for tier, targets in enumerate(("all targets", "a first-token target only", "no target")):
            view.requests.tier[0] = tier
            view.tiers.e2e_s[1] = view.tiers.tpot_s[1] = inf
            for column in view.tiers[:3]:
                column[2] = inf
            answers = ask(policy, copied(view))
            if answers.get(("wake", (0,)), inf) != inf:
                continue  # it says itself when it will look again
            for hook, held in (("order", inf), ("serve", inf), ("admit", WAIT), ("dispatch", HOLD)):
                if answers.get((hook, (0,))) == held:
                    text = f"{hook} holds the only request of an idle engine for ever (a tier with {targets})"
                    report(hook, "stall", text)
