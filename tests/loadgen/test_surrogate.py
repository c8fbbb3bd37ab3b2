"""Surrogates as traces: who they say they are, and that (version, seed) determines every row."""

import numpy as np
import pytest

from loadgen.surrogate import GENERATOR, PARTS, ROWS_MAX, generate, regenerate
from loadgen.surrogate.burstgpt import HOURS, NAME, conversations
from loadgen.surrogate.sampling import Stream
from loadgen.trace import CAPPED, DITHERED, ORPHAN
from schedulers.errors import InputError

EVERY_PART = [part for parts in PARTS.values() for part in parts]
COLUMNS = ("arrival_ns", "prompt_tokens", "output_tokens", "kind", "session", "source_row", "flags")


def test_three_sources_with_their_parts():
    assert list(PARTS) == ["azure_surrogate", "burstgpt_surrogate", "bailian_surrogate"]
    assert [len(parts) for parts in PARTS.values()] == [2, 1, 4]


@pytest.mark.parametrize("part", EVERY_PART)
def test_a_surrogate_says_what_it_is(part):
    trace = generate(part, rows=500, seed=7)
    info = trace.info
    assert info.source == part
    assert info.family == next(source for source, parts in PARTS.items() if part in parts)
    assert info.label == "surrogate"
    assert info.generator == f"{GENERATOR} {part} rows=500 seed=7"
    assert info.licence
    assert info.citation.startswith("fitted to statistics of")
    assert info.rows_read == info.kept == 500
    assert (info.dropped, info.moved, info.bytes) == ({}, 0, 0)
    assert len(info.sha256) == 64


@pytest.mark.parametrize("part", EVERY_PART)
def test_rows_are_legal(part):
    trace = generate(part, rows=3_000, seed=7)
    assert trace.arrival_ns[0] == 0
    assert (np.diff(trace.arrival_ns) >= 0).all()
    assert (trace.prompt_tokens >= 1).all()
    assert (trace.output_tokens >= 1).all()
    assert trace.source_row.tolist() == list(range(3_000))
    assert set(trace.kind.tolist()) <= set(range(len(trace.kinds)))
    follows = np.flatnonzero(trace.parent >= 0)
    assert (trace.parent[follows] < follows).all()
    assert (trace.session[follows] == trace.session[trace.parent[follows]]).all()
    assert not (trace.flags[follows] & ORPHAN).any()
    numbered = trace.session[trace.session >= 0]
    assert (np.diff(np.unique(numbered, return_index=True)[1]) > 0).all()  # as first seen


@pytest.mark.parametrize("part", EVERY_PART)
def test_a_longer_trace_starts_with_the_shorter_one(part):
    short, long = generate(part, rows=400, seed=5), generate(part, rows=9_000, seed=5)
    for column in COLUMNS:
        assert (getattr(short, column) == getattr(long, column)[:400]).all(), column
    if short.hash_ids is not None:
        assert (short.hash_ids == long.hash_ids[: short.hash_offsets[-1]]).all()


@pytest.mark.parametrize("part", EVERY_PART)
def test_same_seed_same_digest_other_seed_other_digest(part):
    trace = generate(part, rows=300, seed=5)
    assert regenerate(trace.info.generator).info == trace.info
    assert generate(part, rows=300, seed=6).info.sha256 != trace.info.sha256


def test_one_row_is_enough():
    for part in EVERY_PART:
        assert generate(part, rows=1, seed=1).arrival_ns.tolist() == [0]


def test_what_is_no_part_is_refused_with_the_parts_that_are():
    with pytest.raises(InputError, match=r"several parts.*azure_surrogate-conv, azure_surrogate-code"):
        generate("azure_surrogate", rows=10, seed=1)
    with pytest.raises(InputError, match=r"unknown surrogate 'azure'.*bailian_surrogate-coder"):
        generate("azure", rows=10, seed=1)


@pytest.mark.parametrize("rows", [0, -1, 10**9])
def test_rows_have_limits(rows):
    with pytest.raises(InputError, match=f"ask for 1 to {ROWS_MAX['bailian_surrogate']}"):
        generate("bailian_surrogate-a", rows=rows, seed=1)


def test_another_version_cannot_be_drawn_again():
    with pytest.raises(InputError, match="surrogate/0 drew this trace"):
        regenerate("surrogate/0 azure_surrogate-code rows=10 seed=1")
    with pytest.raises(InputError, match="names no generator"):
        regenerate("a file")


def test_walls_are_flagged_and_nothing_else_of_azure():
    code, conv = (generate(f"azure_surrogate-{part}", rows=20_000, seed=1) for part in ("code", "conv"))
    assert ((code.flags == CAPPED) == (code.prompt_tokens >= 7_434)).all()
    assert (code.flags == CAPPED).mean() == pytest.approx(0.0382, abs=0.01)
    assert ((conv.flags == CAPPED) == ((conv.prompt_tokens >= 4_083) & (conv.prompt_tokens < 4_143))).all()
    assert (code.session == -1).all()
    assert code.hash_ids is None


def test_burstgpt_spreads_its_seconds():
    trace = generate(NAME, rows=5_000, seed=2)
    whole, fraction = trace.info.t0.split(".")
    stamps = trace.arrival_ns + int(fraction)
    seconds = stamps // 10**9
    assert int(whole) >= 0
    assert (trace.flags & DITHERED).all()
    second, first, size = np.unique(seconds, return_index=True, return_counts=True)
    crowded = np.flatnonzero(size == 4)
    assert crowded.size
    for one in crowded[:20]:
        quarter = (stamps[first[one] : first[one] + 4] - second[one] * 10**9) // 250_000_000
        assert quarter.tolist() == [0, 1, 2, 3]


def test_burstgpt_has_sessions_for_conversations_only():
    trace = generate(NAME, rows=20_000, seed=2)
    talks = np.array(["conversation" in name for name in trace.kinds])[trace.kind]
    assert ((trace.session >= 0) == talks).all()
    assert (trace.parent >= 0).sum() > 500


def test_burstgpt_follows_the_hours_of_the_day():
    rows = conversations(Stream(NAME, 1), 200)
    roots = rows.times_s[rows.parent < 0]
    found = np.bincount((roots // 3_600 % 24).astype(int)) * 24 / len(roots)
    assert np.corrcoef(found, HOURS)[0, 1] > 0.97


def test_burstgpt_gives_dense_windows():
    """1,250 rows within an hour: the real file's windows are cut where scripts or busy days make it dense."""
    for seed in (1, 2, 3):
        seconds = generate(NAME, rows=100_000, seed=seed).arrival_ns[::1_250] / 1e9
        assert (np.diff(seconds) <= 3_600).sum() >= 30
