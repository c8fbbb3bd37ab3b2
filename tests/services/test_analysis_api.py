"""The analysis service's API: numbers equal those of the analysis, every failure is told, nothing else is served."""

import asyncio
import os
import subprocess
import sys
import tempfile

import httpx
import numpy as np
import pytest

from analysis.findings import find
from analysis.scores import scores
from analysis.statistics import statistics
from loadgen.facts import FINISHED
from services.analysis import traffic as traffic_module
from services.analysis.config import AnalysisConfig, checked
from services.analysis.guard import HEADERS
from tests.services.analysis_stage import WINDOW, build, client_of, damaged, key, served


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """Results that no test changes."""
    return build(tmp_path_factory.mktemp("stage"))


@pytest.fixture
async def client(stage):
    async with client_of(stage.config()) as found:
        yield found


def met_by_hand(facts, tier, ttft_s, tpot_s):
    """The share of a tier's arrivals that met both targets, from the facts alone."""
    own = facts.tier == tier
    with np.errstate(invalid="ignore"):
        good = (facts.outcome == FINISHED) & (facts.first_token_s - facts.arrival_s <= ttft_s)
        good &= (facts.finished_s - facts.first_token_s) / 10 <= tpot_s
    return good[own].mean()


@pytest.mark.slow
def test_it_starts_without_the_libraries_of_statistics():
    """They take seconds to load, and most pages need none of them."""
    heavy = {"scipy", "statsmodels", "arch", "numba"}
    code = f"import sys, services.analysis.app; print(*sorted({heavy} & set(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []


async def test_runs_are_listed_searched_and_paged(client, stage):
    studies = {one["id"]: one for one in (await client.get("/api/studies")).json()["studies"]}
    assert set(studies) == {"results.sweep", "results.sim", "results.live"}
    assert studies["results.live"]["runs"] == 3
    assert studies["results.live"]["invalid"] == 1
    assert studies["results.sweep"]["runs"] == 2 * 2 * 8 * len(studies["results.sweep"]["schedulers"])
    found = (await client.get("/api/runs", params={"q": "LIVE edf"})).json()
    assert [(one["scheduler"], one["driver"]) for one in found["runs"]] == [("edf", "live")]
    assert found["total"] == 1
    pages = [
        (await client.get("/api/runs", params={"study": "results.sim", "size": 2, "page": page})).json()
        for page in (1, 2, 3)
    ]
    assert [len(page["runs"]) for page in pages] == [2, 1, 0]
    assert {page["total"] for page in pages} == {3}
    best = (await client.get("/api/runs", params={"study": "results.sim", "sort": "attainment"})).json()[
        "runs"
    ]
    assert [one["scheduler"] for one in best] == ["edf", "fcfs", "sjf"]
    invalid = (await client.get("/api/runs", params={"standing": "invalid"})).json()["runs"]
    assert [one["scheduler"] for one in invalid] == ["late"]


async def test_a_run_has_the_attainment_of_its_requests(client):
    run_id = key("edf", "live").run_id
    told = (await client.get(f"/api/runs/results.live/{run_id}")).json()
    facts = served(10.0, 1.25)
    by_hand = [met_by_hand(facts, 0, 0.5, 0.05), met_by_hand(facts, 1, 2.0, 0.1)]
    assert [tier["attainment"] for tier in told["tiers"]] == pytest.approx(by_hand)
    assert told["run"]["attainment"] == pytest.approx(np.mean(by_hand))
    assert 0.1 < by_hand[0] < by_hand[1] < 1.0
    assert [tier["ends"] for tier in told["tiers"]] == [
        {"finished": 100, "rejected": 0, "expired": 0, "failed": 0},
        {"finished": 90, "rejected": 10, "expired": 0, "failed": 0},
    ]
    assert sum(sum(one["arrivals"]) for one in told["timeline"]) == 200
    assert "Load generator: the loop was 60 ms late." in told["warnings"]
    assert "3 tokens were lost." in told["warnings"]
    assert {one["driver"] for one in told["beside"]} == {"sim", "live"}


async def test_an_invalid_run_says_why(client):
    told = (await client.get(f"/api/runs/results.live/{key('late', 'live').run_id}")).json()
    assert told["run"]["standing"] == "invalid"
    assert any("never ranked" in words for words in told["warnings"])
    assert "Replay invalid: the 99th percentile of its lag was 200 ms." in told["warnings"]


