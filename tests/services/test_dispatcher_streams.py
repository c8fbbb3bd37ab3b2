"""Tokens exactly once: over worker death, cuts, duplicates, gaps, slow clients, moves; counts add up each time."""

import asyncio

import pytest

from services.dispatcher.process import running
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1 import worker_pb2 as link
from tests.services.fake_worker import FakeWorker, fleet
from tests.services.live_stage import ROOM, asking, changed, client_at, heard, until

QUICK = changed(timeouts={"engine_grace_s": 0.2})


def whole(said, tokens):
    """Every token once, and one good ending."""
    assert said.ending is not None
    assert (said.ending.reason, said.ending.output_tokens) == ("length", tokens)
    assert (said.wanted, said.lost, said.repeated) == (tokens, 0, 0)


def at_rest(parts):
    """Arrivals = endings; nothing is open anywhere."""
    heart = parts.heart
    assert all(answer.ending is not None for answer in heart.answers.values())
    assert heart.desk.board.row_of == {}
    metrics = heart.metrics
    arrivals = sum(child._value.get() for child in metrics.arrivals)
    ended = sum(child._value.get() for child in metrics.requests._metrics.values())
    assert arrivals == ended


@pytest.mark.parametrize("mood", ["well", "twice", "gappy"])
async def test_each_token_arrives_once_and_in_order(mood):
    async with (
        running(QUICK) as parts,
        fleet(parts.grpc, "w0", "w1", mood=mood),
        client_at(parts.grpc) as stub,
    ):
        streams = await asyncio.gather(*(heard(stub.Submit(asking(f"r{i}", 30 + i))) for i in range(20)))
        for i, said in enumerate(streams):
            whole(said, 30 + i)
        at_rest(parts)
        duplicates = parts.heart.metrics.duplicates._value.get()
        gaps = parts.heart.metrics.gaps._value.get()
        assert (duplicates > 0, gaps > 0) == (mood == "twice", mood == "gappy")


async def test_a_dead_workers_requests_go_on_elsewhere():
    """kill -9 of a worker in mid-stream: the other one continues with prompt and tokens, none is lost or repeated."""
    async with (
        running(QUICK) as parts,
        fleet(parts.grpc, "w0", "w1") as workers,
        client_at(parts.grpc) as stub,
    ):
        calls = [asyncio.create_task(heard(stub.Submit(asking(f"r{i}", 120)))) for i in range(10)]
        await until(
            lambda: len(workers[0].jobs) == 5 and all(job.sent > 10 for job in workers[0].jobs.values())
        )
        await workers[0].kill()
        for said in await asyncio.gather(*calls):
            whole(said, 120)
        continued = [asked for asked in workers[1].seen if asked.attempt == 2]
        assert len(continued) == 5
        assert all(len(asked.generated) > 0 for asked in continued)
        at_rest(parts)


async def test_a_cut_link_comes_back_and_nothing_is_made_twice():
    patient = changed(QUICK, timeouts={"engine_grace_s": 20.0})
    async with running(patient) as parts, fleet(parts.grpc, "w0") as (worker,), client_at(parts.grpc) as stub:
        calls = [asyncio.create_task(heard(stub.Submit(asking(f"r{i}", 150)))) for i in range(6)]
        for _ in range(3):
            await asyncio.sleep(0.06)
            worker.cut()
            await until(lambda: worker.welcomes and parts.links.workers["w0"].connected)
        for said in await asyncio.gather(*calls):
            whole(said, 150)
            assert said.ending.attempts == 1
        assert len(worker.seen) == 6
        at_rest(parts)


async def test_a_worker_that_restarts_has_lost_what_it_held():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0") as (worker,), client_at(parts.grpc) as stub:
        call = asyncio.create_task(heard(stub.Submit(asking("r", 200))))
        await until(lambda: any(job.sent > 5 for job in worker.jobs.values()))
        await worker.kill()
        async with FakeWorker(parts.grpc, "w0", incarnation=2) as again:
            said = await call
            whole(said, 200)
            assert (said.ending.attempts, again.seen[0].attempt) == (2, 2)
        at_rest(parts)


