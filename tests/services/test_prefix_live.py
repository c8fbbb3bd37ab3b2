"""Prompts that begin alike meet the engine that was sent such a one before, over the real doors."""

import httpx
import pytest

from services.dispatcher.intake import prefix_of
from services.dispatcher.process import running
from services.rpc.windtunnel.v1 import request_pb2 as wire
from tests.services.fake_worker import fleet
from tests.services.live_stage import ROOM, asking, changed, client_at, heard

AFFINE = changed(ROOM, scheduling={"scheduler": "fcfs-chunked+prefix:spill=100"})
LONG = "a long prompt that many share, word by word and line by line, up to its end, where each goes its own way: "


def test_blocks_of_a_prompt_are_told_apart_by_all_before_them():
    """Equal beginnings give equal sums, and what differs in the first block differs in all."""
    one, two = prefix_of(wire.Prompt(text=LONG + "x" * 200)), prefix_of(wire.Prompt(text=LONG + "y" * 200))
    other = prefix_of(wire.Prompt(text="A" + LONG[1:] + "x" * 200))
    shared = len(LONG) // 64
    assert one.ids[:shared] == two.ids[:shared]
    assert len({*one.ids, *two.ids}) == len(one.ids) + len(two.ids) - shared
    assert not set(one.ids) & set(other.ids)
    by_ids = prefix_of(wire.Prompt(ids=wire.TokenIds(ids=range(40))))
    assert (len(by_ids.ids), by_ids.tokens) == (2, 16)
    hashed = wire.Prompt(synthetic=wire.Synthetic(tokens=90), prefix_hashes=[7, 8], prefix_tokens=32)
    assert prefix_of(hashed) == ((7, 8), 32)
    assert prefix_of(hashed, wanted=False).ids == ()


@pytest.mark.parametrize("by", ["text", "hashes"])
async def test_the_same_beginning_goes_to_the_same_engine(by):
    """Six families in turn on three engines; without the knowledge they would be spread by load."""
    async with (
        running(AFFINE) as parts,
        fleet(parts.grpc, "w0", "w1", "w2") as workers,
        client_at(parts.grpc) as stub,
        httpx.AsyncClient(base_url=f"http://{parts.http}", timeout=20) as web,
    ):
        for turn in range(4):
            for family in range(6):
                if by == "text":
                    prompt = f"family {family}: {LONG}{turn * 9}"
                    body = {"prompt": prompt, "max_tokens": 2, "seed": 100 + family, "ignore_eos": True}
                    named = {"x-request-id": f"{turn}.{family}"}  # its luck comes from its name
                    response = await web.post("/v1/completions", json=body, headers=named)
                    assert response.status_code == 200
                else:
                    asked = asking(f"{turn}.{family}", 2, prompt=200, seed=100 + family)
                    asked.prompt.prefix_hashes.extend([family * 9 + 1, family * 9 + 2])
                    asked.prompt.prefix_tokens = 64
                    await heard(stub.Submit(asked))
        homes = [{one.sampling.seed for one in worker.seen} for worker in workers]
        assert sum(map(len, homes)) == 6, "each family has one home"
        assert sum(map(bool, homes)) > 1, "and they are spread"
        assert sum(len(worker.seen) for worker in workers) == 24
