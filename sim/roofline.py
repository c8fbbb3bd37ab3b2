"""Roofline step times and KV capacity for any model and accelerator, when nobody has measured the pair.

Weights and KV bytes move at 0.8 of the memory bandwidth, FLOPs run at 0.7 of the peak, and a fixed time is
added a step, a layer, a sequence and an all-reduce. On 42 measured points of Llama-3.1-8B on an H100 such a
roofline was 6 % off (21 % at full bandwidth and peak); for any other pair its error is unmeasured.
"""

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from math import nan
from pathlib import Path
from typing import Any

from schedulers.cost import ATTENTION, BASE, DECODE, FLOOR, JOINT, KV, PREFILL
from schedulers.errors import InputError
from sim.profile import BLOCK_TOKENS, Error, Memory, Profile, Table

BANDWIDTH_SHARE, COMPUTE_SHARE, MEMORY_SHARE = 0.8, 0.7, 0.9
"""What an engine gets of the datasheet's bandwidth, FLOPs (as on H100) and memory (vLLM's default)."""

STEP_S, LAYER_S, SEQUENCE_S = 250e-6, 17e-6, 8e-6
"""Fixed time a step, a layer and a decoding sequence. With the all-reduces they meet the measured floors of
21 engines (8B to 70B, 1 to 8 cards) within 7 % on average; the sequence's is H100's and H200's."""

ACTIVATION_GIB, ACTIVATION_BYTES, BUDGET_TOKENS = 1.0, 32, 2048
"""Activations a card, GiB + bytes x tokens x hidden size: 1.25 GiB for an 8B model, where vLLM logs 1.26 GiB.

KV memory of an A100-80G then is 1 % above vLLM's log for Llama-2-7B and 5 % above the one for Llama-3-8B,
where vLLM also counts memory outside its allocator (vllm-project/vllm#2031, #10511)."""

CARDS_MAX = 16
"""Most cards that one engine is tried on."""

TOKENS_LEAST = 2048
"""An engine must hold this many KV tokens (one step's budget), else the model doesn't fit."""

ERROR_NOTE = (
    "6 % on 42 end-to-end points of Llama-3.1-8B/H100 (21 % at full bandwidth and peak); "
    "3 to 13 % off the measured profiles of one card, 6 to 37 % off those of several cards; "
    "unmeasured for this pair"
)
ORIGIN = (
    "datasheet rates: 0.8 of bandwidth, 0.7 of peak FLOPs, "
    "plus 0.25 ms a step, 17 us a layer, 8 us a sequence and the all-reduces"
)


@dataclass(frozen=True)
class Model:
    """Shape of a decoder: what decides its weights, FLOPs and KV bytes."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocabulary: int
    tied: bool = False
    experts: int = 1
    experts_active: int = 1
    weight_bytes: float = 2.0

    def _layer_weights(self, experts: int) -> int:
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        router = self.hidden * self.experts if self.experts > 1 else 0
        return attention + router + experts * 3 * self.hidden * self.feed_forward

    @property
    def weights(self) -> int:
        """Weights in memory, norms and biases left out (under 0.1 %)."""
        embeddings = (1 if self.tied else 2) * self.vocabulary * self.hidden
        return self.layers * self._layer_weights(self.experts) + embeddings

    @property
    def weights_read(self) -> int:
        """Weights that a step reads: all but the rows of an untied input embedding; every expert."""
        return self.layers * self._layer_weights(self.experts) + self.vocabulary * self.hidden

    @property
    def weights_computed(self) -> int:
        """Weights that every token is multiplied with: the active experts', without the output layer."""
        return self.layers * self._layer_weights(self.experts_active)

    def kv_bytes(self, cards: int) -> int:
        """Bytes of one token's keys and values on all cards; KV heads fewer than cards are repeated."""
        heads = max(self.kv_heads, cards)
        return 2 * self.layers * heads * self.head_dim * 2

    def splits(self, cards: int) -> bool:
        """True if attention heads split evenly over so many cards, as tensor parallelism needs."""
        kv_fits = self.kv_heads % cards == 0 or cards % self.kv_heads == 0
        return self.heads % cards == 0 and kv_fits


