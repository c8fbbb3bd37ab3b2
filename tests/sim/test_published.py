"""The policies as published in whole runs: small schedules by hand, and what each switch changes.

The engine is the study's where it matters: 64 sequences, 8,192 blocks, steps of 1 ms whatever they carry.
"""

import numpy as np
import pytest

from schedulers.load import load, published_names
from sim.checks import Trial, foreseen, misjumped, mistranslated, retargeted
from sim.run import simulate
from tests.sim.stage import HINGE, ask, same, setup, traffic

FLAT = np.array([1e-3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
STUDY = setup(blocks=8192, sequences=64, budget=131072, costs=FLAT)
ONE = STUDY._replace(sequences_max=1)
SMALL = STUDY._replace(blocks=20)  # 320 tokens
SCARCE = setup(blocks=90, sequences=10, budget=128)
AMPLE = setup(costs=HINGE)

SWITCHES = [
    (name, param.name)
    for name in published_names()
    for param in load(name).engine.params
    if param.unit == "switch"
]


def told(spec, demand, place=STUDY):
    """Facts of a run in which forecasts are the truth."""
    return simulate(demand._replace(forecast_tokens=demand.output_tokens + 0.0), load(spec), place).facts


def started(spec, demand, place=STUDY):
    """Requests in the order in which they were started; those that never were are left out."""
    facts = told(spec, demand, place)
    order = np.argsort(facts.started_s, kind="stable")
    return [int(request) for request in order if not np.isnan(facts.started_s[request])]


@pytest.mark.parametrize("name", published_names())
@pytest.mark.parametrize("place", [SCARCE, AMPLE], ids=["scarce", "ample"])
def test_compiled_equals_interpreted_bit_for_bit(name, place):
    assert mistranslated(Trial(load(name), traffic(45, 10.0, seed=7), place)) == ""


@pytest.mark.parametrize(("name", "switch"), SWITCHES)
def test_repaired_they_compile_to_the_same(name, switch):
    trial = Trial(load(f"{name}:{switch}=off"), traffic(45, 12.0, seed=4), SCARCE)
    assert mistranslated(trial) == ""


@pytest.mark.parametrize("name", published_names())
@pytest.mark.parametrize("rate", [6.0, 20.0])
def test_jumps_agree_with_steps(name, rate):
    demand, place = traffic(300, rate, seed=int(rate), output=80), setup(blocks=900, sequences=40)
    assert misjumped(Trial(load(name), demand, place)) == ""


@pytest.mark.parametrize("name", published_names())
def test_no_oracle(name):
    trial = Trial(load(name), traffic(60, 8.0, seed=3), setup(blocks=60, sequences=12))
    assert foreseen(trial, (5, 20, 40)) == ""


@pytest.mark.parametrize("name", published_names())
def test_no_target_moves_what_was_published(name):
    """The study's deadlines are made of the forecast, its pace is 0.5 s for all: tiers' targets move nothing."""
    assert retargeted(Trial(load(name), traffic(80, 9.0, seed=2), setup(blocks=120, sequences=12))) == ""


TELLING = {
    "skip_not_reject": "slack=0.02",  # many are late
    "never_drops": "slack=0.02",
    "shadow_prefill": "step_tokens=64",
}
ALONE = {
    # as long as nobody is late nobody is skipped; below the mark growth is not felt: as the study's A07 and A05
    ("admission_control@published", "skip_not_reject"): "never_drops=off",
    ("kv_constrained_online@published", "growth"): "kv_mark=1",
}


@pytest.mark.parametrize(("name", "switch"), SWITCHES)
def test_each_switch_changes_something(name, switch):
    demand = traffic(120, 14.0, seed=5)
    if name.startswith("estimated"):  # its deadline breaks ties alone
        lengths = {"prompt_tokens": 200, "output_tokens": 40, "forecast_tokens": 40.0}
        demand = demand._replace(**{column: np.full(120, value) for column, value in lengths.items()})
    more = [text for text in (TELLING.get(switch), ALONE.get((name, switch))) if text]
    longest = int(demand.prompt_tokens.max())
    if switch == "stall":
        more.append(f"step_tokens={longest - 1}")
    place = setup(blocks=120, sequences=12, budget=256)
    texts = [":".join([name, ",".join([*more, *off])]).rstrip(":") for off in ([], [f"{switch}=off"])]
    published, repaired = (simulate(demand, load(text), place) for text in texts)
    # a rejection has no finish: how long the rejected were kept shows in the engine's time
    assert same(published, repaired) != [] or published.totals.engine_s != repaired.totals.engine_s


def test_a_prompt_over_the_steps_tokens_stalls_the_queue_for_ever():
    """A04: 3,000 > 2,560 tokens. Who came before is served, it and who comes behind never is."""
    demand = ask([0.0, 0.001, 0.002, 9.0], [100, 3000, 50, 50], [30, 5, 5, 5])
    facts = told("vllm_faithful@published", demand)
    assert facts.outcome.tolist() == [0, 1, 1, 1]
    assert facts.reason.tolist() == [0, 2, 2, 2]
    assert told("vllm_faithful@published:stall=off", demand).outcome.tolist() == [0, 0, 0, 0]


def test_whole_prompts_share_2560_tokens_a_step():
    """1,500 + 1,000 fit a step, the third prompt of 100 would make 2,600: it starts a step later, 2 running."""
    demand = ask([0.0, 0.0, 0.0], [1500, 1000, 100], [9, 9, 9])._replace(luck=np.array([0.1, 0.2, 0.3]))
    assert told("vllm_faithful@published", demand).started_s.tolist() == [0.0, 0.0, 0.001]


def test_laxity_in_steps_puts_the_longest_job_first():
    """A09: 4.8 s - 60 steps against 80.8 s - 250 steps, as if all were seconds: -55 and -169."""
    demand = ask([0.0, 0.001, 0.002], [100, 100, 100], [20, 10, 200])
    assert started("least_laxity_first@published", demand, ONE) == [0, 2, 1]
    assert started("least_laxity_first@published:laxity_in_steps=off", demand, ONE) == [0, 1, 2]
    assert started("edf@published", demand, ONE) == [0, 1, 2]
    assert started("fifo@published", demand, ONE) == [0, 1, 2]


def test_the_shortest_estimate_and_the_fair_share_are_one_policy_with_one_class():
    """A11: 0.5 * 300 + 10 = 160 steps against 0.5 * 40 + 90 = 110; by output alone the other way round."""
    demand = ask([0.0, 0.001, 0.002], [100, 300, 40], [20, 10, 90])
    assert started("estimated_service_time_first@published", demand, ONE) == [0, 2, 1]
    assert started("weighted_fair_share@published", demand, ONE) == [0, 2, 1]
    assert started("vllm_style_token_budget@published", demand, ONE) == [0, 1, 2]
    shared = demand._replace(tenant=np.array([0, 1, 0]))  # tenant 0 already runs one: half a share
    apart = shared._replace(prompt_tokens=np.array([100, 300, 140]))  # 160 steps both
    two = STUDY._replace(blocks=30)  # 480 tokens: 120 run, neither both fit beside it
    assert started("weighted_fair_share@published", apart, two)[1] in (1, 2)
    assert started("weighted_fair_share@published:one_class=off", apart, two) == [0, 1, 2]


def test_growth_is_not_seen_at_admission():
    """A05: two prompts of 160 tokens fill 20 blocks to the last token; the next token throws one out."""
    demand = ask([0.0, 0.0], [160, 160], [30, 30])
    published = told("fifo@published", demand, SMALL)
    assert published.started_s.tolist() == [0.0, 0.0]
    assert published.preemptions.sum() > 0
    repaired = told("fifo@published:growth=off", demand, SMALL)
    assert sorted(repaired.started_s.tolist()) == [0.0, pytest.approx(0.03)]
    assert repaired.preemptions.sum() == 0


def test_a_held_request_is_passed_by_a_smaller_one():
    """``fits`` with skip: 200 + 200 > 320 tokens, 200 + 50 not."""
    demand = ask([0.0, 0.001, 0.002], [200, 200, 50], [40, 5, 5])
    assert started("fifo@published", demand, SMALL) == [0, 2, 1]


def test_prompts_count_in_whole_blocks_for_the_token_budget():
    """281 + 17 <= 320 tokens; rounded up to 64 it is not."""
    demand = ask([0.0, 0.0005], [280, 17], [4, 2])
    soon = told("vllm_style_token_budget@published:block_tokens=16", demand, SMALL).started_s[1]
    late = told("vllm_style_token_budget@published:block_tokens=64", demand, SMALL).started_s[1]
    assert (soon, late) == (pytest.approx(0.001), pytest.approx(0.004))


def test_memory_above_the_mark_is_for_the_urgent():
    """201 + 100 tokens are 94% of 320: over 0.82, so it waits, unless 0.25 s of laxity or less are left."""
    demand = ask([0.0, 0.0005], [200, 100], [40, 10])
    name = "kv_constrained_online@published"
    assert told(name, demand, SMALL).started_s[1] == pytest.approx(0.04)
    assert told(f"{name}:kv_mark=1", demand, SMALL).started_s[1] == pytest.approx(0.001)
    assert told(f"{name}:slack=1", demand, SMALL).started_s[1] == pytest.approx(0.001)
    # due at 0.0005 + 1.1 * 0.24 s, less 60 ms and 250 ms: urgent before the first look


def test_the_late_are_never_dropped_then_skipped_then_rejected():
    """A10, A07: slack 0.25 gives 60 ms for work of 60 ms: late once it has waited for 100 steps."""
    demand = ask([0.0, 0.001, 0.002], [100, 100, 100], [100, 10, 1000])
    name = "admission_control@published:slack=0.25"
    assert told(name, demand, ONE).outcome.tolist() == [0, 0, 0]
    skipped = told(f"{name},never_drops=off", demand, ONE)
    assert skipped.outcome.tolist() == [0, 1, 0]
    kept = simulate(demand, load(f"{name},never_drops=off"), ONE).totals.engine_s
    assert kept == pytest.approx(skipped.finished_s[2] + 50.0)
    rejected = told(f"{name},never_drops=off,skip_not_reject=off", demand, ONE)
    assert rejected.outcome.tolist() == [0, 1, 0]
    ended = simulate(demand, load(f"{name},never_drops=off,skip_not_reject=off"), ONE).totals.engine_s
    assert ended == pytest.approx(rejected.finished_s[2])


def test_the_guard_lets_in_as_many_as_it_has_credits():
    """40 waiting for 10 slots: the guard is on; 4 credits (the most), then 2 a step."""
    demand = ask(np.zeros(40), np.full(40, 50), np.full(40, 100))
    facts = told("scorpio_style_slo_guard@published", demand, STUDY._replace(sequences_max=10))
    first = np.sort(facts.started_s)[:10]
    assert first == pytest.approx([0.0] * 4 + [0.001] * 2 + [0.002] * 2 + [0.003] * 2)


def test_a_full_memory_takes_no_long_answers():
    """220 of 320 tokens are over 65%: a forecast of 300 tokens waits, one of 20 does not."""
    demand = ask([0.0, 0.0005, 0.0006], [220, 10, 10], [40, 300, 20])
    assert started("scorpio_style_slo_guard@published", demand, SMALL) == [0, 2, 1]


@pytest.mark.parametrize("switch", ["", ":shadow_prefill=off"])
def test_sarathi_and_chunked_vllm_are_one_policy_up_to_128_sequences(switch):
    """A15: to the last digit, and no repair of the count parts them.

    First come first served, newest evicted: whoever is in prefill is the newest of the batch, so decodes come
    first under both. Above 128 sequences, the one's cap, they part.
    """
    busy, crowd = (
        traffic(200, 900.0, seed=6, prompt=900, output=60),
        traffic(300, 900.0, prompt=50, output=900),
    )
    wide = STUDY._replace(sequences_max=300)
    for demand, place, differ in ((busy, STUDY, False), (busy, SCARCE, False), (crowd, wide, True)):
        told = [
            simulate(demand, load(f"{name}_faithful@published{switch}"), place)
            for name in ("sarathi", "vllm_chunked_prefill")
        ]
        assert (same(*told) != []) == differ


def test_the_private_count_admits_while_the_engine_already_decodes():
    """A06: 1,024 prompt tokens take two private steps and a rest; nobody else comes in, but it decodes at once."""
    demand = ask([0.0, 0.0005, 0.0006], [1, 1024, 20], [30, 30, 30])
    for name in ("sarathi_faithful", "vllm_chunked_prefill_faithful"):
        facts = told(f"{name}@published", demand)
        # step 1: 1 decode, 511 of 1,024; step 2: 1 decode, 511; step 3: 1 decode, the last 2, then the third
        assert facts.started_s == pytest.approx([0.0, 0.001, 0.003])
        assert facts.first_token_s[1] == pytest.approx(0.002)
        repaired = told(f"{name}@published:shadow_prefill=off", demand)
        assert repaired.started_s == pytest.approx([0.0, 0.001, 0.003])
        assert repaired.first_token_s[1] == pytest.approx(0.004)


def test_slai_holds_decodes_while_the_private_count_is_busy():
    """5,120 tokens are ten steps of 512: for these the first request's decode is held, its pace being 0.5 s.

    With its tier's 5 ms less 5 steps it is critical at once, and goes first.
    """
    demand = ask([0.0, 0.0105], [10, 5120], [50, 50])
    demand = demand._replace(tier=np.zeros(2, np.int64))
    facts = told("slai_faithful@published", demand)
    assert facts.longest_gap_s[0] == pytest.approx(0.011)
    assert facts.first_token_s[1] == pytest.approx(0.012)  # the engine decodes it at once
    strict = STUDY._replace(tiers=STUDY.tiers._replace(tpot_s=np.array([0.005, 0.1])))
    assert told("slai_faithful@published:fallback_tbt=off", demand, strict).longest_gap_s[0] == pytest.approx(
        0.001
    )
    own = told("slai_faithful@published:shadow_prefill=off", demand)
    assert own.longest_gap_s[0] == pytest.approx(0.011)
    assert own.first_token_s[1] == pytest.approx(0.021)


@pytest.mark.parametrize("name", published_names())
def test_everybody_ends_under_pressure(name):
    """No stall, no thrash: overload, little memory, late requests; three times over."""
    for seed in range(3):
        demand, place = traffic(150, 40.0, seed=seed), setup(blocks=70, sequences=12, budget=200)
        facts = simulate(demand, load(name), place, "jumped", audit=True).facts
        assert set(facts.outcome.tolist()) <= {0, 1}
        assert (facts.reason[facts.outcome == 1] > 0).all()
