"""One contract over every store: what was kept is there after a restart, in order, whole, once."""

import asyncio
import os

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.errors import InputError
from services.store.file_store import FileStore
from services.store.journal import Journal, StoreAwayError
from services.store.records import (
    Accepted,
    Ended,
    Forgotten,
    Kept,
    Next,
    Run,
    Sent,
    decode,
    encode,
    fold,
    packed,
    unfold,
)
from services.store.redis_store import RedisStore
from tests.services.live_stage import redis_at


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory):
    """One Redis for this module."""
    server, address = redis_at(tmp_path_factory.mktemp("redis"))
    yield address
    server.kill()
    server.wait()


@pytest.fixture(params=["file", "redis"])
def make(request, tmp_path):
    """A function that opens the same store anew, as a restarted process would."""
    if request.param == "file":
        return lambda: FileStore(tmp_path / "deep" / "journal")
    address = request.getfixturevalue("redis_server")
    return lambda: RedisStore(address, prefix=f"test-{tmp_path.name}")


def accepted(number):
    return Accepted(number, f"id{number}", "tenant", b"submission", b"digest", 1.5)


HISTORY = [
    accepted(1), Sent(1, 1, "w0"), Kept([Run(1, 0, packed([5, 6]), ["a", "b"])]), accepted(2),
    Kept([Run(1, 2, packed([7]), ["c"]), Run(2, 0, packed([9]), [])]), Sent(1, 2, "w1", True), accepted(3),
    Ended(2, b"ending"), Forgotten([3]),
]  # fmt: skip


async def test_what_was_kept_is_there_after_a_restart(make):
    journal = Journal(make())
    assert (await journal.open()).requests == {}
    for record in HISTORY:
        await journal.keep(record)
    await journal.close()
    for _ in range(3):  # compaction at each opening changes nothing
        journal = Journal(make())
        recovered = await journal.open()
        await journal.close()
        assert recovered.next_number == 4
        assert sorted(recovered.requests) == [1, 2]
        one, two = recovered.requests[1], recovered.requests[2]
        assert (one.tokens, one.pieces, one.sent.worker_id, one.sent.attempt) == (
            [5, 6, 7],
            ["a", "b", "c"],
            "w1",
            2,
        )
        assert (one.migrations, one.ended, two.tokens, two.ended.ending) == (1, None, [9], b"ending")


async def test_records_of_one_moment_share_a_flush(make):
    """Group commit: a hundred who wait at once cost a few writes, and each returns only when it is written."""
    journal, writes = Journal(make()), []
    await journal.open()
    write = journal.backend.write

    async def counted(batch):
        writes.append(batch)
        await write(batch)

    journal.backend.write = counted
    await asyncio.gather(*(journal.keep(accepted(number)) for number in range(1, 101)))
    assert len(writes) <= 3
    await journal.close()
    again = Journal(make())
    assert len((await again.open()).requests) == 100
    await again.close()


async def test_noted_records_come_with_the_next_flush_and_at_the_close(make):
    journal = Journal(make(), flush_s=0.01)
    await journal.open()
    journal.note(accepted(1))
    await asyncio.wait_for(journal.when_flushed(), 5)
    journal.note(accepted(2))
    await journal.close()
    again = Journal(make())
    assert sorted((await again.open()).requests) == [1, 2]
    await again.close()


async def test_a_store_that_is_away_is_said_to_be_and_comes_back(make):
    """Who waits is told at once; what was only noted is written when the store is back, in order."""
    journal = Journal(make(), flush_s=0.005, pending_max=50)
    await journal.open()
    await journal.keep(accepted(1))
    write = journal.backend.write

    async def broken(batch):
        raise OSError("no space left")

    journal.backend.write = broken
    with pytest.raises(StoreAwayError):
        await journal.keep(accepted(2))
    assert journal.away
    with pytest.raises(StoreAwayError):
        await journal.keep(accepted(3))
    journal.note(accepted(4))
    journal.note(Ended(4, b"x"))
    for _ in range(48):
        journal.note(Sent(4, 1, "w"))
    with pytest.raises(StoreAwayError):
        journal.note(Sent(4, 1, "w"))
    journal.backend.write = write
    await asyncio.wait_for(journal.when_flushed(), 5)
    assert not journal.away
    await journal.keep(accepted(5))
    await journal.close()
    again = Journal(make())
    recovered = await again.open()
    assert sorted(recovered.requests) == [1, 4, 5]
    assert recovered.requests[4].ended.ending == b"x"
    await again.close()


