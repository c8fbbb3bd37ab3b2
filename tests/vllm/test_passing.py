"""Requests that leave vLLM's scheduler or come to it, step by step, without a model and without NIXL."""

from math import ceil
from types import SimpleNamespace

import pytest

from services.worker.rows import Ask
from services.worker.vllm.config import connector
from services.worker.vllm.wire import Came, Order, Parted
from tests.vllm.driven import BLOCK, Driver, config_of, request_of, scheduler_of

LIMITS = (4, 256, 512)


class Line:
    """The worker's end of the line: orders that are given, and what the engine has told."""

    def __init__(self):
        self.given, self.told = [], []

    def orders(self):
        given, self.given = self.given, []
        return given

    def tell(self, told):
        self.told.append(told)

    def all(self, kind):
        return [told for told in self.told if isinstance(told, kind)]


@pytest.fixture(scope="module")
def config(tiny):
    """Settings with the connector."""
    return config_of(tiny, "fcfs-chunked", LIMITS, kv_transfer_config=connector())


def driven(config, blocks=40):
    """A driver of a scheduler with a line."""
    scheduler = scheduler_of(config, blocks)
    scheduler.line = Line()
    return Driver(scheduler, [])


def ask(prompt, output=200):
    return Ask(arrival_s=0.0, prompt_tokens=prompt, output_tokens=output, forecast_tokens=100.0)


def step(driver, came=()):
    """Run one step; returns the names of the requests that it carried. KV of those in ``came`` has come."""
    output = driver.scheduler.schedule()
    driver.came = came
    carried = set(output.num_scheduled_tokens)
    driver.land(output, SimpleNamespace(
        finished_recving=set(came), finished_sending=set(), failed_recving=set(), invalid_block_ids=set(),
        kv_connector_stats=None, kv_cache_events=None, expected_finished_count=0,
    ) if came else None)  # fmt: skip
    driver.now_s += 0.01
    return carried


def decoding(driver, number, prompt, computed):
    """A request that has computed so many tokens and decodes."""
    driver.scheduler.add_request(request_of(number, ask(prompt)))
    request = driver.scheduler.requests[f"r{number}"]
    while request.num_computed_tokens < computed:
        step(driver)
    assert (request.num_computed_tokens, request.num_tokens) == (computed, computed + 1)
    return request


def test_a_request_never_stands_still_where_the_other_engine_would_want_a_block_more(config):
    """At every length there are as many blocks on offer as the whole of its tokens need there."""
    waited = 0
    for computed in range(41, 41 + 2 * BLOCK):
        driver = driven(config)
        request, line = decoding(driver, 1, 40, computed), driver.scheduler.line
        line.given.append(Order(part=("r1",)))
        carried = step(driver)
        if computed % BLOCK == 0:
            assert carried == {"r1"}
            assert line.all(Parted) == []
            carried, waited = step(driver), waited + 1
        (parted,) = line.all(Parted)
        assert carried == set()
        assert (
            parted.blocks == len(parted.handover["remote_block_ids"][0]) == ceil(request.num_tokens / BLOCK)
        )
        assert parted.made == request.num_output_tokens
        assert parted.handover["remote_num_tokens"] == request.num_tokens - 1
        assert step(driver) == set()
    assert waited == 2


def test_one_that_stands_still_keeps_its_blocks_and_place_and_goes_on_when_told(config):
    driver = driven(config, blocks=8)
    scheduler, line = driver.scheduler, driver.scheduler.line
    still, other = decoding(driver, 1, 40, 50), None
    line.given.append(Order(part=("r1",)))
    step(driver)
    other = request_of(2, ask(60, 400))
    scheduler.add_request(other)
    for _ in range(150):  # memory runs out, and whoever has to leave is not the one that stands still
        step(driver)
    assert other.num_preemptions > 0
    assert (still.num_preemptions, still.num_computed_tokens) == (0, 50)
    assert still in scheduler.running
    line.given.append(Order(stay=("r1",)))
    assert "r1" in step(driver)
    assert still.num_computed_tokens == 51
    assert still.kv_transfer_params is None
    assert not scheduler.passing.parted


def test_one_that_ends_or_is_cancelled_meanwhile_leaves_nothing_behind(config):
    from vllm.v1.request import RequestStatus

    driver = driven(config)
    scheduler, line = driver.scheduler, driver.scheduler.line
    for number, when in ((1, "asked"), (2, "still")):
        decoding(driver, number, 40, 50 if when == "still" else 64)
        line.given.append(Order(part=(f"r{number}",)))
        step(driver)
        assert (f"r{number}" in scheduler.passing.parted) == (when == "still")
        scheduler.finish_requests(f"r{number}", RequestStatus.FINISHED_ABORTED)
        step(driver)
        assert not any((scheduler.passing.parting, scheduler.passing.parted, scheduler.requests))
        assert scheduler._blocks_left() == 40
    line.given += [Order(part=("r1",)), Order(stay=("r1",)), Order(land=("r1",))]
    assert step(driver) == set()


def test_one_that_comes_runs_when_it_is_ours_and_not_before(config):
    """Its blocks are set aside at once, and it computes nothing but its next token."""
    source, target = driven(config), driven(config)
    request = decoding(source, 1, 40, 70)
    source.scheduler.line.given.append(Order(part=("r1",)))
    step(source)
    (parted,) = source.scheduler.line.all(Parted)
    moved = request_of(7, ask(request.num_tokens, 100), parted.handover)
    scheduler, line = target.scheduler, target.scheduler.line
    scheduler.add_request(moved)
    assert step(target) == set()
    assert scheduler._blocks_left() == 40 - parted.blocks
    assert not scheduler.shadow.row_of
    assert step(target, came=["r7"]) == set()
    assert line.all(Came) == [Came("r7", True, parted.blocks * scheduler.passing.block_bytes)]
    assert [step(target) for _ in range(3)] == [set()] * 3
    line.given.append(Order(land=("r7",)))
    assert step(target) == {"r7"}
    assert (moved.num_computed_tokens, moved.num_output_tokens) == (71, 1)
    assert scheduler.shadow.parcel("r7").computed_tokens == 71
    assert step(target) == {"r7"}
    assert scheduler._blocks_left() == 40 - parted.blocks
    assert line.told[-1].gave == {"r7": 1}


def test_one_that_came_and_is_called_off_gives_its_blocks_back(config):
    from vllm.v1.request import RequestStatus

    for come in (False, True):
        source, target = driven(config), driven(config)
        request = decoding(source, 1, 40, 70)
        source.scheduler.line.given.append(Order(part=("r1",)))
        step(source)
        handover = source.scheduler.line.all(Parted)[0].handover
        target.scheduler.add_request(request_of(7, ask(request.num_tokens, 100), handover))
        step(target)
        if come:
            step(target, came=["r7"])
        target.scheduler.finish_requests("r7", RequestStatus.FINISHED_ABORTED)
        if not come:  # something may still write to them
            assert target.scheduler._blocks_left() < 40
            step(target, came=["r7"])
        step(target)
        assert target.scheduler._blocks_left() == 40
        assert not any((target.scheduler.passing.coming, target.scheduler.requests))
