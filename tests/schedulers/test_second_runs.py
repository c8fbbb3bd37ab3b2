"""Small schedules of the second tier, worked out by hand, and its other settings through every mode."""

from math import inf

import numpy as np
import pytest

from loadgen.demand import Demand
from schedulers.load import load
from schedulers.view import Tiers
from sim.checks import kindred
from sim.run import Setup, simulate
from tests.sim.stage import close, same, setup, traffic

SECOND = np.array([0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0])
"""Step-time coefficients under which every step takes one second, whatever it carries."""

TWO = Tiers(np.array([5.0, 50.0]), np.array([1.0, 10.0]), np.array([inf, inf]), np.array([1.0, 1.0]))


def desk(sequences: int = 1, blocks: int = 1000, budget: int = 1000) -> Setup:
    return Setup(1, sequences, budget, 1, blocks, 100_000, SECOND, TWO)


def asked(arrival_s, output_tokens, prompt_tokens=None, **columns) -> Demand:
    """Requests in order of arrival with prompts of 5 tokens; ``columns`` replaces the rest."""
    n = len(arrival_s)
    outputs = np.array(output_tokens, np.int64)
    zeros = np.zeros(n, np.int64)
    demand = Demand(
        np.array(arrival_s, float),
        np.array(prompt_tokens or [5] * n, np.int64),
        outputs,
        outputs.astype(float),
        zeros,
        zeros,
        zeros - 1,
        np.arange(n) / n,
    )
    return demand._replace(**{name: np.array(value) for name, value in columns.items()})


def run(spec: str, demand: Demand, place: Setup):
    """The facts, the same in every mode."""
    told = simulate(demand, load(spec), place, "interpreted", audit=True)
    for mode in ("stepped", "jumped"):
        assert same(told, simulate(demand, load(spec), place, mode, audit=True)) == []
    return told.facts


def firsts(spec: str, demand: Demand, place: Setup) -> list[float]:
    return run(spec, demand, place).first_token_s.tolist()


def test_static_batch_lets_nobody_in_until_all_have_ended():
    demand = asked([0, 0, 0.5], [1, 3, 2])
    # a batch of two in the first step; the second ends at 3, only then the third starts
    assert firsts("static-batch:limit_tokens=3", demand, desk(3)) == [1, 1, 4]
    assert run("static-batch:limit_tokens=3", demand, desk(3)).finished_s.tolist() == [1, 3, 5]
    assert firsts("orca:limit_tokens=3", demand, desk(3)) == [1, 1, 2]


def test_static_batch_starts_again_where_the_last_one_is_evicted():
    demand = asked([0, 0], [8, 8])
    # 20 blocks of a token; 10 were reserved of each, both hold 9 at 5 s and 10 at 6 s, so the newer one leaves
    facts = run("static-batch:limit_tokens=5", demand, desk(2, blocks=20))
    assert facts.preemptions.tolist() == [0, 1]
    assert facts.finished_s.tolist() == [8.0, 10.0]


def test_orca_takes_whole_prompts_and_only_those_it_has_reserved_for():
    # 5 + 10 tokens each, 45 in all: three at once, the fourth when the first has ended at 2 s
    demand = asked([0, 0, 0, 0], [2, 9, 9, 1])
    assert firsts("orca:limit_tokens=10", demand, desk(4, blocks=45)) == [1, 1, 1, 3]
    assert firsts("orca:limit_tokens=10", demand, desk(4, blocks=60)) == [1, 1, 1, 1]
    # a prompt of 8 in one step of 5
    assert firsts("orca", asked([0], [1], [8]), desk(1, budget=5)) == [1]
    assert firsts("fcfs-chunked", asked([0], [1], [8]), desk(1, budget=5)) == [2]


