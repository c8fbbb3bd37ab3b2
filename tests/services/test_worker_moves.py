"""Live migration between two workers over real sockets: nothing is lost, whatever stage it ends in."""

from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from loadgen.replay.tokens import tokens_at
from services.rpc.windtunnel.v1 import worker_pb2 as wire
from services.worker.process import running
from tests.services.desk import FAST, PLENTY, linked, order

pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def pair():
    """Two workers at one desk."""
    async with linked(replace(FAST, speed=10.0)) as (place, source, first):
        second = replace(first.worker.config, worker_id="worker-1")
        async with running(second) as other:
            yield source, first, await place.seat(1), other


async def begin_move(source, target, to, *, blocks=30, length=2000, **more):
    """Reserve and copy; returns once both sides have answered."""
    source.enqueue(9, prompt=200, length=length, **more)
    await source.until(lambda: len(source.answer(9)) > 3)
    reserve = wire.Reserve(request=order(9, prompt=200, length=length, attempt=2, credit=0), blocks=blocks)
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
        assert source.answer(9) + target.answer(9, 2) == tokens_at(9, 0, 2000)
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
        assert source.answer(9) == tokens_at(9, 0, 2000)
        assert not target.tokens
        await target.until(lambda: target.reports[-1].blocks_free == 600)
        assert second.worker.idle


async def test_a_client_that_goes_while_its_tokens_wait_ends_the_move():
    """It takes nothing any more, so that tokens wait to be sent; both sides are told, and free what they held."""
    async with pair() as (source, first, target, second):
        await begin_move(source, target, second, credit=10)
        await source.until(lambda: first.moves.outgoing and first.moves.outgoing[9].frozen)
        source.say(cancel=wire.Cancel(number=9, attempt=1))
        told = await source.until(lambda: source.moves)
        assert told[0].failed.why == "ended"
        target.say(migration=wire.MigrationOrder(migration=1, number=9, abort=wire.Abort(why="ended")))
        for seat in (source, target):
            await seat.until(lambda seat=seat: seat.reports[-1].blocks_free == 600)


async def test_a_move_without_room_is_refused():
    """A reservation binds, so a second one that does not fit fails."""
    async with pair() as (source, _, target, _):
        reserve = wire.Reserve(request=order(9, prompt=200), blocks=601)
        target.say(migration=wire.MigrationOrder(migration=4, number=9, reserve=reserve))
        told = await target.until(lambda: target.moves)
        assert told[0].failed.why
        copy = wire.Copy(attempt=1, peer_address="127.0.0.1:1", ticket=5)
        source.enqueue(9, length=2000)
        await source.until(lambda: source.answer(9))
        source.say(migration=wire.MigrationOrder(migration=5, number=9, copy=copy))
        told = await source.until(lambda: source.moves)
        assert told[0].failed.why
        await source.until(lambda: source.finals)
        assert source.answer(9) == tokens_at(9, 0, 2000)
