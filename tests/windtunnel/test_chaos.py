"""`chaos`: scenarios are named, accounts are counted, and real faults lose nothing."""

import json

import numpy as np
import pytest

from loadgen.facts import FINISHED, REJECTED
from loadgen.replay.lag import lag_of
from loadgen.replay.run import Replayed
from loadgen.replay.tokens import tokens_at
from loadgen.replay.trails import Ending, Trails
from services.chaos import Load, Scenario, account, window
from services.scenarios import SCENARIOS
from windtunnel.chaos import page, table

LOAD = Load(requests=6, gap_s=0.1, prompt_tokens=20, output_tokens=10)


async def nothing(stage):
    """Never called."""


def told(edit):
    """The account of six requests of which all but the edited ones end well."""
    schedule = window(LOAD, "test")
    trails = Trails(schedule, checked=True)
    for asked in schedule.requests():
        trails.sent(asked.row, asked.due_s)
    edit(trails)
    for asked in schedule.requests():
        if trails.outcome[asked.row] < 0 and not trails.tokens[asked.row]:
            trails.took(asked.row, 0, tokens_at(asked.seed, 0, asked.output_tokens), 1.0)
            trails.ended(asked.row, Ending(FINISHED, "length", usage_tokens=asked.output_tokens), 1.0)
    trails.close("unfinished")
    replayed = Replayed(trails, lag_of(trails.due_s, trails.sent_s), None, 1.0, "", ())
    return account(Scenario("x", "nothing", nothing, LOAD), replayed)


def test_an_account_adds_up():
    """All finished is good; what never ends, comes twice or ends short is not."""
    fine = told(lambda trails: None)
    assert fine.good
    assert (fine.requests, fine.finished, fine.lost_requests) == (6, 6, 0)
    refused = told(lambda trails: trails.ended(2, Ending(REJECTED, "queue_full"), 1.0))
    assert refused.good
    assert (refused.finished, refused.refused) == (5, {"queue_full": 1})
    silent = told(lambda trails: trails.took(3, 0, [1], 1.0))
    assert not silent.good
    assert silent.lost_requests == 1
    twice = told(lambda trails: trails.took(1, 0, tokens_at(trails.seeds[1], 0, 4), 0.5) or again(trails))
    assert not twice.good
    assert twice.repeated_tokens == 4

    def short(trails):
        trails.took(4, 0, tokens_at(trails.seeds[4], 0, 2), 0.5)
        trails.ended(4, Ending(FINISHED, "length"), 0.6)

    assert not told(short).good


def again(trails):
    trails.took(1, 0, tokens_at(trails.seeds[1], 0, 4), 0.6)
    rest = int(trails.schedule.demand.output_tokens[1])
    trails.took(1, 4, tokens_at(trails.seeds[1], 4, rest - 4), 0.7)
    trails.ended(1, Ending(FINISHED, "length", usage_tokens=rest), 0.8)


def test_the_page_says_what_was_counted():
    """A row a scenario, and how it was made."""
    row = told(lambda trails: trails.ended(2, Ending(REJECTED, "queue_full"), 1.0))
    assert "| nothing | 6 | 5 | 1 queue_full | 0 | 0 | 0 | 0 | 0 |" in table([row])
    assert "windtunnel chaos --out docs/reliability.md" in page([row])


def test_the_synthetic_window_is_always_the_same():
    """Answers of two runs can be compared; ids differ, for a system may know an id that it has seen."""
    one, other = window(LOAD, "a"), window(LOAD, "b")
    assert np.array_equal(one.demand.output_tokens, other.demand.output_tokens)
    assert one.asked(3).seed == other.asked(3).seed
    assert one.asked(3).request_id != other.asked(3).request_id


def test_scenarios_are_listed(windtunnel):
    """By name; an unknown one is refused."""
    names = {row["name"] for row in json.loads(windtunnel("chaos", "--list", "--json").out)}
    assert names >= {one.name for one in SCENARIOS}
    assert windtunnel("chaos", "--scenario", "earthquake").code == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [one.name for one in SCENARIOS if one.name not in ("worker-kill", "workers-kill")]
)
def test_nothing_is_lost(windtunnel, name, tmp_path):
    """Over real processes; each ends with its account in order."""
    ran = windtunnel("chaos", "--scenario", name, "--dir", tmp_path, "--json")
    assert ran.code == 0, ran.out
    assert json.loads(ran.out)[0]["lost_requests"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_bench_runs(windtunnel):
    """Every request of a small bench finishes on every path."""
    ran = windtunnel("bench", "live", "--rate", 20, "--seconds", 2, "--runs", 1, "--streams", 50, "--json")
    assert ran.code == 0, ran.said
    told = json.loads(ran.out)
    assert all(row["finished"] == row["requests"] for block in told["latency"] for row in block["paths"])
    assert told["streams"]["finished"] == 50
