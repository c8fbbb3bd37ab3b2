"""Choosing: described, rejected for counted reasons, drawn within strata, and blind to everything else."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from loadgen.candidate import KINDS, Recipe, candidates, counts, describe, kappa, objection
from loadgen.choose import choose
from loadgen.trace import ORPHAN
from schedulers.errors import InputError
from tests.loadgen.window_rows import hand_made

DAY_S = 86_400


def published(count=80, **more):
    """Windows of 200 rows are the quickest to make; ``short`` (625 rows) is used where rejections count."""
    return Recipe(kind="published", count=count, **more)


def reasons(trace, kind="short"):
    return [one.reason for one in candidates(trace, Recipe(kind=kind))]


def test_the_grid_is_disjoint_and_its_tail_is_few_rows():
    listed = candidates(hand_made(1000), published())
    assert [one.first_row for one in listed] == [0, 200, 400, 600, 800]
    assert [one.reason for one in listed] == [""] * 5
    listed = candidates(hand_made(1001), published())
    assert [one.reason for one in listed] == [""] * 5 + ["few_rows"]


def test_descriptors_of_rows_that_can_be_counted_by_hand():
    """200 rows, one a second for 100 s and then two a second."""
    trace = hand_made(200)
    second_s = np.concatenate([np.arange(100), 100 + np.arange(100) / 2])
    trace = trace._replace(
        arrival_ns=(second_s * 1e9).astype(np.int64),
        prompt_tokens=np.where(np.arange(200) == 7, 1000, 10).astype(np.int32),
        output_tokens=np.full(200, 30, np.int32),
    )
    found = describe(trace, 0, 200)
    span_s = 149.5
    assert found["requests_per_s"] == pytest.approx(200 / span_s)
    assert found["prefill_tokens_per_s"] == pytest.approx((199 * 10 + 1000) / span_s)
    assert found["decode_tokens_per_s"] == pytest.approx(6000 / span_s)
    assert found["output_share"] == pytest.approx(6000 / (6000 + 2990))
    assert found["idle_second_share"] == 0.0
    assert found["script_share"] == 1.0
    assert found["longest_silence_s"] == 1.0
    bins = np.array([1] * 100 + [2] * 49)
    iod = bins.var(ddof=1) / bins.mean()
    assert found["kappa_1s"] == pytest.approx((iod - 1) / bins.mean())
    gaps = np.diff(second_s)
    assert found["gap_cv"] == pytest.approx(gaps.std() / gaps.mean())
    assert found["work_per_s"] == pytest.approx(found["work_s"] * 200 / span_s)
    prefill = np.where(np.arange(200) == 7, 53.1e-6 * 1000 + 4.9e-9 * 1e6 / 2, 53.1e-6 * 10 + 4.9e-9 * 50)
    assert found["largest_prompt_share"] == pytest.approx(prefill.max() / prefill.sum())


def test_only_complete_bins_count():
    arrival_ns = np.array([0, 1, 1, 2, 3]) * 10**9 + np.array([0, 0, 5, 0, 999_999_999])
    assert counts(arrival_ns, 1).tolist() == [1, 2, 1]
    assert counts(arrival_ns, 2).tolist() == [3]
    assert counts(arrival_ns, 10).tolist() == []
    assert kappa(np.array([3])) is None
    assert kappa(np.zeros(0, np.int64)) is None


def test_kappa_survives_thinning_where_iod_does_not():
    rng = np.random.Generator(np.random.PCG64(1))
    busy = rng.poisson(rng.gamma(0.5, 8.0, 40_000))
    thin = rng.binomial(busy, 0.5)
    iod = [bins.var(ddof=1) / bins.mean() for bins in (busy, thin)]
    assert kappa(thin) == pytest.approx(kappa(busy), rel=0.08)
    assert iod[1] - 1 == pytest.approx((iod[0] - 1) / 2, rel=0.08)


def test_follow_ups_are_parents_known_or_lost_and_sessions_seen_before():
    trace = hand_made(200)
    assert describe(trace, 0, 200)["follow_up_share"] == 0.0
    trace.parent[50], trace.flags[60] = 49, ORPHAN
    trace.session[[70, 71, 72]] = 9
    assert describe(trace, 0, 200)["follow_up_share"] == pytest.approx(4 / 200)


def stretched(trace, at, silence_s):
    arrival_ns = np.array(trace.arrival_ns)
    arrival_ns[at:] += int(silence_s * 1e9)
    return trace._replace(arrival_ns=arrival_ns)


def one_large_prompt(trace):
    prompts = np.array(trace.prompt_tokens)
    prompts[300] = 2_000_000
    return trace._replace(prompt_tokens=prompts)


def scripted(trace, name="output_tokens", share=0.6, rows=slice(None)):
    tokens = np.array(getattr(trace, name))
    part = tokens[rows]
    part[: int(len(part) * share)] = 7
    return trace._replace(**{name: tokens})


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda trace: trace, ""),
        (lambda trace: trace._replace(arrival_ns=np.zeros(625, np.int64)), "no_span"),
        (lambda trace: stretched(trace, 300, 104 * DAY_S), "gap"),
        (lambda trace: stretched(trace, 300, 1801), "gap"),
        (lambda trace: stretched(trace, 300, 1700), ""),
        (lambda trace: trace._replace(arrival_ns=trace.arrival_ns * 40), "too_long"),
        (lambda trace: stretched(trace, 30, 150), "edge_gap"),
        (lambda trace: stretched(trace, 600, 150), "edge_gap"),
        (lambda trace: stretched(trace, 300, 150), ""),
        (one_large_prompt, "one_prompt"),
        (scripted, "script"),
        (lambda trace: scripted(trace, "prompt_tokens"), "script"),
        (lambda trace: scripted(trace, share=0.4), ""),
    ],
)
def test_reasons(spoil, reason):
    assert reasons(spoil(hand_made(625))) == [reason]


def test_published_windows_are_refused_for_holes_alone():
    trace = scripted(stretched(hand_made(200), 5, 1000))
    assert [one.reason for one in candidates(trace, published())] == [""]
    assert [one.reason for one in candidates(stretched(trace, 5, 1000), published())] == ["gap"]


def test_reasons_are_counted():
    trace = scripted(stretched(hand_made(625 * 4 + 10), 300, 104 * DAY_S), rows=slice(625, 1250))
    choice = choose([trace], Recipe(kind="short"))
    assert choice.rejected == {"few_rows": 1, "gap": 1, "script": 1}
    assert (choice.candidates, choice.pool, choice.asked) == (5, 2, 80)
    assert [pick.candidate.first_row for pick in choice.picked if pick.stratum != "script"] in (
        [1250, 1875],
        [1875, 1250],
    )


def test_a_hole_between_parts_is_never_crossed():
    """Trap B3: a file that joins BurstGPT's parts 2 and 3 is silent for 104 days in its middle."""
    trace = stretched(hand_made(2000), 1010, 104 * DAY_S)
    for kind in ("published", "short"):
        rows = KINDS[kind].rows
        for pick in choose([trace], Recipe(kind=kind)).picked:
            first = pick.candidate.first_row
            assert not first < 1010 < first + rows


