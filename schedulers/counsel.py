"""The policies of a live dispatcher, asked and told, each with its parameters and a memory of its own."""

from math import isnan
from typing import Self

import numpy as np

from schedulers.board import Board
from schedulers.errors import PolicyError
from schedulers.policy import ClusterPolicy, Hook, Memo, Part
from schedulers.view import Floats, View


class Memories:
    """What a further policy remembers of requests, engines and tenants, a row each."""

    def __init__(self, memo: Memo) -> None:
        self.requests = np.zeros((0, max(1, memo.requests)))
        self.engines = np.zeros((0, max(1, memo.engines)))
        self.tenants = np.zeros((0, max(1, memo.tenants)))

    def forget(self, row: int) -> None:
        """A row of the board is used anew."""
        if row < len(self.requests):
            self.requests[row] = 0.0

    def seen(self, view: View, params: Floats) -> View:
        """The view with this memory and these parameters."""
        self.requests = _grown(self.requests, len(view.requests.memo))
        self.engines = _grown(self.engines, len(view.engines.memo))
        self.tenants = _grown(self.tenants, len(view.tenants.memo))
        return view._replace(
            requests=view.requests._replace(memo=self.requests),
            engines=view.engines._replace(memo=self.engines),
            tenants=view.tenants._replace(memo=self.tenants),
            params=params,
        )


def _grown(memo: Floats, rows: int) -> Floats:
    """The same array if it has so many rows, else one with zeros behind it."""
    if rows <= len(memo):
        return memo
    return np.concatenate([memo, np.zeros((rows - len(memo), memo.shape[1]))])


class Counsel:
    """The first policy, whose memory is the board's own, and those that answer what it leaves open."""

    def __init__(self, policy: ClusterPolicy, board: Board, strict: bool) -> None:
        self.policy, self.board, self.strict = policy, board, strict
        self.more: tuple[Part, ...] = ()
        self.memories: list[Memories] = []  # of those
        self.faults: list[str] = []
        self._settle()

    def _settle(self) -> None:
        """Work out once, not at every token, who answers and who is told what."""
        self.parts: tuple[Part, ...] = (Part(self.policy, ()), *self.more)
        self.params = [np.array(part.params or (0.0,)) for part in self.parts]
        told = [place for place, part in enumerate(self.parts) if part.policy.observe is not None]
        self.watcher = told[0] if told else -1  # the first of those that observe, as in the simulator
        self.watched = frozenset(self.parts[self.watcher].policy.watches) if told else frozenset()
        self.knows_prefixes = any("prefix" in part.policy.reads for part in self.parts)

    def switch(self, policy: ClusterPolicy, params: tuple[float, ...]) -> None:
        """Go on with another policy: it starts with an empty memory and sees what is there."""
        board, old = self.board, self.board.view
        self.policy = policy
        self._settle()
        fresh = Board(old.tiers, old.tenants.weight, policy.memo, np.array(params or (0.0,)), 64).view
        rows, engines = len(board.number), len(old.engines.alive)
        board.memo = policy.memo
        board.view = old._replace(
            requests=old.requests._replace(memo=np.zeros((rows, max(1, policy.memo.requests)))),
            engines=old.engines._replace(memo=np.zeros((engines, max(1, policy.memo.engines)))),
            tenants=old.tenants._replace(memo=fresh.tenants.memo),
            params=fresh.params,
        )

    def _ask(self, name: str, row: int, now_s: float, default: float) -> float:
        """Ask one hook; a policy that raises or returns NaN is overruled, or with ``strict`` an error."""
        hook, view = self._hook(name)
        if hook is None:
            return default
        try:
            answer = float(hook(view, row, now_s))
        except Exception as error:
            self._fault(f"raised {type(error).__name__} in {name}: {error}")
            return default
        if isnan(answer):
            self._fault(f"returned NaN from {name}")
            return default
        return answer

    def _hook(self, name: str) -> tuple[Hook | None, View]:
        """The first policy's answer to a question, with the view that has its parameters and its memory."""
        for place, part in enumerate(self.parts):
            hook: Hook | None = getattr(part.policy, name)
            if hook is not None:
                return hook, self._view(place)
        return None, self.board.view

    def _view(self, place: int) -> View:
        """What one of the policies sees; the first one's memory is the board's own."""
        if "usage" in self.parts[place].policy.reads:
            self.board.count_tiers()
        if place == 0:
            return self.board.view
        return self.memories[place - 1].seen(self.board.view, self.params[place])

    def with_more(self, more: tuple[Part, ...]) -> Self:
        """Let further policies answer what the first leaves open, each with a memory of its own."""
        self.more, self.memories = more, [Memories(part.policy.memo) for part in more]
        self._settle()
        return self

    def _fault(self, what: str) -> None:
        if self.strict:
            raise PolicyError(f"cluster policy {self.policy.name} {what}")
        self.faults = [*self.faults[-99:], what]

    def _note(self, row: int, event: int, now_s: float) -> None:
        """Tell the policy that watches this event."""
        if event in self.watched:
            self._tell(self.watcher, row, event, now_s)

    def _tell(self, place: int, row: int, event: int, now_s: float) -> None:
        observe = self.parts[place].policy.observe
        try:
            if observe is not None:
                observe(self._view(place), row, event, now_s)
        except Exception as error:
            self._fault(f"raised {type(error).__name__} in observe: {error}")
