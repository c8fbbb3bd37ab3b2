"""Processes of this machine as the system knows them: by number and start, so that nobody else's is ever touched."""

import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

WORKER = re.compile(r"(worker-\d+)\.\w+")
"""Files of a worker in its testbed's folder: settings, log, what it printed."""

GROUP_S = 2.0
"""How long the children of a process that ended may take to end."""


@dataclass(frozen=True)
class Running:
    """One process: ``began`` is when it started, in the kernel's ticks."""

    name: str
    pid: int
    began: int
    http: str = ""
    grpc: str = ""


def scratch_of(pid: int) -> str:
    """How the folder of a process among the temporary files begins: who ends the process can remove it."""
    return f"windtunnel-{pid}-"


def alive(one: Running) -> bool:
    """True if the process runs, and is the one that was started."""
    with suppress(ChildProcessError):
        os.waitpid(one.pid, os.WNOHANG)  # our own children that ended are let go
    return began_of(one.pid) == one.began != 0


def began_of(pid: int) -> int:
    """When a process started, in ticks since the machine did; 0 if there is none, or if it has ended."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    fields = told.rpartition(")")[2].split()
    return int(fields[19]) if len(fields) > 19 and fields[0] != "Z" else 0


def age_s(one: Running) -> float:
    """Seconds since a process started, by the system's clock."""
    up_s = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
    return max(0.0, up_s - one.began / os.sysconf("SC_CLK_TCK"))


def send(one: Running, number: int | signal.Signals) -> None:
    """Send a signal to a process if it is still the one that was meant."""
    if alive(one):
        with suppress(ProcessLookupError):
            os.kill(one.pid, number)


def group_of(pid: int) -> int:
    """The group of a process; 0 if there is no such process."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0


def end_groups(groups: list[int], grace_s: float = GROUP_S) -> None:
    """End what is left of groups whose leaders have just ended; whoever cleans up after them gets a moment."""
    until_s = time.monotonic() + grace_s
    for number in groups:
        with suppress(ProcessLookupError):
            while time.monotonic() < until_s:
                os.killpg(number, 0)
                time.sleep(0.02)
            os.killpg(number, signal.SIGKILL)


def workers_in(folder: Path) -> dict[str, Running]:
    """Workers whose settings lie in a folder and that run now, by name: the table of processes is asked, no file."""
    found = {}
    head = f"{folder}{os.sep}".encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            serves = any(word.startswith(b"services.worker") for word in words)
            if not serves or b"--config" not in words[:-1]:
                continue
            settings = words[words.index(b"--config") + 1]
            match = WORKER.fullmatch(settings.removeprefix(head).decode(errors="replace"))
            began = began_of(int(entry.name))
            if settings.startswith(head) and match and began:
                found[match[1]] = Running(match[1], int(entry.name), began)
    return found
