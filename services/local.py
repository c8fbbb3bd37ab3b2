"""The testbed as processes of this machine: dispatcher and workers started, watched and stopped, without containers.

A folder holds their settings, their logs and ``state.json``, which says who runs. A process is known by its number
and the moment it started, so that a number that the system gave to somebody else is never touched.
"""

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from loadgen.plan import Plan, toml
from schedulers.errors import InputError
from services.running import Running as Running
from services.running import alive as alive
from services.running import began_of as began_of
from services.running import end_groups, group_of, scratch_of, send, workers_in
from services.settings import RECOMPUTE, dispatcher_toml, module_of, scaler_toml, worker_toml

STATE = "state.json"
ANALYSIS = "analysis"
"""Name of the process that serves pages about results, if it was asked for."""

SCALER = "scaler"
"""Name of the process that starts and stops workers by the policy's wish."""

TEMPLATE = "worker.template"
"""Settings of a worker without its name, for the scaler."""

READY_S = 60.0
"""How long a process may take until it is ready."""

REAL_READY_S = 900.0
"""The same for a real engine, which loads its model."""

STOP_S = 10.0
"""How long processes may take to end after SIGTERM; then they are killed."""

EVERYTHING = 100_000
"""Queue bound of a tier: an experiment sheds by its policy, not by a bound that the simulator does not have."""

PATIENCE_S = 3600.0
"""Timeouts of an experiment, for the same reason."""


SETTINGS = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # no process of its own for the model: a minute less to start
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # the default would put every engine on the first core
    "OMP_NUM_THREADS": "1",
}
"""What vLLM gets told by its environment; what the caller's environment says already stands."""


CAUSE = re.compile(r" ERROR .*?\] ((?:\w+\.)*\w*(?:Error|Exception): .*)")
"""What an engine's own process died of, in its output: its worker's log only says that it did."""


class NotReadyError(Exception):
    """A process did not become ready; all that were started are stopped again."""


@dataclass(frozen=True)
class State:
    """All that runs, and how to speak to it."""

    folder: str
    plan: str  # TOML, engines as many as workers
    scheduler: str
    speed: float
    admin_key: str
    worker_key: str
    driver: str = "live"  # as results name it: live (simulated workers), vllm, or paced
    processes: tuple[Running, ...] = field(default_factory=tuple)
    scaler_key: str = ""

    @property
    def dispatcher(self) -> Running:
        """The first process."""
        return self.processes[0]

    @property
    def workers(self) -> tuple[Running, ...]:
        """All others but the scaler and the pages about results."""
        return tuple(one for one in self.processes[1:] if one.name not in (SCALER, ANALYSIS))


@dataclass(frozen=True)
class RealWorkers:
    """Workers with a real engine: the Python that has vLLM, the model; paced: steps are stretched to the profile.

    ``moves`` is how running requests travel, one of ``settings.MOVES``.
    """

    python: str
    model: str
    device: str = "cpu"
    paced: bool = False
    moves: str = RECOMPUTE


@dataclass(frozen=True)
class Wish:
    """What to start; ``paced`` is the scheduler as it is set at this speed."""

    folder: Path
    plan: Plan
    scheduler: str
    paced: str
    speed: float = 1.0
    store: str = ""  # "": a file in the folder
    http: str = "127.0.0.1:0"
    grpc: str = "127.0.0.1:0"
    chaos: bool = False
    queue_max: int = EVERYTHING
    patience_s: float = PATIENCE_S
    real: "RealWorkers | None" = None
    route: Callable[[str, str], str] = lambda name, address: address  # where a worker finds the dispatcher
    workers_min: int = 1  # that a policy that scales leaves
    workers_max: int = 0  # with more than 0 a scaler runs, and so many workers at most
    steps: Path | None = None  # where each worker logs its steps
    policy_folder: str = ""  # whose files replays may name as policies


