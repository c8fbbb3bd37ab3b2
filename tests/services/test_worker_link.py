"""A worker on its link: orders, credit, acknowledgement, cuts, drain, cancel and moves, over real sockets."""

import asyncio
from contextlib import asynccontextmanager
from itertools import count

import grpc
import pytest
from aiohttp import ClientSession

from loadgen.plan import Fleet
from loadgen.replay.tokens import piece_of, tokens_at
from services.rpc.windtunnel.v1 import worker_pb2 as wire
from services.rpc.windtunnel.v1.request_pb2 import Sampling
from services.rpc.windtunnel.v1.worker_pb2_grpc import WorkerLinkServicer, add_WorkerLinkServicer_to_server
from services.worker.config import WorkerConfig
from services.worker.process import running

pytestmark = pytest.mark.timeout(60)

FLEET = Fleet(sequences_max=16, budget_max=512, block_tokens=16, blocks=600, model_tokens=4096)
FAST = WorkerConfig(fleet=FLEET, speed=20.0, chaos=True, link_gb_per_s=50.0)
PATIENCE_S = 10.0
PLENTY = 1 << 30


class Desk(WorkerLinkServicer):
    """The dispatcher's end of links, played by a test: what came is kept, what is to go is queued."""

    def __init__(self):
        self.registers, self.links = [], []
        self.welcome = {}
        self.joined = asyncio.Event()

    async def Link(self, request_iterator, context):
        register = (await anext(request_iterator)).register
        link = Seat(register)
        self.registers.append(register)
        self.links.append(link)
        self.joined.set()
        known = dict(report_period_s=0.05, tick_s=0.002, heartbeat_s=0.5, silence_s=5.0)
        yield wire.DispatcherMessage(
            welcome=wire.Welcome(epoch=1, engine=0, now_s=1000.0, **known | self.welcome)
        )
        reader = asyncio.create_task(link.read(request_iterator))
        try:
            while True:
                yield await link.out.get()
        finally:
            reader.cancel()

    async def seat(self, number=0):
        """The link of that number once it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.links) <= number:
                self.joined.clear()
                await self.joined.wait()
        return self.links[number]


class Seat:
    """One link as the dispatcher sees it."""

    def __init__(self, register):
        self.register, self.out, self.changed = register, asyncio.Queue(), asyncio.Event()
        self.tokens, self.finals, self.reports, self.moves, self.started = {}, {}, [], [], {}
        self.leaving = False
        self.sequence = count(1)

    async def read(self, messages):
        async for message in messages:
            kind = message.WhichOneof("kind")
            if kind == "tokens":
                for one in message.tokens.requests:
                    key = one.number, one.attempt
                    self.tokens.setdefault(key, []).append(
                        (one.run.offset, [*one.run.tokens], [*one.run.pieces])
                    )
                    if one.HasField("final"):
                        self.finals[key] = one.final
                    if one.HasField("started_after_s"):
                        self.started[key] = one.started_after_s
            elif kind == "report":
                self.reports.append(message.report)
            elif kind == "migration":
                self.moves.append(message.migration)
            elif kind == "leaving":
                self.leaving = True
            self.changed.set()

    def say(self, **kind):
        self.out.put_nowait(wire.DispatcherMessage(**kind))

    def enqueue(self, number, **more):
        self.say(enqueue=order(number, sequence=next(self.sequence), **more))

    async def until(self, question):
        """Wait until the answer is true, and return it."""
        async with asyncio.timeout(PATIENCE_S):
            while not (answer := question()):
                self.changed.clear()
                await self.changed.wait()
        return answer

    def answer(self, number, attempt=1):
        """Tokens in the order in which they came; offsets must be contiguous."""
        made, wanted = [], None
        for offset, tokens, _ in self.tokens.get((number, attempt), []):
            assert wanted in (None, offset)
            made += tokens
            wanted = offset + len(tokens)
        return made


def order(number, *, prompt=50, length=20, attempt=1, sequence=1, credit=PLENTY, **more):
    generated = more.pop("generated", [])
    return wire.Enqueue(
        number=number,
        attempt=attempt,
        request_id=f"r{number}",
        prompt_tokens=prompt,
        sampling=Sampling(max_tokens=length, ignore_eos=True, seed=number),
        session=-1,
        arrival_s=1000.0,
        forecast_tokens=20.0,
        credit_to=credit,
        sequence=sequence,
        generated=generated,
        **more,
    )


@asynccontextmanager
async def desk():
    server, place = grpc.aio.server(), Desk()
    add_WorkerLinkServicer_to_server(place, server)
    place.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield place
    finally:
        await server.stop(0)


@asynccontextmanager
async def linked(config=FAST, **welcome):
    """A desk and one worker at it."""
    async with desk() as place:
        place.welcome = welcome
        async with running(config.__class__(**{**vars(config), "dispatcher": place.address})) as worker:
            yield place, await place.seat(), worker


async def test_orders_come_back_as_whole_answers():
    """Tokens are those of the seed, text is theirs, ends say how; nothing is held once all is acknowledged."""
    async with linked() as (_, seat, place):
        assert seat.register.driver == "sim"
        assert seat.register.deterministic
        for number in range(1, 41):
            seat.enqueue(number, prompt=10 * number, length=number, want_text=number == 7)
        await seat.until(lambda: len(seat.finals) == 40)
        for number in range(1, 41):
            assert seat.answer(number) == tokens_at(number, 0, number)
            assert seat.finals[number, 1].reason == "length"
            assert seat.started[number, 1] >= 0.0
        pieces = [piece for _, _, pieces in seat.tokens[7, 1] for piece in pieces]
        assert pieces == [piece_of(token) for token in tokens_at(7, 0, 7)]
        assert len(place.worker.answers) == 40
        seat.say(
            progress=wire.Progress(
                requests=[wire.RequestProgress(number=n, attempt=1, done=True) for n in range(1, 41)]
            )
        )
        await seat.until(lambda: seat.reports[-1].steps > 0 and place.worker.idle)
        assert seat.reports[-1].blocks_free == 600
        assert seat.reports[-1].sequence == 40


async def test_credit_holds_tokens_back_and_lets_them_go():
    """Nothing beyond the credit is sent; the engine works on meanwhile."""
    async with linked() as (_, seat, place):
        seat.enqueue(3, length=60, credit=10)
        await seat.until(lambda: len(seat.answer(3)) == 10)
        await seat.until(lambda: place.worker.answers[3].made == 60)
        assert seat.answer(3) == tokens_at(3, 0, 10)
        assert not seat.finals
        seat.say(progress=wire.Progress(requests=[wire.RequestProgress(number=3, attempt=1, credit_to=100)]))
        await seat.until(lambda: seat.finals)
        assert seat.answer(3) == tokens_at(3, 0, 60)


async def test_what_is_asked_again_is_sent_again():
    """From an index that was not acknowledged; the end comes again too."""
    async with linked() as (_, seat, _):
        seat.enqueue(3, length=30)
        await seat.until(lambda: seat.finals)
        seat.tokens.clear()
        seat.finals.clear()
        again = wire.RequestProgress(number=3, attempt=1, kept_to=12, send_from=12)
        seat.say(progress=wire.Progress(requests=[again]))
        await seat.until(lambda: seat.finals)
        assert seat.tokens[3, 1][0][0] == 12
        assert seat.answer(3) == tokens_at(3, 12, 18)


async def test_a_cut_link_comes_back_and_loses_nothing():
    """Kept requests go on from where they are asked, others are dropped without a word."""
    async with linked() as (place, seat, worker):
        place.welcome = {
            "keep": [wire.Keep(number=1, attempt=1, send_from=5, credit_to=PLENTY)],
        }
        seat.enqueue(1, length=400)
        seat.enqueue(2, length=400)
        await seat.until(lambda: len(seat.answer(1)) > 10 and len(seat.answer(2)) > 10)
        worker.link.cut()
        later = await place.seat(1)
        held = {one.number: one for one in later.register.held}
        assert set(held) == {1, 2}
        assert held[1].generated >= 10
        assert held[1].kept_from == 0
        assert later.register.incarnation == seat.register.incarnation
        await later.until(lambda: later.finals)
        assert later.tokens[1, 1][0][0] == 5
        assert later.answer(1) == tokens_at(1, 5, 395)
        assert not any(number == 2 for number, _ in later.tokens)
        assert set(worker.worker.answers) == {1}


async def test_a_cancelled_request_frees_the_engine():
    """It says so, an old attempt's cancel and an unknown number are ignored."""
    async with linked() as (_, seat, place):
        seat.enqueue(4, length=3000, attempt=2)
        await seat.until(lambda: seat.answer(4, 2))
        seat.say(cancel=wire.Cancel(number=4, attempt=1))
        seat.say(cancel=wire.Cancel(number=99, attempt=1))
        await seat.until(lambda: seat.reports and seat.reports[-1].running == [4])
        seat.say(cancel=wire.Cancel(number=4, attempt=2))
        await seat.until(lambda: seat.finals)
        assert seat.finals[4, 2].reason == "cancelled"
        await seat.until(lambda: seat.reports[-1].blocks_free == 600)
        assert place.worker.engine.load == (0, 0)


