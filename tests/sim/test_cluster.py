"""Cluster policies at work on several engines: physics, controls, sessions and rejections."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from loadgen.demand import part
from loadgen.result import FINISHED, REASONS, REJECTED
from schedulers.load import cluster_names, find, load
from schedulers.view import Tiers
from sim.checks import kindred
from sim.run import simulate
from tests.sim.stage import TIERS, cases, close, same, setup, traffic

POLICIES = [name for name in cluster_names() if find(name).policy.dispatch]
RANKED = [name for name in POLICIES if not load(f"edf+{name}").control]
TAKERS = [name for name in POLICIES if name != "early-reject"]
DRAWN = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
PLACE = setup(blocks=400, sequences=24, engines=3)


def crowd(rate_per_s, seed=0, n=240):
    """Requests of sixty conversations of different lengths."""
    demand, draw = traffic(n, rate_per_s, seed=seed), np.random.default_rng(seed + 100)
    return demand._replace(session=np.minimum(draw.geometric(0.03, n), 60))


def run(name, demand, place=PLACE, engine="fcfs-chunked"):
    return simulate(demand, load(f"{engine}+{name}"), place)


@pytest.mark.parametrize("name", POLICIES)
@DRAWN
@given(case=cases())
def test_physics_hold_under_every_cluster_policy(name, case):
    """E1 to E5 audited at each step, jumped and stepped alike."""
    demand, place = case
    demand = demand._replace(session=np.arange(len(demand.arrival_s)) % 3 - 1)
    place, scheduler = place._replace(engines=3), load(f"fcfs-chunked+{name}")
    stepped = simulate(demand, scheduler, place, "stepped", audit=True)
    facts, fits = stepped.facts, demand.prompt_tokens + 1 <= place.capacity_tokens
    done = facts.outcome == FINISHED
    assert (done == fits).all() or (facts.reason[fits & ~done] == REASONS.index("policy")).all()
    assert (facts.arrival_s[done] <= facts.dispatched_s[done]).all()
    assert (facts.first_token_s[done] <= facts.finished_s[done]).all()
    room = np.maximum(place.capacity_tokens - demand.prompt_tokens, 1)
    assert (facts.output_tokens[done] == np.minimum(demand.output_tokens, room)[done]).all()
    assert close(stepped, simulate(demand, scheduler, place, "jumped", audit=True)) == []


@pytest.mark.parametrize("name", POLICIES)
def test_no_cluster_policy_sees_the_truth(name):
    """E7: a longer answer changes nothing that happened before the shorter one ended."""
    demand = crowd(40.0, seed=3, n=90)
    before = run(name, demand).facts
    for request in (10, 40):
        longer = demand.output_tokens.copy()
        longer[request] += 60
        after = run(name, demand._replace(output_tokens=longer)).facts
        early = demand.arrival_s < before.finished_s[request]
        assert np.array_equal(before.engine[early], after.engine[early])


@pytest.mark.parametrize("name", POLICIES)
def test_time_has_no_unit_for_a_dispatcher(name):
    """E8: doubling all times and step costs doubles every result, to the last bit."""
    demand = crowd(45.0, seed=1, n=120)
    tiers = Tiers(TIERS.ttft_s * 2, TIERS.tpot_s * 2, TIERS.e2e_s * 2, TIERS.weight)
    slow = PLACE._replace(costs=PLACE.costs * 2, tiers=tiers)
    once = run(name, demand).facts
    twice = run(name, demand._replace(arrival_s=demand.arrival_s * 2), slow).facts
    assert np.array_equal(once.engine, twice.engine)
    assert np.array_equal(once.finished_s * 2, twice.finished_s, equal_nan=True)


@pytest.mark.parametrize("name", TAKERS)
def test_waiting_grows_with_load(name):
    """No policy is flat in load."""
    slow, busy, flooded = (run(name, crowd(rate)).facts for rate in (5.0, 40.0, 160.0))
    means = [float(np.mean(facts.finished_s - facts.arrival_s)) for facts in (slow, busy, flooded)]
    assert means[0] < means[1] < means[2]


def equals(demand):
    """Pairs of policies with the same results."""
    facts = {name: run(name, demand) for name in POLICIES}
    return [pair for pair in combinations(POLICIES, 2) if same(facts[pair[0]], facts[pair[1]]) == []]


def test_cluster_policies_differ_where_prompts_share_prefixes():
    """Exact duplicates are said: where none do, two that go by prefixes go by the requests alone."""
    demand = crowd(150.0, seed=2)
    alike = ("least-requests", "lmetric", "prefix")
    assert equals(demand) == list(combinations(alike, 2))
    assert equals(kindred(demand, 2)) == []
    assert same(run("least-requests", demand), run("lmetric:pending=1", demand)) != []


def test_prefix_affinity_finds_more_in_the_caches():
    """Of all prompt tokens more are found where requests go to the engine that was sent their prefix."""
    demand = kindred(crowd(45.0, seed=4), 4)
    found = {name: run(name, demand).totals.cached_tokens for name in ("prefix", "lmetric", "least-requests")}
    assert found["prefix"] > 1.5 * found["least-requests"]
    assert found["lmetric"] > 1.2 * found["least-requests"]


@pytest.mark.parametrize("rate_per_s", [20.0, 45.0, 90.0])
def test_most_loaded_comes_last(rate_per_s):
    """The control that overloads one engine has the worst mean latency of all, on every window."""
    for seed in range(3):
        demand = crowd(rate_per_s, seed)
        means = {}
        for name in TAKERS:
            facts = run(name, demand).facts
            means[name] = float(np.mean(facts.finished_s - facts.arrival_s))
        assert max(means, key=means.__getitem__) == "most-loaded"
        assert means["most-loaded"] > 1.1 * max(means[name] for name in RANKED if name in means)


def test_looking_at_load_beats_luck():
    """Fewest requests, and two choices in part, wait less than a blind choice (mean over windows)."""

    def waits(name):
        facts = [run(name, crowd(60.0, seed)).facts for seed in range(6)]
        return float(np.mean([one.first_token_s - one.arrival_s for one in facts]))

    blind, two, fewest = waits("random-engine"), waits("p2c"), waits("least-requests")
    assert fewest < two < blind


def together(facts, session):
    """Share of requests that went to the engine that most of their session went to."""
    stayed = 0
    for one in np.unique(session):
        stayed += np.bincount(facts.engine[session == one]).max()
    return stayed / len(session)


def test_session_affinity_keeps_conversations_together():
    demand = crowd(45.0, seed=4)
    kept = {name: together(run(name, demand).facts, demand.session) for name in ("session", "random-engine")}
    assert together(run("session:spill=1000", demand).facts, demand.session) == 1.0
    assert kept["session"] > kept["random-engine"] + 0.1
    wide = together(run("session:spill=2", demand).facts, demand.session)
    assert kept["session"] < wide < 1.0


def missed(facts, request):
    """True if a request missed its tier's TTFT or its mean time between tokens."""
    ttft_s = facts.first_token_s[request] - facts.arrival_s[request]
    gaps = max(1, facts.output_tokens[request] - 1)
    tpot_s = (facts.finished_s[request] - facts.first_token_s[request]) / gaps
    tier = facts.tier[request]
    return bool(ttft_s > TIERS.ttft_s[tier] or tpot_s > TIERS.tpot_s[tier])