def test_strict_tiers_with_and_without_displacement():
    demand = asked([0, 1.5, 1.6], [5, 2, 1], tier=[1, 1, 0])
    # one slot: tier 0 waits until 5 s, then passes the older one of tier 1
    waits = run("strict-tiers", demand, desk())
    assert waits.first_token_s.tolist() == [1, 7, 6]
    # displaced at 2 s with two tokens out, back at 3 s to compute its prompt and both of them again
    moves = run("strict-tiers:preempt=1", demand, desk())
    assert moves.first_token_s.tolist() == [1, 7, 3]
    assert moves.finished_s.tolist() == [6, 8, 3]
    assert moves.preemptions.tolist() == [1, 0, 0]


def test_ageing_lets_an_old_request_of_a_lower_tier_pass():
    demand = asked([0, 0.1, 0.2, 3.5], [6, 1, 1, 1], tier=[0, 1, 1, 0])
    # keys 3.1 and 3.2 of tier 1, 3.5 of tier 0
    assert firsts("ageing:age_s=3", demand, desk()) == [1, 7, 8, 9]
    assert firsts("ageing:age_s=4", demand, desk()) == [1, 8, 9, 7]


def test_wfq_shares_by_weighted_cost():
    # tenant 0 asks for four times (5 + 2 * 1 = 7), tenant 1 for two: finishes 7 14 21 28 and 7 14
    demand = asked([0] * 6, [1] * 6, tenant=[0, 0, 0, 0, 1, 1])
    assert firsts("wfq", demand, desk()) == [1, 3, 5, 6, 2, 4]
    # tenant 1 comes at 2.5 s, while a request with start 14 is in service: 14 + 7, tied with 21, then 28
    late = asked([0, 0, 0, 0, 2.5, 2.5], [1] * 6, tenant=[0, 0, 0, 0, 1, 1])
    assert firsts("wfq", late, desk()) == [1, 2, 3, 5, 4, 6]


def test_drr_serves_a_quantum_in_turn():
    # a quantum of two prompts: two of tenant 0, two of tenant 1, then tenant 0 again
    demand = asked([0] * 6, [1] * 6, tenant=[0, 0, 0, 0, 1, 1])
    assert firsts("drr:quantum=10,w_out=0", demand, desk()) == [1, 2, 5, 6, 3, 4]
    # three slots: the order is read anew after each take, so tenant 1 has the third
    assert firsts("drr:quantum=10,w_out=0", demand, desk(3)) == [1, 1, 2, 2, 1, 2]
    # a token out weighs 5 as well: one each
    assert firsts("drr:quantum=10,w_out=5", demand, desk()) == [1, 3, 5, 6, 2, 4]


def test_hrrn_prefers_who_waited_long_for_its_size():
    # 1 and 2 both saw the 100 tokens computed that came before them: ratios 100/40 and 100/80; at 4 s request 3
    # has seen 40 for its 10, request 2 has 140 for its 80
    demand = asked([0, 0.1, 0.2, 3.5], [3, 1, 1, 1], [100, 40, 80, 10])
    assert firsts("hrrn", demand, desk()) == [1, 4, 6, 5]
    assert firsts("hrrn:fcfs_over=0", demand, desk()) == [1, 4, 5, 6]


def test_shortest_uncached_goes_by_prompt():
    demand = asked([0, 0.1, 0.2], [3, 1, 1], [100, 80, 40])
    assert firsts("shortest-uncached", demand, desk()) == [1, 5, 4]


def test_ltr_goes_by_rank_and_promotes_the_starved():
    demand = asked([0, 0, 0, 1.5, 3.5], [2] * 5, forecast_tokens=[1.0, 5.0, 99.0, 2.0, 3.0])
    assert firsts("ltr", demand, desk()) == [1, 7, 9, 3, 5]
    # after four steps requests 1 and 2 are promoted, by rank; at 6 s request 4 has idled for three
    assert firsts("ltr:starve=4", demand, desk()) == [1, 5, 7, 3, 9]


