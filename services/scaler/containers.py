"""Workers as containers of a compose service, by Docker's own API.

A new worker is a copy of one that is there: same image, command, mounts, networks, limits and labels, so that it is
the compose file's service and `docker compose down` removes it. What runs is what the engine lists under compose's
labels; the order stands in a label, and in the container's name, which the engine gives only once.
"""

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import docker  # type: ignore[import-untyped]
from docker.errors import APIError, DockerException, NotFound  # type: ignore[import-untyped]
from requests.exceptions import RequestException

from services.scaler.driver import DriverError, Unit

COMPOSE = "com.docker.compose."
PROJECT, SERVICE = f"{COMPOSE}project", f"{COMPOSE}service"
NUMBER, ONEOFF = f"{COMPOSE}container-number", f"{COMPOSE}oneoff"
ORDER = "windtunnel.order"
"""Label of a container that a scaler started."""

ALIVE = ("running", "restarting", "paused")
"""States in which a container is a worker; all others are remains."""

CONFLICT, KILLED = 409, 137
PATIENCE_S = 60
"""How long the engine may take for one answer: on a busy machine seconds are usual."""

ORDERLY = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@contextmanager
def engine_errors() -> Iterator[None]:
    """What goes wrong between us and the engine, as a DriverError."""
    try:
        yield
    except (DockerException, RequestException) as error:
        raise DriverError(f"{type(error).__name__}: {error}") from error


def engine() -> Any:
    """The engine's API, at DOCKER_HOST or its usual socket."""
    return docker.from_env(timeout=PATIENCE_S).api


class Containers:
    """The workers of one compose service; their id is the host name that the engine gives: the short id."""

    name = "docker"

    def __init__(self, project: str, service: str, connect: Callable[[], Any] = engine) -> None:
        with engine_errors():
            self.api = connect()
            self.project, self.service = project or self._own_project(), service

    def _own_project(self) -> str:
        """The project of the container that we run in; raises DriverError outside of one."""
        try:
            labels = self.api.inspect_container(os.uname().nodename)["Config"]["Labels"] or {}
        except NotFound:
            labels = {}
        if not labels.get(PROJECT):
            raise DriverError("we run in no container of a compose project: name the project")
        return str(labels[PROJECT])

    def _listed(self) -> list[dict[str, Any]]:
        labels = [f"{PROJECT}={self.project}", f"{SERVICE}={self.service}", f"{ONEOFF}=False"]
        return list(self.api.containers(all=True, filters={"label": labels}))

    def units(self) -> list[Unit]:
        """Containers of the service, one-off ones left out."""
        with engine_errors():
            return [unit_of(one) for one in self._listed()]

    def start(self, order: str) -> Unit:
        """Copy a container that is there, a living one if there is any, and start the copy."""
        if not ORDERLY.fullmatch(order):
            raise DriverError(f"not an order that can be a name: {order[:80]!r}")
        with engine_errors():
            listed = self._listed()
            if not listed:
                fix = f"`docker compose up -d {self.service}` makes one"
                raise DriverError(f"there is no container of {self.service} to copy: {fix}")
            listed.sort(key=lambda one: (one["State"] in ALIVE, one["Created"]))
            number = max(int(one["Labels"].get(NUMBER, "0")) for one in listed) + 1
            name = f"{self.project}-{self.service}-{order}"
            config, others = copy_of(self.api.inspect_container(listed[-1]["Id"]), name, self.service)
            config["Labels"] |= {NUMBER: str(number), ORDER: order}
            return self._started(config, others, name)

    def _started(self, config: dict[str, Any], others: dict[str, Any], name: str) -> Unit:
        try:
            made = self.api.create_container_from_config(config, name)["Id"]
        except APIError as error:
            if error.status_code != CONFLICT:
                raise
            raise DriverError(f"{name} is there already: an order is carried out once") from error
        for network, settings in others.items():
            self.api.connect_container_to_network(made, network, aliases=settings["Aliases"])
        self.api.start(made)
        return Unit(made[:12], made, config["Labels"][ORDER], True, 0.0)

    def stop(self, unit: Unit, grace_s: float) -> bool:
        """Stop it, which its restart policy respects, and remove it; after the grace the engine kills it."""
        with engine_errors():
            try:
                self.api.stop(unit.handle, timeout=max(1, round(grace_s)))
                killed = bool(self.api.inspect_container(unit.handle)["State"]["ExitCode"] == KILLED)
            except NotFound:
                killed = False
        self.clear(unit)
        return killed

    def clear(self, unit: Unit) -> bool:
        """Remove it; the last one of its service is kept, because the next one is copied from it."""
        with engine_errors():
            if not any(one["Id"] != unit.handle for one in self._listed()):
                return False
            try:
                self.api.remove_container(unit.handle, v=True)
            except NotFound:
                return False
            except APIError as error:
                if error.status_code != CONFLICT:  # somebody removes it at this moment
                    raise
            return True

    def close(self) -> None:
        """Let go of the engine."""
        self.api.close()


def unit_of(listed: dict[str, Any]) -> Unit:
    """A container as the engine lists it; its age by the clock of this machine, on which the engine runs."""
    age_s = max(0.0, time.time() - float(listed["Created"]))
    order = str(listed["Labels"].get(ORDER, ""))
    return Unit(listed["Id"][:12], listed["Id"], order, listed["State"] in ALIVE, age_s)


def copy_of(found: dict[str, Any], name: str, service: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What makes another container like this one, and the networks that it must join before it starts.

    Left out is what belongs to one container alone: host name, addresses, the aliases that are its name or id.
    """
    config: dict[str, Any] = {
        **found["Config"],
        "Image": found["Image"],
        "Labels": {**found["Config"]["Labels"]},
    }
    for own in ("Hostname", "Domainname", "MacAddress"):
        config.pop(own, None)
    config["HostConfig"] = found["HostConfig"]
    networks = {
        network: {"Aliases": [service, name]} for network in found["NetworkSettings"]["Networks"] or {}
    }
    first = found["HostConfig"]["NetworkMode"]
    config["NetworkingConfig"] = {"EndpointsConfig": {key: networks[key] for key in networks if key == first}}
    return config, {key: value for key, value in networks.items() if key != first}
