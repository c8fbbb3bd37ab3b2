"""Brings the whole stack up in containers, replays, looks at what a user would, breaks a worker, takes it down.

``deploy/smoke [--no-build] [--keep] [--json]``; standard library alone; prints a time for each step.
"""

import argparse
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PORTS = ("DISPATCHER_HTTP_PORT", "DISPATCHER_GRPC_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT", "ANALYSIS_PORT")
SCHEDULERS = ("fcfs-chunked+least-requests", "edf+least-requests")
LAG = ("--lag-p50-ms", "500", "--lag-p99-ms", "5000")
"""A busy machine's load generator is late; whether a run may be ranked is not what is looked at here."""

KILL = (
    "import os; [os.kill(int(p), 9) for p in os.listdir('/proc') if p.isdigit() and int(p) not in (1, os.getpid()) "
    "and b'services.worker\\0' in open(f'/proc/{p}/cmdline', 'rb').read()]"
)
"""Ends a worker's process inside its container: the engine must see a crash, not an operator's stop."""


class SmokeError(Exception):
    """Something is not as it should be."""


def check(good: object, what: str) -> None:
    """Raise SmokeError unless it is good."""
    if not good:
        raise SmokeError(what)


def until(what: str, ready: Callable[[], Any], patience_s: float = 120.0) -> Any:
    """Wait until something is true, and return it; raises SmokeError."""
    end_s = time.monotonic() + patience_s
    while time.monotonic() < end_s:
        try:
            found = ready()
        except (OSError, ValueError, KeyError):
            found = None
        if found:
            return found
        time.sleep(1.0)
    raise SmokeError(f"{what}: not within {patience_s:g} s")


class Stack:
    """The compose project of the smoke test, under a name and ports of its own."""

    def __init__(self) -> None:
        self.environment = {"COMPOSE_PROJECT_NAME": "windtunnel-smoke", **os.environ}
        doors = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
        for name, door in zip(PORTS, doors, strict=True):
            self.environment[name] = str(door.getsockname()[1])
            door.close()
        self.services: set[str] = set()

    def compose(self, *words: str, patience_s: float = 900.0) -> str:
        """Run docker compose; returns what it printed, raises SmokeError with the end of what it complained."""
        done = subprocess.run(
            ["docker", "compose", *words], cwd=ROOT, env=self.environment, capture_output=True, text=True,
            timeout=patience_s, check=False,
        )  # fmt: skip
        if done.returncode:
            said = "\n".join((done.stdout + done.stderr).strip().splitlines()[-25:])
            raise SmokeError(f"docker compose {' '.join(words)}: exit {done.returncode}\n{said}")
        return done.stdout

    def get(self, port: str, path: str, **query: str) -> Any:
        """JSON of a service on loopback."""
        url = f"http://127.0.0.1:{self.environment[port]}{path}"
        with urllib.request.urlopen(
            f"{url}?{urllib.parse.urlencode(query)}" if query else url, timeout=20
        ) as reply:
            return json.load(reply)

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """Series of an instant query."""
        found: list[dict[str, Any]] = self.get("PROMETHEUS_PORT", "/api/v1/query", query=expression)["data"][
            "result"
        ]
        return found

    def replay(self, *options: str) -> tuple[str, list[dict[str, Any]]]:
        """Replay a window of a surrogate; returns the folder of the results and the summaries of the runs."""
        said = self.compose("run", "--rm", "-T", "replay", "--progress", "none", "--json", *LAG, *options)
        told = json.loads(said.strip().splitlines()[-1])
        return told["out"], told["runs"]


def build(stack: Stack) -> str:
    """Make the image of our services."""
    stack.compose("build", "--quiet", "dispatcher", patience_s=1800.0)
    return ""


def serving(stack: Stack, least: int) -> list[dict[str, Any]]:
    """Workers that serve; none while they are fewer than ``least``."""
    found = [one for one in stack.get("DISPATCHER_HTTP_PORT", "/workers")["workers"] if one["serving"]]
    return found if len(found) >= least else []


def up(stack: Stack) -> str:
    """Start everything that has no profile to be asked for, and wait until it is healthy."""
    stack.services = set(stack.compose("config", "--services").split())
    stack.compose("up", "-d", "--no-build", "--wait", "--wait-timeout", "400")
    workers = until("two workers serve", lambda: serving(stack, 2))
    return f"{len(stack.services)} services, {len(workers)} workers"


