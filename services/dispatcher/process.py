"""The dispatcher's process: opens the store and the doors, says when it is ready, drains and ends."""

import asyncio
import contextlib
import signal
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Callable
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any, cast

import grpc
import orjson
import uvicorn
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from schedulers.errors import InputError
from services.config import Config, StoreConfig, checked, listening
from services.dispatcher.answer import Answer
from services.dispatcher.core import Dispatcher
from services.dispatcher.gauges import Announced
from services.dispatcher.grpc_door import ClientDoor
from services.dispatcher.links import Links, WorkerDoor
from services.dispatcher.logs import log
from services.dispatcher.metrics import Metrics
from services.dispatcher.reasons import ending
from services.dispatcher.recovery import send_anew, take_over
from services.dispatcher.scaling import Scaling
from services.dispatcher.sse import CONNECTION
from services.dispatcher.upkeep import Upkeep
from services.doors import QuietServer, opened
from services.rpc.windtunnel.v1 import dispatcher_pb2, dispatcher_pb2_grpc, worker_pb2, worker_pb2_grpc
from services.store.file_store import FileStore
from services.store.journal import Backend, Journal
from services.store.memory_store import MemoryStore
from services.store.redis_store import RedisStore

RECOVERY_S = 2.0
"""How long workers have to come back after a restart before their requests are given to others."""

LOOPBACK = ("127.0.0.1", "::1", "localhost")


def store_of(config: StoreConfig) -> Backend:
    """The store that a configuration names; raises InputError."""
    kind, _, rest = config.url.partition(":")
    if config.url == "none":
        return MemoryStore()
    if kind == "file" and rest:
        return FileStore(Path(rest), config.sync)
    if kind in ("redis", "rediss", "unix"):
        return RedisStore(config.url)
    raise InputError("unknown store", where="store.url", fix="file:PATH, redis://HOST:PORT or none")


class Parts:
    """All that one dispatcher is made of."""

    def __init__(self, config: Config) -> None:
        self.config = checked(config)
        self.born_s = time.time()  # the wall clock: only for people and for the journal
        self.epoch = time.time_ns()
        try:
            self.version = installed("windtunnel")
        except PackageNotFoundError:
            self.version = "unknown"
        time_s = asyncio.get_running_loop().time
        born_s = time_s()
        self.clock: Callable[[], float] = lambda: time_s() - born_s
        self.journal = Journal(store_of(config.store), flush_s=config.store.flush_s)
        self.metrics = Metrics(config.tiers, config.scheduling.scheduler, self.version)
        self.heart = Dispatcher(config, self.journal, self.clock, time.time, self.metrics)
        self.links = Links(self.heart, self.epoch)
        self.upkeep = Upkeep(self.heart)
        self.announced = Announced()
        self.scaling = Scaling(self)
        self.heart.left = self.left
        self.healthy: Any = None  # gRPC's health service, once it is there
        self.http = self.grpc = ""
        self.open = False

    def not_ready(self) -> str:
        """Why no new request should come here, '' if one may."""
        if not self.open or self.heart.draining:
            return "draining" if self.heart.draining else "starting"
        if self.journal.away and self.config.store.when_away == "refuse":
            return "store_down"
        if not any(worker.connected for worker in self.links.workers.values()):
            return "no_engine"
        return ""

    def left(self, answer: Answer) -> None:
        """Nobody listens to an open request any more: it is cancelled now, or after its time to come back."""
        if not answer.resumable:
            self.heart.cancel(answer)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self.config.timeouts.resume_s, self._give_up, answer)

    def _give_up(self, answer: Answer) -> None:
        if not answer.listeners and answer.ending is None and self.open:
            self.heart.cancel(answer)


