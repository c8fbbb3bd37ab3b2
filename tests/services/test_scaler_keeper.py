"""What the scaler does from what is wanted and what runs, whatever fails in between; and whom it obeys."""

import asyncio
from dataclasses import replace
from itertools import pairwise

import aiohttp
import hypothesis.strategies as st
import pytest
from aiohttp import web
from hypothesis import given, settings

from services.scaler.config import ScalerConfig
from services.scaler.driver import DriverError, Unit
from services.scaler.keeper import BACKOFF_S, Bounds, Keeper
from services.scaler.scaler import MISSED, Scaler
from services.wanted import ANSWER, NONCE, SIGNATURE, Wanted, packed, signature

KEY = "a key of our own"


def unit(worker, order="", alive=True, age_s=1.0):
    return Unit(worker, f"h-{worker}", order, alive, age_s)


def keeper(**bounds):
    return Keeper(Bounds(**{"most": 4, "orphan_s": 10.0, **bounds}))


def test_an_order_is_carried_out_once():
    """The worker that boots for it is enough, also for a scaler that has just begun."""
    wanted = Wanted(orders=("e-1", "e-2"), here=("a",))
    assert keeper().steps(wanted, [unit("a")], 0.0).start == ("e-1", "e-2")
    assert keeper().steps(wanted, [unit("a"), unit("b", "e-1")], 0.0).start == ("e-2",)
    assert keeper().steps(wanted, [unit("a"), unit("b", "e-1"), unit("c", "e-2")], 0.0).start == ()


def test_a_boot_is_told_once_by_the_scaler_that_saw_it():
    """One that serves already when the scaler begins took nobody knows how long; a link that was cut is no boot."""
    made, units, ordered = keeper(), [unit("a"), unit("b", "e-1")], Wanted(orders=("e-1",), here=("a",))
    assert made.steps(ordered, units, 0.0).booted == ()
    both = Wanted(here=("a", "b"))
    assert [one.worker for one in made.steps(both, units, 1.0).booted] == ["b"]
    for second, wanted in enumerate((both, Wanted(here=("a",)), both)):
        assert made.steps(wanted, units, 2.0 + second).booted == ()


def test_a_worker_that_took_anothers_place_leaves_its_order_open():
    """Places go to whoever joins first: b came for e-2 and got e-1's place, so e-2's still lacks somebody."""
    wanted = Wanted(orders=("e-2",), here=("a", "b"))
    assert keeper().steps(wanted, [unit("a"), unit("b", "e-2")], 0.0).start == ("e-2",)


def test_the_ceiling_is_the_scalers_own():
    """Those that drain or end count: they run."""
    wanted = Wanted(orders=("e-1", "e-2", "e-3"), here=("a", "b"), draining=("b",))
    steps = keeper(most=3).steps(wanted, [unit("a"), unit("b")], 0.0)
    assert (steps.start, steps.refused) == (("e-1",), 2)


def test_a_refused_order_is_counted_once():
    """However often it is asked about; anew when it has been carried out in between."""
    made, wanted = keeper(most=1), Wanted(orders=("e-1",), here=("a",))
    assert [made.steps(wanted, [unit("a")], now_s).refused for now_s in (0.0, 1.0, 2.0)] == [1, 0, 0]
    assert made.steps(Wanted(here=("a",)), [unit("a")], 3.0).refused == 0
    assert made.steps(wanted, [unit("a")], 4.0).refused == 1


def test_one_that_had_joined_did_not_die_at_its_start():
    """It had taken another's place, so its order is still open; its death is the dispatcher's to tell."""
    made, wanted = keeper(), Wanted(orders=("e-2",), here=("a", "b"))
    made.steps(wanted, [unit("a"), unit("b", "e-2")], 0.0)
    steps = made.steps(Wanted(orders=("e-2",), here=("a",)), [unit("a"), unit("b", "e-2", alive=False)], 1.0)
    assert steps.crashed == ()
    assert steps.start == ("e-2",)


def test_failed_starts_are_tried_again_ever_more_seldom():
    made, wanted, tried, now_s = keeper(), Wanted(orders=("e-1",)), [], 0.0
    while now_s < 200.0:
        dead = [unit(f"w{len(tried) - 1}", "e-1", alive=False)] if tried else []
        if made.steps(wanted, dead, now_s).start:
            tried.append(now_s)
        now_s += 0.5
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps[:3] == [BACKOFF_S + 0.5, 2.0 * BACKOFF_S + 0.5, 4.0 * BACKOFF_S + 0.5]
    assert gaps == sorted(gaps)
    assert max(gaps) <= 61.0


def test_what_is_told_to_stop_ends_and_what_nobody_knows_ends_later():
    made, units = keeper(), [unit("a"), unit("b"), unit("x"), unit("boots", "e-1")]
    wanted = Wanted(orders=("e-1",), stop=("b",), here=("a", "b"))
    assert [(one.worker, why) for one, why in made.steps(wanted, units, 0.0).stop] == [("b", "drained")]
    assert made.steps(Wanted(orders=("e-1",), here=("a", "x")), units[:1] + units[2:], 9.0).stop == ()
    wanted = replace(wanted, stop=(), here=("a",))
    assert made.steps(wanted, units[:1] + units[2:], 15.0).stop == (), "it was known in between"
    assert [(one.worker, why) for one, why in made.steps(wanted, units[2:], 25.0).stop] == [("x", "orphan")]