async def test_with_no_engine_left_it_waits_for_one_to_come():
    async with running(QUICK) as parts, client_at(parts.grpc) as stub:
        async with FakeWorker(parts.grpc, "w0") as worker:
            call = asyncio.create_task(heard(stub.Submit(asking("r", 150))))
            await until(lambda: any(job.sent > 5 for job in worker.jobs.values()))
        await until(lambda: not parts.heart.engines)
        refused = await heard(stub.Submit(asking("late")))
        assert refused.ending.reason == "no_engine"
        async with FakeWorker(parts.grpc, "w1"):
            whole(await call, 150)
        at_rest(parts)


async def test_attempts_are_limited_and_the_end_is_told():
    async with (
        running(QUICK) as parts,
        fleet(parts.grpc, "w0", "w1", mood="failing"),
        client_at(parts.grpc) as stub,
    ):
        said = await heard(stub.Submit(asking("r", 10)))
        assert (said.ending.outcome, said.ending.reason) == (wire.OUTCOME_FAILED, "engine_error")
        assert said.ending.attempts == ROOM.limits.attempts
        at_rest(parts)


async def test_a_silent_engine_is_given_up_by_name():
    config = changed(QUICK, timeouts={"first_token_s": 0.2}, limits={"attempts": 2})
    async with running(config) as parts, fleet(parts.grpc, "w0", mood="silent") as (worker,):
        async with client_at(parts.grpc) as stub, FakeWorker(parts.grpc, "w1"):
            streams = await asyncio.gather(*(heard(stub.Submit(asking(f"r{i}", 20))) for i in range(4)))
            reasons = {said.ending.reason for said in streams}
            assert reasons <= {"length", "stalled"}
            assert "length" in reasons
            await until(lambda: not worker.jobs)
        at_rest(parts)


async def test_a_stranger_to_determinism_is_continued_only_for_who_saw_less():
    """Tokens of another engine would not be the ones that the client has: it is told, not deceived."""
    async with running(QUICK) as parts, client_at(parts.grpc) as stub:
        async with FakeWorker(parts.grpc, "w0", deterministic=False) as worker:
            call = stub.Submit(asking("r", 400))
            async for event in call:
                if event.WhichOneof("kind") == "tokens":
                    break
            seen = len(parts.heart.by_id["", "r"].tokens)
            await until(lambda: worker.jobs)
        answer = parts.heart.by_id["", "r"]
        await until(lambda: answer.unsure_from >= seen)
        ahead = await heard(
            stub.Resume(door.ResumeRequest(request_id="r", from_index=answer.unsure_from + 1))
        )
        assert ahead.ending.reason == "engine_lost"
        call.cancel()


async def test_resume_by_id_and_index():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0"), client_at(parts.grpc) as stub:
        call = stub.Submit(asking("r", 200))
        async for event in call:
            if event.WhichOneof("kind") == "tokens" and event.tokens.offset > 10:
                break
        call.cancel()
        rest = await heard(stub.Resume(door.ResumeRequest(request_id="r", from_index=11)), wanted=11)
        whole(rest, 200)
        again = await heard(stub.Submit(asking("r", 200)))
        whole(again, 200)
        assert parts.heart.metrics.arrivals[0]._value.get() == 1, "the same submission again is not a new one"
        other = await heard(stub.Submit(asking("r", 201)))
        assert other.ending.reason == "bad_request"


async def test_cancel_reaches_the_engine_at_once():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0") as (worker,), client_at(parts.grpc) as stub:
        call = asyncio.create_task(heard(stub.Submit(asking("r", 5000))))
        await until(lambda: any(job.sent > 5 for job in worker.jobs.values()))
        number = next(iter(worker.jobs))
        reply = await stub.Cancel(door.CancelRequest(request_id="r"))
        assert reply.cancelled
        said = await call
        assert said.ending.reason == "client_gone"
        await until(lambda: ("cancelled", number) in worker.orders)
        assert not (await stub.Cancel(door.CancelRequest(request_id="r"))).cancelled
        at_rest(parts)


async def test_a_client_that_never_returns_is_given_up():
    config = changed(QUICK, timeouts={"resume_s": 0.1})
    async with running(config) as parts, fleet(parts.grpc, "w0") as (worker,), client_at(parts.grpc) as stub:
        call = stub.Submit(asking("r", 100_00))
        async for _ in call:
            break
        call.cancel()
        await until(lambda: parts.heart.by_id["", "r"].ending is not None)
        assert parts.heart.by_id["", "r"].ending.reason == "client_gone"
        await until(lambda: not worker.jobs)