def burst(rows=4000, t0="5", rate=0.01, **more):
    """A slow BurstGPT: 4,000 rows at 0.01 a second are 4.6 days."""
    info = {"source": "burstgpt-1", "family": "burstgpt", "label": "real", "t0": t0} | more
    return hand_made(rows, rate=rate, **info)


def test_no_window_before_day_nine_of_burstgpt():
    """Trap B5: the quiet ramp at the head of part 1; parts 2 and 3 begin later and lose nothing."""
    trace = burst(rows=20_000)
    listed = candidates(trace, published())
    assert 5 + listed[0].start_s >= 9 * DAY_S
    assert 5 + trace.arrival_ns[listed[0].first_row - 1] / 1e9 < 9 * DAY_S
    choice = choose([trace], published(count=5))
    assert choice.ramp_rows == listed[0].first_row > 0
    assert all(5 + pick.candidate.start_s >= 9 * DAY_S for pick in choice.picked)
    later = burst(rows=20_000, t0=str(225 * DAY_S))
    assert candidates(later, published())[0].first_row == 0


def test_the_surrogate_has_no_ramp_but_the_same_spacing():
    surrogate = burst(
        rows=40_000, family="burstgpt_surrogate", source="burstgpt_surrogate", label="surrogate", rate=1.0
    )
    choice = choose([surrogate], published())
    assert choice.ramp_rows == 0
    spans = sorted((pick.candidate.start_s, pick.candidate.end_s) for pick in choice.picked)
    assert len(spans) > 1
    assert min(b[0] - a[1] for a, b in pairwise(spans)) >= 3600
    assert choice.too_close > 0


def test_windows_are_disjoint_on_a_finer_grid():
    trace = hand_made(4000)
    choice = choose([trace], published(stride_rows=50))
    firsts = sorted(pick.candidate.first_row for pick in choice.picked)
    assert (np.diff(firsts) >= 200).all()
    assert len(firsts) > 12
    assert choice.pool == len(choice.picked) + choice.too_close


def test_every_stratum_is_filled_before_one_is_filled_twice():
    trace = hand_made(200 * 60)
    choice = choose([trace], published(count=24))
    filled = Counter(pick.stratum for pick in choice.picked)
    assert set(filled) <= set(choice.strata)
    assert len(choice.strata) == 12
    pool = Counter(pick.stratum for pick in choose([trace], published(count=60)).picked)
    assert all(filled[name] >= min(2, pool[name]) for name in pool)
    assert choice.strata == {name: filled[name] for name in choice.strata}


def test_strata_are_quartiles_of_work_and_tertiles_of_kappa():
    picked = choose([hand_made(200 * 60)], published()).picked
    work = Counter(pick.stratum[:2] for pick in picked)
    assert work == {"w0": 15, "w1": 15, "w2": 15, "w3": 15}
    assert Counter(pick.stratum[2:] for pick in picked) == {"k0": 20, "k1": 20, "k2": 20}
    rates = {
        name: [pick.candidate.descriptors["work_per_s"] for pick in picked if pick.stratum.startswith(name)]
        for name in work
    }
    assert max(rates["w0"]) <= min(rates["w1"])
    assert max(rates["w2"]) <= min(rates["w3"])


