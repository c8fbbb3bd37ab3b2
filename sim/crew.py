"""A crew of worker processes that survives the death of a worker, of the parent, Ctrl-C and SIGTERM.

A worker is told one task at a time and may talk back while it works. Between two pieces of work it asks
``stopped()``: true once the parent wants to end or is gone, and then it saves what it has and returns. A task
whose worker died is given to another one; after ``TRIES`` deaths it is reported as lost.
"""

import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from schedulers.errors import InputError

Tell = Callable[[Any], None]
Stopped = Callable[[], bool]
Work = Callable[[Any, Tell, Stopped], None]

TRIES = 3
GRACE_S = 30.0
"""How long an ending crew waits for the work in hand before it is dropped."""


SILENCE_S = 600.0
"""A worker that says nothing for so long hangs, and is killed: no single run takes a fraction of this."""


class Lost(NamedTuple):
    """Heard when a task has killed its worker, or silenced it, ``TRIES`` times."""

    task: Any
    exit_code: int | None
    hung: bool = False


class Pool(Protocol):
    """Whoever does tasks: processes here (``Crew``), or a cluster (``sim.rays.RayCrew``)."""

    def run(self, work: Work, tasks: Iterable[Any], hear: Tell) -> None:
        """Do ``work(task, tell, stopped)`` for every task; ``hear`` gets all that is told, and Lost."""
        ...


class Member(NamedTuple):
    """A worker process and the parent's end of its pipe."""

    process: BaseProcess
    link: Connection


class Duty(NamedTuple):
    """A task and how often it was given out."""

    task: Any
    tries: int
    hung: bool = False


class Crew:
    """Worker processes, started when first needed. Use as a context; leaving it ends them."""

    def __init__(self, jobs: int) -> None:
        self.jobs = max(1, jobs)
        self.idle: list[Member] = []
        self.busy: dict[Member, Duty] = {}
        self.heard_s: dict[Member, float] = {}

    def __enter__(self) -> "Crew":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.dismiss()

    def run(self, work: Work, tasks: Iterable[Any], hear: Tell) -> None:
        """Do ``work(task, tell, stopped)`` for every task; ``hear`` gets all that is told, and Lost.

        Raises the InputError that a worker raised, and RuntimeError with the traceback of any other fault;
        the other workers save what they have first.
        """
        todo: Iterator[Duty] = iter(Duty(task, 0) for task in tasks)
        again: deque[Duty] = deque()
        while True:
            while len(self.busy) < self.jobs:
                duty = again.popleft() if again else next(todo, None)
                if duty is None:
                    break
                self.assign(work, duty)
            if not self.busy:
                return
            for member, kind, body in self.listen():
                if kind == "told":
                    hear(body)
                elif kind == "done":
                    del self.busy[member]
                    self.idle.append(member)
                elif kind == "refused":
                    raise body
                elif kind == "broken":
                    raise RuntimeError(f"a worker failed:\n{body}")
                else:
                    duty = self.busy.pop(member)
                    if duty.tries < TRIES and not duty.hung:
                        again.append(duty)
                    else:
                        hear(Lost(duty.task, body, duty.hung))

    def assign(self, work: Work, duty: Duty) -> None:
        """Give a task to an idle worker, or to a new one."""
        while self.idle:
            member = self.idle.pop()
            if give(member, (work, duty.task)):
                self.take_up(member, duty)
                return
        member = recruit()
        give(member, (work, duty.task))  # if it is dead already, `listen` says so
        self.take_up(member, duty)

    def take_up(self, member: Member, duty: Duty) -> None:
        """Note that a worker has this duty now."""
        self.busy[member] = Duty(duty.task, duty.tries + 1)
        self.heard_s[member] = time.monotonic()

    def listen(self) -> Iterator[tuple[Member, str, Any]]:
        """Wait until somebody talks; yield (worker, kind of message, what it says). Who hangs is killed."""
        by_link = {member.link: member for member in self.busy}
        quiet_s = min(self.heard_s[member] for member in self.busy) + SILENCE_S - time.monotonic()
        for link in wait(list(by_link), max(0.0, quiet_s)):
            member = by_link[link]  # type: ignore[index]
            self.heard_s[member] = time.monotonic()
            try:
                kind, body = member.link.recv()
            except (EOFError, OSError):
                member.process.join()
                kind, body = "dead", member.process.exitcode
            yield member, kind, body
        for member, duty in list(self.busy.items()):
            if time.monotonic() - self.heard_s[member] > SILENCE_S:
                self.busy[member] = duty._replace(hung=True)
                self.heard_s[member] = time.monotonic()
                member.process.kill()  # its closed pipe is heard next

    def dismiss(self) -> None:
        """Ask all to save what they have and end; kill who does not in ``GRACE_S``, or at a second Ctrl-C."""
        members = [*self.busy, *self.idle]
        for member in members:
            give(member, None)
        deadline_s = time.monotonic() + GRACE_S
        try:
            for member in members:
                drain(member, deadline_s)
        finally:
            for member in members:
                if member.process.is_alive():
                    member.process.kill()
                member.process.join()
                member.link.close()
            self.busy.clear()
            self.idle.clear()


def recruit() -> Member:
    """Start a worker: spawned, not forked, because the parent may hold compiled code and threads."""
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=worker, args=(theirs,), daemon=True)
    # The child inherits the mask: Ctrl-C and a SIGTERM to the whole group are the parent's to answer, which it
    # does right after. A worker ends when it is told, or when the parent's end of its pipe is closed.
    resource_tracker.ensure_running()  # starting it later would lift the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()
    return Member(process, ours)


def give(member: Member, message: Any) -> bool:
    """Send a message to a worker; false if it is gone."""
    try:
        member.link.send(message)
    except OSError:
        return False
    return True


def drain(member: Member, deadline_s: float) -> None:
    """Read what an ending worker still says, so that it never blocks on a full pipe, until it is gone."""
    try:
        while member.link.poll(max(0.0, deadline_s - time.monotonic())):
            member.link.recv()
    except (EOFError, OSError):
        member.process.join(max(0.1, deadline_s - time.monotonic()))


def worker(link: Connection) -> None:
    """Do tasks until told to end or until the parent is gone; Ctrl-C and SIGTERM are the parent's to answer."""

    def tell(message: Any) -> None:
        with suppress(OSError):  # the parent is gone: `stopped` says so, and what is done gets saved
            link.send(("told", message))

    try:
        while (message := link.recv()) is not None:
            work, task = message
            try:
                work(task, tell, link.poll)
            except InputError as error:
                link.send(("refused", error))
            except Exception:
                link.send(("broken", traceback.format_exc()))
            else:
                link.send(("done", None))
    except (EOFError, OSError):
        return