@dataclass(frozen=True)
class Accelerator:
    """Datasheet rates of one card, one direction."""

    name: str
    bf16_tflops: float
    fp8_tflops: float
    memory_gb_s: float
    memory_gib: float
    link_gb_s: float
    all_reduce_us: float
    note: str = ""

    def flops(self, weight_bytes: float) -> float:
        """Peak FLOPs a second; below 8 bits only the weights are small and the arithmetic has 16 bits."""
        return (self.fp8_tflops if weight_bytes == 1.0 and self.fp8_tflops else self.bf16_tflops) * 1e12


def roofline(model: Model, accelerator: Accelerator, cards: int = 1) -> Profile:
    """Profile of a model on so many cards; InputError if it doesn't fit or split.

    Affine in a decode stretch: weights and FLOPs meet in the hinge, KV bytes and attention add to it.
    """
    memory = capacity(model, accelerator, cards)
    notes = ["Nobody measured this pair: compare schedulers with it, don't size a fleet by it."]
    if model.weights < 2e9:
        notes.append("Small models are bound by launches and the host: real steps are longer than these.")
    if model.experts > 1:
        notes.append(
            f"Mixture of experts: a step reads all {model.experts} experts (right from about a dozen tokens "
            f"on, too slow for a lone request) and computes {model.experts_active}; no expert parallelism."
        )
    if accelerator.note:
        notes.append(f"{accelerator.name}: {accelerator.note}.")
    suffix = f"x{cards}" if cards > 1 else ""
    return Profile(
        name=f"{model.name}/{accelerator.name}{suffix}@roofline",
        model=model.name,
        accelerator=accelerator.name,
        cards=cards,
        form="hinge",
        level="roofline",
        coefficients=costs(model, accelerator, cards),
        origin=ORIGIN,
        error=Error(mape_percent=nan, note=ERROR_NOTE),
        memory=memory,
        notes=tuple(notes),
    )


def costs(model: Model, accelerator: Accelerator, cards: int) -> tuple[float, ...]:
    """Seven columns of ``schedulers.cost``, in seconds."""
    bandwidth = BANDWIDTH_SHARE * accelerator.memory_gb_s * 1e9 * cards
    flops = COMPUTE_SHARE * accelerator.flops(model.weight_bytes) * cards
    half = COMPUTE_SHARE * accelerator.bf16_tflops * 1e12 * cards  # attention stays in 16 bits
    fixed_s, token_s = STEP_S + LAYER_S * model.layers, 2.0 * model.weights_computed / flops
    if cards > 1:
        reduces = 2 * model.layers
        moved = 2.0 * (cards - 1) / cards * model.hidden * 2.0  # ring: bytes over each link, a token
        fixed_s += reduces * accelerator.all_reduce_us * 1e-6
        token_s += reduces * moved / (accelerator.link_gb_s * 1e9)
    columns = [0.0] * 7
    columns[BASE] = fixed_s
    columns[FLOOR] = fixed_s + model.weights_read * model.weight_bytes / bandwidth
    columns[PREFILL] = columns[JOINT] = token_s
    columns[ATTENTION] = 4.0 * model.layers * model.heads * model.head_dim / half
    columns[DECODE] = SEQUENCE_S
    columns[KV] = model.kv_bytes(cards) / bandwidth
    return tuple(columns)


def capacity(model: Model, accelerator: Accelerator, cards: int) -> Memory:
    """KV memory of an engine: (0.9 x memory - weights - activations) / bytes a token.

    InputError says how many cards are needed if too little is left, or if the heads don't split.
    """
    pair = f"{model.name} on {cards} x {accelerator.name}"
    if not model.splits(cards):
        what = f"{pair}: {model.heads} attention and {model.kv_heads} KV heads don't split over {cards} cards"
        raise InputError(what, where="profile", fix=_cards_fix(model, accelerator))
    tokens = _tokens(model, accelerator, cards)
    weights, activations = _weights_gib(model, cards), _activations_gib(model)
    if tokens < TOKENS_LEAST:
        what = (
            f"{pair} doesn't fit: {MEMORY_SHARE} x {accelerator.memory_gib:g} GiB a card - {weights:.1f} GiB "
            f"of weights - {activations:.2f} GiB of activations leaves KV memory for {max(tokens, 0)} tokens"
        )
        raise InputError(what, where="profile", fix=_cards_fix(model, accelerator))
    a_token, times = model.kv_bytes(cards), f"x {cards} cards " if cards > 1 else ""
    return Memory(
        card_gib=accelerator.memory_gib,
        used_share=MEMORY_SHARE,
        weights_gib=round(weights, 3),
        activations_gib=round(activations, 3),
        kv_bytes_per_token=a_token,
        kv_blocks=tokens // BLOCK_TOKENS,
        kv_from=f"({MEMORY_SHARE} x memory - weights - activations) {times}/ {a_token:,} bytes a token",
    )