def test_picks_spread_over_time():
    trace = hand_made(200 * 100)
    blocks = Counter(pick.block for pick in choose([trace], published(count=50)).picked)
    assert set(blocks) == set(range(10))
    assert max(blocks.values()) <= 8


def test_dev_is_the_first_sixty_percent_of_time_and_test_the_rest():
    picked = choose([hand_made(200 * 20)], published()).picked
    by_time = [pick.split for pick in sorted(picked, key=lambda pick: pick.candidate.first_row)]
    assert by_time == ["dev"] * 12 + ["test"] * 8


def test_a_longer_choice_begins_with_the_shorter_one():
    trace = scripted(hand_made(625 * 40), rows=slice(0, 625 * 3), share=1.0)
    short, long = (choose([trace], Recipe(kind="short", count=count)).picked for count in (11, 30))
    assert long[:11] == short


def test_the_seed_decides_and_the_trace_does():
    trace = hand_made(200 * 60)
    chosen = [
        [pick.candidate.first_row for pick in choose([each], published(count=10, seed=seed)).picked]
        for each, seed in ((trace, 0), (trace, 0), (trace, 1))
    ]
    assert chosen[0] == chosen[1] != chosen[2]


def test_parts_are_taken_by_their_shares_and_what_one_lacks_the_other_gives():
    """Azure 2023: 7 windows of the one service and 15 of the other make 22, and ten are five and five."""
    short = hand_made(200 * 7, seed=1, source="azure2023-code", family="azure2023", label="real")
    long = hand_made(200 * 15, seed=2, source="azure2023-conv", family="azure2023", label="real")
    parts = Counter(pick.candidate.part for pick in choose([short, long], published(count=80)).picked)
    assert parts == {"azure2023-code": 7, "azure2023-conv": 15}
    parts = Counter(pick.candidate.part for pick in choose([short, long], published(count=10)).picked)
    assert parts == {"azure2023-code": 5, "azure2023-conv": 5}


def test_bailian_is_taken_by_28_28_16_8():
    parts = {"a": 60, "b": 60, "coder": 60, "thinking": 60}
    traces = [
        hand_made(200 * windows, seed=seed, source=f"bailian-{name}", family="bailian", label="real")
        for seed, (name, windows) in enumerate(parts.items())
    ]
    picked = choose(traces, published(count=80)).picked
    assert Counter(pick.candidate.part.rpartition("-")[2] for pick in picked) == {
        "a": 28,
        "b": 28,
        "coder": 16,
        "thinking": 8,
    }


def test_burstgpt_is_taken_by_its_mix_of_channels():
    trace = burst(rows=200 * 12, t0=str(20 * DAY_S), rate=0.5)
    kind = np.repeat(np.arange(3), 800).astype(np.int8)
    kind[1600:] = np.arange(800) % 2
    trace = trace._replace(kinds=("GPT-4 API log", "ChatGPT Conversation log", ""), kind=kind)
    parts = {one.first_row: one.part for one in candidates(trace, published())}
    assert [parts[first] for first in (0, 800, 1600)] == ["api", "conversation", "mixed"]


def test_scripts_are_kept_on_purpose_and_labelled():
    trace = scripted(hand_made(625 * 50), rows=slice(0, 625 * 10), share=1.0)
    choice = choose([trace], Recipe(kind="short", count=40))
    kept = [pick for pick in choice.picked if pick.stratum == "script"]
    assert len(kept) == 4
    assert all(pick.candidate.first_row < 6250 for pick in kept)
    assert choice.rejected == {"script": 10}
    assert choice.strata["script"] == 4
    assert [number for number, pick in enumerate(choice.picked) if pick.stratum == "script"] == [
        9,
        19,
        29,
        39,
    ]


def test_a_file_of_nothing_but_scripts_gives_four():
    choice = choose([scripted(hand_made(625 * 10), share=1.0)], Recipe(kind="short"))
    assert [pick.stratum for pick in choice.picked] == ["script"] * 4
    assert choice.pool == 0


def test_an_empty_trace_gives_nothing():
    choice = choose([hand_made(10)], Recipe())
    assert choice.picked == ()
    assert choice.rejected == {"few_rows": 1}


@pytest.mark.parametrize(("wrong", "says"), [({"kind": "huge"}, "huge.*main"), ({"count": 0}, "at least 1")])
def test_a_recipe_that_makes_no_sense_is_refused(wrong, says):
    with pytest.raises(InputError, match=says):
        Recipe(**wrong)


def test_prices_change_work_and_no_row():
    trace = hand_made(625)
    recipe = Recipe(kind="short")
    dear = replace(recipe, prices=replace(recipe.prices, decode_s=1.0))
    cheap, costly = candidates(trace, recipe)[0], candidates(trace, dear)[0]
    assert costly.descriptors["work_s"] > 10 * cheap.descriptors["work_s"]
    assert cheap.place == costly.place
    assert objection(costly.descriptors, "short") == ""