def replayed(stack: Stack) -> str:
    """Two schedulers on one window: every request ends, every token comes once, the tables hold together."""
    out, runs = stack.replay(
        "--region", "0.85", *(word for name in SCHEDULERS for word in ("--scheduler", name))
    )
    check(len(runs) == len(SCHEDULERS), f"{len(runs)} runs instead of {len(SCHEDULERS)}")
    for run in runs:
        check(run["ends"] == {"finished": {"length": run["requests"]}}, f"not all finished: {run['ends']}")
        for name in ("lost_requests", "lost_tokens", "repeated_tokens", "miscounted"):
            check(run[name] == 0, f"{name}: {run[name]}")
        check(run["kept_in"] == "runs", f"kept in {run['kept_in']}: {run['faults']}")
    stack.compose("run", "--rm", "-T", "--entrypoint", "windtunnel", "replay", "results", "verify", out)
    return f"{sum(run['requests'] for run in runs)} requests in {len(runs)} runs, tables verified"


def scraped(stack: Stack) -> str:
    """Prometheus reaches everybody, and its rules load."""

    def reached() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = stack.get("PROMETHEUS_PORT", "/api/v1/targets")["data"]["activeTargets"]
        return found if all(one["health"] == "up" for one in found) else []

    targets = until("every target is up, the load generator's gone", reached, 60.0)
    jobs = {one["labels"]["job"] for one in targets}
    wanted = {
        "windtunnel-dispatcher",
        "windtunnel-worker",
        *(f"windtunnel-{one}" for one in ("analysis",) if one in stack.services),
    }
    check(wanted <= jobs, f"nobody scrapes {sorted(wanted - jobs)}")
    rules = [
        rule
        for group in stack.get("PROMETHEUS_PORT", "/api/v1/rules")["data"]["groups"]
        for rule in group["rules"]
    ]
    bad = [rule["name"] for rule in rules if rule["health"] == "err"]
    check(rules and not bad, f"rules in error: {bad}")
    return f"{len(targets)} targets, {len(rules)} rules"


def scaler(stack: Stack) -> str:
    """The one service that sees the engine's socket comes up, obeys the dispatcher, and is scraped."""
    stack.compose("up", "-d", "--no-build", "--wait", "--wait-timeout", "120", "scaler")
    told = until("its fleet is known", lambda: stack.ask('windtunnel_scaler_fleet{state="serving"}'), 90.0)
    fleet = sum(float(one["value"][1]) for one in told)
    check(fleet == len(serving(stack, 2)), f"the scaler sees {fleet:g} workers")
    return f"{fleet:g} workers seen"


def attained(stack: Stack) -> str:
    """Attainment a tier is the same by the load generator and by the analysis service, which reads the tables."""
    told = stack.ask(
        "last_over_time(windtunnel_replay_slo_met_total[30m]) / last_over_time(windtunnel_replay_scored_total[30m])"
    )
    own = {(one["metric"]["run"], int(one["metric"]["tier"])): float(one["value"][1]) for one in told}
    check(len(own) >= 2 * len(SCHEDULERS), f"the load generator told Prometheus of {len(own)} tiers")
    if "analysis" not in stack.services:
        return f"{len(own)} tiers told, no analysis service to hold them against"
    runs = {run["run_id"]: run for run in stack.get("ANALYSIS_PORT", "/api/runs")["runs"]}
    for (run_id, tier), share in sorted(own.items()):
        check(run_id in runs, f"the analysis service lacks run {run_id}: it has {sorted(runs)}")
        study = urllib.parse.quote(runs[run_id]["study"])
        tiers = {
            one["tier"]: one for one in stack.get("ANALYSIS_PORT", f"/api/runs/{study}/{run_id}")["tiers"]
        }
        read = tiers[tier]["attainment"]
        check(
            abs(read - share) < 0.0005,
            f"run {run_id} tier {tier}: {read} in the tables, {share} by the generator",
        )
    return f"{len(own)} tiers of {len(runs)} runs agree"


def plain(expression: str, runs: list[str]) -> str:
    """A panel's expression as Grafana would send it, with all runs and tiers chosen."""
    values = {
        "__rate_interval": "30s",
        "__interval": "5s",
        "__range": "30m",
        "run_a": runs[0],
        "run_b": runs[-1],
    }
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], ".*"), expression)


