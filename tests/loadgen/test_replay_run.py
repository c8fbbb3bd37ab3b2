"""The open loop on a virtual clock: absolute times, honest lag, nothing lost, and a verdict."""

import asyncio
import subprocess
import sys
from math import inf, isnan, nan
from pathlib import Path

import looptime
import numpy as np
import pytest

from loadgen.facts import EXPIRED, FAILED, FINISHED, REJECTED
from loadgen.replay.lag import Lag, LagLimits, lag_of
from loadgen.replay.run import Replay, ReplayRules
from loadgen.replay.schedule import seed_of
from loadgen.replay.tokens import tokens_at
from loadgen.replay.trails import Ending, Moved, Trails
from loadgen.result import REASONS
from loadgen.tables import broken_facts
from schedulers.errors import InputError
from tests.loadgen.replay_stage import Prompt, Silent, schedule

SHORT = ReplayRules(drain_s=5.0)
TARGETS = ((0.1, inf, inf), (inf, inf, inf))


def virtual(work):
    """Run a coroutine function, given its loop, on a clock that jumps."""
    loop = looptime.new_event_loop()
    try:
        return loop.run_until_complete(work(loop))
    finally:
        loop.close()


def replayed(asked, system, rules=SHORT, until=None, notice=None):
    """Replay a schedule against a system; ``until`` does something meanwhile."""

    async def work(loop):
        sender = system(loop)
        replay = Replay(asked, sender, rules, TARGETS)
        if until is not None:
            until(loop, replay)
        return await replay.run(notice), sender

    return virtual(work)


def test_requests_go_out_at_their_times_whatever_the_system_does():
    """A server that never answers holds nobody back, and every request ends as unfinished."""
    told, sender = replayed(schedule(50), Silent)
    assert np.allclose(np.diff(sender.sent_s), 0.1, atol=1e-3)
    assert told.lag.p99_s < 1e-3
    assert told.valid
    assert told.trails.ends() == {("failed", "unfinished"): 50}
    assert "50 requests open" in told.stopped


def test_thousands_of_sends_do_not_drift(monkeypatch):
    """Each wait is for an absolute time: on a clock on which every sleep is too long, the last is as punctual."""
    sleep = asyncio.sleep

    async def oversleep(delay, *rest):
        await sleep(delay + 0.0007 if delay > 0.0 else delay, *rest)

    monkeypatch.setattr("loadgen.replay.run.asyncio.sleep", oversleep)
    told, sender = replayed(schedule(2_000, gap_s=0.0123), Silent, ReplayRules(drain_s=0.1))
    assert sender.sent_s[-1] - sender.sent_s[0] == pytest.approx(1_999 * 0.0123, abs=3e-3)
    assert told.lag.max_s < 3e-3


def test_a_speed_shortens_every_gap_alike():
    """One factor on the whole window."""
    once, twice = schedule(30), schedule(30, speed=2.0)
    assert (np.diff(twice.due_s) == np.diff(once.due_s) / 2.0).all()
    with pytest.raises(InputError, match="speed"):
        schedule(speed=0.0)


def test_a_stalled_client_shows_in_lag_and_latency():
    """The loop stands still for 2 s: all that was due meanwhile is late, and its latency says so."""

    def stall(loop, replay):
        def stand_still():
            replay._start_s -= 2.0  # the clock jumped by 2 s while nothing ran

        loop.call_later(1.0, stand_still)

    told, _ = replayed(schedule(40), Prompt, until=stall)
    late = told.trails.sent_s - told.trails.due_s
    assert (late > 1.0).sum() >= 9
    assert not told.valid
    assert "99th percentile of the sending lag" in told.faults[-1]
    facts = told.trails.facts(np.ones(40), np.ones(40))
    assert (facts.first_token_s - facts.arrival_s)[late > 1.0].min() > 1.0