async def test_a_request_begun_elsewhere_goes_on_here():
    """The first token sent is the next one; a later attempt replaces an older one that still lies here."""
    async with linked() as (_, seat, _):
        seat.enqueue(5, length=2000)
        await seat.until(lambda: seat.answer(5))
        seat.enqueue(5, length=30, attempt=2, generated=tokens_at(5, 0, 12))
        await seat.until(lambda: (5, 2) in seat.finals)
        assert seat.tokens[5, 2][0][0] == 12
        assert seat.answer(5, 2) == tokens_at(5, 12, 18)
        assert (5, 1) not in seat.finals
        seat.enqueue(6, length=12, generated=tokens_at(6, 0, 12))
        await seat.until(lambda: (6, 1) in seat.finals)
        assert seat.answer(6) == []


async def test_refusals_have_their_reason():
    """What can never fit is too long."""
    async with linked() as (_, seat, _):
        seat.enqueue(1, prompt=100_000)
        await seat.until(lambda: seat.finals)
        assert seat.finals[1, 1].reason == "too_long"


async def test_the_policy_is_switched_under_load():
    """Running requests stay; a spec that names nothing changes nothing."""
    async with linked() as (_, seat, place):
        for number in range(1, 30):
            seat.enqueue(number, length=60)
        await seat.until(lambda: seat.answer(1))
        seat.say(set_policy=wire.SetPolicy(engine_policy="no-such-policy"))
        seat.say(set_policy=wire.SetPolicy(engine_policy="edf"))
        await seat.until(lambda: len(seat.finals) == 29)
        assert place.worker.policy == "edf"
        assert all(seat.answer(number) == tokens_at(number, 0, 60) for number in range(1, 30))