def test_admission_by_memory_to_come():
    """5 tokens of prompt and 4 out hold 8 at most; the second and third have not been asked to wait in vain."""
    demand = asked([0, 0, 0], [4, 4, 4])
    # together three hold 24 in the end, two 16; conservative expects 10 out: two peak at 30, one at 15
    assert firsts("kv-aggressive:reserve=0", demand, desk(3, blocks=21)) == [1, 1, 1]
    assert firsts("mc-sf", demand, desk(3, blocks=27)) == [1, 1, 1]
    # with 26 the third waits for one token of the others: at 1 s they peak at 18 together; with 3 left of
    # each and 4 of the third 6 + 6 + 5 + 3 * 3 = 26
    assert firsts("mc-sf", demand, desk(3, blocks=26)) == [1, 1, 2]
    assert firsts("kv-conservative:limit_tokens=10,reserve=0", demand, desk(3, blocks=30)) == [1, 1, 5]


def test_kv_aggressive_pays_with_evictions_where_mc_sf_does_not():
    demand = asked([0] * 6, [30] * 6)
    rash, wise = (run(spec, demand, desk(6, blocks=100)) for spec in ("kv-aggressive:reserve=0", "mc-sf"))
    assert rash.preemptions.sum() > 0
    assert wise.preemptions.sum() == 0


def test_mc_sf_takes_the_shortest_first():
    demand = asked([0, 0.1, 0.2], [3, 9, 2])
    assert firsts("mc-sf", demand, desk()) == [1, 6, 4]


def test_boost_lets_a_short_prompt_pass_a_little():
    place = desk()._replace(costs=np.array([0.0, 1.0, 0.01, 0.0, 0.0, 0.0, 0.0]))
    demand = asked([0, 0.1, 0.2, 3.0], [2, 1, 1, 1], [100, 900, 100, 900])
    # prefill takes 10 and 2 s: with theta 0.5 they are put back 0.0135 and 0.917 s
    assert np.argsort(firsts("boost:theta=0.5", demand, place)).tolist() == [0, 2, 1, 3]
    assert np.argsort(firsts("boost:theta=1000", demand, place)).tolist() == [0, 1, 2, 3]


def test_plas_counts_the_whole_session():
    # the second call of session 7 has its first call's 3 s to its account, the other session nothing
    demand = asked([0, 2.5, 2.6], [3, 1, 1], session=[7, 7, 8])
    calm = "plas:q0_s=1.5,starve_s=100"
    assert firsts(calm, demand, desk()) == [1, 5, 4]
    assert firsts(calm, demand._replace(session=np.array([7, 6, 8])), desk()) == [1, 4, 5]


def test_plas_displaces_who_has_had_more_and_brings_it_back_when_starved():
    # at 3 s the first has had 3 s, past 1.5 s: it goes, and comes back on level 1
    demand = asked([0, 2.5], [6, 3])
    facts = run("plas:q0_s=1.5,starve_s=100", demand, desk())
    assert facts.first_token_s.tolist() == [1, 4]
    # request 1 sinks to level 1 at 5 s, but came later: request 0 displaces nobody of its own level
    assert facts.finished_s.tolist() == [9, 6]
    # starved after 1 s, on level 0 again while the other has sunk: it comes back at 5 s, and its account is new
    facts = run("plas:q0_s=1.5,starve_s=1", demand, desk())
    assert facts.preemptions.sum() > 1


def test_proserve_changes_from_deadlines_to_gain_when_short():
    """Two fill both slots until 8 s; then 20, 20 and 5 tokens wait, due at 5.1, 5.2 and 50.3 s, weights 1, 1, 8."""
    place = desk(sequences=2, budget=8)._replace(tiers=TWO._replace(weight=np.array([1.0, 8.0])))
    demand = asked([0, 0, 0.1, 0.2, 0.3], [8, 8, 1, 1, 1], [4, 4, 20, 20, 5], tier=[0, 0, 0, 0, 1])
    # over 60 s all can be done: by deadline, 8 8 4 for the first, 4 8 8 for the second, then the third
    assert firsts("proserve:horizon_s=60", demand, place) == [1, 1, 11, 13, 14]
    # over 1 s it can't: the first by deadline, then the third, (1 + 1) / 8 s against 3 + 1 s of the second
    assert firsts("proserve", demand, place) == [1, 1, 11, 14, 12]