async def test_live_against_simulated(client):
    told = (await client.get("/api/compare", params={"a": "results.sim", "b": "results.live"})).json()
    assert told["pairs"] == 3
    assert told["pooled"]["ttft"]["signed_p50"] == pytest.approx(0.25)
    assert told["pooled"]["tpot"]["p90"] == pytest.approx(0.0, abs=1e-9)
    assert {one["tau_b"] for one in told["ranks"] if one["metric"] == "ttft_p95_s"} == {1.0}


async def test_one_run_against_another(client):
    a, b = (f"results.sim/{key(name, 'sim').run_id}" for name in ("edf", "sjf"))
    told = (await client.get("/api/compare", params={"a": a, "b": b})).json()
    change = {one["metric"]: one for one in told["differences"]}["ttft_p50_s"]
    assert change["relative"] == pytest.approx(2.0)
    assert told["errors"][0]["ttft"]["signed_p50"] == pytest.approx(2.0)
    assert told["tiers"][0][0]["attainment"] > told["tiers"][1][0]["attainment"]
    half = await client.get("/api/compare", params={"a": a, "b": "results.live"})
    assert half.status_code == 404


async def test_maps_are_those_of_the_analysis(client, stage):
    found = find(stage.sweep)
    family = next(one for one in statistics(found).families if one.name == "sources")
    told = (await client.get("/api/portability/results.sweep")).json()
    assert told["counts"] == {name: family.counts.get(name, 0) for name in told["counts"]}
    assert told["total"] == family.size == len(told["hypotheses"])
    assert told["matrices"][0]["labels"] == ["azure_surrogate", "burstgpt_surrogate"]
    only = (
        await client.get("/api/portability/results.sweep", params={"scheduler": "edf", "region": "1.1"})
    ).json()
    assert 0 < only["total"] < told["total"]
    assert all("edf" in (one["a"], one["b"]) and one["region_x"] == "1.1" for one in only["hypotheses"])
    by_load = (await client.get("/api/portability/results.sweep", params={"axis": "region"})).json()
    assert by_load["matrices"][0]["labels"] == ["0.85", "1.1"]
    wrong = await client.get("/api/portability/results.sweep", params={"source": "nowhere"})
    assert wrong.status_code == 422


async def test_down_to_the_windows(client, stage):
    one = (await client.get("/api/portability/results.sweep")).json()["hypotheses"][0]
    names = ("a", "b", "source_x", "region_x", "metric_x", "source_y", "region_y", "metric_y")
    told = (
        await client.get("/api/portability/results.sweep/pair", params={name: one[name] for name in names})
    ).json()
    cell = scores(find(stage.sweep).study, one["source_x"], one["region_x"], one["metric_x"])
    a, b = (cell.values[cell.schedulers.index(one[name])] for name in ("a", "b"))
    side = told["sides"][0]
    assert {row["window_id"]: row["difference"] for row in side["windows"]} == pytest.approx(
        dict(zip(cell.windows, (a - b).tolist(), strict=True))
    )
    assert side["mean"] == pytest.approx(one["difference_x"])
    assert side["low"] < side["mean"] < side["high"]
    run = (await client.get(f"/api/runs/results.sweep/{side['windows'][0]['run_a']}")).json()["run"]
    assert (run["scheduler"], run["window_id"]) == (one["a"], side["windows"][0]["window_id"])


async def test_tiers_of_a_study(client):
    told = (await client.get("/api/tiers/results.sim")).json()
    assert told["names"] == ["interactive", "server"]
    assert told["measured"] == 3
    best = told["cells"][0]
    facts = served(10.0, 1.0)
    assert best["scheduler"] == "edf"
    assert best["tiers"] == pytest.approx([met_by_hand(facts, 0, 0.5, 0.05), met_by_hand(facts, 1, 2.0, 0.1)])
    assert (await client.get("/api/tiers/results.sim/answer")).status_code == 404
    without = (await client.get("/api/tiers/results.sweep")).json()
    assert without["measured"] == 0
    assert all(cell["tiers"] == [] and cell["attainment"] is not None for cell in without["cells"])


