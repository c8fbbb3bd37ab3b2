"""Dispatcher and simulated workers together, over real sockets: streams, cuts, deaths, moves, another policy."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

import httpx
import pytest

from loadgen.replay.tokens import text_of, tokens_at
from schedulers.decisions import MOVE, Decision
from schedulers.errors import InputError
from services.dispatcher.admin import switch_policy
from services.dispatcher.process import running
from services.live_run import Target, await_ready
from services.worker.config import block_bytes
from services.worker.process import running as working
from services.worker.process import serve
from tests.services.desk import FAST
from tests.services.live_stage import ROOM, asking, changed, client_at, heard, until

QUICK = changed(ROOM, timeouts={"engine_grace_s": 0.3})


@asynccontextmanager
async def place_with(*names, speed=20.0):
    """A dispatcher and workers that have joined it."""
    async with running(QUICK) as parts, AsyncExitStack() as stack:
        config = replace(FAST, dispatcher=parts.grpc, speed=speed)
        workers = {}
        for name in names:
            workers[name] = await stack.enter_async_context(working(replace(config, worker_id=name)))
        await until(lambda: len(parts.links.workers) == len(names), 20)
        yield parts, workers


def whole(said, tokens):
    assert (said.ending.reason, said.wanted, said.lost, said.repeated) == ("length", tokens, 0, 0)


async def test_streams_are_whole_and_facts_are_told():
    async with place_with("w0", "w1") as (parts, workers), client_at(parts.grpc) as stub:
        streams = await asyncio.gather(*(heard(stub.Submit(asking(f"r{i}", 40 + i, 100))) for i in range(24)))
        for i, said in enumerate(streams):
            whole(said, 40 + i)
            end = said.ending
            assert (
                0
                <= end.dispatched_after_s
                <= end.started_after_s
                <= end.first_token_after_s
                <= end.ended_after_s
            )
            assert (end.prompt_tokens, end.attempts) == (100, 1)
        assert {said.ending.engine for said in streams} == {0, 1}
        await until(lambda: all(one.worker.idle for one in workers.values()))
        fleet = parts.heart.desk.board.view.engines
        await until(lambda: (fleet.running + fleet.waiting).sum() == 0)
        await until(lambda: (fleet.blocks_free == fleet.blocks_total).all())  # with the next report
        too_long = await heard(stub.Submit(asking("long", 1, 10**6)))
        assert too_long.ending.reason == "too_long"
        async with httpx.AsyncClient() as web:
            body = {"prompt": "x y z", "max_tokens": 12, "ignore_eos": True, "seed": 9}
            answer = await web.post(f"http://{parts.http}/v1/completions", json=body)
            assert answer.json()["choices"][0]["text"] == text_of(tokens_at(9, 0, 12))


async def test_a_cut_and_a_death_lose_nothing():
    async with place_with("w0", "w1") as (parts, workers), client_at(parts.grpc) as stub:
        calls = [asyncio.create_task(heard(stub.Submit(asking(f"r{i}", 2400, 50)))) for i in range(8)]
        answers = parts.heart.answers
        await until(lambda: len(answers) == 8 and all(len(one.tokens) > 20 for one in answers.values()), 30)
        workers["w0"].link.cut()
        await until(lambda: all(len(one.tokens) > 60 for one in answers.values()), 30)
        for task in workers["w1"].tasks:
            task.cancel()
        for said in await asyncio.gather(*calls):
            whole(said, 2400)
        assert {said.ending.attempts for said in await asyncio.gather(*calls)} == {1, 2}
        assert parts.heart.desk.board.row_of == {}


async def test_a_run_does_not_begin_while_a_worker_decides_by_another_policy(monkeypatch):
    """A worker that refuses a policy only logs it; what it did would bear the policy's name."""
    monkeypatch.setattr("services.live_run.IDLE_S", 1.0)
    async with place_with("w0", "w1") as (parts, workers):
        target = Target(parts.grpc, admin=parts.http)
        switch_policy(parts, "edf+least-requests")
        await await_ready(target, "edf")
        monkeypatch.setattr(workers["w1"].worker, "change_policy", lambda named: None)
        switch_policy(parts, "sjf-pred+least-requests")
        with pytest.raises(InputError, match="w1: does not run sjf-pred"):
            await await_ready(target, "sjf-pred")


