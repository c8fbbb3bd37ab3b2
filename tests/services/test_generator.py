"""The load generator's page says what the generator itself says, and tells Prometheus where it is."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from math import inf
from urllib.request import urlopen

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from loadgen.replay.run import Replay, ReplayRules
from schedulers.errors import InputError
from services.generator import RunPage, Shown, announce, shown_at
from services.live_run import Target
from services.secret import secret
from tests.loadgen.replay_stage import Prompt, Silent, schedule
from tests.loadgen.test_replay_run import virtual
from tests.services.test_metrics import at, values

TARGETS = ((0.1, inf, inf), (0.01, inf, inf), (inf, inf, inf))
LABELS = ("fcfs-chunked", "w-1", "0.85", "1")


def page_of(system, scored=(0, 20), midway=None):
    """Replay 20 requests of two tiers; return the page's samples, what was told, and the replay."""
    asked, page, registry = schedule(20), RunPage(), CollectorRegistry()
    registry.register(page)
    seen = []

    async def work(loop):
        replay = Replay(asked, system(loop), ReplayRules(drain_s=1.0), TARGETS)
        page.show(Shown("r1", LABELS, replay, scored))
        if midway is not None:
            loop.call_later(midway, lambda: seen.append(values(generate_latest(registry).decode())))
        return await replay.run(), replay

    told, replay = virtual(work)
    page.over(told, 0.0)
    return [*seen, values(generate_latest(registry).decode())], told, replay


def test_the_page_agrees_with_the_generators_own_count():
    """Answers take 50 ms: tier 0 meets its 100 ms, tier 1 misses its 10 ms, tier 2 has no target and no share."""
    (found,), told, replay = page_of(Prompt)
    for tier, share in enumerate(replay.attained()):
        met, scored = (
            at(found, f"windtunnel_replay_{name}_total", run="r1", tier=str(tier))
            for name in ("slo_met", "scored")
        )
        assert (None if scored is None else met / scored if scored else None) == share
    assert replay.attained() == (1.0, 0.0, None)
    assert at(found, "windtunnel_replay_slo_met_total", run="r1", tier="2") is None
    sent = sum(at(found, "windtunnel_replay_sent_total", run="r1", tier=tier) for tier in "012")
    ended = at(
        found, "windtunnel_replay_requests_total", run="r1", tier="0", outcome="finished", reason="length"
    )
    assert (sent, ended) == (20, 10)
    ttft = "windtunnel_replay_time_to_first_token_seconds"
    assert at(found, f"{ttft}_bucket", run="r1", tier="0", le="0.06") == 10
    assert at(found, f"{ttft}_bucket", run="r1", tier="0", le="0.04") == 0
    assert at(found, f"{ttft}_sum", run="r1", tier="0") == pytest.approx(0.5, abs=0.02)
    assert at(found, "windtunnel_replay_lag_exact_seconds", run="r1", quantile="0.99") == told.lag.p99_s
    assert at(found, "windtunnel_replay_valid", run="r1") == 1
    assert at(found, "windtunnel_replay_running", run="r1") == 0
    assert (
        at(
            found,
            "windtunnel_replay_info",
            run="r1",
            **dict(zip(("scheduler", "window", "region", "speed"), LABELS, strict=True)),
        )
        == 1
    )


def test_only_the_part_that_counts_is_judged():
    (found,), _, _ = page_of(Prompt, scored=(5, 10))
    assert at(found, "windtunnel_replay_scored_total", run="r1", tier="0") == 2
    assert at(found, "windtunnel_replay_slo_met_total", run="r1", tier="1") == 0


def test_midway_what_is_open_is_not_judged_and_nothing_is_late():
    (midway, end), _, _ = page_of(Silent, midway=1.0)
    assert at(midway, "windtunnel_replay_running", run="r1") == 1
    assert 5 <= sum(at(midway, "windtunnel_replay_open", run="r1", tier=tier) for tier in "01") <= 10
    assert at(midway, "windtunnel_replay_scored_total", run="r1", tier="0") == 0
    assert at(midway, "windtunnel_replay_unsent", run="r1") == 0
    assert at(end, "windtunnel_replay_scored_total", run="r1", tier="0") == 10
    assert at(end, "windtunnel_replay_slo_met_total", run="r1", tier="0") == 0


class Dispatcher(BaseHTTPRequestHandler):
    """Notes what a dispatcher's operator's door is told."""

    def do_PUT(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.said.append((self.path, self.headers["Authorization"], said))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_):
        pass


@pytest.fixture
def dispatcher():
    server = HTTPServer(("127.0.0.1", 0), Dispatcher)
    server.said = []
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_dispatcher_hears_where_the_page_is_and_that_it_is_gone(dispatcher):
    target = Target("", admin=f"127.0.0.1:{dispatcher.server_port}", admin_key="k")
    turns = iter([False, True])
    announce(target, "gen:1", lambda _: next(turns))
    assert [said["lease_s"] for _, _, said in dispatcher.said] == [15.0, 15.0, 0.0]
    assert dispatcher.said[0][:2] == ("/admin/replay", "Bearer k")
    assert dispatcher.said[0][2]["metrics"] == "gen:1"


def test_the_page_is_served_until_it_has_been_seen(dispatcher):
    """Whoever looked before sees how it ended; nobody is waited for who never looked."""
    target = Target("", admin=f"127.0.0.1:{dispatcher.server_port}", admin_key="k")
    with shown_at("127.0.0.1:0", target, "elsewhere") as page:
        page.over(None)
        while not dispatcher.said:
            pass
        port = dispatcher.said[0][2]["metrics"].removeprefix("elsewhere:")
        assert urlopen(f"http://127.0.0.1:{port}/metrics").status == 200
        assert page.looks == 1
        with pytest.raises(InputError, match="can't listen"), shown_at(f"127.0.0.1:{port}", target):
            pass
    assert dispatcher.said[-1][2]["lease_s"] == 0.0


def test_a_look_that_began_before_the_run_ended_has_not_seen_its_end():
    """It may lack the last requests; the run stays until somebody looks anew."""
    asked, page = schedule(20), RunPage()

    async def work(loop):
        replay = Replay(asked, Prompt(loop), ReplayRules(drain_s=1.0), TARGETS)
        return await replay.run(), replay

    told, replay = virtual(work)
    page.show(Shown("r1", LABELS, replay, (0, 20)))
    list(page.collect())
    early = page.collect()
    next(early)
    waits = threading.Thread(target=page.over, args=(told, 10.0))
    waits.start()
    list(early)
    waits.join(0.5)
    assert waits.is_alive()
    list(page.collect())
    waits.join(5.0)
    assert not waits.is_alive()


def test_a_secret_is_a_value_or_a_files(monkeypatch, tmp_path):
    monkeypatch.delenv("WT_TEST", raising=False)
    assert secret("WT_TEST") == ""
    (tmp_path / "key").write_text("from file\n")
    monkeypatch.setenv("WT_TEST_FILE", str(tmp_path / "key"))
    assert secret("WT_TEST") == "from file"
    monkeypatch.setenv("WT_TEST", "from value")
    assert secret("WT_TEST") == "from value"
    monkeypatch.delenv("WT_TEST")
    monkeypatch.setenv("WT_TEST_FILE", str(tmp_path / "none"))
    with pytest.raises(InputError, match="can't read the secret"):
        secret("WT_TEST")
