"""What the bench holds against its targets: which figures, and what is said of one that was missed."""

from windtunnel.bench_targets import judged

ROW = {
    "path": "dispatcher, HTTP",
    "cpu_s": 0.001,
    "client_cpu_s": 0.001,
    "added_p50_ms": 2.0,
    "added_p99_ms": 9.0,
}


def told(**row):
    direct = {"path": "no dispatcher, HTTP", "cpu_s": 0.0, "client_cpu_s": 0.001}
    return {
        "machine": {"cores": 2, "load": 0.5},
        "latency": [{"rate_per_s": 100.0, "paths": [direct, ROW | row]}],
        "through": {"tokens_per_s": 60_000.0},
        "streams": {"open_most": 2000, "finished": 2000, "requests": 2000},
        "load_generator": {"lag_p99_s": 0.004},
    }


def missed(measured):
    return [row["what"] for row in judged(measured) if not row["reached"]]


def test_all_reached():
    assert missed(told()) == []
    assert len(judged(told())) == 6


def test_each_figure_can_miss_and_says_why():
    late = told(added_p50_ms=3.0, added_p99_ms=11.0, cpu_s=0.002)
    names = ["TTFT added at 100/s, HTTP, p50", "TTFT added at 100/s, HTTP, p99"]
    assert missed(late) == [*names, "dispatcher CPU a request at 100/s, HTTP"]
    assert "use 0.30 of 2 cores" in judged(late)[0]["limit"]
    busy = late | {"machine": {"cores": 2, "load": 3.0}}
    assert "no limit of the testbed" in judged(busy)[0]["limit"]
    few = told() | {"through": {"tokens_per_s": 49_000.0}, "load_generator": {"lag_p99_s": 0.02}}
    few["streams"] = {"open_most": 2000, "finished": 1999, "requests": 2000}
    assert missed(few) == ["tokens/s", "streams at once", "load generator's lag p99 at 1,000/s"]
