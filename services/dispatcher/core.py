"""The dispatcher's heart: what clients ask and workers say goes in, the desk judges, the journal remembers."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable
from time import perf_counter

from schedulers.board import Arrival
from schedulers.decisions import EXPIRED, LOST, MOVE, OF_FLEET, REFUSED, SEND, STALLED, Decision
from schedulers.desk import Desk
from schedulers.load import load, pieces, portable
from schedulers.view import FINISH, REJECT
from services.config import Config
from services.dispatcher.answer import GAP, Answer, Engine, Listener, Refused, enqueue_of
from services.dispatcher.intake import TENANTS_MAX, Client, Doorkeeper, Refusal, packed, prefix_of
from services.dispatcher.logs import traced
from services.dispatcher.metrics import Metrics
from services.dispatcher.reasons import REASONS, ending
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.store.journal import Journal, StoreAwayError
from services.store.records import Accepted, Ended, Sent

RETRY_AFTER_S = 1.0
OFFER_REST_S = 0.25


class Dispatcher:
    """Owns every open request. One event loop, no locks: nothing here waits but ``submit``."""

    def __init__(
        self, config: Config, journal: Journal, clock: Callable[[], float], wall: Callable[[], float],
        metrics: Metrics,
    ) -> None:  # fmt: skip
        self.config, self.journal, self.clock, self.wall, self.metrics = config, journal, clock, wall, metrics
        self.scheduler = load(config.scheduling.scheduler)
        self.engine_policy = pieces(portable(config.scheduling.scheduler))[0]  # as workers are told
        cluster, values = self.scheduler.cluster, self.scheduler.cluster_params
        self.desk = Desk(cluster, values, config.targets, config.bounds, tenants=TENANTS_MAX)
        self.desk.with_more(self.scheduler.more)
        self.doorkeeper = Doorkeeper(config)
        self.engines: dict[int, Engine] = {}
        self.answers: dict[int, Answer] = {}
        self.by_id: dict[tuple[str, str], Answer] = {}  # by owner and request id
        self.ended: OrderedDict[int, Answer] = OrderedDict()
        self.progressed: dict[int, Answer] = {}  # have tokens that are not in the journal yet
        self.creditless: dict[int, Answer] = {}  # their worker may be told to send more
        self.next_number = 1
        self.offer_s = 0.0  # held requests are not offered before
        self.draining = self.recovering = False
        self.decided: Callable[[float, Decision], None] = lambda now_s, decision: None
        self.move: Callable[[Decision], None] = lambda decision: self.desk.stayed(decision.number)
        self.timed: Callable[[], None] = lambda: None
        self.fleet: Callable[[Decision], None] = lambda decision: None
        self.left: Callable[[Answer], None] = lambda answer: None

    # clients

    async def submit(self, asked: door.SubmitRequest, client: Client) -> Answer:
        """Take a request: decided, journalled, then sent on; raises Refused with the ending."""
        now_s = self.clock()
        tier = min(int(asked.tier), len(self.config.tiers) - 1)
        known = self.by_id.get((client.tenant, asked.request_id))
        if known is None:
            self.metrics.arrivals[tier].inc()
        try:
            return await self._take(asked, client, now_s)
        except Refused as refused:
            if known is None:
                self.metrics.ended(tier, refused.ending)
            raise

    async def _take(self, asked: door.SubmitRequest, client: Client, now_s: float) -> Answer:
        prompt = self.doorkeeper.check(asked, client)
        raw, digest = packed(asked)
        known = self.by_id.get((client.tenant, asked.request_id))
        if known is not None:
            if known.digest != digest:
                raise Refusal("bad_request", "this request id was used for another request")
            return known
        self._may_enter(client, now_s)
        answer = self._opened(asked, client.tenant, prompt, now_s)
        answer.digest = digest
        began_s = perf_counter()  # the loop's clock may stand still within one turn
        decisions = self.desk.arrive(self.arrival_of(answer), now_s)
        self.metrics.deciding["arrive"](perf_counter() - began_s)
        if decisions and decisions[0].kind == REFUSED:
            self._log(decisions, now_s)
            self._forget(answer)
            reason = decisions[0].reason
            raise Refusal(reason, retry_after_s=RETRY_AFTER_S if REASONS[reason].retry else 0.0)
        self.act(decisions)
        record = Accepted(answer.number, answer.request_id, answer.owner, raw, digest, self.wall())
        try:
            kept = await self._journalled(record, answer)
        except asyncio.CancelledError:
            self.end(answer, ending("client_gone"))
            raise
        if not kept:
            raise Refusal("store_down", retry_after_s=RETRY_AFTER_S)
        answer.journalled = True
        if answer.ending is None and answer.engine >= 0:
            self.send_on(answer)
        return answer

    def _may_enter(self, client: Client, now_s: float) -> None:
        if self.draining:
            raise Refusal("draining", retry_after_s=RETRY_AFTER_S)
        self.doorkeeper.pass_rate(client, now_s)
        if self.journal.away and self.config.store.when_away == "refuse":
            raise Refusal("store_down", retry_after_s=RETRY_AFTER_S)
        if not self.engines and not self.recovering:
            raise Refusal("no_engine", retry_after_s=RETRY_AFTER_S)

    async def _journalled(self, record: Accepted, answer: Answer) -> bool:
        """Keep a record; False, and the request is gone, if it could not be kept and that is not allowed."""
        try:
            await asyncio.shield(self.journal.keep(record))
            return True
        except StoreAwayError:
            if self.config.store.when_away == "degrade":
                try:
                    self.journal.note(record)  # written when the store is back
                    self.metrics.degraded.inc()
                    return True
                except StoreAwayError:
                    pass
            self.desk.finish(answer.number, self.clock(), REJECT)
            self._forget(answer)
            self.note(Ended(answer.number, ending("store_down").SerializeToString()))
            return False

    def _opened(self, asked: door.SubmitRequest, owner: str, prompt: int, now_s: float) -> Answer:
        answer = Answer(self.next_number, asked, owner, now_s)
        self.next_number += 1
        answer.prompt_tokens = prompt
        answer.tenant = self.doorkeeper.row_of(asked.tenant)
        self.answers[answer.number] = self.by_id[answer.owner, answer.request_id] = answer
        return answer

    def arrival_of(self, answer: Answer) -> Arrival:
        """A request as the desk takes it."""
        asked = answer.submission
        forecast = asked.forecast_tokens or min(float(asked.sampling.max_tokens), self.metrics.mean_output)
        return Arrival(
            answer.number, answer.arrived_s, answer.prompt_tokens, forecast, int(asked.tier), answer.tenant,
            int(asked.session), asked.luck, len(answer.tokens), answer.attempt,
            prefix_of(asked.prompt, wanted=self.desk.knows_prefixes),
        )  # fmt: skip

    def listen(self, answer: Answer, listener: Listener, from_index: int) -> None:
        """Let somebody hear of an answer; who has seen more than can be made again is told so by an ending."""
        if 0 <= answer.unsure_from < from_index and answer.ending is None:
            self.cancel(answer, "engine_lost", "the engine that made the tokens is gone, others may differ")
        answer.client_to = max(answer.client_to, from_index)
        answer.listeners.add(listener)

    def leave(self, answer: Answer, listener: Listener) -> None:
        """A listener is gone; what becomes of the request is its door's to say."""
        answer.listeners.discard(listener)
        if not answer.listeners and answer.ending is None:
            self.left(answer)
            self.credit(answer)

    def taken(self, answer: Answer, index: int) -> None:
        """A client has taken all tokens before an index: its worker may send so many more."""
        if index > answer.taken:
            answer.taken = index
            if answer.credit_to - len(answer.tokens) < self.config.limits.window_tokens // 2:
                self.credit(answer)

    def credit(self, answer: Answer, expected: bool = False) -> None:
        """Extend the worker's credit: a window beyond what was taken, all of it where nobody listens or will."""
        most = answer.most
        if answer.credit_to >= most:
            return
        heard = answer.listeners or expected
        ahead = answer.taken + self.config.limits.window_tokens if heard else most
        credit = min(most, ahead)
        if credit > answer.credit_to:
            answer.credit_to = credit
            self.creditless[answer.number] = answer

    def cancel(self, answer: Answer, reason: str = "client_gone", message: str = "") -> None:
        """End a request now, wherever it is; its engine drops it before its next step."""
        if answer.ending is None:
            self._tell_cancel(answer)
            self.end(answer, ending(reason, message))

    # workers

    def on_tokens(self, engine: int, batch: Iterable[link.RequestTokens]) -> None:
        """Tokens of many requests: what is new is kept and passed on, gaps are asked for."""
        now_s, total = self.clock(), 0
        for news in batch:
            answer = self.answers.get(news.number)
            if answer is None or answer.ending is not None or news.attempt != answer.attempt:
                self._tell_done(engine, news)
                continue
            if engine != answer.engine:
                continue
            if news.HasField("started_after_s") and answer.started_s < 0.0:
                answer.started_s = min(now_s, answer.dispatched_s + news.started_after_s)
            before_s = answer.last_s
            fresh = answer.add(news.run, now_s)
            if fresh == GAP:
                self._ask_again(answer)
                continue
            if fresh > 0:
                total += fresh
                self.metrics.flushed(answer, before_s, now_s)
                self._passed_on(answer, fresh, news.run, now_s)
            elif len(news.run.tokens):
                self.metrics.duplicates.inc()
            if news.HasField("final"):
                self._final(answer, news.final)
        if total:
            self.metrics.tokens_in.inc(total)

    def _passed_on(self, answer: Answer, fresh: int, run: wire.TokenRun, now_s: float) -> None:
        if fresh < len(run.tokens):
            self.metrics.duplicates.inc()
        self.desk.tokens(answer.number, fresh, now_s)
        self.progressed[answer.number] = answer
        answer.notify()

    def _ask_again(self, answer: Answer) -> None:
        have = len(answer.tokens)
        if answer.asked_from != have:
            answer.asked_from = have
            self.metrics.gaps.inc()
            self.tell_progress(answer.engine, [self.progress_of(answer, send_from=have)])

    def _final(self, answer: Answer, final: link.Final) -> None:
        answer.preemptions += final.preemptions
        if final.reason in ("engine_error", "cancelled"):  # we did not cancel it: it is still open here
            self.again("engine_error", answer)
            return
        how = ending(final.reason if final.reason in REASONS else "internal", final.message)
        if how.reason == "internal":
            how.message = f"the engine ended it as {final.reason!r}"
        how.prompt_tokens = final.prompt_tokens
        self.end(answer, how)

    def again(self, reason: str, answer: Answer) -> None:
        """The engine that has a request can't go on: another one is found, or it ends with the reason."""
        self._doubt(answer)
        answer.engine = -1
        self.act(self.desk.fail(answer.number, reason, self.clock()))

    def _doubt(self, answer: Answer) -> None:
        """Note from where a client may have seen tokens that another engine would draw anew."""
        engine = self.engines.get(answer.engine)
        if answer.unsure_from < 0 and engine is not None and not engine.deterministic:
            answer.unsure_from = len(answer.tokens)

    def lose_engine(self, engine: int) -> None:
        """An engine is gone for good, with all that it held."""
        for row in self.desk.board.held_by(engine):
            number = int(self.desk.board.number[row])
            self._doubt(self.answers[number])
        self.act(self.desk.die(engine, self.clock()))
        self.engines.pop(engine, None)

    # decisions

    def act(self, decisions: list[Decision]) -> None:
        """Do what the desk decided."""
        now_s = self.clock()
        self._log(decisions, now_s)
        for decision in decisions:
            if decision.kind in OF_FLEET:
                self.fleet(decision)
                continue
            answer = self.answers.get(decision.number)
            if answer is None or answer.ending is not None:
                continue
            if decision.kind == SEND:
                answer.engine, answer.sequence = decision.engine, decision.sequence
                answer.attempt = self.desk.attempts[decision.number]
                answer.asked_from = -1
                if answer.journalled:
                    self.send_on(answer)
            elif decision.kind == MOVE:
                self.move(decision)
            elif decision.kind == STALLED:
                self._doubt(answer)
                self._tell_cancel(answer)
                answer.engine = -1
            elif decision.kind in (REFUSED, EXPIRED, LOST):
                if decision.engine >= 0 and decision.kind == EXPIRED:
                    self._tell_cancel(answer)
                self.end(answer, ending(decision.reason))

    def offer(self) -> None:
        """Offer held requests again; a long queue is offered so seldom that it takes a tenth of the time."""
        now_s = self.clock()
        if self.desk.held and now_s >= self.offer_s:
            began_s = perf_counter()
            self.act(self.desk.offer_held(now_s))
            self.metrics.deciding["offer"](perf_counter() - began_s)
            self.offer_s = now_s + min(OFFER_REST_S, 9.0 * (self.clock() - now_s))

    def _log(self, decisions: list[Decision], now_s: float) -> None:
        for decision in decisions:
            self.metrics.decided(decision)
            self.decided(now_s, decision)

    def send_on(self, answer: Answer) -> None:
        """Put a request on its way to its engine, with what earlier engines made of it."""
        now_s, engine = self.clock(), self.engines.get(answer.engine)
        if answer.dispatched_s < 0.0:
            answer.dispatched_s = now_s
            self.metrics.queue_wait[answer.submission.tier].observe(now_s - answer.arrived_s)
        if engine is None:  # it died while the request was being journalled
            self.again("engine_lost", answer)
            return
        self.metrics.dispatched(answer.engine, int(answer.submission.tier))
        answer.credit_to = 0
        self.credit(answer, expected=answer.attempt == 1)
        self.creditless.pop(answer.number, None)
        self.note(Sent(answer.number, answer.attempt, engine.worker_id))
        engine.send(link.DispatcherMessage(enqueue=enqueue_of(answer, answer.attempt, answer.sequence)))

    def end(self, answer: Answer, how: wire.Ending) -> None:
        """Close a request: its desk row, its record, its listeners."""
        if answer.ending is not None:
            return
        now_s = self.clock()
        self.desk.finish(answer.number, now_s, FINISH if how.outcome == wire.OUTCOME_FINISHED else REJECT)
        answer.close(how, now_s)
        self.metrics.ended(int(answer.submission.tier), how)
        self.metrics.times(answer)
        if answer.journalled:
            self.progressed[answer.number] = answer
        else:  # refused while it was being journalled: `submit` tells its client
            self.note(Ended(answer.number, how.SerializeToString()))
        self.ended[answer.number] = answer
        traced(answer)
        answer.notify()
        while len(self.ended) > self.config.limits.open_requests:
            self._forget(next(iter(self.ended.values())))

    def _forget(self, answer: Answer) -> None:
        self.answers.pop(answer.number, None)
        self.by_id.pop((answer.owner, answer.request_id), None)
        self.ended.pop(answer.number, None)

    def forget_old(self) -> list[int]:
        """Drop endings that nobody fetched in ``keep_s``; returns their numbers."""
        before_s = self.clock() - self.config.timeouts.keep_s
        gone: list[int] = []
        for answer in list(self.ended.values()):
            if answer.ended_s > before_s:
                break
            if not answer.listeners and answer.number not in self.progressed:
                gone.append(answer.number)
                self._forget(answer)
        return gone

    # words to workers and the journal

    def note(self, record: Ended | Sent) -> None:
        """Write a record with the next flush; at the bound it is dropped, and counted."""
        try:
            self.journal.note(record)
        except StoreAwayError:
            self.metrics.journal_errors.inc()

    def progress_of(self, answer: Answer, send_from: int = -1) -> link.RequestProgress:
        """What the worker may forget and how far it may go."""
        return link.RequestProgress(
            number=answer.number, attempt=answer.attempt, kept_to=answer.kept, credit_to=answer.credit_to,
            send_from=send_from if send_from >= 0 else None,
            done=answer.ending is not None and answer.kept >= len(answer.tokens),
        )  # fmt: skip

    def tell_progress(self, engine: int, rows: list[link.RequestProgress]) -> None:
        """Send progress to a worker, if its link is there; if not, the next Welcome says it."""
        worker = self.engines.get(engine)
        if worker is not None and worker.connected and rows:
            worker.send(link.DispatcherMessage(progress=link.Progress(requests=rows)))

    def _tell_done(self, engine: int, news: link.RequestTokens) -> None:
        answer = self.answers.get(news.number)
        if answer is None or answer.attempt != news.attempt or answer.kept >= len(answer.tokens):
            row = link.RequestProgress(number=news.number, attempt=news.attempt, done=True)
            self.tell_progress(engine, [row])

    def _tell_cancel(self, answer: Answer) -> None:
        worker = self.engines.get(answer.engine)
        if worker is not None and worker.connected and answer.journalled:
            cancel = link.Cancel(number=answer.number, attempt=answer.attempt)
            worker.send(link.DispatcherMessage(cancel=cancel))