async def test_a_drained_worker_ends_what_it_holds():
    """It asks to leave, keeps answers until they are acknowledged, and says so in reports."""
    async with linked() as (_, seat, place):
        seat.enqueue(1, length=50)
        await seat.until(lambda: seat.answer(1))
        place.link.leave("stopped")
        await seat.until(lambda: seat.finals and seat.leaving and seat.reports[-1].draining)
        assert not place.worker.idle
        seat.say(progress=wire.Progress(requests=[wire.RequestProgress(number=1, attempt=1, done=True)]))
        await seat.until(lambda: place.worker.idle)


async def test_reports_of_each_step_follow_its_tokens():
    """After a landed step and after the next was formed, the numbers are the simulator's."""
    async with linked(report_each_step=True, report_period_s=100.0) as (_, seat, _):
        seat.enqueue(1, prompt=600, length=4)
        await seat.until(lambda: seat.reports[-1:] and seat.reports[-1].steps == 5)
        assert seat.finals, "tokens go out before the report of their step"
        steps = [report.steps for report in seat.reports]
        assert steps == sorted(steps)
        assert set(steps) == {0, 1, 2, 3, 4, 5}
        assert [one.computed_tokens[0] for one in seat.reports if one.running and one.steps == 1] == [
            512,
            512,
        ]


async def test_http_speaks_to_clients_and_to_prometheus():
    """A completion past the dispatcher, streamed and not, health, and vLLM's names."""
    async with linked() as (_, _, place), ClientSession(f"http://{place.http}") as http:
        body = {"prompt": [1, 2, 3], "max_tokens": 9, "ignore_eos": True, "seed": 77}
        whole = await (await http.post("/v1/completions", json=body)).json()
        text = "".join(map(piece_of, tokens_at(77, 0, 9)))
        assert whole["choices"][0]["text"] == text
        assert whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}
        stream = await (await http.post("/v1/completions", json=body | {"stream": True})).text()
        assert stream.endswith("data: [DONE]\n\n")
        assert (await http.get("/ready")).status == 200
        assert (await http.post("/v1/completions", data=b"{")).status == 400
        page = await (await http.get("/metrics")).text()
        assert 'vllm:generation_tokens_total{engine="worker-0",model_name="llama-3.1-8b"} 16.0' in page
        assert "vllm:time_to_first_token_seconds_bucket" in page
        assert place.worker.idle


@asynccontextmanager
async def pair():
    """Two workers at one desk."""
    async with linked() as (place, source, first):
        second = first.worker.config.__class__(**{**vars(first.worker.config), "worker_id": "worker-1"})
        async with running(second) as other:
            yield source, first, await place.seat(1), other


