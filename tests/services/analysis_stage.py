"""Results for the analysis service: a made-up sweep, runs with requests simulated and live, and a damaged folder."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np

from analysis.metrics import summarise
from loadgen.facts import FINISHED, REJECTED, Facts, RunKey
from loadgen.result import run_row, write_failures, write_shard
from services.analysis.app import application
from services.analysis.config import AnalysisConfig, checked
from services.analysis.service import Analysis
from services.local import environment
from tests.analysis.conftest import Made, make_sweep
from tests.loadgen.test_result import KEY, TOTALS, half_written

WINDOW = "azure_surrogate-published-0123456789"
TIERS = [
    {"name": "interactive", "ttft_s": 0.5, "tpot_s": 0.05, "e2e_s": None, "share": 0.5, "weight": 1.0},
    {"name": "server", "ttft_s": 2.0, "tpot_s": 0.1, "e2e_s": None, "share": 0.5, "weight": 1.0},
]
LIMITS = [(0.5, 0.05, float("inf"), 1.0), (2.0, 0.1, float("inf"), 1.0)]
ROWS = 200
AWAY = "http://127.0.0.1:9"
"""Where nobody listens."""


class Stage(NamedTuple):
    """Where everything lies."""

    root: Path
    sweep: Path
    sim: Path
    live: Path
    traffic: Path

    def config(self, **settings) -> AnalysisConfig:
        usual = {"results": (self.root,), "traffic": (self.traffic,), "patience_s": 60.0}
        return checked(AnalysisConfig(**(usual | settings)))


def served(rate: float, late: float) -> Facts:
    """Return 200 requests at so many a second, tiers in turn, one of 20 turned away; ``late`` scales first tokens."""
    rng = np.random.default_rng(3)
    arrival = np.arange(ROWS) / rate
    first = arrival + late * rng.gamma(2.0, 0.2, ROWS)
    out = np.full(ROWS, 11)
    finished = first + 10 * rng.uniform(0.02, 0.08, ROWS)
    gone = np.arange(ROWS) % 20 == 19
    times = [np.where(gone, np.nan, one) for one in (arrival, arrival, first, finished)]
    return Facts(
        arrival, *times, np.full(ROWS, 100), np.where(gone, 0, out), np.arange(ROWS) % 2, np.zeros(ROWS, int),
        np.full(ROWS, -1), np.where(gone, REJECTED, FINISHED).astype(np.int8), np.where(gone, 8, 0).astype(np.int8),
        np.where(gone, -1, 0), np.zeros(ROWS, int), np.zeros(ROWS, int), np.where(gone, np.nan, 0.08),
        np.where(gone, np.nan, 0.1), np.where(gone, np.nan, 0.5), np.full(ROWS, -1),
    )  # fmt: skip


def key(scheduler: str, driver: str) -> RunKey:
    return replace(
        KEY, scheduler=scheduler, driver=driver, window_id=WINDOW, source="azure_surrogate", label="surrogate",
        region="0.95", rho=0.95, tiers=json.dumps(TIERS), params="{}", control=False,
    )  # fmt: skip


def store(folder: Path, run: RunKey, facts: Facts) -> None:
    metrics = summarise(facts, TOTALS, (0, ROWS), LIMITS, ("tier", "S2"))
    write_shard(folder, run.run_id, [run_row(run, facts, TOTALS, metrics)], [(run.run_id, facts)])


def replay_told(folder: Path, run: RunKey, faults: list[str]) -> None:
    told = {
        "run_id": run.run_id, "valid": not faults, "faults": faults, "requests": ROWS, "speed": 1.0, "stopped": "",
        "lag": {"p50_s": 0.001, "p99_s": 0.2, "max_s": 0.3, "sent": ROWS, "unsent": 0},
        "limits": {"p50_s": 0.01, "p99_s": 0.05}, "lost_requests": 0, "lost_tokens": 3, "repeated_tokens": 0,
        "miscounted": 0, "closed_within_session": False, "health": {"warnings": ["the loop was 60 ms late"]},
    }  # fmt: skip
    (folder / "replays").mkdir(parents=True, exist_ok=True)
    (folder / "replays" / f"{run.run_id}.json").write_text(json.dumps(told))


def build(root: Path) -> Stage:
    """Write everything below a folder."""
    sweep = make_sweep(
        root / "results" / "sweep", Made(("azure_surrogate", "burstgpt_surrogate"), (0.85, 1.1), 8)
    )
    sim, live = root / "results" / "sim", root / "results" / "live"
    for number, scheduler in enumerate(("edf", "fcfs", "sjf")):
        store(sim, key(scheduler, "sim"), served(10.0, 1.0 + number))
        store(live, key(scheduler, "live"), served(10.0, 1.25 * (1.0 + number)))
        replay_told(live, key(scheduler, "live"), [])
    late = key("late", "live")
    store(live / "invalid", late, served(10.0, 4.0))
    replay_told(live, late, ["the 99th percentile of its lag was 200 ms"])
    write_failures(live, [("late", WINDOW, "0.95", "replay invalid")])
    traffic = root / "traffic"
    traffic.mkdir()
    rows = "\n".join(f"{at / 4},{100 + at % 7},{20 + at % 5}" for at in range(400))
    (traffic / "good.csv").write_text("arrival_s,prompt_tokens,output_tokens\n" + rows + "\n")
    (traffic / "bad.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,1,2\nnoon,3,4\nlate,1,1\n")
    return Stage(root / "results", sweep, sim, live, traffic)


def damaged(stage: Stage, name: str = "broken") -> Path:
    """Return a copy of the sweep with one half-written shard, below the same root."""
    folder = stage.root / name
    shutil.copytree(stage.sweep, folder)
    half_written(sorted((folder / "runs").glob("*.parquet"))[0])
    return folder


def client_of(
    config: AnalysisConfig, prometheus: httpx.AsyncBaseTransport | None = None
) -> httpx.AsyncClient:
    """Return a client that speaks to the application without a socket."""
    app = application(Analysis(config, prometheus))
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8300", timeout=120)


def start(log: Path, *arguments: object) -> tuple[subprocess.Popen[str], str]:
    """Start the service as a user does; return it with its address."""
    with log.open("w") as file:
        command = [sys.executable, "-m", "services.analysis", "--http", "127.0.0.1:0", *map(str, arguments)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=file, text=True, env=environment())
    line = process.stdout.readline()
    assert '"ready"' in line, log.read_text()
    return process, "http://" + line.split('"http":"')[1].split('"')[0]
