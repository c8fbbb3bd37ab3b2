"""One engine against sums done by hand."""

import numpy as np
import pytest

from schedulers.cost import step_s
from schedulers.load import load
from sim.run import simulate
from tests.sim.stage import COSTS, HINGE, ask, same, setup, traffic

FCFS = load("fcfs-chunked")


def step(prefill=0, attention=0.0, decodes=0, kv=0.0, costs=COSTS):
    return step_s(costs, prefill, attention, decodes, kv)


@pytest.mark.parametrize("costs", [COSTS, HINGE])
def test_one_request_alone(costs):
    """The prompt's step gives the first token; each further token reads one more KV token."""
    told = simulate(ask([1.0], [100], [3]), FCFS, setup(costs=costs), "interpreted").facts
    first = 1.0 + step(100, 100 * 50.0, costs=costs)
    assert told.started_s[0] == 1.0
    assert told.first_token_s[0] == pytest.approx(first, rel=1e-12)
    last = first + step(decodes=1, kv=101, costs=costs) + step(decodes=1, kv=102, costs=costs)
    assert told.finished_s[0] == pytest.approx(last, rel=1e-12)
    assert told.longest_gap_s[0] == pytest.approx(step(decodes=1, kv=102, costs=costs), rel=1e-9)
    assert told.idle_ttft_s[0] == pytest.approx(first - 1.0, rel=1e-12)
    assert told.idle_e2e_s[0] == pytest.approx(last - 1.0, rel=1e-12)


def test_prompt_is_chunked_by_the_budget_and_decodes_ride_along():
    """Budget 64: the second prompt of 100 takes 63 beside a decode, then 37."""
    told = simulate(ask([0.0, 0.0], [64, 100], [4, 1]), FCFS, setup(budget=64), "interpreted").facts
    one = step(64, 64 * 32.0)
    two = one + step(63, 63 * 31.5, 1, 65)
    three = two + step(37, 37 * (63 + 18.5), 1, 66)
    assert told.first_token_s == pytest.approx([one, three], rel=1e-12)
    assert told.finished_s == pytest.approx([three + step(decodes=1, kv=67), three], rel=1e-12)


def test_an_evicted_request_recomputes_prompt_and_generated_tokens():
    """Five blocks: two prompts of 30 fit, their growth doesn't; the newer leaves and starts over."""
    told = simulate(ask([0.0, 0.0], [30, 30], [20, 20]), FCFS, setup(blocks=5), "interpreted", audit=True)
    assert told.facts.preemptions.sum() == 1
    loser = int(told.facts.preemptions.argmax())
    assert told.facts.finished_s[loser] > told.facts.finished_s[1 - loser]
    assert told.totals.evictions == 1
    # at 33 tokens each wants a third block and one is left; the loser's 32 tokens of KV are lost
    assert told.totals.recomputed_tokens == 32
    assert told.totals.prefill_tokens == 60 + 30 + 3
    assert told.facts.output_tokens.tolist() == [20, 20]


def test_the_sequence_cap_holds_and_queue_is_counted():
    """With one slot requests run one after the other."""
    told = simulate(ask([0.0] * 3, [10] * 3, [5] * 3), FCFS, setup(sequences=1), "interpreted", audit=True)
    order = np.argsort(told.facts.started_s)
    ends, starts = told.facts.finished_s[order], told.facts.started_s[order]
    assert starts[1:] == pytest.approx(ends[:-1])
    assert told.totals.queue_peak == 3
    assert told.totals.batch_mean == pytest.approx(1.0)


def test_a_prompt_that_can_never_fit_is_rejected_at_arrival_with_the_reason():
    """20 blocks hold 320 tokens: 319 and one more fit, 320 don't."""
    told = simulate(
        ask([0.0, 1.0], [320, 319], [5, 5]), FCFS, setup(blocks=20), "interpreted", audit=True
    ).facts
    assert told.outcome.tolist() == [1, 0]
    assert told.reason.tolist() == [1, 0]
    assert np.isnan(told.started_s[0])
    assert np.isnan(told.finished_s[0]), "it never finished, so it counts in no capacity"
    assert told.output_tokens.tolist() == [0, 1]  # cut where the engine's length ends


def test_cut_outputs_are_counted():
    """An answer longer than the engine can hold ends early, and the totals say so."""
    told = simulate(ask([0.0], [300], [100]), FCFS, setup(blocks=20), "stepped")
    assert told.facts.output_tokens[0] == 20
    assert told.totals.truncated == 1


def test_totals_add_up():
    """Tokens prefilled and decoded are those of the requests; busy time is the sum of steps."""
    told = simulate(ask([0.0, 3.0], [50, 70], [4, 6]), FCFS, setup(), "interpreted")
    assert told.totals.prefill_tokens == 120
    assert told.totals.decode_tokens == 3 + 5
    assert told.totals.steps == 4 + 6
    assert told.totals.gaps.sum() == 3 + 5
    spans = told.facts.finished_s - told.facts.arrival_s
    assert told.totals.busy_s == pytest.approx(spans.sum(), rel=1e-12)
    assert told.totals.engine_s == pytest.approx(told.facts.finished_s[1])


def test_no_request_at_all():
    """An empty window is an empty result."""
    told = simulate(ask([], [], []), FCFS, setup(), "interpreted")
    assert len(told.facts.arrival_s) == 0
    assert told.totals.steps == 0


@pytest.mark.parametrize(
    "spec", ["edf", "slo-guard", "srpt-limited", "mlfq-skipjoin", "proserve", "fcfs-prefill"]
)
def test_a_batch_that_is_left_unsorted_gets_the_same(spec, monkeypatch):
    """Where tokens reach all, the order among them decides nothing; where they don't, it is read."""
    demand, place = traffic(50, 12.0, seed=4), setup(blocks=50, sequences=16, budget=32)
    told = simulate(demand, load(spec), place, "interpreted")
    monkeypatch.setattr("sim.engine.blocks_for", lambda *_: 1 << 40)  # never seem to reach all
    assert same(told, simulate(demand, load(spec), place, "interpreted")) == []