def _weights_gib(model: Model, cards: int) -> float:
    return model.weights * model.weight_bytes / cards / 2**30


def _activations_gib(model: Model) -> float:
    return ACTIVATION_GIB + BUDGET_TOKENS * model.hidden * ACTIVATION_BYTES / 2**30


def _tokens(model: Model, accelerator: Accelerator, cards: int) -> int:
    free_gib = MEMORY_SHARE * accelerator.memory_gib - _weights_gib(model, cards) - _activations_gib(model)
    return int(free_gib * 2**30 * cards // model.kv_bytes(cards))


def _cards_fix(model: Model, accelerator: Accelerator) -> str:
    for cards in range(1, CARDS_MAX + 1):
        if model.splits(cards) and _tokens(model, accelerator, cards) >= TOKENS_LEAST:
            some = f"{cards} cards" if cards > 1 else "1 card"
            suffix = f"x{cards}" if cards > 1 else ""
            return f"it takes {some} at least: {model.name}/{accelerator.name}{suffix}"
    return f"no number of cards up to {CARDS_MAX} holds it: take a larger card or a smaller model"


def split(name: str) -> tuple[str, str, int]:
    """Model, accelerator and cards of MODEL/ACCELERATOR[xCARDS]; the model may be a path."""
    model, _, rest = name.removesuffix("@roofline").rpartition("/")
    match = re.fullmatch(r"(.+?)x([1-9]\d?)", rest)
    if match and rest not in accelerators():
        return model, match[1], int(match[2])
    return model, rest, 1


def known(name: str) -> bool:
    """True if the name is MODEL/ACCELERATOR[xCARDS] of a known accelerator and a model known or in a file."""
    model, accelerator, _ = split(name)
    file = model.endswith((".toml", ".json"))
    return accelerator in accelerators() and (
        file or model in models() or model.removesuffix("-fp8") in models()
    )


def load(name: str) -> Profile:
    """Roofline of MODEL/ACCELERATOR[xCARDS]; MODEL as in ``find_model``."""
    model, accelerator, cards = split(name)
    return roofline(find_model(model), find_accelerator(accelerator), cards)


def examples() -> tuple[str, ...]:
    """Every MODEL/ACCELERATOR of the tables, one card each: what a misspelt name may have meant."""
    return tuple(f"{model}/{accelerator}" for model in models() for accelerator in accelerators())


def find_model(name: str) -> Model:
    """A model by its name in the table, NAME-fp8, or the path of a TOML or a Hugging Face config.json.

    A TOML file holds a name and the keys of sim/profiles/models.toml.
    """
    if name.endswith(".toml"):
        table = Table(_document(Path(name)), name)
        return model_of(table.text("name"), table)
    if name.endswith(".json"):
        return read_config(Path(name))
    if name in models():
        return models()[name]
    whole = name.removesuffix("-fp8")
    if whole in models():
        return replace(models()[whole], name=name, weight_bytes=1.0)
    raise InputError(
        f"no model is named {name!r}",
        where="model",
        fix=f"use one of {', '.join(models())}, or the path of a config.json or a .toml with the same keys",
    )


def find_accelerator(name: str) -> Accelerator:
    """An accelerator by its name in the table, or the path of a TOML file with the same keys and a name."""
    if name.endswith(".toml"):
        table = Table(_document(Path(name)), name)
        return accelerator_of(table.text("name"), table)
    if name in accelerators():
        return accelerators()[name]
    raise InputError(
        f"no accelerator is named {name!r}",
        where="accelerator",
        fix=f"use one of {', '.join(accelerators())}, or the path of a .toml with the same keys",
    )


@cache
def models() -> Mapping[str, Model]:
    """Models of the table that ships."""
    text = (files("sim") / "profiles" / "models.toml").read_text(encoding="utf-8")
    rows = Table(tomllib.loads(text), "sim/profiles/models.toml")
    return {name: model_of(name, rows.table(name)) for name in tomllib.loads(text)}


@cache
def accelerators() -> Mapping[str, Accelerator]:
    """Accelerators of the table that ships."""
    text = (files("sim") / "profiles" / "accelerators.toml").read_text(encoding="utf-8")
    rows = Table(tomllib.loads(text), "sim/profiles/accelerators.toml")
    return {name: accelerator_of(name, rows.table(name)) for name in tomllib.loads(text)}


def model_of(name: str, table: Table) -> Model:
    """Model from a table of its keys, all checked."""
    model = Model(
        name=name,
        layers=table.whole("layers", least=1),
        hidden=table.whole("hidden", least=1),
        heads=table.whole("heads", least=1),
        kv_heads=table.whole("kv_heads", least=1),
        head_dim=table.whole("head_dim", least=1),
        feed_forward=table.whole("feed_forward", least=1),
        vocabulary=table.whole("vocabulary", least=1),
        tied=table.flag("tied", default=False),
        experts=table.whole("experts", least=1, default=1),
        experts_active=table.whole("experts_active", least=1, default=1),
        weight_bytes=table.number("weight_bytes", least=0.125, most=8.0, default=2.0),
    )
    table.close()
    return model


def accelerator_of(name: str, table: Table) -> Accelerator:
    """Accelerator from a table of its keys, all checked."""
    accelerator = Accelerator(
        name=name,
        bf16_tflops=table.number("bf16_tflops", least=0.1),
        fp8_tflops=table.number("fp8_tflops", default=0.0),
        memory_gb_s=table.number("memory_gb_s", least=1.0),
        memory_gib=table.number("memory_gib", least=1.0),
        link_gb_s=table.number("link_gb_s", least=0.1, default=32.0),
        all_reduce_us=table.number("all_reduce_us", default=40.0),
        note=table.text("note") if table.has("note") else "",
    )
    table.close()
    return accelerator


def read_config(path: Path) -> Model:
    """A user's model from its Hugging Face config.json; InputError for shapes the roofline can't speak of."""
    document = _document(path)
    config = document.get("text_config", document)
    if "kv_lora_rank" in config:
        what = "multi-head latent attention has another KV cache than this roofline counts"
        raise InputError(
            what, where=f"{path}: key kv_lora_rank", fix="fit your own rows: `windtunnel profiles fit`"
        )
    table = Table(config, str(path))
    hidden, heads = table.whole("hidden_size", least=1), table.whole("num_attention_heads", least=1)
    experts = table.whole(
        "num_local_experts" if table.has("num_local_experts") else "num_experts", least=1, default=1
    )
    width = (
        "moe_intermediate_size" if experts > 1 and table.has("moe_intermediate_size") else "intermediate_size"
    )
    return Model(
        name=re.sub(
            r"[^a-z0-9.]+", "-", str(document.get("_name_or_path") or path.parent.resolve().name).lower()
        ),
        layers=table.whole("num_hidden_layers", least=1),
        hidden=hidden,
        heads=heads,
        kv_heads=table.whole("num_key_value_heads", least=1, default=heads),
        head_dim=table.whole("head_dim", least=1, default=hidden // heads),
        feed_forward=table.whole(width, least=1),
        vocabulary=table.whole("vocab_size", least=1),
        tied=table.flag("tie_word_embeddings", default=False),
        experts=experts,
        experts_active=table.whole("num_experts_per_tok", least=1, default=1) if experts > 1 else 1,
        weight_bytes=_weight_bytes(config, path),
    )


def _weight_bytes(config: Mapping[str, Any], path: Path) -> float:
    quantised = config.get("quantization_config")
    if isinstance(quantised, dict):
        bits = {"fp8": 8, "modelopt": 8}.get(str(quantised.get("quant_method")), quantised.get("bits"))
        if not isinstance(bits, int):
            what = f"quantisation {quantised.get('quant_method')!r} says no bits"
            fix = "write a .toml with weight_bytes instead"
            raise InputError(what, where=f"{path}: key quantization_config", fix=fix)
        return bits / 8.0
    return 2.0  # engines serve float32 checkpoints in 16 bits too


def _document(path: Path) -> dict[str, Any]:
    """A TOML or JSON file as a dictionary; InputError if it can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
        found = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise InputError(f"cannot read it: {error.strerror}", where=str(path), fix="check the path") from None
    except ValueError as error:  # not UTF-8, not TOML, not JSON
        raise InputError(f"not {path.suffix[1:]}: {error}", where=str(path), fix="mend the file") from None
    if not isinstance(found, dict):
        raise InputError("not a table of keys", where=str(path), fix="give a JSON object")
    return found
