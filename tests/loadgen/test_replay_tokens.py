"""Tokens of simulated answers: the same everywhere, each index its own, checked as a client checks them."""

import subprocess
import sys
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadgen.replay.tokens import VOCABULARY, faults_in, piece_of, text_of, token_at, tokens_at

SEEDS = st.integers(0, (1 << 64) - 1)


def test_the_same_in_another_process_with_another_hash_seed():
    """A worker and a client agree without a word."""
    code = "from loadgen.replay.tokens import tokens_at; print(tokens_at(12345678901234567, 7, 20))"
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told == [f"{tokens_at(12345678901234567, 7, 20)}\n"] * 2


@given(SEEDS, st.integers(0, 1 << 20))
def test_tokens_are_ids_with_text(seed, index):
    token = token_at(seed, index)
    assert 0 <= token < VOCABULARY
    assert piece_of(token).startswith(" ")
    assert tokens_at(seed, index, 2) == [token, token_at(seed, index + 1)]


def test_text_reads_like_text():
    """Many different words, some of them with a stop behind."""
    words = text_of(tokens_at(5, 0, 400)).split()
    assert len(words) == 400
    assert len(set(words)) > 100
    assert any(word.endswith(".") for word in words)


def test_neighbours_and_seeds_differ():
    """A token in the wrong place is found out."""
    one, other = tokens_at(1, 0, 2000), tokens_at(2, 0, 2000)
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 5
    assert sum(a == b for a, b in pairwise(one)) < 5


@given(SEEDS, st.integers(0, 50), st.integers(0, 50), st.integers(0, 50))
def test_what_is_lost_or_repeated_is_counted(seed, offset, count, wanted):
    lost, again = faults_in(seed, offset, tokens_at(seed, offset, count), wanted)
    assert lost == max(0, offset - wanted)
    assert again == min(count, max(0, wanted - offset))


def test_a_false_token_is_counted():
    tokens = tokens_at(9, 4, 6)
    tokens[3] ^= 1
    assert faults_in(9, 4, tokens, 4) == (0, 1)
