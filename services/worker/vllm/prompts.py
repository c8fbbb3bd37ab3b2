"""Prompts of an exact length as token ids: the caller's own, or drawn ones that begin alike where traffic does."""

from collections.abc import Callable
from typing import NamedTuple

from loadgen.replay.tokens import token_at
from services.rpc.windtunnel.v1.worker_pb2 import Enqueue

BLOCKS = (16, 512)
"""Tokens of a prefix block in the traffic that carries prefixes; which one follows from how many there are."""


class Vocabulary(NamedTuple):
    """What a model can be told: ids below ``size``, and text through ``encode``."""

    size: int
    encode: Callable[[str], list[int]]


def ids_of(order: Enqueue, vocabulary: Vocabulary, seed: int) -> list[int]:
    """Return the prompt as token ids, as many as the order says where it is synthetic; never 0, the end."""
    form = order.prompt.WhichOneof("form")
    if form == "ids":
        return list(order.prompt.ids.ids)
    if form == "text":
        return vocabulary.encode(order.prompt.text) or [1]
    count, hashes = order.prompt_tokens, list(order.prompt.prefix_hashes)
    return drawn(count, hashes, seed, vocabulary.size)


def drawn(count: int, hashes: list[int], seed: int, size: int) -> list[int]:
    """Return ``count`` ids: those of a whole prefix block follow from its chained hash, the rest from the seed."""
    block = block_of(count, len(hashes))
    own = 1 + (seed & 0xFFFFFFFF)
    return [
        1 + token_at(hashes[place // block] if place // block < len(hashes) else own, place) % (size - 1)
        for place in range(count)
    ]


def block_of(count: int, hashes: int) -> int:
    """Return the tokens of a prefix block, from how many a prompt of ``count`` tokens has of them."""
    for block in BLOCKS:
        if hashes in (count // block, -(-count // block)):
            return block
    return BLOCKS[-1]
