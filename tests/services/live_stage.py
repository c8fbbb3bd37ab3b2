"""Dispatchers for tests, in this process or another, and small clients for their doors."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import grpc

from loadgen.replay.tokens import faults_in
from services.config import Config, Listen, Scheduling, TierConfig, Timeouts
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import dispatcher_pb2_grpc
from services.rpc.windtunnel.v1 import request_pb2 as wire

ROOM = Config(
    listen=Listen("127.0.0.1:0", "127.0.0.1:0"),
    scheduling=Scheduling(busy_reports=1000.0),  # a test machine may stand still for a while
    timeouts=Timeouts(silence_s=30.0),
    tiers=(TierConfig("fast", ttft_s=1.0, queue_max=300), TierConfig("slow", queue_max=300)),
)


def changed(config=ROOM, **sections):
    """A configuration with some fields of some sections changed."""
    return replace(
        config, **{name: replace(getattr(config, name), **fields) for name, fields in sections.items()}
    )


def asking(request_id, tokens=8, prompt=5, tier=0, **more):
    """A submission of synthetic traffic."""
    return door.SubmitRequest(
        request_id=request_id, tier=tier, prompt=wire.Prompt(synthetic=wire.Synthetic(tokens=prompt)),
        sampling=wire.Sampling(max_tokens=tokens, ignore_eos=True, seed=more.pop("seed", 77)), **more,
    )  # fmt: skip


class Heard:
    """What one stream said: tokens checked one by one against the pure function that made them."""

    def __init__(self, seed=77, wanted=0):
        self.seed, self.wanted = seed, wanted
        self.lost = self.repeated = 0
        self.accepted = self.ending = None

    def take(self, event):
        kind = event.WhichOneof("kind")
        if kind == "accepted":
            self.accepted = event.accepted
        elif kind == "tokens":
            lost, again = faults_in(self.seed, event.tokens.offset, event.tokens.tokens, self.wanted)
            self.lost, self.repeated = self.lost + lost, self.repeated + again
            self.wanted = max(self.wanted, event.tokens.offset + len(event.tokens.tokens))
        else:
            assert self.ending is None, "one ending a request"
            self.ending = event.ending
        return kind


@contextlib.asynccontextmanager
async def client_at(address):
    """A stub of the client door."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield dispatcher_pb2_grpc.DispatcherStub(channel)


async def heard(call, seed=77, wanted=0):
    """All that a stream says; an error status ends it too."""
    said = Heard(seed, wanted)
    with contextlib.suppress(grpc.aio.AioRpcError):
        async for event in call:
            said.take(event)
    return said


async def until(true, patience_s=10.0):
    """Wait until something is so."""
    async with asyncio.timeout(patience_s):
        while not true():
            await asyncio.sleep(0.005)


def redis_at(folder):
    """A Redis server of our own on a socket in a folder: (process, address)."""
    socket = folder / "redis.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--appendonly", "yes",
               "--dir", str(folder), "--appendfsync", "everysec"]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 10
    while not socket.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return server, f"unix://{socket}"


@contextlib.asynccontextmanager
async def process(*arguments):
    """A dispatcher in a process of its own: (ready line, process). It is killed on leaving."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.dispatcher", *arguments, stdout=asyncio.subprocess.PIPE,
        env={**os.environ},
    )  # fmt: skip
    try:
        line = await asyncio.wait_for(child.stdout.readline(), 30)
        yield json.loads(line), child
    finally:
        if child.returncode is None:
            child.send_signal(signal.SIGKILL)
        await child.wait()
        child._transport.close()
