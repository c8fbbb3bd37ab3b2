"""Finding vLLM, and the vocabulary of the small models, which need no vLLM."""

import pytest

from schedulers.errors import InputError
from services import vllm_place
from services.worker.vllm.models import SHAPES, vocabulary_of


def test_the_interpreter_is_the_one_named_else_the_one_made_else_an_error_that_says_how(
    monkeypatch, tmp_path
):
    other = tmp_path / "python"
    monkeypatch.setenv("WINDTUNNEL_VLLM_PYTHON", str(other))
    with pytest.raises(InputError, match="no program"):
        vllm_place.interpreter()
    other.touch(mode=0o755)
    assert vllm_place.interpreter() == str(other)
    monkeypatch.delenv("WINDTUNNEL_VLLM_PYTHON")
    monkeypatch.setattr(vllm_place, "find_spec", lambda name: None)
    monkeypatch.setattr(vllm_place, "FOLDER", str(tmp_path / "made"))
    with pytest.raises(InputError, match="make vllm-cpu"):
        vllm_place.interpreter()
    made = tmp_path / "made" / "bin" / "python"
    made.parent.mkdir(parents=True)
    made.touch()
    assert vllm_place.interpreter() == str(made)


def test_what_fails_there_is_told_with_its_last_words():
    import sys

    assert vllm_place.run_there(sys.executable, ["-c", "print(6 * 7)"]) == "42\n"
    with pytest.raises(InputError, match="too cold"):
        vllm_place.run_there(sys.executable, ["-c", "raise SystemExit('too cold')"])


def test_every_token_is_a_byte_or_made_by_one_merge_of_earlier_ones():
    alphabet = [chr(0x100 + place) for place in range(256 - 27)] + list("abcdefghijklmnopqrstuvwxyz\u0120")
    for shape in SHAPES.values():
        vocabulary, merges = vocabulary_of(shape.vocabulary, sorted(set(alphabet)))
        assert sorted(vocabulary.values()) == list(range(shape.vocabulary))
        for left, right in merges:
            assert max(vocabulary[left], vocabulary[right]) < vocabulary[left + right]
    with pytest.raises(InputError):
        vocabulary_of(10, alphabet)