def test_lag_is_absolute():
    """A constant delay of 100 ms is a median lag of 100 ms, not 0."""
    due_s = np.arange(10.0)
    lag = lag_of(due_s, due_s + 0.1)
    assert lag.p50_s == pytest.approx(0.1)
    assert lag_of(due_s, np.full(10, nan)) == Lag(0.0, 0.0, 0.0, 0, 10)


@pytest.mark.parametrize(
    ("lag", "faults"),
    [
        (Lag(0.010, 0.050, 9.0, 10, 0), 0),
        (Lag(0.0101, 0.050, 9.0, 10, 0), 1),
        (Lag(0.010, 0.0501, 9.0, 10, 0), 1),
        (Lag(0.0, 0.0, 0.0, 9, 1), 1),
        (Lag(0.1, 0.2, 0.3, 9, 1), 3),
    ],
)
def test_the_verdict_has_limits(lag, faults):
    """One over, one under, one unsent."""
    assert len(lag.faults(LagLimits())) == faults


def test_a_replay_that_is_stopped_keeps_what_was_measured():
    """Sent and unsent add up; what was under way is told as unfinished."""

    def interrupt(loop, replay):
        loop.call_later(0.25 + 1.92, replay.stop, "interrupted")

    told, _ = replayed(schedule(60), Prompt, until=interrupt)
    ends = told.trails.ends()
    assert ends == {("finished", "length"): 19, ("failed", "unfinished"): 1, ("failed", "unsent"): 40}
    assert (told.lag.sent, told.lag.unsent, told.stopped) == (20, 40, "interrupted")
    assert not told.valid
    assert broken_facts(told.trails.facts(np.ones(60), np.ones(60))) == []


def test_over_saturation_stops_early_and_says_so():
    """Its unsent rows are counted."""
    told, _ = replayed(schedule(60), Silent, ReplayRules(drain_s=0.1, stop_open=10))
    assert told.stopped == "over-saturated: 10 requests open"
    assert told.lag.sent in (10, 11), "the one that is just going out"
    assert told.lag.unsent == 60 - told.lag.sent


def test_turns_wait_for_the_answer_only_if_told_to():
    """Absolute turns keep their times; thinking ones move with slow answers."""
    parent = [-1, 0, 1, -1]
    slow = lambda loop: Prompt(loop, after_s=1.0)  # noqa: E731
    absolute, _ = replayed(schedule(4, parent=parent), slow)
    think, _ = replayed(schedule(4, parent=parent, turns="think"), slow)
    assert np.allclose(absolute.trails.sent_s, [0.0, 0.1, 0.2, 0.3], atol=1e-2)
    assert np.allclose(think.trails.sent_s, [0.0, 1.1, 2.2, 0.3], atol=2e-2)
    assert think.valid
    assert think.trails.ends() == {("finished", "length"): 4}
    with pytest.raises(InputError, match="turns"):
        schedule(turns="sometimes")


def test_progress_tells_rate_and_attainment_of_tiers_with_targets():
    """A tier without target has none, not 1; arrivals that failed count as missed."""
    ticks = []
    replayed(schedule(40), Prompt, notice=ticks.append)
    assert ticks[-1].sent > 30
    assert ticks[3].per_s == pytest.approx(10.0, abs=2.1)
    assert ticks[-1].attained == (1.0, None)
    late, _ = replayed(schedule(40), lambda loop: Prompt(loop, after_s=0.2))
    assert Replay.attained(_replay_of(late)) == (0.0, None)


def _replay_of(told):
    replay = Replay(told.trails.schedule, None, ReplayRules(), TARGETS)
    replay.trails = told.trails
    return replay


def test_facts_are_in_the_windows_time():
    """At twice the speed, latencies are stretched back; the laws of facts hold."""
    told, _ = replayed(schedule(30, speed=2.0), Prompt)
    facts = told.trails.facts(np.ones(30), np.ones(30))
    assert broken_facts(facts) == []
    assert np.allclose(facts.arrival_s, np.arange(30) * 0.1)
    assert np.allclose(facts.finished_s - facts.arrival_s, 0.1, atol=5e-3)
    assert (facts.output_tokens == 3).all()
    assert told.trails.gaps.sum() == 60


