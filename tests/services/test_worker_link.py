"""A worker on its link: orders, credit, acknowledgement, cuts, drain and cancel, over real sockets."""

import grpc
import pytest
from aiohttp import ClientSession
from grpc_health.v1 import health_pb2, health_pb2_grpc

from loadgen.replay.tokens import piece_of, tokens_at
from services.rpc.windtunnel.v1 import worker_pb2 as wire
from services.worker.link import tiers_of
from services.worker.process import tell_health
from services.worker.worker import Worker
from tests.services.desk import FAST, PLENTY, linked, order

pytestmark = pytest.mark.timeout(60)


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


async def test_only_what_is_urgent_does_not_wait_to_be_merged():
    """An answer's first token and its end go out at once, however long the tokens between may wait for others."""
    async with linked(merge_s=3600.0) as (_, seat, _):
        seat.enqueue(4, length=50)
        await seat.until(lambda: seat.finals)
        first, *_, last = [(offset, len(tokens)) for offset, tokens, _ in seat.tokens[4, 1]]
        assert first[0] == 0
        assert first[1] < 10, "a busy machine may make a few before the first goes out, not all"
        assert sum(last) == 50
        assert len(seat.tokens[4, 1]) == 2
        assert seat.answer(4) == tokens_at(4, 0, 50)


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


@pytest.mark.parametrize("kept", [1, 2])
async def test_nothing_is_sent_after_a_reconnect_before_all_know_where_they_go_on(kept):
    """Neither a dropped request's tokens nor a kept one's from where the old link stood, in any order."""
    worker, sent = Worker(FAST, tiers_of([])), []
    for number in (1, 2, 3):
        worker.enqueue(order(number, length=40))
        answer = worker.answers[number]
        answer.made, answer.sent = 30, 20
    worker.send = sent.extend
    worker.dirty.update((1, 2, 3))
    worker.resume_from([(kept, 1, 5, PLENTY), (3, 1, 7, PLENTY)])
    assert [(one.number, one.run.offset, len(one.run.tokens)) for one in sent] == [(kept, 5, 25), (3, 7, 23)]
    assert set(worker.answers) == {kept, 3}


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


async def test_health_is_told_over_grpc():
    """Serving, until it is not."""
    async with linked() as (_, _, place), grpc.aio.insecure_channel(place.grpc) as channel:
        asked = health_pb2.HealthCheckRequest(service="windtunnel.v1.WorkerPeer")
        check = health_pb2_grpc.HealthStub(channel).Check
        assert (await check(asked)).status == health_pb2.HealthCheckResponse.SERVING
        await tell_health(place, good=False)
        assert (await check(asked)).status == health_pb2.HealthCheckResponse.NOT_SERVING
