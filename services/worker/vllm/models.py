"""Small language models with random weights, made from a shape and a seed: something real to run, not to talk to."""

import json
import shutil
from collections.abc import Iterator
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from schedulers.errors import InputError

LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
"""In the order of their frequency in English: the commonest pairs get tokens first."""

END = "<end>"
"""Token that ends an answer; replays ignore it."""

CHAT = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant:"


class Shape(NamedTuple):
    """Layers and widths of a Llama; ``vocabulary`` counts tokens, ``length`` is prompt and answer together."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    length: int = 4096

    @property
    def kv_bytes_per_token(self) -> int:
        """Keys and values of one token in 32-bit floats, all layers."""
        return 2 * self.layers * self.kv_heads * (self.hidden // self.heads) * 4


SHAPES = {
    "tiny": Shape(hidden=128, layers=2, heads=4, kv_heads=2, vocabulary=2048),
    "mid": Shape(hidden=512, layers=8, heads=8, kv_heads=4, vocabulary=4096),
}
"""tiny has 0.56 million weights and shows the engine's own costs; mid has 27 million and is bound by computing."""


def make(kind: str, folder: Path, seed: int = 1) -> dict[str, Any]:
    """Write a model that vLLM and transformers load into a folder; return its card (shape, seed, sha256 of weights).

    The same kind and seed give the same bytes under the same PyTorch. A folder that holds this model already is
    left as it is. Raises InputError for an unknown kind or a folder that holds something else.
    """
    if kind not in SHAPES:
        raise InputError(f"no model {kind!r}", where="model make", fix=f"use {' or '.join(SHAPES)}")
    shape, told = SHAPES[kind], folder / "windtunnel.json"
    wanted = {"kind": kind, "seed": seed, "shape": shape._asdict()}
    if told.exists():
        card: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
        if {name: card.get(name) for name in wanted} == wanted:
            return card
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            "something else lies there", where=str(folder), fix="name a folder that is not there"
        )
    building = folder.with_name(f".{folder.name}.building")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    try:
        _write_tokenizer(shape, building)
        _write_weights(shape, building, seed)
        digest = sha256((building / "model.safetensors").read_bytes()).hexdigest()
        card = {**wanted, "weights_sha256": digest, "kv_bytes_per_token": shape.kv_bytes_per_token}
        (building / "windtunnel.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
        if folder.exists():
            folder.rmdir()
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return card


def _write_weights(shape: Shape, folder: Path, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.hidden * 8 // 3,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.length,
        bos_token_id=0,
        eos_token_id=0,
        initializer_range=0.2,  # wider than usual: the likeliest token then leads clearly, whatever the batch
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder, safe_serialization=True)


def _write_tokenizer(shape: Shape, folder: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary, merges = vocabulary_of(shape.vocabulary, pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=plain, bos_token=END, eos_token=END)
    fast.chat_template = CHAT
    fast.save_pretrained(folder)


def vocabulary_of(size: int, alphabet: list[str]) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Return a byte-level vocabulary of exactly ``size`` tokens with the merges that lead to each, most common first.

    Raises InputError if the bytes alone need more.
    """
    if size <= len(alphabet):
        raise InputError(f"{size} tokens do not hold {len(alphabet)} bytes", fix="use a larger vocabulary")
    vocabulary = {END: 0} | {sign: place for place, sign in enumerate(sorted(alphabet), 1)}
    merges: list[tuple[str, str]] = []
    for left, right in _pairs():
        if len(vocabulary) == size:
            return vocabulary, merges
        merges.append((left, right))
        vocabulary[left + right] = len(vocabulary)
    raise InputError(f"{size} tokens are more than there are pairs", fix="use a smaller vocabulary")


def _pairs() -> Iterator[tuple[str, str]]:
    """Yield merges: letter pairs, letters and pairs after a space, triples."""
    yield from product(LETTERS, LETTERS)
    yield from product("\u0120", LETTERS)  # how a byte-level vocabulary writes a space
    for first, second in product(LETTERS, LETTERS):
        yield "\u0120", first + second
    for first, second, third in product(LETTERS, LETTERS, LETTERS):
        yield first + second, third