async def test_a_damaged_shard_is_told_and_hides_nothing_else(tmp_path):
    stage = build(tmp_path)
    folder = damaged(stage)
    async with client_of(stage.config()) as client:
        listed = (await client.get("/api/runs", params={"study": "results.broken"})).json()
        whole = (await client.get("/api/runs", params={"study": "results.sweep"})).json()
        assert 0 < listed["total"] < whole["total"]
        (problem,) = listed["problems"]
        assert "damaged" in problem["what"]
        assert problem["where"].startswith("results/broken/runs/")
        refused = await client.get("/api/portability/results.broken")
        assert refused.status_code == 422
        error = refused.json()["error"]
        assert error["code"] == "bad_data"
        assert error["where"] == problem["where"]
        assert str(tmp_path) not in refused.text
        page = await client.get("/portability/results.broken")
        assert page.status_code == 422
        assert problem["where"] in page.text
        (folder / "runs").joinpath(os.path.basename(problem["where"])).unlink()
        mended = await client.get("/api/portability/results.broken")
        assert mended.status_code == 200


async def test_results_that_come_later_are_seen(tmp_path):
    (tmp_path / "out").mkdir()
    config = checked(AnalysisConfig(results=(tmp_path / "out",)))
    async with client_of(config) as client:
        assert (await client.get("/api/studies")).json() == {"studies": []}
        assert "No results yet" in (await client.get("/")).text
        build(tmp_path / "out" / "later")
        assert len((await client.get("/api/studies")).json()["studies"]) == 3


@pytest.mark.parametrize(
    "path",
    [
        "/api/runs/..%2f..%2fetc/passwd", "/api/runs/results.sim/..%2f..%2fplan", "/runs/results.sim/%2e%2e",
        "/assets/..%2fapp.js", "/assets/../layout.html.j2", "/assets/layout.html.j2", "/portability/..%2f..",
        "/tiers/%00", "/api/tiers/~root",
    ],
)  # fmt: skip
async def test_nothing_outside_is_served(client, path):
    answer = await client.get(path)
    assert answer.status_code == 404
    assert "root:" not in answer.text


async def test_only_files_of_the_folders_can_be_pointed_to(tmp_path):
    stage = build(tmp_path)
    (tmp_path / "secret.csv").write_text((stage.traffic / "good.csv").read_text())
    (stage.traffic / "linked.csv").symlink_to(tmp_path / "secret.csv")
    async with client_of(stage.config()) as client:
        files = (await client.get("/api/traffic/files")).json()["files"]
        assert files == ["traffic/bad.csv", "traffic/good.csv"]
        for name in (
            "../secret.csv",
            "traffic/../../secret.csv",
            "traffic/linked.csv",
            str(tmp_path / "secret.csv"),
        ):
            assert (await client.post("/api/traffic/named", json={"file": name})).status_code == 404


async def test_every_answer_is_guarded(client):
    for path in ("/", "/api/studies", "/nope", "/metrics", "/assets/style.css", "/api/runs?page=0"):
        answer = await client.get(path)
        assert {name: answer.headers.get(name) for name in HEADERS} == HEADERS
    refused = await client.get("/", headers={"host": "evil.example"})
    assert refused.status_code == 400
    assert refused.headers["x-content-type-options"] == "nosniff"


@pytest.mark.slow
async def test_a_file_is_characterised(client):
    told = (await client.post("/api/traffic/named", json={"file": "traffic/good.csv"})).json()
    assert told["statistics"]["rows"] == 400
    assert told["statistics"]["rate_per_s"] == pytest.approx(400 / 99.75)
    assert sum(told["rates"]) * told["rate_width_s"] == pytest.approx(400)


