"""Ask a policy all the questions that a view allows, and tell whether each answer is of the right kind."""

import traceback
from collections.abc import Iterator
from math import inf, isfinite, isnan
from typing import Any, NamedTuple

import numpy as np

from schedulers.policy import GIVE_WAY, HOLD, REFUSE, TAKE, USUAL, WAIT, ClusterPolicy, EnginePolicy
from schedulers.samples import NOW_S
from schedulers.view import (
    ARRIVAL,
    DONE,
    EVICT,
    FINISH,
    FIRST_TOKEN,
    REJECT,
    RUNNING,
    STEP,
    TOKEN,
    WAITING,
    View,
)
from schedulers.view import TAKE as TAKEN

Policy = EnginePolicy | ClusterPolicy
Subject = tuple[int, ...]
Question = tuple[str, Subject]
Answers = dict[Question, Any]

EVENTS = {
    ARRIVAL: (WAITING, RUNNING),
    TAKEN: (RUNNING,),
    FIRST_TOKEN: (RUNNING,),
    TOKEN: (RUNNING,),
    FINISH: (DONE,),
    EVICT: (WAITING,),
    STEP: (),
    REJECT: (DONE,),
}
"""Each event, and the states of the requests that a sample sends it for; STEP is sent for engines."""


class Fault(NamedTuple):
    """In place of an answer: the hook raised."""

    text: str


def ask(policy: Policy, view: View, now_s: float = NOW_S) -> Answers:
    """Return the answers of all hooks, after the events that the policy watches; it may write to the memo.

    An overflow, a division by zero and inf - inf count as raised: compiled and interpreted code differ there.
    """
    answers: Answers = {}
    with np.errstate(divide="raise", invalid="raise", over="raise"):
        for question in (*_news(policy, view), *_questions(policy, view)):
            answers[question] = _call(getattr(policy, question[0]), view, question[1], now_s)
    return answers


def same(one: Any, other: Any) -> bool:
    """Tell whether two answers are equal; any two faults are, and so are two NaN."""
    if isinstance(one, Fault) or isinstance(other, Fault):
        return type(one) is type(other)
    return bool(one == other or (one != one and other != other))


def wrong(hook: str, answer: Any, view: View, cluster: bool = False) -> str:
    """Say why an answer is not one that this hook, of an engine or a ``cluster`` policy, may give; '' if it is."""
    if isinstance(answer, Fault):
        return f"raised {answer.text}"
    if hook == "observe":
        return "" if answer is None else f"returned {answer!r}: observe returns nothing"
    if not isinstance(answer, int | float | np.integer | np.floating | np.bool_):
        return f"returned {answer!r}: not a number"
    value = float(answer)
    if isnan(value):
        return "returned NaN"
    if hook in ("dispatch", "migrate"):
        return _wrong_engine(hook, value, view)
    sound, rule = {
        "admit": (
            value in ((TAKE, WAIT, REFUSE) if cluster else (TAKE, WAIT, REFUSE, USUAL, GIVE_WAY)),
            "TAKE, WAIT or REFUSE" + ("" if cluster else ", USUAL or GIVE_WAY"),
        ),
        "preempt": (value in (0.0, 1.0), "0 or 1"),
        "budget": (value >= 1.0, "at least 1 token"),
        "scale": (isfinite(value) and value == round(value), "a whole number"),
    }.get(hook, (value > -inf, "a finite number or +inf"))
    return "" if sound else f"returned {value:g}: {rule}"


def _wrong_engine(hook: str, value: float, view: View) -> str:
    fleet, engines = view.engines, len(view.engines.alive)
    if value == HOLD:
        return ""
    if value not in range(engines):
        return f"returned {value:g}: there are engines 0..{engines - 1} (or HOLD, {HOLD:g})"
    if hook == "dispatch" and (fleet.alive[int(value)] == 0 or fleet.draining[int(value)] == 1):
        return f"chose engine {int(value)}, which is dead or draining"
    return ""


def _news(policy: Policy, view: View) -> Iterator[Question]:
    """Yield each event that the policy watches with each request (or engine) that it may be about."""
    engines, state = range(len(view.engines.alive)), view.requests.state
    for event in policy.watches:
        about = [r for r in range(len(state)) if state[r] in EVENTS[event]]
        if event == STEP:
            about = [engine for engine in engines if view.engines.alive[engine] == 1]
        yield from (("observe", (subject, event)) for subject in about)


def _questions(policy: Policy, view: View) -> Iterator[Question]:
    """Yield each hook with each request, pair or engine that it may be asked about, by request number."""
    table = view.requests
    ids = range(len(table.state))
    waiting = [r for r in ids if table.state[r] == WAITING and table.engine[r] >= 0]
    running = [r for r in ids if table.state[r] == RUNNING and table.engine[r] >= 0]
    central = [r for r in ids if table.state[r] == WAITING and table.engine[r] < 0]
    engines = [e for e in range(len(view.engines.alive)) if view.engines.alive[e] == 1]
    asked: dict[str, list[int]] = (
        {
            "budget": engines,
            "order": waiting,
            "serve": running,
            "admit": waiting,
            "evict": running,
            "wake": engines,
        }
        if isinstance(policy, EnginePolicy)
        else {
            "admit": central,
            "order": central,
            "dispatch": central,
            "migrate": engines,
            "pick": running + waiting,
            "scale": [-1],
        }
    )
    for hook, subjects in asked.items():
        if getattr(policy, hook) is not None:
            yield from ((hook, (subject,)) for subject in subjects)
    if isinstance(policy, EnginePolicy) and policy.preempt is not None:
        pairs = [(w, r) for w in waiting for r in running if table.engine[w] == table.engine[r]]
        yield from (("preempt", pair) for pair in pairs[:24])


def _call(hook: Any, view: View, subject: Subject, now_s: float) -> Any:
    try:
        return hook(view, *subject, now_s)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Fault(f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno}: {frame.line})")