async def test_a_worker_that_is_not_taken_ends_and_says_why(monkeypatch):
    async with running(QUICK) as parts:
        monkeypatch.setattr(parts.links, "fault_of", lambda first: "no room for it")
        with pytest.raises(InputError, match="no room for it"):
            await serve(replace(FAST, dispatcher=parts.grpc))


async def test_a_running_request_moves_and_its_client_sees_one_stream():
    async with place_with("w0", "w1", speed=4.0) as (parts, workers), client_at(parts.grpc) as stub:
        call = asyncio.create_task(heard(stub.Submit(asking("r", 1500, 200))))
        await until(
            lambda: parts.heart.answers and len(next(iter(parts.heart.answers.values())).tokens) > 20, 30
        )
        answer = next(iter(parts.heart.answers.values()))
        for moves in (1, 2):
            source = answer.engine
            parts.heart.desk.moving[answer.number] = source, 1 - source
            parts.heart.act([Decision(MOVE, answer.number, 1 - source, "test", source=source)])
            await until(lambda moves=moves: answer.migrations == moves, 20)
            grown = len(answer.tokens) + 20
            await until(lambda grown=grown: len(answer.tokens) > grown, 20)
        said = await call
        whole(said, 1500)
        assert (said.ending.migrations, said.ending.preemptions) == (2, 0)
        assert [(move.way, move.why) for move in said.ending.moves] == [("blocks", "")] * 2
        sizes = {move.bytes % block_bytes(workers["w0"].worker.config) for move in said.ending.moves}
        assert sizes == {0}
        assert all(move.bytes > 0 for move in said.ending.moves)
        assert all(0.0 < move.stall_s <= said.ending.longest_gap_s for move in said.ending.moves)
        prefilled = [one.worker.engine.rig.known.engines.prefilled_tokens[0] for one in workers.values()]
        assert sorted(prefilled) == [0, 200], "nothing was computed again"
        await until(lambda: all(one.worker.idle for one in workers.values()))


@pytest.mark.parametrize("end", ["source", "target"])
async def test_a_move_is_given_up_when_a_link_of_it_has_been_cut_and_is_back(end):
    """The worker called it off then; the source goes on, long before the move would take too long."""
    async with place_with("w0", "w1", speed=4.0) as (parts, workers), client_at(parts.grpc) as stub:
        call = asyncio.create_task(heard(stub.Submit(asking("r", 1500, 200))))
        await until(
            lambda: parts.heart.answers and len(next(iter(parts.heart.answers.values())).tokens) > 20, 30
        )
        answer = next(iter(parts.heart.answers.values()))
        places = [workers[parts.heart.engines[row].worker_id] for row in (0, 1)]
        source = answer.engine
        for place in places:
            place.moves.bytes_per_s = 1e4
        parts.heart.desk.moving[answer.number] = source, 1 - source
        parts.heart.act([Decision(MOVE, answer.number, 1 - source, "test", source=source)])
        await until(lambda: places[source].moves.outgoing)
        places[source if end == "source" else 1 - source].link.cut()
        await until(lambda: not parts.links.migrations.moves)
        whole(await call, 1500)
        assert (answer.migrations, answer.attempt) == (0, 1)
        await until(lambda: all(one.worker.idle for one in places))


async def test_another_scheduler_at_run_time_reaches_the_engines():
    async with place_with("w0", "w1") as (parts, workers), client_at(parts.grpc) as stub:
        calls = [asyncio.create_task(heard(stub.Submit(asking(f"r{i}", 100, 50)))) for i in range(6)]
        await until(lambda: len(parts.heart.answers) == 6)
        switch_policy(parts, "edf+round-robin")
        await until(lambda: {one.worker.policy for one in workers.values()} == {"edf"})
        for said in await asyncio.gather(*calls):
            whole(said, 100)
        whole(await heard(stub.Submit(asking("after", 30))), 30)
