"""The dispatcher's side of scaling: places, orders and the floor on the desk, and the scaler's door."""

import httpx
import numpy as np
import pytest

from schedulers.decisions import DRAIN, ORDER, SCALE, STOP, UNDRAIN
from schedulers.errors import InputError
from schedulers.policy import ClusterPolicy
from services.config import checked
from services.dispatcher.process import running
from services.wanted import ANSWER, ASK, NONCE, SIGNATURE, Told, packed, signature, signed, wanted_in
from tests.services.live_stage import ROOM, changed
from tests.services.test_dispatcher_desk import PLACE, arrival, desk

KEY = "the scaler's key"


def wishing(changes):
    """A policy that wishes these changes, a second each."""
    wishes = iter(changes)
    return ClusterPolicy("wishing", scale=lambda view, none, now_s: next(wishes, 0.0), period_s=1.0)


def made(changes, engines=1, **bounds):
    return desk(wishing(changes), engines=engines, most=3, **bounds)


def told(decisions):
    return [(one.kind, one.engine) for one in decisions if one.kind != SCALE]


def test_places_up_to_the_ceiling_are_seen_and_ordered_one_by_one():
    """One serves, two could: both are ordered, a fourth never."""
    place = made([1.0, 5.0])
    alive = place.board.view.engines.alive
    assert alive.tolist() == [1, 0, 0]
    assert told(place.tick(1.0)) == [(ORDER, 1)]
    assert told(place.tick(2.0)) == [(ORDER, 2)]
    assert place.board.view.engines.alive.tolist() == [1, 2, 2]
    assert [place.join(PLACE, 3.0) for _ in range(2)] == [1, 2], (
        "the oldest order's place goes to who joins first"
    )
    assert place.roster.orders == {}
    assert place.join(PLACE, 3.0) == 3, "whom somebody else started is let in, beyond the ceiling"


def test_a_lower_ceiling_of_the_scaler_holds():
    """It would run two: the third place, which the dispatcher's own ceiling allows, is not ordered."""
    place = made([5.0])
    place.roster.most = 2
    assert told(place.tick(1.0)) == [(ORDER, 1)]


def test_undrained_before_ordered_and_stopped_when_empty():
    place = made([1.0, -1.0, 1.0, -1.0])
    assert told(place.tick(1.0)) == [(ORDER, 1)]
    place.join(PLACE, 1.5)
    place.arrive(arrival(1), 1.6)
    place.arrive(arrival(2), 1.6)
    assert told(place.tick(2.0)) == [(DRAIN, 1)], "the last among equals"
    assert place.arrive(arrival(3), 2.1)[0].engine == 0
    assert told(place.tick(3.0)) == [(UNDRAIN, 1)]
    assert told(place.tick(4.0)) == [(DRAIN, 1)]
    held = [number for number in (1, 2) if place.board.view.requests.engine[place.board.row_of[number]] == 1]
    place.drain(1, False)  # its link was cut and is back: it drains on
    assert place.board.view.engines.draining[1] == 1
    for number in held:
        place.finish(number, 4.5)
    assert told(place.tick(4.6)) == [(STOP, 1)]
    assert told(place.tick(4.7)) == []
    assert place.board.view.engines.alive.tolist() == [1, 0, 0]
    place.die(1, 4.8)
    assert place.roster.size == 1


def test_never_below_the_least_and_an_operators_drain_is_left_alone():
    place = made([-1.0, -1.0, 1.0], engines=2)
    place.drain(0)
    assert told(place.tick(1.0)) == [], "only one serves, and it stays"
    place.drain(0, False)
    assert told(place.tick(2.0)) == [(DRAIN, 1)]
    place.drain(0)
    assert told(place.tick(3.0)) == [(STOP, 1), (ORDER, 2)], "not the one that the operator drained"


