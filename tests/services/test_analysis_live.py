"""Live numbers: the queries say what they mean to a real Prometheus, and one that is away breaks nothing."""

import asyncio
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import httpx
import promql_parser
import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from services.analysis.config import AnalysisConfig
from services.analysis.queries import WINDOWS, replay_queries, run_queries, tier_queries, timeline_queries
from services.doors import free_port
from tests.services.analysis_stage import client_of

ROOT = Path(__file__).resolve().parents[2]
CONFIG = AnalysisConfig(prometheus="http://prometheus:9090")


def every_query():
    for window in WINDOWS:
        for queries in (
            tier_queries(window),
            run_queries(window),
            timeline_queries(window),
            replay_queries(),
        ):
            yield from queries.values()


def test_queries_are_promql_about_metrics_that_exist():
    documented = set(re.findall(r"`(windtunnel_[a-z0-9_]+)`", (ROOT / "docs" / "metrics.md").read_text()))
    asked = set()
    for query in every_query():
        promql_parser.parse(query)
        asked |= {name.removesuffix("_bucket") for name in re.findall(r"windtunnel_[a-z0-9_]+", query)}
    assert asked <= documented
    assert len(asked) > 15


def answering(respond):
    return httpx.MockTransport(respond)


def refuse(request):
    raise httpx.ConnectError("connection refused")


def hang(request):
    raise httpx.ReadTimeout("")


AWAY = {
    "refused": refuse,
    "hangs": hang,
    "another server": lambda request: httpx.Response(200, text="<html>hello</html>"),
    "an error page": lambda request: httpx.Response(502, text="bad gateway"),
    "a refusal": lambda request: httpx.Response(400, json={"status": "error", "error": "parse error"}),
    "no list": lambda request: httpx.Response(200, json={"status": "success", "data": None}),
    "JSON of another kind": lambda request: httpx.Response(200, json=[1]),
}


@pytest.mark.parametrize("respond", AWAY.values(), ids=AWAY)
async def test_prometheus_away_is_said_and_breaks_nothing_else(respond):
    async with client_of(CONFIG, answering(respond)) as client:
        told = await client.get("/api/live")
        assert (told.status_code, told.json()["error"]["code"]) == (503, "prometheus_away")
        page = await client.get("/now")
        assert page.status_code == 200
        assert "No live numbers" in page.text
        assert (await client.get("/")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        metrics = (await client.get("/metrics")).text
        assert "windtunnel_analysis_prometheus_errors_total 2.0" in metrics


async def test_without_a_prometheus_the_page_says_how_to_name_one():
    async with client_of(AnalysisConfig()) as client:
        assert "--prometheus" in (await client.get("/now")).text


async def test_nothing_running_is_no_error():
    empty = answering(lambda request: httpx.Response(200, json={"status": "success", "data": {"result": []}}))
    async with client_of(CONFIG, empty) as client:
        assert "Nothing runs" in (await client.get("/now")).text
        assert (await client.get("/api/live")).json()["tiers"] == []
        assert (await client.get("/api/live/line")).json() == {"window": "5m", "points": []}


@pytest.fixture
def prometheus(tmp_path):
    """A real Prometheus that scrapes a registry of ours every second: (address, registry)."""
    assert shutil.which("prometheus"), "install prometheus (.ci/needs)"
    registry, port = CollectorRegistry(), free_port()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [
            {"job_name": "it", "static_configs": [{"targets": [f"127.0.0.1:{server.server_port}"]}]}
        ],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    log = (tmp_path / "log").open("wb")
    process = subprocess.Popen(
        ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
         f"--web.listen-address=127.0.0.1:{port}"],
        stdout=log, stderr=log,
    )  # fmt: skip
    yield f"http://127.0.0.1:{port}", registry
    process.terminate()
    process.wait(20)
    log.close()
    server.shutdown()
    thread.join(10)
    server.server_close()


def ended(registry):
    """Counters of two tiers, as a dispatcher and a load generator show them."""
    count = {
        name: Counter(f"windtunnel_{name}", name, labels, registry=registry)
        for name, labels in {
            "arrivals_total": ("tier",), "requests_total": ("tier", "outcome", "reason"), "slo_met_total": ("tier",),
            "replay_scored_total": ("run", "tier"), "replay_slo_met_total": ("run", "tier"),
        }.items()
    }  # fmt: skip
    gauge = {
        name: Gauge(f"windtunnel_{name}", name, labels, registry=registry)
        for name, labels in {
            "replay_info": ("run", "scheduler", "window", "region", "speed"), "replay_running": ("run",),
            "replay_valid": ("run",), "replay_planned": ("run", "tier"), "replay_unsent": ("run",),
            "replay_lag_exact_seconds": ("run", "quantile"),
        }.items()
    }  # fmt: skip
    return count, gauge


@pytest.mark.slow
async def test_numbers_are_those_that_were_counted(prometheus):
    """Exactly, though series begin while they are watched: where ``increase`` would guess."""
    url, registry = prometheus
    count, gauge = ended(registry)
    gauge["replay_info"].labels("abc", "edf", "w-1", "0.95", "2").set(1)
    gauge["replay_running"].labels("abc").set(1)
    gauge["replay_valid"].labels("abc").set(0)
    gauge["replay_unsent"].labels("abc").set(4)
    gauge["replay_lag_exact_seconds"].labels("abc", "0.99").set(0.2)
    async with client_of(AnalysisConfig(prometheus=url)) as client:
        await until(client, lambda told: told["replays"])
        for tier, arrivals, met in (("0", 40, 30), ("1", 10, 0)):
            count["arrivals_total"].labels(tier).inc(arrivals)
            count["requests_total"].labels(tier, "finished", "length").inc(arrivals - 4)
            count["requests_total"].labels(tier, "rejected", "queue_full").inc(4)
            if met:
                count["slo_met_total"].labels(tier).inc(met)
                count["replay_slo_met_total"].labels("abc", tier).inc(met - 10)
            count["replay_scored_total"].labels("abc", tier).inc(arrivals)
            gauge["replay_planned"].labels("abc", tier).set(100)
        told = await until(client, lambda told: len(told["tiers"]) == 2 and told["replays"][0]["tiers"])
        assert [(one["arrivals"], one["ended"], one["attainment"]) for one in told["tiers"]] == [
            (40, 40, 0.75), (10, 10, 0.0)
        ]  # fmt: skip
        assert told["ends"] == [["finished", "length", 42], ["rejected", "queue_full", 8]]
        replay = told["replays"][0]
        assert (replay["scheduler"], replay["speed"], replay["running"], replay["valid"]) == (
            "edf",
            "2",
            True,
            False,
        )
        assert [one["attainment"] for one in replay["tiers"]] == [0.5, 0.0]
        assert replay["lag_p99_s"] == 0.2
        assert any("invalid" in words for words in replay["warnings"])
        assert "4 requests should have been sent and are not." in replay["warnings"]
        text = (await client.get("/now")).text
        assert "0.750" in text
        assert "w-1" in text


async def until(client, good, patience_s=60.0):
    """Ask until the answer is good."""
    end_s = time.monotonic() + patience_s
    while True:
        answer = await client.get("/api/live")
        if answer.status_code == 200 and good(answer.json()):
            return answer.json()
        assert time.monotonic() < end_s, answer.text
        await asyncio.sleep(0.5)