def test_remains_of_ordered_workers_go_at_once_and_others_later():
    made, dead = keeper(), [unit("a", alive=False), unit("b", "e-9", alive=False)]
    assert [one.worker for one in made.steps(Wanted(), dead, 0.0).clear] == ["b"]
    assert [one.worker for one in made.steps(Wanted(here=("a",)), dead[:1], 9.0).clear] == []
    assert [one.worker for one in made.steps(Wanted(), dead[:1], 10.0).clear] == []
    assert [one.worker for one in made.steps(Wanted(), dead[:1], 20.0).clear] == ["a"]


class Yard:
    """A driver in memory: workers boot, join and die as the test draws it."""

    name = "yard"

    def __init__(self):
        self.running, self.made, self.peak = {}, 0, 0
        self.broken = False

    def units(self):
        return list(self.running.values())

    def start(self, order):
        if self.broken:
            raise DriverError("no room")
        self.made += 1
        made = unit(f"w{self.made}", order)
        self.running[made.worker] = made
        self.peak = max(self.peak, sum(one.alive for one in self.running.values()))
        return made

    def stop(self, which, grace_s):
        self.running.pop(which.worker, None)
        return False

    def clear(self, which):
        return self.running.pop(which.worker, None) is not None

    def close(self):
        pass


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ojdkrfx"), st.integers(0, 9)), max_size=40))
def test_whatever_happens_no_order_has_two_workers_and_the_ceiling_holds(story):
    """Orders, joins, drains, deaths, restarts of the scaler and failing starts, in any order."""
    yard, made, orders, here, stop, given = Yard(), keeper(), [], [], [], 0
    for now_s, (what, pick) in enumerate(story):
        booting = [one for one in yard.units() if one.alive and one.worker not in here]
        if what == "o":
            given += 1
            orders.append(f"e-{given}")
        elif what == "j" and booting:
            here.append(booting[pick % len(booting)].worker)
            del orders[:1]
        elif what == "d" and here:
            stop.append(here[pick % len(here)])
        elif what == "k" and yard.running:
            name = list(yard.running)[pick % len(yard.running)]
            yard.running[name] = yard.running[name]._replace(alive=False)
            here = [one for one in here if one != name]
        elif what == "r":
            made = keeper()
        elif what == "f":
            yard.broken = not yard.broken
        wanted = Wanted(tuple(orders), tuple(one for one in stop if one in here), (), tuple(here))
        steps = made.steps(wanted, yard.units(), float(now_s))
        for one, _ in steps.stop:
            yard.stop(one, 1.0)
            here = [name for name in here if name != one.worker]
        for one in steps.clear:
            yard.clear(one)
        for order in steps.start:
            try:
                yard.start(order)
            except DriverError:
                made.failed(order, float(now_s))
        boots = [one.order for one in yard.units() if one.alive and one.worker not in here]
        assert len(boots) == len(set(boots))
        assert yard.peak <= 4


async def answered(body, sign):
    """A turn against a server that answers so: (missed, workers started)."""

    async def reply(request):
        shown = sign(request.headers[NONCE])
        return web.Response(body=body, headers={SIGNATURE: shown})

    app = web.Application()
    app.add_routes([web.post("/scaling", reply)])
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yard = Yard()
    config = ScalerConfig(f"http://127.0.0.1:{runner.addresses[0][1]}", KEY)
    try:
        scaler = Scaler(config, yard)
        async with aiohttp.ClientSession() as session:
            await scaler.turn(session)
    finally:
        await runner.cleanup()
    return scaler.missed, yard.made


ORDERS = packed(Wanted(orders=("e-1",)))


@pytest.mark.parametrize(
    ("body", "sign", "obeyed"),
    [
        (ORDERS, lambda nonce: signature(KEY, ANSWER, nonce, ORDERS), True),
        (ORDERS, lambda nonce: signature("another key", ANSWER, nonce, ORDERS), False),
        (ORDERS, lambda nonce: signature(KEY, ANSWER, "an old nonce", ORDERS), False),
        (ORDERS, lambda nonce: signature(KEY, ANSWER, nonce, ORDERS + b" "), False),
        (ORDERS, lambda nonce: "", False),
        (b'{"orders": "e-1"}', lambda nonce: signature(KEY, ANSWER, nonce, b'{"orders": "e-1"}'), False),
        (b"nonsense", lambda nonce: signature(KEY, ANSWER, nonce, b"nonsense"), False),
    ],
    ids=[
        "the dispatcher",
        "another key",
        "an old answer",
        "a changed body",
        "unsigned",
        "wrong shape",
        "no JSON",
    ],
)
async def test_only_the_dispatcher_is_obeyed(body, sign, obeyed):
    assert await answered(body, sign) == ((0, 1) if obeyed else (MISSED + 1, 0))


async def test_without_the_dispatcher_nothing_is_done_and_it_says_so():
    """Nobody answers: workers stay, readiness falls, and comes back."""
    yard = Yard()
    yard.running["a"] = unit("a")
    scaler = Scaler(ScalerConfig("http://127.0.0.1:1", KEY), yard)
    scaler.missed = 0
    async with aiohttp.ClientSession() as session:
        for _ in range(MISSED):
            assert scaler.ready
            await scaler.turn(session)
    assert not scaler.ready
    assert list(yard.running) == ["a"]
    assert (
        scaler.metrics.registry.get_sample_value("windtunnel_scaler_errors_total", {"side": "dispatcher"})
        == 3
    )
    assert not asyncio.all_tasks() - {asyncio.current_task()}