async def begin_move(source, target, to, *, blocks=30, length=600):
    """Reserve and copy; returns once both sides have answered."""
    source.enqueue(9, prompt=200, length=length)
    await source.until(lambda: len(source.answer(9)) > 3)
    reserve = wire.Reserve(request=order(9, prompt=200, length=length, attempt=2), blocks=blocks)
    target.say(migration=wire.MigrationOrder(migration=1, number=9, reserve=reserve))
    ticket = (await target.until(lambda: target.moves))[0].reserved.ticket
    copy = wire.Copy(attempt=1, peer_address=to.grpc, ticket=ticket)
    source.say(migration=wire.MigrationOrder(migration=1, number=9, copy=copy))


async def test_a_running_request_moves_without_losing_a_token():
    """Reserved, copied, stopped, committed: the rest is made at the destination, nothing is computed again."""
    async with pair() as (source, first, target, second):
        await begin_move(source, target, second)
        stopped = (await source.until(lambda: source.moves))[0].stopped
        copied = (await target.until(lambda: target.moves[1:]))[0].copied
        assert stopped.generated == copied.generated == len(source.answer(9))
        assert stopped.blocks == (200 + stopped.generated - 1 + 15) // 16
        commit = wire.Commit(attempt=2, next_index=copied.generated, credit_to=PLENTY)
        target.say(migration=wire.MigrationOrder(migration=1, number=9, commit=commit))
        source.say(migration=wire.MigrationOrder(migration=1, number=9, commit=wire.Commit(attempt=1)))
        await target.until(lambda: target.finals)
        assert source.answer(9) + target.answer(9, 2) == tokens_at(9, 0, 600)
        await source.until(lambda: source.reports[-1].blocks_free == 600)
        assert first.worker.idle
        assert not source.finals
        assert second.worker.engine.rig.known.engines.prefilled_tokens[0] == 0


@pytest.mark.parametrize("moment", ["reserved", "copied"])
async def test_a_move_that_is_called_off_leaves_everything_as_it_was(moment):
    """The source decodes on, the destination has its blocks back."""
    async with pair() as (source, first, target, second):
        if moment == "reserved":
            first.moves.bytes_per_s = 1e6  # a block takes two seconds
        await begin_move(source, target, second)
        if moment == "copied":
            await source.until(lambda: source.moves)
            await target.until(lambda: target.moves[1:])
        for seat in (source, target):
            seat.say(migration=wire.MigrationOrder(migration=1, number=9, abort=wire.Abort(why="test")))
        await source.until(lambda: source.finals)
        assert source.answer(9) == tokens_at(9, 0, 600)
        assert not target.tokens
        await target.until(lambda: target.reports[-1].blocks_free == 600)
        assert second.worker.idle


async def test_a_move_without_room_is_refused():
    """A reservation binds, so a second one that does not fit fails."""
    async with pair() as (source, _, target, _):
        reserve = wire.Reserve(request=order(9, prompt=200), blocks=601)
        target.say(migration=wire.MigrationOrder(migration=4, number=9, reserve=reserve))
        told = await target.until(lambda: target.moves)
        assert told[0].failed.why
        copy = wire.Copy(attempt=1, peer_address="127.0.0.1:1", ticket=5)
        source.enqueue(9, length=200)
        await source.until(lambda: source.answer(9))
        source.say(migration=wire.MigrationOrder(migration=5, number=9, copy=copy))
        told = await source.until(lambda: source.moves)
        assert told[0].failed.why
        await source.until(lambda: source.finals)
        assert source.answer(9) == tokens_at(9, 0, 200)


async def test_a_stalled_engine_and_a_partition_only_delay():
    """Steps stand still, then the link is deaf; the answer is whole in the end."""
    async with linked() as (_, seat, place), ClientSession(f"http://{place.http}") as http:
        seat.enqueue(1, length=200)
        await seat.until(lambda: seat.answer(1))
        assert (await http.post("/chaos", json={"fault": "stall", "seconds": 0.1})).status == 200
        assert (await http.post("/chaos", json={"fault": "partition", "seconds": 0.1})).status == 200
        assert (await http.post("/chaos", json={"fault": "headache"})).status == 400
        await seat.until(lambda: seat.finals)
        assert seat.answer(1) == tokens_at(1, 0, 200)
        await http.post("/chaos", json={"fault": "refuse"})
        seat.enqueue(2)
        await seat.until(lambda: (2, 1) in seat.finals)
        assert seat.finals[2, 1].reason == "engine_error"
