"""Dispatcher and two real engines as processes: exact answers, policies, moves, and an end that leaves nothing."""

import asyncio
import os
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from loadgen.plan import Fleet, Plan, TierSpec
from schedulers.errors import InputError
from services.client import Conversation
from services.live_run import Target, set_policy
from services.local import RealWorkers, Wish, alive, ask, start, stop
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.rpc.windtunnel.v1.dispatcher_pb2 import SubmitRequest
from services.worker.steps import read_log
from services.worker.vllm.prompts import drawn
from windtunnel.engines import profile_of

pytestmark = pytest.mark.timeout(900)
REQUESTS, LENGTH = 20, 120
FLEET = Fleet(engines=2, sequences_max=16, budget_max=512, block_tokens=32, blocks=400, model_tokens=2048)
RESTLESS = f"fcfs-chunked+{Path(__file__).with_name('restless.py')}:POLICY"


@pytest.fixture(scope="module")
def testbed(tiny, tmp_path_factory):
    """Two engines and their dispatcher, running."""
    folder = tmp_path_factory.mktemp("testbed")
    tiers = (TierSpec("fast", 2.0, 0.5, 0.5), TierSpec("slow", 20.0, 2.0, 0.5))
    fleet = replace(FLEET, profile=str(profile_of(str(tiny), paced=False)), prefix_cache=False)
    plan = Plan(
        name="real", windows="none", schedulers=("fcfs-chunked",), regions=(0.5,), tiers=tiers, fleet=fleet
    )
    real = RealWorkers(sys.executable, str(tiny))
    state = start(Wish(folder, plan, RESTLESS, RESTLESS, real=real, steps=folder / "steps"))
    yield state
    stop(folder)
    assert not any(map(alive, state.processes))
    until_s = time.monotonic() + 10.0
    while left_behind(folder) and time.monotonic() < until_s:
        time.sleep(0.1)  # the kernel is told to end an engine with its worker
    assert not left_behind(folder)


def left_behind(folder):
    """Processes that were started for a testbed and still run."""
    found = []
    for place in Path("/proc").glob("[0-9]*/environ"):
        try:
            here = (place.parent / "cwd").resolve()
            if here == folder.resolve():
                found.append((place.parent / "cmdline").read_text())
        except OSError:
            continue
    return found


def asked(number, run, vocabulary=2048, **sampling):
    """A request with a prompt of its own, the same in every run."""
    ids = drawn(40 + 7 * number, [], number + 1, vocabulary)
    sampling = {"max_tokens": LENGTH, "ignore_eos": True} | sampling
    return SubmitRequest(
        request_id=f"{run}-{number}", prompt=wire.Prompt(ids=wire.TokenIds(ids=ids)),
        sampling=wire.Sampling(**sampling), tier=number % 2, tenant="t", session=-1, forecast_tokens=LENGTH,
    )  # fmt: skip


async def answers(state, run, count=REQUESTS, **sampling):
    """Tokens and ending of each request of a run, sent at once."""

    async def one(talk, number):
        tokens, stream = [], talk.submit(asked(number, run, **sampling))
        async for event in stream:
            if event.WhichOneof("kind") == "tokens":
                tokens += event.tokens.tokens
        return tokens, stream

    async with Conversation(state.dispatcher.grpc) as talk:
        return await asyncio.gather(*(one(talk, number) for number in range(count)))


def switch(state, spec):
    """Let the testbed decide by another scheduler."""
    set_policy(Target(state.dispatcher.grpc, admin=state.dispatcher.http, admin_key=state.admin_key), spec)


@pytest.fixture(scope="module")
def moved(testbed):
    """Answers that were moved again and again while they decoded: 20 moves at least, or ten rounds."""
    rounds = []
    while (
        sum(stream.ending.migrations for told in rounds for _, stream in told) < 20 and len(rounds) < 10
    ):  # a busy machine makes fewer a round
        rounds.append(asyncio.run(answers(testbed, f"moved{len(rounds)}")))
    return rounds


@pytest.fixture(scope="module")
def unmoved(testbed, moved):
    """What the model says to each request when nothing moves."""
    switch(testbed, "fcfs-chunked+round-robin")
    told = asyncio.run(answers(testbed, "unmoved"))
    assert all(len(tokens) == LENGTH for tokens, _ in told)
    assert len({tuple(tokens) for tokens, _ in told}) == REQUESTS
    return [tokens for tokens, _ in told]


def test_engines_say_who_they_are_and_keep_exact_lengths(testbed, unmoved):
    rows = ask(testbed.dispatcher.http, "/workers")[1]["workers"]
    assert [row["driver"] for row in rows] == ["vllm", "vllm"]
    assert testbed.driver == "vllm"
    totals = [ask(one.http, "/totals")[1] for one in testbed.workers]
    assert sum(told["steps"] for told in totals) >= LENGTH
    assert {told["blocks"] for told in totals} == {FLEET.blocks}


def test_twenty_moves_by_recompute_lose_and_repeat_nothing(moved, unmoved, capsys):
    """Answers that were moved are to the token those of requests that stayed."""
    moves, stalls = 0, []
    for told in moved:
        for (tokens, stream), expected in zip(told, unmoved, strict=True):
            assert tokens == expected
            assert (stream.gaps, stream.repeated, stream.ending.reason) == (0, 0, "length")
            if stream.ending.migrations:
                moves += stream.ending.migrations
                stalls.append(stream.ending.longest_gap_s)
    assert moves >= 20
    quantiles = np.quantile(stalls, [0.5, 0.9, 1.0])
    with capsys.disabled():
        print(
            f"\n{moves} moves by recompute; longest gap of a moved answer, s, p50 p90 max: {quantiles.round(3)}"
        )