class Timed(HttpToolsProtocol):
    """A connection whose first bytes must make a request in time: who dribbles headers is cut off.

    ``lost`` is called when the client goes: that spares a watching task a stream.
    """

    patience_s = 60.0
    lost: Callable[[], None] | None = None

    def connection_made(self, transport: Any) -> None:
        """Start to wait."""
        super().connection_made(transport)
        self.deadline = asyncio.get_running_loop().call_later(self.patience_s, transport.close)

    def on_headers_complete(self) -> None:
        """The headers are here."""
        self.deadline.cancel()
        cast(dict[str, Any], self.scope)[CONNECTION] = self
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing to wait for."""
        self.deadline.cancel()
        super().connection_lost(exc)
        if self.lost is not None:
            self.lost()


def bound(address: str, where: str, client_bytes: int) -> socket.socket:
    """A listening socket at host:port whose connections buffer so much for a slow client; raises InputError."""
    door = opened(address, where, backlog=2048, send_bytes=client_bytes)
    if address.rpartition(":")[0].strip("[]") not in LOOPBACK:
        log.warning("listening beyond this machine", address=address)
    return door


def http_server(parts: Parts) -> QuietServer:
    """The HTTP server, not yet started."""
    from services.dispatcher.http_door import application

    config = parts.config
    limits, timeouts, listen = config.limits, config.timeouts, config.listen
    protocol = type("Connection", (Timed,), {"patience_s": timeouts.idle_connection_s})
    secure: dict[str, Any] = {}
    if listen.tls_cert:
        secure = {"ssl_certfile": listen.tls_cert, "ssl_keyfile": listen.tls_key}
    if listen.client_ca:
        secure |= {"ssl_ca_certs": listen.client_ca, "ssl_cert_reqs": ssl.CERT_REQUIRED}
    made = uvicorn.Config(
        application(parts), http=protocol, ws="none", lifespan="off", log_config=None, access_log=False,
        server_header=False, proxy_headers=False, limit_concurrency=limits.connections, loop="none",
        timeout_keep_alive=int(timeouts.idle_connection_s), timeout_graceful_shutdown=2, **secure,
    )  # fmt: skip
    return QuietServer(made)


async def grpc_server(parts: Parts) -> tuple[grpc.aio.Server, health.aio.HealthServicer]:
    """The gRPC server with both services, health and reflection, listening."""
    listen, most = parts.config.listen, parts.config.limits.message_bytes
    options = [
        ("grpc.max_receive_message_length", most), ("grpc.max_send_message_length", most),
        ("grpc.so_reuseport", 0), ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_ping_strikes", 0), ("grpc.http2.min_recv_ping_interval_without_data_ms", 1000),
        ("grpc.max_concurrent_streams", parts.config.limits.connections),
    ]  # fmt: skip
    server = grpc.aio.server(options=options, interceptors=[KeyCheck(parts.config.keys.worker)])
    dispatcher_pb2_grpc.add_DispatcherServicer_to_server(ClientDoor(parts.heart), server)
    worker_pb2_grpc.add_WorkerLinkServicer_to_server(WorkerDoor(parts.links), server)
    healthy = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(healthy, server)
    names = [
        dispatcher_pb2.DESCRIPTOR.services_by_name["Dispatcher"].full_name,
        worker_pb2.DESCRIPTOR.services_by_name["WorkerLink"].full_name,
        health.SERVICE_NAME, reflection.SERVICE_NAME,
    ]  # fmt: skip
    reflection.enable_server_reflection(names, server)
    try:
        if listen.tls_cert:
            pair = (Path(listen.tls_key).read_bytes(), Path(listen.tls_cert).read_bytes())
            authority = Path(listen.client_ca).read_bytes() if listen.client_ca else None
            credentials = grpc.ssl_server_credentials([pair], authority, authority is not None)
            port = server.add_secure_port(listen.grpc, credentials)
        else:
            port = server.add_insecure_port(listen.grpc)
    except (OSError, RuntimeError) as error:
        fix = "name a free HOST:PORT, and files that can be read"
        raise InputError(f"can't listen at {listen.grpc}: {error}", where="listen.grpc", fix=fix) from None
    parts.grpc = f"{listen.grpc.rpartition(':')[0]}:{port}"
    await server.start()
    for name in ("", *names[:2]):
        await healthy.set(name, health_pb2.HealthCheckResponse.SERVING)
    return server, healthy


class KeyCheck(grpc.aio.ServerInterceptor):
    """Lets only workers with the key open a link. Clients' keys are checked by their own door."""

    def __init__(self, key: str) -> None:
        self.key = key

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Refuse a link without the key."""
        from services.dispatcher.intake import same_secret

        if self.key and details.method.startswith("/windtunnel.v1.WorkerLink/"):
            shown = dict(details.invocation_metadata).get("authorization", "")
            scheme, _, secret = str(shown).partition(" ")
            if not same_secret(secret, self.key) or scheme.lower() != "bearer":
                return grpc.stream_stream_rpc_method_handler(_no_key)
        return await continuation(details)


async def _no_key(_: Any, context: Any) -> AsyncIterator[bytes]:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the worker key is needed")
    yield b""


@contextlib.asynccontextmanager
async def running(config: Config | None = None) -> AsyncIterator[Parts]:
    """A dispatcher in this process and loop, ready to be called; on leaving, its doors are closed.

    Without a configuration it takes free ports and no store. Raises InputError for what can't be.
    """
    parts = Parts(config if config is not None else listening(Config(), "127.0.0.1:0", "127.0.0.1:0"))
    try:
        recovered = await parts.journal.open()
    except OSError as error:
        fix = "start the store first"
        raise InputError(
            f"the store can't be opened: {error}", where=parts.journal.backend.name, fix=fix
        ) from None
    take_over(parts.heart, parts.links, recovered)
    door = bound(parts.config.listen.http, "listen.http", parts.config.limits.client_bytes)
    host = parts.config.listen.http.rpartition(":")[0]
    parts.http = f"{host}:{door.getsockname()[1]}"
    server, healthy = await grpc_server(parts)
    parts.healthy = healthy
    web = http_server(parts)
    parts.upkeep.start()
    serving = asyncio.create_task(web.serve(sockets=[door]), name="http")
    grace = asyncio.get_running_loop().call_later(RECOVERY_S, send_anew, parts.heart, parts.links)
    while not web.started:
        if serving.done():
            await serving
        await asyncio.sleep(0.001)
    parts.open = True
    try:
        yield parts
    finally:
        parts.open = False
        grace.cancel()
        await healthy.enter_graceful_shutdown()
        parts.links.close()
        await server.stop(0.2)
        web.should_exit = True
        await serving
        await parts.upkeep.stop()
        await parts.journal.close()


async def drained(parts: Parts) -> None:
    """Readiness first, then no new work; what runs may end, in time. What does not is left in the journal.

    Without a durable store it is told that it failed.
    """
    heart = parts.heart
    heart.draining = True
    await parts.healthy.enter_graceful_shutdown()
    until_s = heart.clock() + parts.config.timeouts.drain_s
    while heart.clock() < until_s and any(one.ending is None for one in heart.answers.values()):
        await asyncio.sleep(0.02)
    if not parts.journal.backend.durable:
        for answer in list(heart.answers.values()):
            if answer.ending is None:
                heart.end(answer, ending("internal", "the dispatcher shut down before it ended"))
    await asyncio.sleep(0.1)  # listeners write their last words


async def serve(config: Config, say: Callable[[dict[str, Any]], None]) -> None:
    """Run until SIGTERM or SIGINT, then drain. A second signal ends it at once."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with running(config) as parts:
        import os

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        say({"event": "ready", "http": parts.http, "grpc": parts.grpc, "pid": os.getpid()})
        await stop.wait()
        stop.clear()
        draining = asyncio.create_task(drained(parts))
        again = asyncio.create_task(stop.wait())
        await asyncio.wait({draining, again}, return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, again):
            task.cancel()


def print_line(event: dict[str, Any]) -> None:
    """One JSON object on standard output, at once."""
    sys.stdout.buffer.write(orjson.dumps(event) + b"\n")
    sys.stdout.buffer.flush()
