"""Small models: the same bytes from the same seed, and something that loads."""

import json

import pytest

from schedulers.errors import InputError
from services.worker.vllm.measure import measured
from services.worker.vllm.models import make


def test_a_seed_gives_the_same_weights_and_another_seed_others(tiny, tmp_path):
    first = json.loads((tiny / "windtunnel.json").read_text())
    again, other = make("tiny", tmp_path / "again"), make("tiny", tmp_path / "other", seed=2)
    assert again == first
    assert other["weights_sha256"] != first["weights_sha256"]
    assert first["kv_bytes_per_token"] == 1024


def test_what_lies_there_is_not_overwritten(tiny, tmp_path):
    before = (tiny / "model.safetensors").stat().st_mtime_ns
    make("tiny", tiny)
    assert (tiny / "model.safetensors").stat().st_mtime_ns == before
    (tmp_path / "mine").write_text("x")
    with pytest.raises(InputError, match="something else"):
        make("tiny", tmp_path)


def test_steps_of_another_device_are_not_measured_under_its_name(tiny, tmp_path):
    """Where vLLM runs on the processor nothing may become a GPU's profile."""
    with pytest.raises(InputError, match="vLLM runs on the processor here"):
        measured(str(tiny), "gpu", tmp_path, 2, "")
    assert not [*tmp_path.iterdir()]


def test_the_tokenizer_takes_text_and_gives_it_back(tiny):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny)
    text = "The wind tunnel, 42 % faster: \u00fcber alles."
    ids = tokenizer.encode(text)
    assert len(ids) < len(text.encode())
    assert tokenizer.decode(ids) == text
    assert len(tokenizer) == 2048