def test_a_policy_is_changed_under_load_and_one_that_vllm_cannot_run_is_not(testbed, unmoved):
    async def work():
        running = asyncio.create_task(answers(testbed, "switched"))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(switch, testbed, "edf+round-robin")
        return await running

    told = asyncio.run(work())
    assert [tokens for tokens, _ in told] == unmoved
    assert {ask(one.http, "/totals")[1]["policy"] for one in testbed.workers} == {"edf"}
    with pytest.raises(InputError, match="waiting_rank"):
        switch(testbed, "slai+round-robin")
    assert {ask(one.http, "/totals")[1]["policy"] for one in testbed.workers} == {"edf"}
    switch(testbed, "fcfs-chunked+round-robin")


def test_each_engines_process_logs_its_steps(testbed, unmoved):
    """A worker and the log of vLLM's own process count the same steps, and no token is missing."""
    tokens = Counter()
    for one in testbed.workers:
        steps, cut = read_log(Path(testbed.folder) / "steps" / f"{one.name}.jsonl")
        assert not cut
        missed = len(steps) - ask(one.http, "/totals")[1]["steps"]
        assert 0 <= missed < len(steps) / 20, (
            "a worker counts no step that served only those who had just moved"
        )
        assert all(step.end_s > step.start_s for step in steps)
        for step in steps:
            tokens.update(step.tokens)
    assert len(tokens) >= 2 * REQUESTS
    assert min(tokens.values()) >= 40 + LENGTH - 1  # a moved one shared out among both


def test_a_cancelled_request_gives_its_memory_back(testbed):
    async def work():
        async with Conversation(testbed.dispatcher.grpc) as talk:
            stream = talk.submit(asked(0, "cancelled", max_tokens=1500))
            async for event in stream:
                if event.WhichOneof("kind") == "tokens":
                    talk.cancel("cancelled-0")
            return stream

    stream = asyncio.run(work())
    assert stream.ending.reason == "client_gone"
    assert stream.next_index < 1500
    for _ in range(100):
        rows = ask(testbed.dispatcher.http, "/workers")[1]["workers"]
        if all(row["running"] + row["waiting"] == 0 for row in rows):
            break
        asyncio.run(asyncio.sleep(0.05))
    assert Counter(row["running"] for row in rows) == {0: 2}


@pytest.mark.parametrize(
    ("name", "prompt", "sampling", "why"),
    [
        ("token", [1, 2, 99_999], {}, "99999"),
        ("cold", [1, 2], {"temperature": -1.0}, "temperature"),
        ("hot", [1, 2], {"temperature": 1e30}, "temperature"),
        ("top-p", [1, 2], {"passed_on": b'{"top_p": 5}'}, "top_p"),
    ],
)
def test_a_request_that_the_engine_refuses_ends_alone(testbed, unmoved, name, prompt, sampling, why):
    """The client hears why, nothing waits for ever, and both engines serve on."""

    async def work():
        wrong = asked(0, f"wrong-{name}", **sampling)
        wrong.prompt.ids.ids[:] = prompt
        async with Conversation(testbed.dispatcher.grpc) as talk:
            stream = talk.submit(wrong)
            async for _ in stream:
                pass
            return stream

    ending = asyncio.run(asyncio.wait_for(work(), 20.0)).ending
    assert (ending.reason, ending.attempts) == ("bad_request", 1)
    assert why in ending.message
    assert [tokens for tokens, _ in asyncio.run(answers(testbed, f"after-{name}"))] == unmoved
    assert [ask(one.http, "/ready")[0] for one in testbed.workers] == [200, 200]


def test_draws_are_as_a_body_wants_them(testbed, unmoved):
    """Of one token to draw from, heat changes nothing; of all it does."""
    one, all_ = (
        [tokens for tokens, _ in asyncio.run(answers(testbed, f"top{most}", **drawn_from))]
        for most in (1, 0)
        for drawn_from in [{"temperature": 1.0, "passed_on": b'{"top_k": %d, "tools": []}' % most}]
    )
    assert one == unmoved
    assert all_ != unmoved


def test_text_is_answered_over_http_and_the_model_may_end_it(testbed):
    import json
    from urllib.request import Request, urlopen

    body = json.dumps({"model": "tiny", "prompt": "wind and water", "max_tokens": 9}).encode()
    request = Request(
        f"http://{testbed.dispatcher.http}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=60) as response:
        told = json.loads(response.read())
    assert told["usage"]["completion_tokens"] <= 9
    assert told["choices"][0]["text"]


def test_vllms_own_metrics_are_passed_on(testbed):
    from urllib.request import urlopen

    with urlopen(f"http://{testbed.workers[0].http}/metrics", timeout=10) as response:
        page = response.read().decode()
    assert "vllm:num_preemptions_total" in page
    assert "vllm:time_to_first_token_seconds_bucket" in page
    assert page.count("# TYPE vllm:num_requests_running gauge") == 1
    assert os.environ.get("VLLM_NO_USAGE_STATS") == "1"