async def test_one_conversation_carries_many_requests():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0", "w1"), client_at(parts.grpc) as stub:
        heard_by, done = {}, asyncio.Event()

        async def messages():
            for i in range(200):
                yield door.ClientMessage(submit=asking(f"r{i}", 20 + i % 7))
            yield door.ClientMessage(submit=asking("none", 0))
            yield door.ClientMessage(resume=door.ResumeRequest(request_id="never"))
            await done.wait()

        from tests.services.live_stage import Heard

        async for batch in stub.Converse(messages()):
            for event in batch.events:
                heard_by.setdefault(event.request_id, Heard()).take(event)
            if len(heard_by) == 202 and all(one.ending is not None for one in heard_by.values()):
                done.set()
        for i in range(200):
            whole(heard_by[f"r{i}"], 20 + i % 7)
        assert heard_by["none"].ending.reason == heard_by["never"].ending.reason == "bad_request"
        at_rest(parts)


async def test_a_slow_reader_stalls_only_itself():
    """Who does not read holds its worker back at the window's edge; its neighbours never notice."""
    config = changed(QUICK, limits={"window_tokens": 64})
    async with (
        running(config) as parts,
        fleet(parts.grpc, "w0", pace=4) as (worker,),
        client_at(parts.grpc) as stub,
    ):
        answer = await parts.heart.submit(asking("idle", 5000), parts.heart.doorkeeper.client(""))

        class Deaf:
            def notify(self, answer):
                pass

        deaf = Deaf()
        parts.heart.listen(answer, deaf, 0)
        others = await asyncio.gather(*(heard(stub.Submit(asking(f"r{i}", 400))) for i in range(5)))
        for said in others:
            whole(said, 400)
        assert len(answer.tokens) <= 64
        parts.heart.leave(answer, deaf)
        await until(lambda: answer.ending is not None)
        await until(lambda: not worker.jobs)


MOVES = [
    ("well", "well", "committed"),
    ("refuses copy", "well", "aborted"),
    ("well", "refuses reserve", "aborted"),
]


async def moving(parts, workers, said_when):
    """Start a long request and ask for its move to the other engine once it streams."""
    from schedulers.decisions import MOVE, Decision

    answer = next(iter(parts.heart.answers.values()))
    await until(lambda: len(answer.tokens) > said_when)
    source = answer.engine
    parts.heart.desk.moving[answer.number] = source, 1 - source
    parts.heart.act([Decision(MOVE, answer.number, 1 - source, "test", source=source)])
    return answer, workers[source], workers[1 - source]


@pytest.mark.parametrize(("source_mood", "target_mood", "outcome"), MOVES)
async def test_a_move_commits_or_aborts_whole(source_mood, target_mood, outcome):
    async with running(QUICK) as parts, fleet(parts.grpc, "w0", "w1", migrates=True) as workers:
        async with client_at(parts.grpc) as stub:
            call = asyncio.create_task(heard(stub.Submit(asking("r", 300))))
            await until(lambda: parts.heart.answers)
            answer = next(iter(parts.heart.answers.values()))
            await until(lambda: answer.engine >= 0)
            workers[answer.engine].mood, workers[1 - answer.engine].mood = source_mood, target_mood
            answer, source, target = await moving(parts, workers, 10)
            said = await call
            whole(said, 300)
            assert said.ending.migrations == (outcome == "committed")
            assert len(source.seen) + len(target.seen) == 1, "nothing was computed again"
            counted = parts.heart.metrics.migrations.labels("test", outcome)._value.get()
            assert counted == 1
            await until(lambda: not source.jobs and not target.jobs)
        at_rest(parts)


@pytest.mark.parametrize("stage", ["reserve", "copy"])
@pytest.mark.parametrize("dies", ["source", "target"])
async def test_an_engine_may_die_in_any_stage_of_a_move(stage, dies):
    async with running(QUICK) as parts, fleet(parts.grpc, "w0", "w1", migrates=True) as workers:
        async with client_at(parts.grpc) as stub:
            call = asyncio.create_task(heard(stub.Submit(asking("r", 200))))
            await until(lambda: parts.heart.answers)
            answer = next(iter(parts.heart.answers.values()))
            await until(lambda: answer.engine >= 0)
            stuck = workers[1 - answer.engine] if stage == "reserve" else workers[answer.engine]
            stuck.mood = f"ignores {stage}"
            answer, source, target = await moving(parts, workers, 10)
            await until(lambda: (stage, answer.number) in stuck.orders)
            await (source if dies == "source" else target).kill()
            said = await call
            whole(said, 200)
            assert said.ending.migrations == 0
            assert parts.links.migrations.moves == {}
        at_rest(parts)