def start(wish: Wish, notice: Callable[[str], None] = lambda _: None) -> State:
    """Start dispatcher and workers and wait until they are ready.

    Raises InputError if the folder's testbed runs already, NotReadyError naming the log if a process fails.
    """
    folder = wish.folder.resolve()
    before = read_state(folder)
    if before is not None:
        if any(map(alive, before.processes)):
            fix = f"windtunnel down --dir {wish.folder}"
            raise InputError("a testbed runs here already", where=str(wish.folder), fix=fix)
        forget(folder)
    folder.mkdir(parents=True, exist_ok=True)
    state = State(
        folder=str(folder),
        plan=toml(wish.plan),
        scheduler=wish.scheduler,
        speed=wish.speed,
        admin_key=secrets.token_urlsafe(18),
        worker_key=secrets.token_urlsafe(18),
        driver="live" if wish.real is None else "paced" if wish.real.paced else "vllm",
        scaler_key=secrets.token_urlsafe(18) if wish.workers_max else "",
    )
    started: list[Running] = []

    def note(one: Running) -> None:
        started[:] = [other for other in started if other.name != one.name] + [one]
        write_state(folder, State(**{**vars(state), "processes": tuple(started)}))

    try:
        settings = folder / "dispatcher.toml"
        _write(settings, dispatcher_toml(wish, state))
        door = launch(folder, "dispatcher", ["services.dispatcher", "--config", str(settings)], note)
        notice(f"dispatcher: http://{door.http} grpc {door.grpc}")
        for number in range(wish.plan.fleet.engines):
            name = f"worker-{number}"
            settings = folder / f"{name}.toml"
            _write(settings, worker_toml(wish, state, name, wish.route(name, door.grpc)))
            python = wish.real.python if wish.real else None
            begin(folder, name, [module_of(wish), "--config", str(settings)], note, python)
        for number in range(wish.plan.fleet.engines):
            worker = await_ready(folder, f"worker-{number}", started, note)
            notice(f"{worker.name}: http://{worker.http} grpc {worker.grpc}")
        if wish.workers_max:
            settings = folder / f"{SCALER}.toml"
            _write(folder / TEMPLATE, worker_toml(wish, state, "", door.grpc))
            _write(settings, scaler_toml(wish, state, door.http))
            scaler = launch(folder, SCALER, ["services.scaler", "--config", str(settings)], note)
            notice(f"scaler: http://{scaler.http}, up to {wish.workers_max} workers")
        _await_door(door.http)
    except BaseException:
        stop_all(started, grace_s=0.0)
        (folder / STATE).unlink(missing_ok=True)
        raise
    return State(**{**vars(state), "processes": tuple(started)})


def launch(folder: Path, name: str, module: list[str], note: Callable[[Running], None]) -> Running:
    """Start a process and wait for its ready line."""
    one = begin(folder, name, module, note)
    return await_ready(folder, name, [one], note)


def begin(
    folder: Path, name: str, module: list[str], note: Callable[[Running], None], python: str | None = None
) -> Running:
    """Start a process in a session of its own, output to NAME.out and NAME.log; by another Python if one is named."""
    with open(folder / f"{name}.out", "wb") as out, open(folder / f"{name}.log", "wb") as log:
        process = subprocess.Popen(
            [python or sys.executable, "-m", *module],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=log,
            start_new_session=True,
            env=environment() if python is None else SETTINGS | environment(),
            cwd=folder,
        )
    process.returncode = 0  # it outlives this command, and nobody is to be warned of that
    one = Running(name, process.pid, began_of(process.pid))
    note(one)
    return one


def environment() -> dict[str, str]:
    """The environment of a service: this package's folder is importable wherever it runs."""
    here = str(Path(__file__).resolve().parent.parent)
    path = os.environ.get("PYTHONPATH", "")
    return os.environ | {"PYTHONPATH": f"{here}{os.pathsep}{path}" if path else here}


def await_ready(folder: Path, name: str, started: list[Running], note: Callable[[Running], None]) -> Running:
    """Wait for the line that says where a process listens; raises NotReadyError with the end of its log."""
    one = next(one for one in started if one.name == name)
    real = read_state(folder)
    patience_s = READY_S if real is None or real.driver == "live" else REAL_READY_S
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        ready = told_ready(folder, one)
        if ready.http:
            note(ready)
            return ready
        if not alive(one):
            break
        time.sleep(0.05)
    log = folder / f"{name}.log"
    said = _text(log).splitlines()[-5:]
    cause = next(filter(None, map(CAUSE.search, _text(folder / f"{name}.out").splitlines())), None)
    said = [cause[1], *said] if cause is not None else said
    raise NotReadyError(f"{name} did not become ready; {log}:\n" + "\n".join(said))


