"""The operator's door: engines, queues, draining, and another policy at run time. It has a key of its own."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.responses import Response

from schedulers.errors import InputError
from schedulers.load import file_of, is_shipped, load, pieces, portable
from services.dispatcher.intake import same_secret
from services.dispatcher.logs import log
from services.rpc.windtunnel.v1 import worker_pb2 as link
from services.worker.vllm.capability import refuse_weaker

if TYPE_CHECKING:
    from services.dispatcher.process import Parts

BODY_MAX = 65_536
ADDRESS = re.compile(r"[A-Za-z0-9._-]{1,253}:[0-9]{1,5}")
LEASE_MAX_S = 300.0


def worker_rows(parts: "Parts") -> list[dict[str, Any]]:
    """Each worker as it is known here."""
    fleet, now_s = parts.heart.desk.board.view.engines, parts.heart.clock()
    rows = []
    for worker in parts.links.workers.values():
        row = worker.row
        rows.append(
            {
                "worker": worker.worker_id,
                "engine": row,
                "connected": worker.connected,
                "serving": bool(fleet.alive[row] and not fleet.draining[row]),
                "draining": bool(fleet.draining[row]),
                "driver": worker.said.driver,
                "profile": worker.said.profile,
                "model": worker.said.model,
                "engine_policy": worker.engine_policy,
                "running": int(fleet.running[row]),
                "waiting": int(fleet.waiting[row]),
                "blocks_free": int(fleet.blocks_free[row]),
                "blocks_total": int(fleet.blocks_total[row]),
                "sequences_max": worker.said.limits.sequences_max,
                "budget_max": worker.said.limits.budget_max,
                "block_tokens": worker.said.limits.block_tokens,
                "model_tokens": worker.said.limits.model_tokens,
                "report_age_s": round(now_s - float(fleet.reported_s[row]), 3),
            }
        )
    return rows


def queue_rows(parts: "Parts") -> list[dict[str, Any]]:
    """Open requests by tier: in the centre, waiting for a first token, all."""
    board = parts.heart.desk.board
    table, open_rows = board.view.requests, board.number >= 0
    rows = []
    for tier, config in enumerate(parts.config.tiers):
        mine = open_rows & (table.tier == tier)
        rows.append(
            {
                "tier": tier,
                "name": config.name,
                "open": int(np.count_nonzero(mine)),
                "central": int(np.count_nonzero(mine & (table.engine < 0))),
                "without_token": parts.heart.desk.waiting(tier),
                "queue_max": config.queue_max,
            }
        )
    return rows


def refuse_code(spec: str, folder: str) -> None:
    """Raise InputError for code from the network: only policies that ship, or lie in the folder set for it."""
    fix = "name it on the command line of the dispatcher, or set scheduling.policy_folder"
    for piece in pieces(spec):
        file = file_of(piece)
        if file is not None and folder and file.is_relative_to(Path(folder).resolve()):
            continue
        if not is_shipped(piece):
            what = f"only policies that ship{f' or lie in {folder}' if folder else ''} can be switched to"
            raise InputError(f"{what} over the network", where=spec, fix=fix)


def switch_policy(parts: "Parts", spec: str) -> None:
    """Let another scheduler decide from now on; raises InputError.

    Only what each worker's engine can run: it would go on with the one before, under the new one's name.
    """
    refuse_code(spec, parts.config.scheduling.policy_folder)
    scheduler, heart = load(spec), parts.heart
    for worker in (one for one in parts.links.workers.values() if one.connected):
        limits = worker.said.limits
        refuse_weaker(worker.said.driver, scheduler, limits.budget_max, limits.model_tokens)
    heart.desk.with_more(scheduler.more)  # refuses before anything is changed
    told = pieces(portable(spec))[0]
    changed = told != heart.engine_policy or file_of(told) is not None  # whose file may have been changed
    heart.scheduler, heart.engine_policy = scheduler, told
    heart.desk.switch(scheduler.cluster, scheduler.cluster_params)
    heart.metrics.scheduled_by(parts.version, scheduler.name)
    if changed:
        order = link.DispatcherMessage(set_policy=link.SetPolicy(engine_policy=told))
        for worker in parts.links.workers.values():
            worker.send(order)
    log.info("policy switched", scheduler=scheduler.name)


def operator(parts: "Parts", request: Request) -> None:
    """Let an operator in; raises HTTPException for everybody else."""
    key = parts.config.keys.admin
    scheme, _, shown = request.headers.get("authorization", "").partition(" ")
    if not key:
        raise HTTPException(403, "there is no admin key, so there is no admin door: set keys.admin")
    if not same_secret(shown, key) or scheme.lower() != "bearer":
        raise HTTPException(401, "the admin key is needed", {"www-authenticate": "Bearer"})


async def document(request: Request) -> dict[str, Any]:
    """The body as an object, {} where there is none; raises HTTPException."""
    raw = b""
    async for part in request.stream():
        raw += part
        if len(raw) > BODY_MAX:
            raise HTTPException(413, "the body is too long")
    try:
        found = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise HTTPException(400, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise HTTPException(400, "an object was expected")
    return found


def policy_of(parts: "Parts") -> dict[str, Any]:
    """Who decides, with parameter values and what the policy did wrong lately."""
    desk, scheduler = parts.heart.desk, parts.heart.scheduler
    params = [
        {"name": param.name, "value": value, "low": param.low, "high": param.high, "unit": param.unit}
        for param, value in zip(scheduler.cluster.params, scheduler.cluster_params, strict=True)
    ]
    return {"scheduler": scheduler.name, "cluster_params": params, "faults": desk.faults[-20:]}


def reply(content: Any) -> Response:
    """A JSON response."""
    return Response(orjson.dumps(content), media_type="application/json")


def admin_routes(app: FastAPI, parts: "Parts") -> None:
    """Routes that change things."""

    @app.get("/admin/engines")
    async def engines(request: Request) -> Response:
        operator(parts, request)
        return reply({"engines": worker_rows(parts)})

    @app.get("/admin/queues")
    async def queues(request: Request) -> Response:
        operator(parts, request)
        return reply({"queues": queue_rows(parts), "held": len(parts.heart.desk.held)})

    @app.get("/admin/policy")
    async def policy_now(request: Request) -> Response:
        operator(parts, request)
        return reply(policy_of(parts))

    @app.put("/admin/policy")
    async def policy_next(request: Request) -> Response:
        operator(parts, request)
        spec = (await document(request)).get("scheduler")
        if not isinstance(spec, str):
            raise HTTPException(400, "scheduler: ENGINE[:k=v]+CLUSTER[:k=v]")
        try:
            switch_policy(parts, spec)
        except InputError as error:
            raise HTTPException(400, str(error)) from None
        return reply(policy_of(parts))

    @app.put("/admin/replay")
    async def replay(request: Request) -> Response:
        """Where a load generator shows its metrics, for so many seconds unless it comes again."""
        operator(parts, request)
        body = await document(request)
        address, lease_s = body.get("metrics"), body.get("lease_s", 15.0)
        if not isinstance(address, str) or not ADDRESS.fullmatch(address):
            raise HTTPException(400, "metrics: HOST:PORT")
        if not isinstance(lease_s, int | float) or not 0.0 <= lease_s <= LEASE_MAX_S:
            raise HTTPException(400, f"lease_s: 0 to {LEASE_MAX_S:g}")
        parts.announced.note(address, parts.clock() + lease_s)
        return reply({"metrics": address, "lease_s": lease_s})

    async def drain(request: Request, worker_id: str) -> Response:
        operator(parts, request)
        worker = parts.links.workers.get(worker_id)
        if worker is None:
            raise HTTPException(404, "no such worker")
        body = await document(request)
        wanted, leave = body.get("drain", True), body.get("leave", False)
        if not isinstance(wanted, bool) or not isinstance(leave, bool):
            raise HTTPException(400, "drain and leave: true or false")
        parts.links.drain(worker, wanted)
        if wanted and leave:  # its process ends once it holds nothing
            order = link.Drain(grace_s=parts.config.timeouts.drain_s)
            worker.send(link.DispatcherMessage(drain=order))
        return reply({"worker": worker_id, "draining": wanted})

    app.post("/admin/engines/{worker_id}/drain")(drain)
    app.post("/workers/{worker_id}/drain")(drain)