def test_early_rejection_rejects_only_what_would_miss():
    """Each rejected request, let in after all with those before it as they were, misses its target."""
    demand = crowd(150.0, seed=6)
    facts = run("early-reject", demand).facts
    rejected = np.flatnonzero(facts.outcome == REJECTED)
    assert 20 < len(rejected) < 60
    assert (facts.reason[rejected] == 2).all()
    assert (facts.engine[rejected] == -1).all()
    for request in rejected:
        kept = np.flatnonzero((facts.outcome == FINISHED) & (np.arange(240) < request))
        rows = np.append(kept, request)
        alone = run("least-requests", part(demand, rows)).facts
        assert np.array_equal(alone.engine[:-1], facts.engine[kept]), "the past is as it was"
        assert missed(alone, len(rows) - 1), request


def test_early_rejection_keeps_its_promises_better():
    """Under overload more of all arrivals meet their targets than if all are taken; idle, none is refused."""
    demand = crowd(300.0, seed=6)

    def met(name):
        facts = run(name, demand).facts
        return sum(not missed(facts, r) for r in range(240) if facts.outcome[r] == FINISHED)

    assert met("early-reject") > met("least-requests") + 20
    assert (run("early-reject", crowd(3.0, seed=6)).facts.outcome == FINISHED).all()