def test_the_floor_is_ordered_again_and_what_takes_too_long_is_given_up():
    """The last engine dies; its place is off and ordered; nobody comes for 60 s, and it is ordered anew."""
    place = made([], boot_s=60.0, settle_s=5.0)
    place.die(0, 1.0)
    assert told(place.tick(4.0)) == [], "engines may still come back"
    assert told(place.tick(6.0)) == [(ORDER, 0)]
    first = place.roster.orders[0][0]
    assert told(place.tick(65.0)) == []
    assert told(place.tick(66.5)) == [(STOP, 0), (ORDER, 0)]
    assert place.roster.orders[0][0] != first


def test_where_nobody_ever_was_one_is_ordered_and_its_place_made():
    place = made([], engines=0)
    assert told(place.tick(0.1)) == [(ORDER, -1)]
    assert told(place.tick(0.2)) == []
    assert place.join(PLACE, 1.0) == 0
    assert (place.roster.orders, place.board.view.engines.alive.tolist()) == ({}, [1, 0, 0])


def test_a_fixed_fleet_is_left_alone():
    place = desk(wishing([1.0, -1.0]), engines=2)
    assert [one.kind for one in place.tick(1.0)] == [SCALE]
    assert [one.kind for one in place.tick(2.0)] == [SCALE]
    assert np.array_equal(place.board.view.engines.alive, [1, 1])


ASKED = packed(Told("127.0.0.1:9", 2, (("w", "", "serving"),)))


async def test_the_door_opens_for_the_key_alone():
    """Signed questions are answered, signed; others are not; the ceiling is the lower one."""
    config = changed(scaling={"most": 4, "settle_s": 0.0}, keys={"scaler": KEY, "admin": "admin"})
    async with running(config) as parts, httpx.AsyncClient(base_url=f"http://{parts.http}") as client:

        async def asked(body, **headers):
            return await client.post("/scaling", content=body, headers=headers)

        good = signature(KEY, ASK, "n", ASKED)
        wrong = [
            {}, {NONCE: "n"}, {NONCE: "n", SIGNATURE: "x"},
            {NONCE: "m", SIGNATURE: good}, {NONCE: "", SIGNATURE: good},
            {NONCE: "n", SIGNATURE: signature(KEY, ANSWER, "n", ASKED)}, {"authorization": f"Bearer {KEY}"},
            {NONCE: "n" * 200, SIGNATURE: signature(KEY, ASK, "n" * 200, ASKED)},
        ]  # fmt: skip
        assert {(await asked(ASKED, **headers)).status_code for headers in wrong} == {401}
        assert parts.heart.desk.roster.most == 4
        for body in (b"[]", b"{", b'{"units": [["a"]]}', b'{"most": true}', b'{"metrics": "a\\n"}'):
            shown = signature(KEY, ASK, "n", body)
            assert (await asked(body, **{NONCE: "n", SIGNATURE: shown})).status_code == 400
        answer = await asked(ASKED, **{NONCE: "n", SIGNATURE: good})
        assert signed(KEY, ANSWER, "n", answer.content, answer.headers[SIGNATURE])
        assert wanted_in(answer.content).here == ()
        assert parts.heart.desk.roster.most == 2
        assert (await client.get("/admin/scaling")).status_code == 401
        seen = (await client.get("/admin/scaling", headers={"authorization": "Bearer admin"})).json()
        assert (seen["most"], seen["scaler"]["heard"], seen["scaler"]["units"][0]["worker"]) == (2, True, "w")
        assert (
            await client.post("/scaling", content=b"x" * (2 << 20), headers={NONCE: "n"})
        ).status_code == 413


async def test_without_a_key_there_is_no_door():
    async with running(ROOM) as parts, httpx.AsyncClient(base_url=f"http://{parts.http}") as client:
        assert (await client.post("/scaling", content=ASKED)).status_code == 403


@pytest.mark.parametrize(
    "scaling", [{"most": 2, "least": 3}, {"most": -1}, {"most": 2, "least": 0}, {"most": 1, "boot_s": 0.0}]
)
def test_limits_that_contradict_are_refused(scaling):
    with pytest.raises(InputError):
        checked(changed(scaling=scaling, keys={"scaler": KEY}))


async def test_scaling_without_a_key_is_refused():
    with pytest.raises(InputError, match="key"):
        async with running(changed(scaling={"most": 2})):
            pass
