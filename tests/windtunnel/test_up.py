"""The testbed as real processes: it comes up, answers all kinds of clients, loses nothing when a worker dies."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from threading import Thread

import openai
import pytest

from services.local import Running, Wish, alive, ask, read_state, start, stop

pytestmark = pytest.mark.timeout(240)

SPEED = 5.0
"""Of steps and arrivals; the machine that runs the tests has few cores."""


@pytest.fixture(scope="module")
def plan():
    from windtunnel.up import live_plan

    return live_plan("quick", 2)


@pytest.fixture(scope="module")
def testbed(tmp_path_factory, plan):
    """A dispatcher and two workers; whatever the tests do to them, no process is left."""
    folder = tmp_path_factory.mktemp("testbed")
    spec = "fcfs-chunked+least-requests"
    state = start(Wish(folder, plan, spec, spec, SPEED, chaos=True))
    try:
        yield state
    finally:
        stop(folder, grace_s=5.0)
        assert not any(map(alive, state.processes))


@pytest.fixture(scope="module")
def window(tmp_path_factory) -> Path:
    """One window of 200 rows, cut to what a test can wait for by its region."""
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze
    from windtunnel.traffic import generated

    folder = tmp_path_factory.mktemp("frozen")
    freeze(generated("azure_surrogate", 2, "published", 1), folder, Recipe(kind="published", count=1, seed=1))
    return folder


def client(state):
    return openai.OpenAI(base_url=f"http://{state.dispatcher.http}/v1", api_key="none", max_retries=0)


def test_the_openai_client_is_answered(testbed):
    """Completions and chat, streamed and whole, with usage."""
    api = client(testbed)
    whole = api.completions.create(model="any", prompt="three words here", max_tokens=12)
    assert whole.usage.completion_tokens <= 12
    assert whole.choices[0].text.startswith(" ")
    assert whole.choices[0].finish_reason in ("stop", "length")
    chat = api.chat.completions.create(
        model="any", messages=[{"role": "user", "content": "hello"}], max_tokens=9
    )
    assert chat.choices[0].message.content
    asked = {"model": "any", "prompt": "again", "max_tokens": 15, "stream": True, "seed": 11}
    texts = [
        "".join(part.choices[0].text for part in api.completions.create(**asked) if part.choices)
        for _ in range(2)
    ]
    assert texts[0] == texts[1], "the same seed gives the same answer"
    assert [model.id for model in api.models.list().data]


def test_curl_is_answered(testbed):
    """A stream ends with [DONE], an impossible request with an error that names its reason."""
    url = f"http://{testbed.dispatcher.http}/v1/completions"

    def curl(**body):
        command = ["curl", "-sN", "-m", "20", url, "-H", "Content-Type: application/json", "-d", "@-"]
        sent = json.dumps(body)
        return subprocess.run(command, input=sent, capture_output=True, text=True, check=True).stdout

    told = curl(model="m", prompt="hi", max_tokens=5, stream=True)
    assert told.endswith("data: [DONE]\n\n")
    refused = json.loads(curl(model="m", prompt=[1] * 200_000, max_tokens=5))
    assert refused["error"]["code"] in ("too_long", "bad_request")


def replayed(windtunnel, testbed, window, out, *more):
    ran = windtunnel(
        "replay", window, "--dir", testbed.folder, "--out", out, "--region", "1.5", "--lag-p50-ms", 2000,
        "--lag-p99-ms", 20_000, "--progress", "none", "--json", *more,
    )  # fmt: skip
    assert "runs" in ran.out, ran.out
    return ran, json.loads(ran.out)["runs"]


def test_a_replay_gives_results_that_rank_and_report_read(windtunnel, testbed, window, tmp_path):
    """Two schedulers take turns; facts obey their laws, and nothing is lost or repeated."""
    specs = ("--scheduler", "fcfs-chunked+least-requests", "--scheduler", "edf+round-robin")
    ran, runs = replayed(windtunnel, testbed, window, tmp_path / "out", *specs)
    assert ran.code == 0, ran.said
    assert [run["scheduler"] for run in runs] == ["fcfs-chunked+least-requests", "edf"]
    for run in runs:
        assert run["ends"] == {"finished": {"length": 200}}
        assert not any(
            run[name] for name in ("lost_requests", "lost_tokens", "repeated_tokens", "miscounted")
        )
    verified = windtunnel("results", "verify", tmp_path / "out")
    assert verified.code == 0, verified.said
    ranked = windtunnel("rank", tmp_path / "out", "--json")
    assert json.loads(ranked.out)["runs"]["stored"] == 2
    assert windtunnel("report", tmp_path / "out").code == 0
    policies = {ask(one.http, "/totals")[1]["policy"] for one in testbed.workers}
    assert policies == {"edf"}
    again, none = replayed(windtunnel, testbed, window, tmp_path / "out", *specs)
    assert (again.code, none) == (0, [])


def test_a_replay_by_http_counts_the_same_tokens(windtunnel, testbed, window, tmp_path):
    """The prompt goes as token ids, the text that comes back is the seed's."""
    ran, runs = replayed(windtunnel, testbed, window, tmp_path / "out", "--http")
    assert ran.code == 0, ran.said
    assert runs[0]["ends"] == {"finished": {"length": 200}}
    assert (runs[0]["lost_tokens"], runs[0]["repeated_tokens"], runs[0]["miscounted"]) == (0, 0, 0)


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(begin, windtunnel, testbed, window, tmp_path):
    """Exit 130, the rows that were sent and those that were not, beside the results and never among them."""
    out = tmp_path / "out"
    command = begin(
        "replay", window, "--dir", testbed.folder, "--out", out, "--region", "0.3", "--progress", "plain"
    )
    for line in command.stderr:
        if " sent " in line:
            break
    time.sleep(1.0)
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)
    assert command.returncode == 130
    told = json.loads(next((out / "replays").glob("*.json")).read_text())
    assert told["kept_in"] == "partial"
    assert 0 < told["lag"]["sent"] < 200
    assert told["lag"]["sent"] + told["lag"]["unsent"] == 200
    assert windtunnel("results", "verify", out / "partial").code == 0
    assert windtunnel("rank", out).code == 2, "nothing of it is ranked"


