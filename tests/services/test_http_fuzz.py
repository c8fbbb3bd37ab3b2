"""The HTTP API under schemathesis: whatever its own description allows or forbids, no answer is our fault."""

import asyncio
import threading

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode

from services.dispatcher.description import ERRORS
from services.dispatcher.process import running
from tests.services.fake_worker import FakeWorker
from tests.services.live_stage import ROOM, changed

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def web_schema():
    """The description that a running dispatcher gives of itself; it runs in a thread of its own."""
    told, stop = [], []
    ready = threading.Event()

    async def serve():
        done = asyncio.Event()
        stop.append((asyncio.get_running_loop(), done))
        config = changed(ROOM, timeouts={"queue_s": 5.0}, limits={"output_tokens": 64})
        async with running(config) as parts, FakeWorker(parts.grpc, pace=64, step_s=0.001):
            told.append(parts)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    yield schemathesis.openapi.from_url(f"http://{told[0].http}/openapi.json")
    answer = httpx.get(f"http://{told[0].http}/live")
    loop, done = stop[0]
    loop.call_soon_threadsafe(done.set)
    thread.join(30)
    assert answer.status_code == 200, "it is still there"
    assert told[0].heart.desk.board.row_of == {}


def operations(schema):
    return [found.ok() for found in schema.get_all_operations()]


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "broken"]
)
def test_no_request_is_our_fault(web_schema, mode):
    """No 5xx; every refusal has a code that the description names; valid input is served or refused by name."""
    seen, codes = {}, set(ERRORS["properties"]["error"]["properties"]["code"]["enum"])
    for operation in operations(web_schema):
        try:
            strategy = operation.as_strategy(generation_mode=mode)
        except Exception as error:  # nothing about a route without input can be broken
            assert "negat" in str(error).lower() or "no schemas" in str(error).lower()  # noqa: PT017
            continue

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=strategy)
        def ask(case):
            label = case.operation.label
            response = case.call(timeout=20)
            seen.setdefault(label, set()).add(response.status_code)
            assert response.status_code < 500 or response.status_code == 503, (label, response.text)
            if response.status_code >= 400:
                assert response.json()["error"]["code"] in codes

        try:
            ask()
        except Unsatisfiable:
            continue
    assert {"POST /v1/completions", "POST /v1/chat/completions"} <= set(seen)
    if mode is GenerationMode.POSITIVE:
        assert 200 in seen["POST /v1/completions"]
        assert len(seen) == 11
