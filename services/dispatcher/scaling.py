"""The scaler's door: what the policy wishes of the fleet, published to the one who can carry it out."""

from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from schedulers.decisions import SCALE, STOP, Decision
from schedulers.errors import InputError
from schedulers.lives import BOOTING, DRAINING, LEAVING, OFF, SERVING
from services.dispatcher.answer import Refused
from services.dispatcher.completions import LeftError, body_of
from services.dispatcher.logs import log
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.wanted import ANSWER, ASK, NONCE, SIGNATURE, Told, Wanted, packed, signature, signed, told_in

if TYPE_CHECKING:
    from services.dispatcher.answer import Engine
    from services.dispatcher.process import Parts

LIVES = {OFF: "off", BOOTING: "booting", SERVING: "serving", DRAINING: "draining", LEAVING: "leaving"}
TOLD_S = 15.0
"""How long what a scaler said holds."""

BODY_MAX = 1 << 20
NONCE_MAX = 128


class Scaling:
    """The fleet as the scaler is to make it, and as the scaler says it is."""

    def __init__(self, parts: "Parts") -> None:
        self.parts, self.key = parts, parts.config.keys.scaler
        if parts.config.scaling.most and not self.key:
            fix = "set keys.scaler, or WINDTUNNEL_SCALER_KEY"
            raise InputError("scaling needs the scaler's key", where="keys.scaler", fix=fix)
        self.told, self.told_s = Told(), -TOLD_S
        parts.heart.fleet = self.decided

    def decided(self, decision: Decision) -> None:
        """Note what was decided about the fleet."""
        if decision.kind == SCALE:
            self.parts.metrics.scale_wanted(decision.number, len(self.parts.heart.engines))
            return
        worker = self.parts.heart.engines.get(decision.engine)
        if decision.kind == STOP and worker is not None:
            self.let_go(worker)
        log.info(
            "fleet", decision=decision.kind, reason=decision.reason, engine=decision.engine,
            worker=worker.worker_id if worker is not None else "",
        )  # fmt: skip

    def let_go(self, worker: "Engine") -> None:
        """A worker that the scaler does not run is told to end itself; the scaler ends its own."""
        theirs = {name for name, _, _ in self.told.units}
        if worker.worker_id not in theirs:
            order = link.Drain(grace_s=self.parts.config.timeouts.drain_s)
            worker.send(link.DispatcherMessage(drain=order))

    def wanted(self) -> Wanted:
        """What is wanted now."""
        roster, here = self.parts.heart.desk.roster, self.here()
        orders = [f"{self.parts.epoch:x}-{number}" for number, _ in roster.orders.values()]
        by_life = {life: [name for name, row in here.items() if roster.life[row] == life] for life in LIVES}
        return Wanted(tuple(orders), tuple(by_life[LEAVING]), tuple(by_life[DRAINING]), tuple(here))

    def here(self) -> dict[str, int]:
        """Rows of the workers that have joined, by id; a cut link may come back."""
        workers = self.parts.links.workers.values()
        return {one.worker_id: one.row for one in workers if one.connected or one.death is not None}

    def hear(self, told: Told) -> None:
        """A scaler says how it is; more workers than it would run are not ordered."""
        self.told, self.told_s = told, self.parts.clock()
        if told.metrics:
            self.parts.announced.note(told.metrics, self.told_s + TOLD_S, "windtunnel-scaler")
        roster, most = self.parts.heart.desk.roster, self.parts.config.scaling.most
        roster.most = min(most, told.most) if told.most else most

    def sizes(self) -> dict[str, int]:
        """Engines by state."""
        roster = self.parts.heart.desk.roster
        return {name: len(roster.rows(life)) for life, name in LIVES.items()}

    def described(self) -> dict[str, Any]:
        """For an operator."""
        scaling, roster = self.parts.config.scaling, self.parts.heart.desk.roster
        age_s = self.parts.clock() - self.told_s
        units = [dict(zip(("worker", "order", "state"), unit, strict=True)) for unit in self.told.units]
        return {
            "least": scaling.least, "most": roster.most, "engines": self.sizes(), "orders": self.wanted().orders,
            "scaler": {"heard": age_s < TOLD_S, "age_s": round(age_s, 3), "units": units},
        }  # fmt: skip


def scaling_routes(app: FastAPI, parts: "Parts") -> None:
    """The scaler's own door, and a look at it for operators."""

    @app.post("/scaling")
    async def scaling(request: Request) -> Response:
        if not parts.scaling.key:
            raise HTTPException(403, "there is no scaler key, so there is no scaler's door: set keys.scaler")
        nonce, shown = request.headers.get(NONCE, ""), request.headers.get(SIGNATURE, "")
        try:
            raw = await body_of(request.receive, BODY_MAX, parts.config.timeouts.idle_connection_s)
        except (Refused, LeftError):
            raise HTTPException(413, "the body is too long, or comes too slowly") from None
        known = shown.isascii() and nonce.isascii() and 0 < len(nonce) <= NONCE_MAX
        if not known or not signed(parts.scaling.key, ASK, nonce, raw, shown):
            raise HTTPException(401, "the scaler's signature is needed")
        try:
            parts.scaling.hear(told_in(raw))
        except InputError as error:
            raise HTTPException(400, str(error)) from None
        body = packed(parts.scaling.wanted())
        headers = {SIGNATURE: signature(parts.scaling.key, ANSWER, nonce, body)}
        return Response(body, media_type="application/json", headers=headers)

    @app.get("/admin/scaling")
    async def described(request: Request) -> Response:
        from services.dispatcher.admin import operator

        operator(parts, request)
        return Response(orjson.dumps(parts.scaling.described()), media_type="application/json")