def test_a_worker_that_is_killed_loses_nothing(windtunnel, testbed, window, tmp_path):
    """kill -9 in the middle: every accepted request ends, each token comes once; its place is told as dead."""
    victim = testbed.workers[0]
    before = ask(victim.http, "/totals")[1]["steps"]

    def kill_in_mid_stream():
        while ask(victim.http, "/totals")[1]["steps"] < before + 150:
            time.sleep(0.02)
        os.kill(victim.pid, signal.SIGKILL)

    killer = Thread(target=kill_in_mid_stream)
    killer.start()
    ran, runs = replayed(windtunnel, testbed, window, tmp_path / "out")
    killer.join()
    assert ran.code == 0, ran.said
    run = runs[0]
    assert sum(count for reasons in run["ends"].values() for count in reasons.values()) == 200
    assert set(run["ends"]) <= {"finished", "failed"}
    assert (run["lost_requests"], run["lost_tokens"], run["repeated_tokens"]) == (0, 0, 0)
    assert run["ends"]["finished"]["length"] == 200, "the other worker goes on with them"
    assert not alive(victim)
    assert run["engines_gone"] == 1
    told = windtunnel("status", "--dir", testbed.folder, "--json")
    assert told.code == 1
    assert [one["alive"] for one in json.loads(told.out)["processes"]] == [True, False, True]


def test_up_and_down_are_orderly(windtunnel, testbed, tmp_path):
    """A second testbed in the folder is refused, one in another folder is not; down twice is no error."""
    assert windtunnel("up", "--dir", testbed.folder).code == 2
    assert windtunnel("down", "--dir", tmp_path / "none", "--json").code == 0
    assert windtunnel("status", "--dir", tmp_path / "none").code == 0
    for flag, value in (("--label", "x"), ("--model", "m"), ("--speed", 2)):
        ran = windtunnel("replay", tmp_path, "--dir", testbed.folder, "--out", tmp_path / "o", flag, value)
        assert ran.code == 2
        assert flag in ran.said


def test_a_number_that_belongs_to_somebody_else_is_left_alone(tmp_path):
    """The state of a crashed testbed names a process that is another one now."""
    other = subprocess.Popen(["sleep", "60"])
    try:
        state = {
            "folder": str(tmp_path), "plan": "", "scheduler": "s", "speed": 1.0, "admin_key": "", "worker_key": "",
            "processes": [vars(Running("dispatcher", other.pid, 1))],
        }  # fmt: skip
        (tmp_path / "state.json").write_text(json.dumps(state))
        assert stop(tmp_path) == []
        time.sleep(0.05)
        assert other.poll() is None
        assert read_state(tmp_path) is None
    finally:
        os.kill(other.pid, signal.SIGKILL)
        other.wait()


def test_parameters_in_seconds_keep_pace(windtunnel):
    """At twice the speed a wait of 10 s is one of 5 s; what counts no seconds stays."""
    from schedulers.load import load
    from windtunnel.up import paced

    assert paced("ageing", 1.0) == "ageing"
    assert load(paced("ageing", 2.0)).engine_params == (5.0,)
    assert load(paced("vtc:w_in=3", 2.0)).engine_params == (3.0, 2.0)
    assert load(paced("ageing:age_s=4+least-requests", 4.0)).name == "ageing:age_s=1+least-requests"
