"""docs/metrics.md is what the services show, vLLM's names are all there, and no label can grow without bound."""

import json

import pytest

from windtunnel import metrics
from windtunnel.metrics import DOCS, LABELS, families, page

VLLM = [
    "num_requests_running",
    "num_requests_waiting",
    "num_requests_waiting_by_reason",
    "kv_cache_usage_perc",
    "engine_sleep_state",
    "num_preemptions_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "prompt_tokens_total",
    "generation_tokens_total",
    "request_success_total",
    "admission_rejections_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_num_preemptions",
    "request_prompt_tokens",
    "request_generation_tokens",
    "cache_config_info",
]
"""What vLLM's own dashboards ask for."""


@pytest.fixture(scope="module")
def found():
    return families()


def test_the_page_is_current():
    assert DOCS.read_text() == page(), "run `windtunnel metrics --write`"


def test_a_worker_shows_what_vllms_dashboards_ask_for(found):
    names = {one.name: one for one in found["Worker"]}
    assert [name for name in VLLM if f"vllm:{name}" not in names] == []
    assert all({"model_name", "engine"} <= set(names[f"vllm:{name}"].labels) for name in VLLM)


def test_every_label_is_bounded_and_every_metric_explained(found):
    for rows in found.values():
        assert {label for one in rows for label in one.labels} - set(LABELS) == set()
        assert [one.name for one in rows if not one.says] == []
    ours = [one.name for source in ("Dispatcher", "Load generator", "Scaler") for one in found[source]]
    assert [name for name in ours if not name.startswith(("windtunnel_", "process_"))] == []
    ours = [name for name in ours if name.startswith("windtunnel_")]
    assert len(ours) == len(set(ours)), "two services show one name"


def test_the_command_writes_only_what_differs(windtunnel, monkeypatch, tmp_path):
    monkeypatch.setattr(metrics, "DOCS", tmp_path / "docs" / "metrics.md")
    assert windtunnel("metrics", "--write").code == 2
    (tmp_path / "docs").mkdir()
    assert json.loads(windtunnel("metrics", "--write", "--json").out)["changed"] is True
    assert windtunnel("metrics", "--write").out == "docs/metrics.md is current.\n"
    assert windtunnel("metrics").out == page() == (tmp_path / "docs" / "metrics.md").read_text()
