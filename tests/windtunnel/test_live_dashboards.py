"""Every panel's query, asked of a real Prometheus that scraped a real run of the testbed on this machine."""

import json
import math
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

import pytest

from deploy.grafana.boards import BOARDS
from services.local import Wish, alive, start, stop
from tests.deploy.test_dashboards import ROOT, board, plain, shown
from windtunnel.up import live_plan

pytestmark = [pytest.mark.slow, pytest.mark.timeout(550)]

SPEED = 5.0
SCHEDULERS = ("fcfs-chunked+least-requests", "edf+round-robin")


def ask(port, path, **query):
    url = f"http://127.0.0.1:{port}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    try:
        with urllib.request.urlopen(url, timeout=20) as reply:
            return json.load(reply)["data"]
    except urllib.error.HTTPError as error:
        return json.load(error)["error"]


def until(what, ready, patience_s=60.0):
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        try:
            if found := ready():
                return found
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {patience_s:g} s")


@pytest.fixture(scope="module")
def run(tmp_path_factory, windtunnel):
    """Prometheus with the project's own rules, a testbed at five times real time, two replays; (port, runs)."""
    if shutil.which("prometheus") is None:
        pytest.skip("Prometheus is not installed (apt-get install prometheus): no dashboard met real data")
    folder = tmp_path_factory.mktemp("observed")
    plan = live_plan("quick", 2)
    state = start(Wish(folder / "testbed", plan, SCHEDULERS[0], SCHEDULERS[0], SPEED))
    server = None
    try:
        settings = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
        static = f'static_configs: [{{targets: ["{state.dispatcher.http}"]}}]'
        settings = settings.replace(
            "dns_sd_configs: [{names: [dispatcher], type: A, port: 8000, refresh_interval: 5s}]", static
        )
        settings = settings.replace("http://dispatcher:8000", f"http://{state.dispatcher.http}")
        for kind, usual in (("refresh", 5), ("scrape", 2), ("evaluation", 5)):  # runs are short here
            assert f"{kind}_interval: {usual}s" in settings
            settings = settings.replace(f"{kind}_interval: {usual}s", f"{kind}_interval: 1s")
        (folder / "prometheus.yml").write_text(settings)
        shutil.copy(ROOT / "deploy/prometheus/rules.yml", folder)
        with socket.create_server(("127.0.0.1", 0)) as door:
            port = door.getsockname()[1]
        command = ["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                   f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]  # fmt: skip
        server = subprocess.Popen(command, cwd=folder)
        jobs = {"windtunnel-dispatcher", "windtunnel-worker"}
        until("workers are scraped", lambda: jobs <= {
            one["labels"]["job"] for one in ask(port, "targets")["activeTargets"] if one["health"] == "up"
        })  # fmt: skip
        yield port, replayed(windtunnel, folder, state)
    finally:
        if server is not None:
            server.terminate()
            server.wait()
        stop(folder / "testbed", grace_s=5.0)
        assert not any(map(alive, state.processes))


def replayed(windtunnel, folder, state):
    """Two schedulers on one window; returns the summaries."""
    from loadgen.candidate import Recipe
    from loadgen.manifest import freeze
    from windtunnel.traffic import generated

    freeze(
        generated("azure_surrogate", 2, "published", 1),
        folder / "windows",
        Recipe(kind="published", count=1, seed=1),
    )
    specs = [word for spec in SCHEDULERS for word in ("--scheduler", spec)]
    ran = windtunnel(
        "replay", folder / "windows", "--dir", state.folder, "--out", folder / "out", "--region", "0.85", *specs,
        "--metrics", "127.0.0.1:0", "--lag-p50-ms", 2000, "--lag-p99-ms", 20_000, "--progress", "none", "--json",
    )  # fmt: skip
    assert ran.code == 0, ran.said
    return json.loads(ran.out)["runs"]


def values(port, expression, span_s=120):
    """All finite values of a range query."""
    end_s = time.time()
    told = ask(port, "query_range", query=expression, start=end_s - span_s, end=end_s, step=2)
    assert isinstance(told, dict), f"{told}: {expression}"
    return [
        float(value) for one in told["result"] for _, value in one["values"] if math.isfinite(float(value))
    ]


@pytest.mark.parametrize("name", BOARDS)
def test_every_panel_has_data(run, name):
    port, runs = run
    chosen = {
        "run_a": runs[0]["run_id"],
        "run_b": runs[1]["run_id"],
        "__rate_interval": "10s",
        "__range": "3m",
    }
    empty = [
        f"{panel['title']}: {target['expr']}"
        for panel in shown(name)
        for target in panel["targets"]
        if not values(port, plain(target["expr"], **chosen))
    ]
    assert empty == []
    for one in board(name)["templating"]["list"]:
        if one["type"] == "query":
            label = one["query"].removesuffix(")").rpartition(" ")[2]
            assert ask(port, f"label/{label}/values"), one["name"]


def test_what_the_panels_say_is_what_the_runs_were(run):
    """Requests by tier add up, attainment is a share, the run's mark is there, nothing is lost."""
    port, runs = run
    for told in runs:
        where = f'{{run="{told["run_id"]}"}}'
        ended = values(port, f"sum(max_over_time(windtunnel_replay_requests_total{where}[3m]))")
        assert ended[-1] == told["requests"], "the end of the run was scraped"
        assert max(values(port, f"max_over_time(windtunnel_replay_running{where}[3m])")) == 1
        assert set(values(port, f"last_over_time(windtunnel_replay_lost_tokens_total{where}[3m])")) == {0.0}
        shares = values(port, f"last_over_time(windtunnel:replay_attainment:ratio{where}[3m])")
        assert shares
        assert all(0.0 <= share <= 1.0 for share in shares)
    arrived = values(port, "sum(windtunnel_arrivals_total)")[-1]
    assert arrived == sum(told["requests"] for told in runs)
    assert values(port, "sum(windtunnel_requests_total)")[-1] == arrived
    switched = values(port, "windtunnel_policy_switches_total")
    assert switched[-1] == 1, "the first replay kept the policy, the second one brought its own"


def test_rules_load_and_no_alert_says_that_something_broke(run):
    port, _ = run
    rules = [rule for group in ask(port, "rules")["groups"] for rule in group["rules"]]
    assert [rule["name"] for rule in rules if rule["health"] != "ok"] == []
    fired = {one["labels"]["alertname"] for one in ask(port, "alerts")["alerts"] if one["state"] == "firing"}
    assert fired & {"WindtunnelTokensWrong", "WindtunnelWorkerLost", "WindtunnelRequestsUnaccounted"} == set()
