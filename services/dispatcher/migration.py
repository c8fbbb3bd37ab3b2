"""Staged live migration: reserve at the destination, copy while decoding goes on, then commit or abort, whole."""

from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from schedulers.cost import blocks_for
from schedulers.decisions import Decision
from services.dispatcher.answer import Answer, enqueue_of
from services.dispatcher.logs import log
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.store.records import Sent

if TYPE_CHECKING:
    from services.dispatcher.core import Dispatcher

COMMITTED_MAX = 256
"""Moves that are remembered after their commit, in case the destination finds that it can't."""


class Move(NamedTuple):
    """One migration under way; ``copied`` and ``stopped`` are token counts, -1 before; ``how`` is what both said."""

    migration: int
    answer: Answer
    source: int
    target: int
    cause: str
    began_s: float
    copied: int = -1
    stopped: int = -1
    blocks: int = 0
    how: wire.Move = wire.Move()


class Migrations:
    """All moves under way, by their own number and by that of their request."""

    def __init__(self, heart: "Dispatcher") -> None:
        self.heart = heart
        self.moves: dict[int, Move] = {}
        self.following = 1
        self.committed: OrderedDict[int, tuple[Answer, int]] = OrderedDict()  # the latest, with their attempt

    def begin(self, decision: Decision) -> None:
        """Start a move that the desk decided, or tell the desk that it can't be."""
        heart = self.heart
        answer = heart.answers[decision.number]
        source, target = heart.engines.get(decision.source), heart.engines.get(decision.engine)
        able = (
            heart.config.scheduling.migration and source is not None and target is not None
            and source.migrates and target.migrates and bool(target.peer_address)
            and source.connected and target.connected and answer.engine == decision.source
        )  # fmt: skip
        if not able or target is None:
            heart.desk.stayed(decision.number)
            heart.metrics.migrations.labels(decision.reason, "refused").inc()
            return
        move = Move(self.following, answer, decision.source, decision.engine, decision.reason, heart.clock())
        self.following += 1
        self.moves[move.migration] = move
        tokens = answer.prompt_tokens + len(answer.tokens) + 1
        reserve = link.Reserve(
            request=enqueue_of(answer, answer.attempt + 1, 0),
            blocks=blocks_for(heart.desk.board.view, move.target, tokens),
        )
        self._order(move, move.target, reserve=reserve)

    def step(self, engine: int, said: link.MigrationStep) -> None:
        """A worker's answer in a move; what belongs to no move is answered with an abort."""
        move = self.moves.get(said.migration)
        kind = said.WhichOneof("kind")
        if move is None or kind is None or engine not in (move.source, move.target):
            if kind == "failed":
                self._fell(engine, said)
            elif kind in ("reserved", "copied", "stopped"):
                self._abort_at(engine, said)
            return
        if kind == "failed":
            self.abort(move, said.failed.why or "a worker can't")
        elif kind == "reserved" and engine == move.target:
            self._copy(move, said.reserved.ticket)
        elif kind == "stopped" and engine == move.source:
            how = wire.Move(way=move.how.way, bytes=move.how.bytes, why=said.stopped.why or move.how.why)
            stopped, blocks = said.stopped.generated, said.stopped.blocks
            self._advance(move._replace(stopped=stopped, blocks=blocks, how=how))
        elif kind == "copied" and engine == move.target:
            copied = said.copied
            how = wire.Move(way=copied.way, bytes=copied.bytes, why=copied.why or move.how.why)
            self._advance(move._replace(copied=copied.generated, how=how))

    def _fell(self, engine: int, said: link.MigrationStep) -> None:
        """A destination that can't go on after all: the request is computed again elsewhere."""
        answer, attempt = self.committed.pop(said.migration, (None, 0))
        if answer is not None and answer.attempt == attempt and answer.engine == engine:
            self.heart.again("engine_error", answer)

    def _copy(self, move: Move, ticket: int) -> None:
        target = self.heart.engines.get(move.target)
        if target is None or self._over(move):
            self.abort(move, "the request ended or moved meanwhile")
            return
        copy = link.Copy(attempt=move.answer.attempt, peer_address=target.peer_address, ticket=ticket)
        self._order(move, move.source, copy=copy)

    def _advance(self, move: Move) -> None:
        """Commit once the source stopped, all is copied, and every token before that point is here."""
        self.moves[move.migration] = move
        if self._over(move):
            self.abort(move, "the request ended or moved meanwhile")
        elif move.stopped >= 0 and move.copied >= 0:
            if move.stopped == move.copied == len(move.answer.tokens):
                self._commit(move)
            else:
                self.abort(
                    move, f"{move.stopped} tokens made, {move.copied} copied, {len(move.answer.tokens)} here"
                )

    def _commit(self, move: Move) -> None:
        """The destination owns it from here on: written down first, then told to both."""
        heart, answer = self.heart, move.answer
        del self.moves[move.migration]
        target = heart.engines.get(move.target)
        old = answer.attempt
        answer.sequence = heart.desk.moved(answer.number, move.target, heart.clock())
        answer.attempt, answer.engine = heart.desk.attempts[answer.number], move.target
        answer.migrations += 1
        answer.moves.append(move.how)
        self.committed[move.migration] = answer, answer.attempt
        while len(self.committed) > COMMITTED_MAX:
            self.committed.popitem(last=False)
        answer.asked_from = -1
        if target is not None:
            heart.note(Sent(answer.number, answer.attempt, target.worker_id, True))
        where = len(answer.tokens)
        heart.credit(answer)
        commit = link.Commit(
            attempt=answer.attempt, next_index=where, credit_to=answer.credit_to, sequence=answer.sequence
        )
        self._order(move, move.target, commit=commit)
        self._order(move, move.source, commit=link.Commit(attempt=old, next_index=where))
        heart.metrics.migrated(answer, move.cause, move.blocks)
        if move.how.why:
            log.info("move without its KV", number=answer.number, way=move.how.way, why=move.how.why)

    def abort(self, move: Move, why: str) -> None:
        """Give a move up: the source goes on, the destination frees what it set aside."""
        self.moves.pop(move.migration, None)
        self.heart.desk.stayed(move.answer.number)
        for engine in (move.source, move.target):
            self._order(move, engine, abort=link.Abort(why=why))
        self.heart.metrics.migrations.labels(move.cause, "aborted").inc()
        log.info("migration aborted", number=move.answer.number, why=why)

    def engine_gone(self, engine: int) -> None:
        """Give up the moves from and to an engine that is gone.

        One whose blocks have all arrived, and whose tokens are all here, needs its source no more.
        """
        for move in list(self.moves.values()):
            if engine == move.source and move.copied == len(move.answer.tokens) and not self._over(move):
                self._commit(move)
            elif engine in (move.source, move.target):
                self.abort(move, "an engine is gone")

    def overdue(self) -> None:
        """Give up what takes too long."""
        before_s = self.heart.clock() - self.heart.config.timeouts.migration_s
        for move in list(self.moves.values()):
            if move.began_s < before_s:
                self.abort(move, "took longer than timeouts.migration_s")

    def _over(self, move: Move) -> bool:
        answer = move.answer
        return answer.ending is not None or answer.engine != move.source

    def _abort_at(self, engine: int, said: link.MigrationStep) -> None:
        worker = self.heart.engines.get(engine)
        if worker is not None:
            order = link.MigrationOrder(
                migration=said.migration, number=said.number, abort=link.Abort(why="not under way")
            )
            worker.send(link.DispatcherMessage(migration=order))

    def _order(
        self, move: Move, engine: int, *, reserve: link.Reserve | None = None, copy: link.Copy | None = None,
        commit: link.Commit | None = None, abort: link.Abort | None = None,
    ) -> None:  # fmt: skip
        worker = self.heart.engines.get(engine)
        if worker is not None:
            order = link.MigrationOrder(
                migration=move.migration, number=move.answer.number, reserve=reserve, copy=copy,
                commit=commit, abort=abort,
            )  # fmt: skip
            worker.send(link.DispatcherMessage(migration=order))
