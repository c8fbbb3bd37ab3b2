"""Moves between two real engines: with their KV and without, called off at each stage, and where KV can't travel."""

import asyncio
import gc
import json
import os
import warnings
from contextlib import AsyncExitStack

import numpy as np
import pytest
from prometheus_client import REGISTRY, generate_latest

from services.dispatcher.migration import Migrations
from services.worker.vllm import nixl
from services.worker.vllm.models import make
from services.worker.vllm.worker import Recomputes
from tests.vllm.stage import FLEET, stage

pytestmark = pytest.mark.timeout(600)
MODEL = os.environ.get("WINDTUNNEL_MOVES_MODEL", "tiny")
"""tiny, or mid with prompts so long that the two ways differ (docs/vllm.md)."""

SIZES = [(900, 300), (850, 300)] if MODEL == "mid" else [(60 + 70 * number, 300) for number in range(4)]
MOVES = 20


@pytest.fixture(scope="module")
def there(tmp_path_factory):
    """Dispatcher and engines, and what runs coroutines among them."""
    folder = tmp_path_factory.mktemp("models") / MODEL
    make(MODEL, folder)
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        here = runner.run(stack.enter_async_context(stage(folder, MODEL)))
        here.run = runner.run
        here.token_bytes = json.loads((folder / "windtunnel.json").read_text())["kv_bytes_per_token"]
        yield here
        runner.run(stack.aclose())
    with (
        warnings.catch_warnings()
    ):  # vLLM leaves sockets open: a worker ends with its process, this one does not
        warnings.simplefilter("ignore")
        here.places.clear()
        vars(here).clear()
        del stack, runner
        gc.collect()


@pytest.fixture(scope="module")
def unmoved(there):
    """What the model says when nothing moves."""
    told = there.run(there.answers("unmoved", SIZES))
    assert all(len(tokens) == length for (tokens, _), (_, length) in zip(told, SIZES, strict=True))
    return [tokens for tokens, _ in told]


def whole(told, unmoved):
    """Every answer is that of a request that stayed, each token once."""
    assert [tokens for tokens, _ in told] == unmoved[: len(told)]
    for _, stream in told:
        assert (stream.gaps, stream.repeated, stream.ending.reason) == (0, 0, "length")


def moves_of(told):
    """All moves of these answers."""
    return [move for _, stream in told for move in stream.ending.moves]


STAGES = {
    "reserved": (Migrations, "_copy", "before"),
    "asked to stand still": (nixl.NixlFront, "part", "before"),
    "standing still": (nixl.NixlFront, "part", "after"),
    "being fetched": (nixl.NixlFront, "fetch", "before"),
    "fetched": (nixl.NixlFront, "fetch", "after"),
    "ready to commit": (Migrations, "_commit", "instead"),
}
"""Where a move can be called off: what is under way then."""


def stopping(there, monkeypatch, stage, act):
    """Do something at a stage of a move, once."""
    owner, name, when = STAGES[stage]
    real, done = getattr(owner, name), []

    def once():
        if not done:
            done.append(True)
            act()

    if owner is Migrations:

        def patched(self, move, *rest):
            self.moves.setdefault(move.migration, move)
            once()

    else:

        async def patched(self, *args):
            if when == "before":
                once()
            told = await real(self, *args)
            if when == "after":
                once()
            return told

    monkeypatch.setattr(owner, name, patched)


def call_off(there):
    """Give up the move under way, as the dispatcher does when it takes too long."""
    migrations = there.parts.links.migrations
    for move in list(migrations.moves.values()):
        migrations.abort(move, "a test")


def alone(there, run, size=(SIZES[0][0], 100)):
    """One request with one try to move it; returns tokens and stream."""

    async def meanwhile(answers):
        await there.move(answers[0])

    return there.run(there.answers(run.replace(" ", "-"), [size], meanwhile))


def prefilled(there):
    """Prompt tokens that both engines have computed."""
    return sum(int(one.worker.engine.rig.known.engines.prefilled_tokens[0]) for one in there.places)


@pytest.mark.parametrize("stage", STAGES)
def test_a_move_called_off_leaves_one_owner_who_goes_on(there, unmoved, stage, monkeypatch):
    """The source goes on from the KV that it has, computing nothing again; the destination keeps nothing."""
    before = prefilled(there)
    stopping(there, monkeypatch, stage, lambda: call_off(there))
    ((tokens, stream),) = alone(there, stage)
    assert tokens == unmoved[0][:100]
    assert (stream.gaps, stream.repeated, stream.ending.attempts) == (0, 0, 1)
    assert moves_of([(tokens, stream)]) == []
    assert prefilled(there) - before == SIZES[0][0]
    monkeypatch.undo()
    there.run(there.clean())