@pytest.mark.slow
async def test_an_upload_leaves_nothing_behind(client, stage, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    content = (stage.traffic / "good.csv").read_bytes()
    told = await client.post("/api/traffic", files={"file": ("../../my traffic.csv", content)})
    assert told.status_code == 200, told.text
    assert told.json()["trace"]["file"] == "my traffic.csv"
    bad = (stage.traffic / "bad.csv").read_bytes()
    refused = await client.post("/traffic", files={"upload": ("bad.csv", bad)})
    assert refused.status_code == 422
    assert "bad.csv, line 3" in refused.text
    assert list(tmp_path.iterdir()) == []


async def test_uploads_have_limits(stage, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with client_of(stage.config(upload_bytes=1000, describe_s=0.01)) as client:
        big = b"arrival_s\n" + b"1\n" * (1 << 20)
        told = await client.post("/api/traffic", files={"file": ("big.csv", big)})
        assert told.status_code == 413
        assert told.json()["error"]["code"] == "too_large"

        async def dribble():
            yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
            for _ in range(40):
                yield b"1\n" * 40_000

        headers = {"content-type": "multipart/form-data; boundary=x"}
        slow = await client.post("/api/traffic", content=dribble(), headers=headers)
        assert slow.status_code == 413
        late = await client.post("/api/traffic/named", json={"file": "traffic/good.csv"})
        assert late.status_code == 422
        assert "took over" in late.json()["error"]["message"]
        empty = await client.post("/api/traffic", files={"file": ("none.csv", b"")})
        assert "empty" in empty.json()["error"]["message"]
    assert list(tmp_path.iterdir()) == []


async def test_memory_has_a_limit(stage):
    async with client_of(stage.config(describe_bytes=64 << 20)) as client:
        told = await client.post("/api/traffic/named", json={"file": "traffic/good.csv"})
        assert told.status_code == 422
        assert "memory" in told.json()["error"]["message"]


def test_columns_reach_the_reader(stage):
    told = traffic_module.characterise(stage.traffic / "good.csv", "own", "arrival_s=arrival_s")
    assert told["trace"]["kept"] == 400


async def test_health_falls_when_the_folder_goes(tmp_path):
    (tmp_path / "out").mkdir()
    config = checked(AnalysisConfig(results=(tmp_path / "out",)))
    async with client_of(config) as client:
        for path in ("/healthz", "/live", "/readyz", "/ready", "/health"):
            assert (await client.get(path)).status_code == 200
        (tmp_path / "out").rmdir()
        assert (await client.get("/readyz")).status_code == 503
        assert (await client.get("/healthz")).status_code == 200
        text = (await client.get("/metrics")).text
        assert 'windtunnel_analysis_requests_total{route="/readyz",status="503"} 1.0' in text


@pytest.mark.slow
async def test_statistics_are_made_once_for_all_who_ask(stage, monkeypatch):
    made = []

    def slowly(study, metric):
        made.append(study.id)
        import time

        time.sleep(0.4)
        return real(study, metric)

    from services.analysis import portability

    real = portability.learn
    monkeypatch.setattr(portability, "learn", slowly)
    async with client_of(stage.config(patience_s=0.05)) as client:
        first = await client.get("/portability/results.sweep")
        assert (first.status_code, first.headers["retry-after"]) == (202, "3")
        api = await client.get("/api/portability/results.sweep")
        assert (api.status_code, api.json()["error"]["code"]) == (503, "working")
        for _ in range(200):
            if (await client.get("/api/portability/results.sweep")).status_code == 200:
                break
            await asyncio.sleep(0.05)
        assert (await client.get("/portability/results.sweep")).status_code == 200
    assert made == ["results.sweep"]


PAGES = (
    "/", "/compare", "/portability", "/tiers", "/traffic", "/tiers/results.sim", "/?q=nothing-at-all",
    "/compare?a=results.sim&b=results.live", "/portability/results.sweep",
    f"/runs/results.live/{key('edf', 'live').run_id}",
)  # fmt: skip


@pytest.mark.parametrize("path", PAGES)
async def test_pages_are_whole_without_a_script(client, path):
    answer = await client.get(path)
    assert answer.status_code == 200
    assert isinstance(answer, httpx.Response)
    assert "<h1>" in answer.text
    assert "None" not in answer.text
    assert answer.text.count("<table") == answer.text.count("<caption>")


async def test_a_run_page_shows_the_numbers(client):
    run_id = key("edf", "live").run_id
    text = (await client.get(f"/runs/results.live/{run_id}")).text
    told = (await client.get(f"/api/runs/results.live/{run_id}")).json()
    assert WINDOW in text
    for tier in told["tiers"]:
        assert f"{tier['attainment']:.3f}" in text
    assert "3 tokens were lost." in text
