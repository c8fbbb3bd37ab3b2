"""Whom a replay asks and who watches it: the testbed of this machine, one elsewhere, or any server."""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from loadgen.plan import Plan
    from services.generator import RunPage
    from services.live_run import Target


class Aims:
    """What the command line says about the system to be asked."""

    def __init__(
        self,
        folder: Path,
        target: str,
        label: str,
        plan: str,
        model: str,
        key: str,
        speed: float,
        by_http: bool,
        admin: str = "",
    ) -> None:
        self.folder, self.target, self.label, self.plan = folder, target, label, plan
        self.model, self.key, self.speed, self.by_http, self.admin = model, key, speed, by_http, admin
        self.specs: tuple[str, ...] = ("fcfs-chunked",)

    def resolve(self) -> tuple["Target", "Plan"]:
        """Return the system and the plan of its fleet and tiers; flags that do not apply are errors."""
        if self.admin and not self.target:
            raise_misuse("--admin", "belongs to a --target", "name one: --target grpc://HOST:PORT")
        if self.admin:
            return self._ours_elsewhere()
        return self._foreign() if self.target else self._testbed()

    def _ours_elsewhere(self) -> tuple["Target", "Plan"]:
        """A dispatcher of ours that another machine or container runs, with the workers that it has now."""
        from dataclasses import replace

        from services.local import ask
        from services.secret import secret
        from windtunnel.engines import met
        from windtunnel.up import live_plan

        place, _ = self._foreign()
        if self.label:
            raise_misuse("--label", "a dispatcher of ours goes by its scheduler", "leave it out")
        admin_key = secret("WINDTUNNEL_ADMIN_KEY")
        status, policy = ask(self.admin, "/admin/policy", key=admin_key)
        if status != 200:
            fix = "give its admin key in WINDTUNNEL_ADMIN_KEY, or the key's file in WINDTUNNEL_ADMIN_KEY_FILE"
            raise_misuse("--admin", f"{self.admin} does not let us in ({status})", fix)
        _, listed = ask(self.admin, "/targets")
        workers = [one["targets"][0] for one in listed or () if "worker" in one["labels"]]
        if not workers:
            raise_misuse("--admin", f"no worker serves at {self.admin}", "start one")
        plan = live_plan(self.plan or "quick", len(workers))
        _, queues = ask(self.admin, "/admin/queues", key=admin_key)
        if len(queues["queues"]) != len(plan.tiers):
            what = f"{self.admin} has {len(queues['queues'])} tiers, the plan {len(plan.tiers)}"
            raise_misuse("--plan", what, "name the plan that it was set up for")
        self.specs = (policy["scheduler"],)
        _, known = ask(self.admin, "/workers")
        serving = [row for row in known["workers"] if row["serving"]] or known["workers"]
        driver, fleet = met(serving, plan.fleet, own=plan.name != "quick")
        place = place._replace(label="", admin=self.admin, admin_key=admin_key, workers=tuple(workers))
        return place._replace(driver=driver), replace(plan, fleet=fleet)

    def _foreign(self) -> tuple["Target", "Plan"]:
        from services.live_run import Target
        from windtunnel.sweep import named_plan

        if self.by_http:
            raise_misuse("--http", "a --target says how it is asked", "leave it out")
        address = self.target.removeprefix("grpc://")
        if not self.target.startswith(("grpc://", "http://", "https://")):
            raise_misuse(
                "--target", f"not an address: {self.target}", "write http://HOST:PORT or grpc://HOST:PORT"
            )
        if self.model and address == self.target.removeprefix("grpc://") != self.target:
            raise_misuse("--model", "applies to HTTP alone", "leave it out")
        label = self.label or address.rpartition("//")[2]
        return Target(address, self.speed, self.key, self.model, label), named_plan(
            self.plan or "quick", None
        )

    def _testbed(self) -> tuple["Target", "Plan"]:
        from loadgen.plan import read_plan
        from services.live_run import Target
        from services.local import alive, read_state

        for flag, value in (("--label", self.label), ("--model", self.model), ("--plan", self.plan)):
            if value:
                raise_misuse(flag, "applies to a --target alone; the testbed knows its own", "leave it out")
        if self.speed != 1.0:
            raise_misuse("--speed", "the testbed's speed was set by `windtunnel up`", "leave it out")
        state = read_state(self.folder.resolve())
        if state is None or not any(map(alive, state.processes)):
            fix = "start it: windtunnel up --workers 2; or name a --target"
            raise_misuse("--dir", f"no testbed runs in {self.folder}", fix)
        assert state is not None
        dead = [one.name for one in state.processes if not alive(one)]
        if dead:
            fix = f"read {self.folder / dead[0]}.log, then `windtunnel down` and `up`"
            raise_misuse("--dir", f"{', '.join(dead)} of the testbed died", fix)
        kept = Path(state.folder) / "plan.toml"
        kept.write_text(state.plan, encoding="utf-8")
        self.specs = (state.scheduler,)
        door = state.dispatcher
        target = Target(
            address=f"http://{door.http}" if self.by_http else door.grpc,
            speed=state.speed,
            key=self.key,
            admin=door.http,
            admin_key=state.admin_key,
            workers=tuple(one.http for one in state.workers),
            driver=state.driver,
        )
        return target, read_plan(str(kept))


def raise_misuse(flag: str, what: str, fix: str) -> None:
    """Refuse a flag: one that does not apply is an error, never ignored."""
    from schedulers.errors import InputError

    raise InputError(what, where=flag, fix=fix)


class Watch(NamedTuple):
    """Who is told how a run goes on: a terminal, and Prometheus where there is a page for it."""

    progress: str
    page: "RunPage | None" = None


def page_at(address: str, target: "Target") -> "AbstractContextManager[RunPage | None]":
    """Show runs to Prometheus at HOST:PORT; nowhere if no address is named."""
    from contextlib import nullcontext
    from os import environ

    if not address:
        return nullcontext()
    from services.generator import shown_at

    return shown_at(address, target, environ.get("WINDTUNNEL_ADVERTISE", ""))