async def test_compaction_loses_nothing_that_comes_meanwhile(make):
    journal = Journal(make(), flush_s=0.001)
    await journal.open()
    kept = [accepted(number) for number in range(1, 40)]
    for record in kept[:20]:
        await journal.keep(record)
    state = fold(kept[:20])
    await asyncio.gather(journal.compact(lambda: state), *(journal.keep(record) for record in kept[20:]))
    # what came while it was compacted is in `state` only if it was written before: here it was not asked for
    await journal.compact(lambda: fold(kept))
    await journal.close()
    again = Journal(make())
    assert sorted((await again.open()).requests) == list(range(1, 40))
    await again.close()


async def test_the_later_owner_of_a_redis_journal_wins(redis_server, tmp_path):
    first = RedisStore(redis_server, prefix=f"own-{tmp_path.name}")
    await first.open()
    await first.write(b"one")
    second = RedisStore(redis_server, prefix=f"own-{tmp_path.name}")
    await second.open()
    first._asked_s = -100.0
    with pytest.raises(OSError, match="another dispatcher"):
        await first.write(b"two")
    await second.write(b"three")
    assert [batch async for batch in second.read()] == [b"one", b"three"]
    await first.close()
    await second.close()


async def test_a_dead_redis_is_away_and_not_an_accident(tmp_path):
    store = RedisStore(f"unix://{tmp_path / 'nobody'}", timeout_s=0.2)
    with pytest.raises(OSError, match="redis"):
        await store.open()
    await store.close()


async def test_only_one_process_may_have_a_file(tmp_path):
    first, second = FileStore(tmp_path / "journal"), FileStore(tmp_path / "journal")
    await first.open()
    with pytest.raises(InputError, match="another process has the journal"):
        await second.open()
    await first.close()
    await second.open()
    await second.close()


@pytest.mark.parametrize("cut", [1, 7, 8, 9, 30])
async def test_a_torn_end_is_cut_off(tmp_path, cut):
    """The machine stopped in the middle of a write: all before it is there, and writing goes on."""
    store = FileStore(tmp_path / "journal", "always")
    await store.open()
    for batch in (b"first", b"second" * 10):
        await store.write(batch)
    await store.close()
    os.truncate(store.path, store.path.stat().st_size - cut)
    store = FileStore(store.path)
    await store.open()
    assert [batch async for batch in store.read()] == [b"first"]
    await store.write(b"third")
    assert [batch async for batch in store.read()] == [b"first", b"third"]
    await store.close()


async def test_damage_in_the_middle_is_an_error_not_a_shorter_history(tmp_path):
    store = FileStore(tmp_path / "journal")
    await store.open()
    for batch in (b"first" * 5, b"second" * 10, b"third" * 3):
        await store.write(batch)
    await store.close()
    bytes_ = bytearray(store.path.read_bytes())
    bytes_[60] ^= 0xFF
    store.path.write_bytes(bytes_)
    store = FileStore(store.path)
    await store.open()
    with pytest.raises(InputError, match="damaged at byte"):
        [batch async for batch in store.read()]
    await store.close()


async def test_a_foreign_file_is_left_alone(tmp_path):
    path = tmp_path / "letter.txt"
    path.write_text("dear journal, today nothing happened")
    with pytest.raises(InputError, match="not a journal"):
        await FileStore(path).open()
    assert path.read_text().startswith("dear journal")


numbers = st.integers(1, 4)
records = st.one_of(
    st.builds(accepted, numbers),
    st.builds(Sent, numbers, st.integers(1, 3), st.sampled_from(["w0", "w1"]), st.booleans()),
    st.builds(
        lambda number, offset, tokens: Kept([Run(number, offset, packed(tokens), ["x"] * len(tokens))]),
        numbers, st.integers(0, 5), st.lists(st.integers(0, 2**32 - 1), max_size=4),
    ),
    st.builds(Ended, numbers, st.binary(max_size=4)),
    st.builds(lambda number: Forgotten([number]), numbers),
    st.builds(Next, st.integers(0, 9)),
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(records, max_size=25))
def test_a_compacted_journal_says_the_same(history):
    """unfold is the inverse of fold, whatever the order of records; so are encode and decode."""
    once = fold(decode(encode(history)))
    assert fold(decode(encode(unfold(once)))) == once
    for saved in once.requests.values():
        assert len(saved.tokens) == len(saved.pieces)


def test_foreign_bytes_are_refused():
    with pytest.raises(msgspec.DecodeError):
        decode(b"\x93not ours")