def looked_at(stack: Stack) -> str:
    """Every query of every dashboard has data that is not NaN alone."""
    end_s = time.time()
    runs = stack.get("PROMETHEUS_PORT", "/api/v1/label/run/values")["data"]
    empty, count = [], 0
    for path in sorted((ROOT / "deploy" / "grafana" / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
            for target in panel.get("targets") or ():
                expression, count = plain(target["expr"], runs), count + 1
                found = stack.get(
                    "PROMETHEUS_PORT",
                    "/api/v1/query_range",
                    query=expression,
                    step="5",
                    start=f"{end_s - 600:.0f}",
                    end=f"{end_s:.0f}",
                )["data"]["result"]
                if not any(math.isfinite(float(value)) for one in found for _, value in one["values"]):
                    empty.append(f"{path.name} [{panel['title']}] {expression}")
    check(not empty, "panels without data:\n" + "\n".join(empty))
    if "grafana" in stack.services:
        listed = {one["uid"] for one in stack.get("GRAFANA_PORT", "/api/search", tag="windtunnel")}
        check(len(listed) >= 5, f"Grafana has {sorted(listed)}")
    return f"{count} queries"


def broken(stack: Stack) -> str:
    """A worker's process is killed in the middle of a replay: nothing is lost, and it comes back by itself."""
    command = [
        "docker",
        "compose",
        "run",
        "--rm",
        "-T",
        "replay",
        "--progress",
        "none",
        "--json",
        *LAG,
        "--region",
        "0.7",
    ]
    load = subprocess.Popen(
        command, cwd=ROOT, env=stack.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        sending = 'sum(windtunnel_requests_in_flight{state="streaming"}) > 0'
        until("the replay sends, or has ended", lambda: load.poll() is not None or stack.ask(sending), 300.0)
        check(load.poll() is None, f"the replay ended before anything was killed: {load.poll()}")
        stack.compose("exec", "-T", "--index", "1", "worker", "python", "-c", KILL)
        killed_s = time.monotonic()
        said, complained = load.communicate(timeout=600)
    finally:
        if load.poll() is None:
            load.kill()
            load.wait()
    check(load.returncode == 0, f"the replay ended with {load.returncode}: {complained[-800:]}")
    run = json.loads(said.strip().splitlines()[-1])["runs"][0]
    wrong = {name: run[name] for name in ("lost_requests", "lost_tokens", "repeated_tokens") if run[name]}
    check(not wrong and "finished" in run["ends"], f"after the kill: {wrong}, {run['ends']}")
    until("both workers serve again", lambda: serving(stack, 2))
    names = stack.compose("ps", "-q", "worker").split()
    counted = subprocess.run(
        ["docker", "inspect", "-f", "{{.RestartCount}}", *names], capture_output=True, text=True, check=True
    )
    check(sum(map(int, counted.stdout.split())) >= 1, "no worker was restarted: was one killed?")
    return f"{run['ends']}, serving again after at most {time.monotonic() - killed_s:.0f} s"


def down(stack: Stack) -> str:
    """Leave nothing behind."""
    stack.compose("--profile", "*", "down", "-v", "-t", "5")
    return ""


STEPS = (build, up, replayed, scraped, attained, looked_at, scaler, broken)


def main(arguments: list[str]) -> int:
    """Do the steps; 0 if all were good, 1 if one was not."""
    parser = argparse.ArgumentParser(prog="deploy/smoke", description=__doc__)
    parser.add_argument("--no-build", action="store_true", help="take the image that is there")
    parser.add_argument("--keep", action="store_true", help="leave the stack running")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is up comes down all the same
    stack, times, fault = Stack(), {}, ""
    steps = [step for step in STEPS if step is not build or not given.no_build]
    try:
        for step in steps:
            began_s = time.monotonic()
            said = step(stack)
            times[step.__name__] = round(time.monotonic() - began_s, 1)
            sys.stderr.write(f"{step.__name__:10} {times[step.__name__]:6.1f} s  {said}\n")
    except (SmokeError, OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        fault = f"{step.__name__}: {type(error).__name__}: {error}"
        sys.stderr.write(f"FAILED {fault}\n")
        if stack.services:
            with suppress(SmokeError, subprocess.SubprocessError):
                sys.stderr.write(stack.compose("logs", "--tail", "15", "--no-color"))
    finally:
        if not given.keep:
            began_s = time.monotonic()
            down(stack)
            times["down"] = round(time.monotonic() - began_s, 1)
            sys.stderr.write(f"{'down':10} {times['down']:6.1f} s\n")
    if given.json:
        sys.stdout.write(json.dumps({"good": not fault, "fault": fault, "seconds": times}) + "\n")
    return int(bool(fault))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