def trails(rows=4, **more):
    return Trails(schedule(rows, output=10, **more), checked=True)


def test_lost_repeated_and_false_tokens_are_counted():
    """By index, and by what each must be."""
    seen = trails()
    seed = seen.seeds[0]
    for row in range(4):
        seen.sent(row, 0.0)
    seen.took(0, 0, tokens_at(seed, 0, 4), 1.0)
    seen.took(0, 2, tokens_at(seed, 2, 4), 1.1)  # two again, two new
    seen.took(0, 8, tokens_at(seed, 8, 2), 1.2)  # two missing
    assert (seen.repeated[0], seen.lost[0], seen.tokens[0]) == (2, 2, 10)
    seen.took(1, 0, tokens_at(seed, 0, 3), 1.0)  # another request's
    assert seen.repeated[1] == 3
    seen.took(2, 0, 5, 1.0)
    seen.ended(2, Ending(FINISHED, "length", usage_tokens=6), 2.0)
    seen.ended(2, Ending(FINISHED, "length", usage_tokens=6), 2.0)
    assert seen.miscounted.tolist() == [False, False, True, False]
    assert seen.repeated[2] == 1


def test_moves_are_counted_by_way_with_their_bytes_and_downtime():
    """Times are scaled by the speed; a move after which no token came has no downtime."""
    seen = trails(speed=2.0)
    assert isnan(seen.moved()["move_stall_p50_s"])
    told = (Moved("nixl", 4096, 0.1), Moved("recompute", 0, 0.3, "it is short"), Moved("nixl", 8192))
    seen.sent(0, 0.0)
    seen.ended(0, Ending(FINISHED, "length", migrations=3, moves=told), 1.0)
    assert seen.moved() == {
        "moves_blocks": 0.0, "moves_nixl": 2.0, "moves_recompute": 1.0, "moved_bytes": 12288.0,
        "move_stall_p50_s": pytest.approx(0.4), "move_stall_p90_s": pytest.approx(0.56), "move_stall_max_s": 0.6,
    }  # fmt: skip


def test_every_reason_finds_its_name():
    """Outcomes and reasons of a live run, as results keep them."""
    seen = trails()
    for row, (outcome, reason) in enumerate(
        [(REJECTED, "too_long"), (REJECTED, "queue_full"), (EXPIRED, "deadline"), (FAILED, "never heard of")]
    ):
        seen.sent(row, 0.1 * row)
        seen.ended(row, Ending(outcome, reason), 1.0)
    facts = seen.facts(np.ones(4), np.ones(4))
    assert [REASONS[code] for code in facts.reason] == ["prompt_too_long", "queue_full", "deadline", "other"]
    assert broken_facts(facts) == []
    assert isnan(facts.dispatched_s[0])


def test_prompts_are_a_function_of_window_and_row():
    """Two processes with other hash seeds make the same bytes; blocks of one prefix are shared."""
    code = (
        "import sys; sys.path.insert(0, '.');"
        "from tests.loadgen.replay_stage import schedule; s = schedule(3);"
        "print([s.prompt_ids(row)[:9] for row in range(3)], [s.asked(row).seed for row in range(3)])"
    )
    root = Path(__file__).parents[2]
    told = [
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=root,
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    asked = schedule(3)._replace(
        hash_offsets=np.array([0, 2, 4, 4]), hash_ids=np.array([7, 8, 7, 9]), block_tokens=16
    )
    first, second, third = (asked.prompt_ids(row) for row in range(3))
    assert [len(one) for one in (first, second, third)] == [50, 50, 50]
    assert first[:16] == second[:16]
    assert first[16:32] != second[16:32]
    assert asked.hashes(1) == [7, 9]
    assert 0 < seed_of("ab", 1) < 1 << 63
