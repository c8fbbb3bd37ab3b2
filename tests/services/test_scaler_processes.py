"""The scaler with processes of this machine: load brings workers, quiet ends them, its own death changes nothing."""

import asyncio
import os
import signal
import time
from pathlib import Path
from urllib.request import urlopen

import pytest

from services.local import SCALER, Wish, ask, await_ready, begin, read_state, start, stop
from services.rpc.windtunnel.v1 import request_pb2 as wire
from services.running import alive, workers_in
from tests.services.live_stage import asking, client_at, heard

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SWING = "fcfs-chunked+tests.services.swing:POLICY:high=3,low=1"
STREAMS, TOKENS, MOST = 12, 900, 3


@pytest.fixture(scope="module")
def testbed(tmp_path_factory):
    """A dispatcher, one worker and a scaler that may run three; no process is left, whatever happens."""
    from windtunnel.up import live_plan

    folder = tmp_path_factory.mktemp("testbed")
    state = start(Wish(folder, live_plan("quick", 1), SWING, SWING, workers_max=MOST))
    try:
        yield state
    finally:
        stop(folder, grace_s=5.0)
        assert not workers_in(folder)
        assert not any(map(alive, state.processes))


async def until(true, patience_s=90.0):
    async with asyncio.timeout(patience_s):
        while not true():
            await asyncio.sleep(0.05)


def page(one):
    """Its metrics, by name with labels."""
    with urlopen(f"http://{one.http}/metrics", timeout=5) as response:
        rows = [line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[0] != "#"]
    return {name: float(value) for name, value in rows}


@pytest.fixture
def folder(testbed):
    return Path(testbed.folder)


def scaler_of(folder):
    return next(one for one in read_state(folder).processes if one.name == SCALER)


def restarted(folder):
    """Another scaler in the place of one that was killed; short of patience with workers that nobody knows."""
    settings = folder / f"{SCALER}.toml"
    if "orphan_s" not in settings.read_text():
        settings.write_text(settings.read_text() + "orphan_s = 3.0\n")
    one = begin(folder, SCALER, [f"services.{SCALER}", "--config", str(settings)], lambda _: None)
    return await_ready(folder, SCALER, [one], lambda _: None)


async def loaded(state, streams, name="r"):
    """Many long streams at once: what each of them said."""
    async with client_at(state.dispatcher.grpc) as stub:
        seeds = range(1, streams + 1)
        calls = [stub.Submit(asking(f"{name}{seed}", TOKENS, seed=seed), timeout=200) for seed in seeds]
        return await asyncio.gather(*(heard(call, seed) for seed, call in zip(seeds, calls, strict=True)))


def scalers_known(state):
    """Addresses at which Prometheus is told to find a scaler."""
    targets = ask(state.dispatcher.http, "/targets")[1]
    return [one["targets"] for one in targets if one["labels"]["job"] == "windtunnel-scaler"]


def stray(folder):
    """A worker of this folder that the dispatcher will never see."""
    settings = folder / "worker-40.toml"
    template = (folder / "worker.template").read_text().splitlines()
    text = "\n".join('dispatcher = "127.0.0.1:1"' if "dispatcher" in line else line for line in template)
    settings.write_text(f'worker_id = "worker-40"\n{text}\n')
    return begin(folder, "worker-40", ["services.worker", "--config", str(settings)], lambda _: None)


async def test_load_scales_out_and_quiet_scales_in_and_nothing_is_lost(testbed, folder):
    """In the middle the scaler is killed while workers boot; the next one goes on, and starts none twice."""
    names = set(workers_in(folder))
    assert names == {"worker-0"}
    load = asyncio.create_task(loaded(testbed, STREAMS))
    await until(lambda: len(workers_in(folder)) > 1)
    os.kill(scaler_of(folder).pid, signal.SIGKILL)
    scaler = await asyncio.to_thread(restarted, folder)
    assert ask(testbed.dispatcher.http, "/workers")[0] == 200
    seen = 0
    while not load.done():
        running = workers_in(folder)
        seen, names = max(seen, len(running)), names | set(running)
        await asyncio.sleep(0.1)
    assert seen == MOST
    said = await load
    assert [one.ending.outcome for one in said] == [wire.OUTCOME_FINISHED] * STREAMS
    assert [(one.lost, one.repeated, one.wanted) for one in said] == [(0, 0, TOKENS)] * STREAMS
    await until(lambda: len(workers_in(folder)) == 1)
    await until(lambda: len(read_state(folder).workers) == 1)
    await asyncio.sleep(1.0)
    told = page(scaler)
    assert told["windtunnel_scaler_ceiling"] == MOST
    assert told['windtunnel_scaler_fleet{state="serving"}'] == 1
    assert told['windtunnel_scaler_drains_total{reason="drained"}'] == len(names) - 1
    assert told["windtunnel_scaler_kills_total"] == 0
    assert told["windtunnel_scaler_crashes_total"] == 0
    assert 1 <= told["windtunnel_scaler_boot_seconds_count"] < len(names), "of those that it saw boot"
    assert len(names) == MOST, f"nobody was started twice: {names}"
    await until(
        lambda: scalers_known(testbed) == [[scaler.http]]
    )  # the lease of the one that was killed ends


async def test_a_worker_that_nobody_knows_is_ended_and_a_dead_one_is_replaced(testbed, folder):
    """A stray process ends after its time; the last worker dies, and the floor brings another one."""
    os.kill(scaler_of(folder).pid, signal.SIGKILL)
    lost = stray(folder)
    scaler = await asyncio.to_thread(restarted, folder)
    await until(lambda: not alive(lost))
    (known,) = workers_in(folder).values()
    assert known.name != lost.name, "the known one was left alone"
    os.kill(known.pid, signal.SIGKILL)
    (said,) = await loaded(testbed, 1)  # refused, or held until somebody is there
    await until(lambda: set(workers_in(folder)) - {known.name})
    assert set(workers_in(folder)) == {"worker-41"}, "names are never used twice"
    assert said.lost == said.repeated == 0
    assert page(scaler)['windtunnel_scaler_drains_total{reason="orphan"}'] == 1
    await until(lambda: not (folder / f"{known.name}.toml").exists())
    assert (folder / f"{known.name}.log").exists()
    (said,) = await loaded(testbed, 1, "again")
    assert (said.wanted, said.ending.outcome) == (TOKENS, wire.OUTCOME_FINISHED)


def test_a_folder_has_one_scaler(testbed, folder):
    """A second one is refused, exit 2; the first one ends in order and leaves the workers alone."""
    settings, workers = str(folder / f"{SCALER}.toml"), workers_in(folder)
    second = begin(folder, "second", [f"services.{SCALER}", "--config", settings], lambda _: None)
    until_s = time.monotonic() + 30
    while alive(second) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert "can't have the folder alone" in (folder / "second.log").read_text()
    first = scaler_of(folder)
    os.kill(first.pid, signal.SIGTERM)
    while alive(first):
        time.sleep(0.05)
    assert workers_in(folder) == workers