SETTINGS = (
    "strict-tiers:preempt=1",
    "wfq:mean=1",
    "drr:quantum=100",
    "hrrn:fcfs_over=3",
    "ltr:starve=5,period=3,noise=0.5",
    "static-batch:limit_tokens=64",
    "orca:limit_tokens=64",
    "kv-conservative:limit_tokens=64",
    "kv-conservative:reserve=-1",
    "mc-sf:reserve=0.2",
    "plas:q0_s=0.2,starve_s=0.7",
    "plas:ratio=1,levels=3",
    "proserve:horizon_s=5",
    "boost:theta=20",
)


@pytest.mark.parametrize("spec", SETTINGS)
def test_other_settings_agree_in_every_mode(spec):
    """Sessions of several calls, scarce memory and slots."""
    demand = traffic(60, 10.0, seed=11)
    demand = demand._replace(session=np.random.default_rng(1).integers(-1, 12, 60))
    place = setup(blocks=90, sequences=10, budget=128)
    slow = simulate(demand, load(spec), place, "interpreted", audit=True)
    assert same(slow, simulate(demand, load(spec), place, "stepped", audit=True)) == []
    long = traffic(400, 9.0, seed=12, output=80)
    long = long._replace(session=np.random.default_rng(2).integers(-1, 60, 400))
    place = setup(blocks=700, sequences=30)
    stepped, jumped = (simulate(long, load(spec), place, mode, audit=True) for mode in ("stepped", "jumped"))
    assert close(stepped, jumped) == []
    assert stepped.totals.steps == jumped.totals.steps


def crowd() -> tuple[Demand, Setup]:
    """Answers of 120 tokens, sessions of ten calls, twelve slots and memory for fewer."""
    demand = traffic(200, 9.0, seed=0, output=120)
    sessions = np.random.default_rng(0).integers(-1, 20, 200)
    return demand._replace(session=sessions), setup(blocks=250, sequences=12)


@pytest.mark.parametrize("spec", ["drr", "ltr:starve=5", "plas", "mc-sf", "kv-conservative:limit_tokens=200"])
def test_an_own_time_keeps_jumps_true(spec):
    """Without it the jumped run is another one; with it, it is not."""
    demand, place = crowd()
    scheduler = load(spec)
    deaf = scheduler._replace(engine=scheduler.engine._replace(wake=None))
    stepped = simulate(demand, scheduler, place, "stepped")
    assert close(stepped, simulate(demand, scheduler, place, "jumped")) == []
    assert close(stepped, simulate(demand, deaf, place, "jumped")) != []


@pytest.mark.parametrize("spec", ["drr", "hrrn", "plas", "proserve"])
def test_an_order_that_events_change_is_read_anew(spec):
    demand, place = crowd()
    scheduler = load(spec)
    still = scheduler._replace(engine=scheduler.engine._replace(dynamic=False, wake=None))
    assert same(simulate(demand, scheduler, place), simulate(demand, still, place)) != []


DISTINCT = (
    *("static-batch:limit_tokens=64", "orca:limit_tokens=64", "kv-conservative:limit_tokens=64"),
    *(
        "kv-aggressive",
        "mc-sf",
        "strict-tiers",
        "strict-tiers:preempt=1",
        "ageing",
        "wfq",
        "wfq:mean=1",
        "drr",
    ),
    *("hrrn", "shortest-uncached", "ltr", "plas", "proserve", "boost"),
    *("edf", "sarathi", "sjf-pred", "fcfs-chunked", "fcfs-prefill"),
)


def test_no_two_are_the_same():
    """Equal results under pressure would make two names one policy."""
    demand, place = traffic(150, 14.0, seed=5), setup(blocks=120, sequences=12, budget=256)
    told = {name: simulate(demand, load(name), place).facts.finished_s.tobytes() for name in DISTINCT}
    assert len(set(told.values())) == len(DISTINCT)
    readers = ("lpm", "dlpm", "hrrn", "shortest-uncached", "fcfs-chunked")
    demand = kindred(demand, 5)
    told = {name: simulate(demand, load(name), place).facts.finished_s.tobytes() for name in readers}
    assert len(set(told.values())) == len(readers)