@pytest.mark.parametrize(("stage", "end"), [("standing still", "source"), ("being fetched", "target")])
def test_a_link_that_breaks_during_a_move_leaves_one_owner(there, unmoved, stage, end, monkeypatch):
    def cut():
        (move,) = there.parts.links.migrations.moves.values()
        there.places[getattr(move, end)].link.cut()

    stopping(there, monkeypatch, stage, cut)
    ((tokens, stream),) = alone(there, f"cut at {end}")
    assert tokens == unmoved[0][:100]
    assert (stream.gaps, stream.repeated, moves_of([(tokens, stream)])) == (0, 0, [])
    there.run(there.clean())


def lost_blocks(monkeypatch):
    """Offer KV at a door where nobody is."""
    real = nixl.NixlFront.part

    async def part(self, key):
        told = await real(self, key)
        told.handover.update(remote_engine_id="nobody", remote_port=1)
        return told

    monkeypatch.setattr(nixl.NixlFront, "part", part)
    monkeypatch.setattr(nixl, "FETCH_S", 0.3)


def no_nixl_there(monkeypatch):
    """Let the destination be one that knows recompute only."""
    monkeypatch.setattr(nixl.Nixl, "_take_in", Recomputes._take_in)


@pytest.mark.parametrize(
    ("prepare", "size", "why"),
    [
        (lost_blocks, (SIZES[0][0], 100), "no blocks came in 0.3 s"),
        (no_nixl_there, (SIZES[0][0], 100), "the destination has no NIXL"),
        (lambda monkeypatch: None, (2, 100), "tokens are less than a block of 32"),
    ],
)
def test_where_kv_cannot_travel_the_request_is_computed_again_and_the_move_says_why(
    there, unmoved, prepare, size, why, monkeypatch
):
    prepare(monkeypatch)
    ((tokens, stream),) = alone(there, why, size)
    (move,) = moves_of([(tokens, stream)])
    assert (move.way, move.bytes) == ("recompute", 0)
    assert why in move.why
    monkeypatch.undo()
    expected = unmoved[0][:100] if size[0] == SIZES[0][0] else there.run(there.answers("short", [size]))[0][0]
    assert tokens == expected
    assert (stream.gaps, stream.repeated) == (0, 0)
    there.run(there.clean())


@pytest.mark.parametrize("way", ["recompute", "nixl"])
def test_twenty_moves_lose_and_repeat_nothing(there, unmoved, way, capsys):
    """In turn each request moves to the other engine and back; bytes are those of the blocks, as NIXL counts them."""

    rounds, moves = [], []

    async def meanwhile(answers):
        for turn in range(MOVES - len(moves)):
            await there.move(answers[turn % len(answers)])

    before = fetched_bytes(), arrived_bytes(there)
    for place in there.places:
        place.moves.__class__ = nixl.Nixl if way == "nixl" else Recomputes
    try:
        while len(moves) < MOVES and len(rounds) < 5:
            rounds.append(there.run(there.answers(f"{way}{len(rounds)}", SIZES, meanwhile)))
            moves += moves_of(rounds[-1])
    finally:
        for place in there.places:
            place.moves.__class__ = nixl.Nixl
    for told in rounds:
        whole(told, unmoved)
    assert [(move.way, move.why) for move in moves] == [(way, "")] * MOVES
    there.run(there.clean())
    sent = sum(move.bytes for move in moves)
    assert sent == sum(arrived_bytes(there)) - sum(before[1])
    assert fetched_bytes() - before[0] == arrived_bytes(there)[-1] - before[1][-1]
    assert (sent > 0) == (way == "nixl")
    assert all(move.bytes % (FLEET.block_tokens * there.token_bytes) == 0 for move in moves)
    for told in rounds if way == "nixl" else ():
        for (prompt, _), (_, stream) in zip(SIZES, told, strict=True):
            assert all(move.bytes >= prompt * there.token_bytes for move in stream.ending.moves)
    stalls = np.quantile([move.stall_s for move in moves], [0.5, 0.9, 1.0]).round(3)
    with capsys.disabled():
        print(f"\n{MOVES} moves by {way}, {MODEL}: downtime, s, p50 p90 max: {stalls}; {sent / 1e6:.1f} MB")


def arrived_bytes(there):
    """Bytes that each engine has fetched, by our count."""
    return [place.worker.gauges.bytes_in._value.get() for place in there.places]


def fetched_bytes():
    """The same of the last engine by vLLM's own count: in one process it keeps no other's."""
    lines = generate_latest(REGISTRY).decode().splitlines()
    name = "vllm:nixl_bytes_transferred_sum"
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))