def told_ready(folder: Path, one: Running) -> Running:
    """The process with the addresses that it printed when it was ready; as it is before that."""
    for line in _text(folder / f"{one.name}.out").splitlines():
        with suppress(ValueError):
            told = json.loads(line)
            if told.get("event") == "ready":
                return Running(one.name, one.pid, one.began, http=told["http"], grpc=told["grpc"])
    return one


def _await_door(http: str) -> None:
    """Wait until the dispatcher takes requests."""
    until_s = time.monotonic() + READY_S
    while time.monotonic() < until_s:
        if ask(http, "/ready")[0] == 200:
            return
        time.sleep(0.05)
    raise NotReadyError(f"the dispatcher at {http} takes no requests")


def ask(http: str, path: str, *, key: str = "", put: Mapping[str, Any] | None = None) -> tuple[int, Any]:
    """Ask a service; return (status, JSON), status 0 if nobody answers."""
    body = json.dumps(put).encode() if put is not None else None
    request = Request(f"http://{http}{path}", data=body, method="PUT" if put is not None else "GET")
    if key:
        request.add_header("Authorization", f"Bearer {key}")
    try:
        with urlopen(request, timeout=5.0) as response:
            return response.status, json.loads(response.read() or b"null")
    except OSError as error:  # HTTPError, URLError and timeouts alike
        status = getattr(error, "code", 0)
        with suppress(Exception):
            return status, json.loads(error.read())  # type: ignore[attr-defined]
        return status, None
    except ValueError:
        return 0, None


def stop(folder: Path, *, grace_s: float = STOP_S) -> list[str]:
    """Stop what runs in a folder and forget it; return the names of those that had to be killed.

    Nothing happens if nothing runs.
    """
    state = read_state(folder.resolve())
    if state is None:
        return []
    killed = stop_all([one for one in state.processes if one.name == SCALER], grace_s=grace_s)
    # The scaler is gone: who runs now is all that will, also what it started and could not write down any more.
    found = [*state.processes, *workers_in(folder.resolve()).values()]
    killed += stop_all(list({(one.pid, one.began): one for one in found}.values()), grace_s=grace_s)
    forget(folder.resolve())
    return killed


def stop_all(processes: list[Running], *, grace_s: float) -> list[str]:
    """End processes: SIGTERM, a grace, SIGKILL. Return the names of those that were killed.

    What they started ends with them: an engine that is still starting does not see its worker die.
    """
    groups = [one.pid for one in processes if alive(one) and group_of(one.pid) == one.pid]
    for one in processes:
        send(one, signal.SIGTERM)
    until_s = time.monotonic() + grace_s
    while any(map(alive, processes)) and time.monotonic() < until_s:
        time.sleep(0.05)
    left = [one for one in processes if alive(one)]
    for one in left:
        send(one, signal.SIGKILL)
    for one in left:
        while alive(one):
            time.sleep(0.01)
        with suppress(ChildProcessError):
            os.waitpid(one.pid, 0)  # until then a child's number counts as taken, and its files would stay
    end_groups(groups)
    for one in processes:
        sweep(one)
    return [one.name for one in left]


def sweep(one: Running) -> None:
    """Remove what a process that was killed had to leave among the temporary files."""
    if not Path(f"/proc/{one.pid}").exists():
        for path in Path(tempfile.gettempdir()).glob(f"{scratch_of(one.pid)}*"):
            shutil.rmtree(path, ignore_errors=True)


def read_state(folder: Path) -> State | None:
    """What a folder says runs; None if nothing. Raises InputError for a damaged file."""
    path = folder / STATE
    if not path.exists():
        return None
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        processes = tuple(Running(**one) for one in told.pop("processes"))
        return State(**told, processes=processes)
    except (OSError, ValueError, TypeError, KeyError):
        fix = "end the processes by hand if any runs, then delete it"
        raise InputError("the state of the testbed is damaged", where=str(path), fix=fix) from None


def write_state(folder: Path, state: State) -> None:
    """Write state.json atomically, readable by its owner alone: it holds keys."""
    path = folder / STATE
    temporary = path.with_name(f".{STATE}.{os.getpid()}.tmp")
    with open(
        os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8"
    ) as file:
        json.dump(asdict(state), file, indent=1)
    os.replace(temporary, path)


def forget(folder: Path) -> None:
    """Remove what says that something runs, the settings with their keys and the sockets' journal."""
    for path in (folder / STATE, folder / TEMPLATE, folder / f"{SCALER}.lock", *folder.glob("*.toml")):
        if path.name != "plan.toml":
            path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
