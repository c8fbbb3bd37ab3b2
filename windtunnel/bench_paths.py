"""What `windtunnel bench live` measures against: a dispatcher with paced workers, another router, a real fleet."""

import os
import shutil
import signal
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.local import Running, State

SPEC = "fcfs-chunked+least-requests"
SETTLE_S = 0.5
ROUTER = "vllm-router"
ROUTER_READY_S = 30.0


class Paced:
    """A dispatcher with its journal in a file, and a worker that makes tokens by the clock; gone at the end.

    ``direct`` is the worker's own HTTP door, ``router`` a vllm-router before it, where one is installed.
    """

    def __init__(self, router: str = "") -> None:
        self.router_path = router or shutil.which(ROUTER) or ""
        self.router: Running | None = None
        self._stack = ExitStack()

    def __enter__(self) -> "Paced":
        from services.local import launch, stop_all

        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="windtunnel-bench-")))
        started: list[Running] = []
        self._stack.callback(lambda: stop_all(started, grace_s=1.0))
        door = ["services.dispatcher", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0"]
        door += ["--store", f"file:{folder / 'journal'}", "--scheduler", SPEC]
        self.dispatcher = launch(folder, "dispatcher", door, started.append)
        self.direct = launch(folder, "pacer", ["services.pacer", self.dispatcher.grpc], started.append)
        if self.router_path:
            self.router = routed(self.router_path, self.direct.http, folder)
            started.append(self.router)
        time.sleep(SETTLE_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def routed(path: str, backend: str, folder: Path) -> "Running":
    """Start a vllm-router before one backend and wait until it answers; raises InputError if it does not."""
    from schedulers.errors import InputError
    from services.doors import free_port
    from services.local import Running, alive, ask, began_of

    port, metrics = free_port(), free_port()
    command = [path, "--host", "127.0.0.1", "--port", str(port), "--worker-urls", f"http://{backend}"]
    command += ["--policy", "round_robin", "--prometheus-port", str(metrics), "--log-level", "error"]
    with open(folder / "router.log", "wb") as log:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
    process.returncode = 0  # as `services.local.begin` does: it is stopped by its number
    one = Running("router", process.pid, began_of(process.pid), http=f"127.0.0.1:{port}")
    until_s = time.monotonic() + ROUTER_READY_S
    while time.monotonic() < until_s and alive(one):
        if ask(one.http, "/v1/models")[0] == 200:
            return one
        time.sleep(0.1)
    if alive(one):
        os.kill(one.pid, signal.SIGKILL)
    said = (folder / "router.log").read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
    raise InputError(f"the router does not answer: {' '.join(said)}", where=path, fix="leave --router away")


class Fleet:
    """A dispatcher and two simulated workers at a speed that no client outruns; gone at the end."""

    def __init__(self, speed: float) -> None:
        self.speed = speed
        self._stack = ExitStack()

    def __enter__(self) -> "State":
        from services.local import Wish, start, stop
        from windtunnel.up import live_plan

        folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="windtunnel-bench-")))
        plan = live_plan("quick", 2)
        plan = replace(plan, fleet=replace(plan.fleet, sequences_max=4096, budget_max=8192))
        self._stack.callback(stop, folder, grace_s=1.0)
        state: State = start(Wish(folder, plan, SPEC, SPEC, self.speed))
        time.sleep(SETTLE_S)
        return state

    def __exit__(self, *_: object) -> None:
        self._stack.close()


def cpu_of(one: "Running | None") -> float:
    """CPU seconds of a process so far; 0 without one."""
    if one is None:
        return 0.0
    fields = Path(f"/proc/{one.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