async def test_a_move_that_copied_less_than_was_said_is_aborted():
    async with (
        running(QUICK) as parts,
        fleet(parts.grpc, "w0", "w1", migrates=True) as workers,
        client_at(parts.grpc) as stub,
    ):
        call = asyncio.create_task(heard(stub.Submit(asking("r", 200))))
        await until(lambda: parts.heart.answers and next(iter(parts.heart.answers.values())).engine >= 0)
        for worker in workers:
            worker.lie = -1
        await moving(parts, workers, 10)
        said = await call
        whole(said, 200)
        assert said.ending.migrations == 0


async def test_an_order_that_was_lost_with_its_link_is_sent_again():
    """The worker comes back without it: it never had it, so it is the same attempt, on the same engine."""
    async with running(QUICK) as parts, fleet(parts.grpc, "w0") as (worker,), client_at(parts.grpc) as stub:
        taken = worker.take

        def losing(message):
            if message.WhichOneof("kind") == "enqueue":
                worker.take = taken
                worker.cut()
            else:
                taken(message)

        worker.take = losing
        said = await heard(stub.Submit(asking("r", 30)))
        whole(said, 30)
        assert (said.ending.attempts, len(worker.seen), len(worker.welcomes)) == (1, 1, 2)
        at_rest(parts)


async def test_a_worker_may_forget_what_nobody_knows_and_what_is_kept():
    """Tokens of a strange request, of a void attempt, and of one that is in the journal: all are told done."""
    async with running(QUICK) as parts, fleet(parts.grpc, "w0") as (worker,), client_at(parts.grpc) as stub:
        whole(await heard(stub.Submit(asking("r", 5))), 5)
        number = next(iter(parts.heart.answers))
        await until(lambda: (number, 1, True) in worker.told)
        for strange, attempt in ((999, 1), (number, 7)):
            row = link.RequestTokens(number=strange, attempt=attempt, run=wire.TokenRun(offset=0, tokens=[1]))
            worker.say(tokens=link.TokenBatch(requests=[row]))
            await until(lambda wanted=(strange, attempt, True): wanted in worker.told)
        assert len(parts.heart.answers[number].tokens) == 5


async def test_a_hung_worker_is_found_out_by_its_silence():
    """No word for silence_s: its link is cut, and after the grace its requests go on elsewhere."""
    config = changed(QUICK, timeouts={"silence_s": 1.0}, scheduling={"heartbeat_s": 0.1})
    async with (
        running(config) as parts,
        fleet(parts.grpc, "w0", "w1") as workers,
        client_at(parts.grpc) as stub,
    ):
        calls = [asyncio.create_task(heard(stub.Submit(asking(f"r{i}", 800)))) for i in range(2)]
        await until(lambda: all(any(job.sent > 10 for job in one.jobs.values()) for one in workers))
        workers[0].hung = workers[0].frozen = True
        for said in await asyncio.gather(*calls):
            whole(said, 800)
        assert [asked.attempt for asked in workers[1].seen].count(2) == 1
        assert not parts.links.workers["w0"].connected
        at_rest(parts)


async def test_a_destination_that_breaks_after_the_commit_costs_time_only():
    """The source has let it go: prompt and tokens are computed again, and the client sees one stream."""
    async with running(QUICK) as parts, fleet(parts.grpc, "w0", "w1", migrates=True) as workers:
        async with client_at(parts.grpc) as stub:
            call = asyncio.create_task(heard(stub.Submit(asking("r", 200))))
            await until(lambda: parts.heart.answers and next(iter(parts.heart.answers.values())).engine >= 0)
            for worker in workers:
                worker.mood = "breaks commit"
            _, source, target = await moving(parts, workers, 10)
            said = await call
            whole(said, 200)
            assert said.ending.migrations == 1
            assert len(source.seen) + len(target.seen) == 2
        at_rest(parts)
