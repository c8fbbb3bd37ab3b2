"""Redis away, truly: requests are refused or taken at risk as configured, by name; what runs loses nothing."""

import asyncio
import signal
from dataclasses import replace

import httpx
import pytest

from services.config import StoreConfig
from services.dispatcher.process import running
from services.store.journal import Journal
from services.store.redis_store import RedisStore
from tests.services.fake_worker import fleet
from tests.services.live_stage import ROOM, asking, client_at, heard, redis_at, until


def kept_in(address, when_away):
    return replace(ROOM, store=StoreConfig(url=address, when_away=when_away, flush_s=0.01))


def whole(said, tokens):
    assert (said.ending.reason, said.wanted, said.lost, said.repeated) == ("length", tokens, 0, 0)


@pytest.mark.slow
@pytest.mark.parametrize("when_away", ["refuse", "degrade"])
async def test_redis_killed_in_mid_stream_and_started_again(tmp_path, when_away):
    server, address = redis_at(tmp_path)
    try:
        async with (
            running(kept_in(address, when_away)) as parts,
            fleet(parts.grpc, "w0", step_s=0.005) as (worker,),
            client_at(parts.grpc) as stub,
            httpx.AsyncClient(base_url=f"http://{parts.http}") as web,
        ):
            before = [asyncio.create_task(heard(stub.Submit(asking(f"r{i}", 300)))) for i in range(5)]
            await until(lambda: len(worker.jobs) == 5 and all(job.sent > 20 for job in worker.jobs.values()))
            server.send_signal(signal.SIGKILL)
            server.wait()
            (tmp_path / "redis.sock").unlink(missing_ok=True)
            await until(lambda: parts.journal.away)
            said = await heard(stub.Submit(asking("while-away", 20)))
            answer = await web.post("/v1/completions", json={"prompt": "x", "max_tokens": 3})
            ready = await web.get("/ready")
            if when_away == "refuse":
                assert (said.ending.reason, answer.status_code, ready.status_code) == ("store_down", 503, 503)
                assert answer.headers["retry-after"] == "1"
            else:
                whole(said, 20)
                assert (answer.status_code, ready.status_code) == (200, 200)
                assert parts.heart.metrics.degraded._value.get() == 2
            for one in await asyncio.gather(*before):
                whole(one, 300)
            assert len(worker.jobs) >= 5, "a worker forgets nothing that is not in the journal"
            server, _ = redis_at(tmp_path)
            await until(lambda: not parts.journal.away)
            await until(lambda: not worker.jobs)
            whole(await heard(stub.Submit(asking("after", 20))), 20)
            assert parts.heart.desk.board.row_of == {}
        journal = Journal(RedisStore(address))
        saved = {one.accepted.request_id: one for one in (await journal.open()).requests.values()}
        await journal.close()
        taken = (
            {f"r{i}" for i in range(5)} | {"after"} | ({"while-away"} if when_away == "degrade" else set())
        )
        assert taken <= set(saved)
        open_still = [name for name, one in saved.items() if one.ended is None]
        assert open_still == [], "each accepted request has its end in the journal"
        assert len(saved["r0"].tokens) == 300
    finally:
        server.kill()
        server.wait()


async def test_a_store_that_fails_at_the_moment_of_acceptance_refuses_and_forgets(tmp_path):
    """The refusal is written too, once it can be: a restart does not serve what was refused."""
    store = StoreConfig(url=f"file:{tmp_path / 'journal'}", flush_s=0.01)
    async with (
        running(replace(ROOM, store=store)) as parts,
        fleet(parts.grpc, "w0") as (worker,),
        client_at(parts.grpc) as stub,
    ):
        write, failed = parts.journal.backend.write, []

        async def late_failure(batch):
            await write(batch)  # it is in the file, and yet the answer was lost
            failed.append(batch)
            raise OSError("lost")

        parts.journal.backend.write = late_failure
        said = await heard(stub.Submit(asking("r", 20)))
        assert said.ending.reason == "store_down"
        assert parts.heart.answers == {}
        assert parts.heart.desk.board.row_of == {}
        parts.journal.backend.write = write
        await until(lambda: not parts.journal.away)
        assert worker.seen == []
    async with running(replace(ROOM, store=store)) as parts, fleet(parts.grpc, "w0") as (worker,):
        assert all(answer.ending is not None for answer in parts.heart.answers.values())
        assert worker.seen == []
