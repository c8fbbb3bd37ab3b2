"""Keys, TLS, the operator's door, logs, and messages that no honest peer would send."""

import asyncio
import contextlib
import subprocess
from dataclasses import replace

import grpc
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schedulers.errors import InputError
from services.config import Config, Keys, Listen, UserKey, checked, read
from services.dispatcher.__main__ import options
from services.dispatcher.admin import switch_policy
from services.dispatcher.logs import without_secrets
from services.dispatcher.process import Parts, running, store_of
from services.rpc.windtunnel.v1 import dispatcher_pb2 as door
from services.rpc.windtunnel.v1 import dispatcher_pb2_grpc, request_pb2, worker_pb2_grpc
from services.rpc.windtunnel.v1 import worker_pb2 as link
from tests.services.fake_worker import FakeWorker, fleet
from tests.services.live_stage import ROOM, asking, changed, client_at, heard, until

LOCKED = replace(
    ROOM, keys=Keys("admin-key", "worker-key", (UserKey("user-key", "acme"), UserKey("other", "beta")))
)


def key(secret):
    return (("authorization", f"Bearer {secret}"),)


async def test_each_door_has_its_own_key():
    async with (
        running(LOCKED) as parts,
        FakeWorker(parts.grpc, key="worker-key"),
        client_at(parts.grpc) as stub,
    ):
        said = await heard(stub.Submit(asking("r"), metadata=key("user-key")))
        assert said.ending.reason == "length"
        for secret in ("", "admin-key", "worker-key", "user-ke", "user-key2"):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async for _ in stub.Submit(asking("s"), metadata=key(secret)):
                    pass
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            async for _ in stub.Resume(door.ResumeRequest(request_id="r"), metadata=key("other")):
                pass
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND, "another tenant's answer does not exist"
        assert not (await stub.Cancel(door.CancelRequest(request_id="r"), metadata=key("other"))).cancelled
        said = await heard(stub.Submit(asking("r", 9), metadata=key("other")))
        assert said.ending.output_tokens == 9, "two tenants may use the same id"
        with pytest.raises(grpc.aio.AioRpcError):
            async with FakeWorker(parts.grpc, "spy", key="user-key"):
                pass
        assert list(parts.links.workers) == ["w0"]


async def test_the_operators_door():
    async with running(LOCKED) as parts, FakeWorker(parts.grpc, key="worker-key") as worker:
        url = f"http://{parts.http}"
        async with httpx.AsyncClient(base_url=url, headers={"authorization": "Bearer admin-key"}) as admin:
            assert (await admin.get("/admin/engines")).json()["engines"][0]["worker"] == "w0"
            assert [row["tier"] for row in (await admin.get("/admin/queues")).json()["queues"]] == [0, 1]
            assert (await admin.get("/admin/policy")).json()["scheduler"] == "fcfs-chunked+least-requests"
            switched = await admin.put("/admin/policy", json={"scheduler": "edf+llumnix:demand=0.5"})
            assert switched.json()["cluster_params"][0]["value"] == 0.5
            assert parts.heart.desk.policy.name == "llumnix"
            assert parts.heart.desk.board.view.params[0] == 0.5
            for bad in ("nothing", "edf", "x.py:POLICY+round-robin", "os.path:POLICY+round-robin", 5, None):
                if bad == "edf":
                    continue
                assert (await admin.put("/admin/policy", json={"scheduler": bad})).status_code == 400, bad
            drained = await admin.post("/admin/engines/w0/drain", json={})
            assert drained.json() == {"worker": "w0", "draining": True}
            assert parts.heart.desk.board.view.engines.draining[0] == 1
            await admin.post("/admin/engines/w0/drain", json={"drain": False})
            assert parts.heart.desk.board.view.engines.draining[0] == 0
            assert (await admin.post("/admin/engines/w9/drain", json={})).status_code == 404
            assert (await admin.put("/admin/policy", content=b"x" * 100_000)).status_code == 413
        for secret, status in (("user-key", 401), ("x", 401), ("Admin-key", 401)):
            async with httpx.AsyncClient(base_url=url, headers={"authorization": f"Bearer {secret}"}) as user:
                for path in ("/admin/engines", "/admin/queues", "/admin/policy"):
                    assert (await user.get(path)).status_code == status
                assert (await user.post("/workers/w0/drain")).status_code == status
        assert worker.jobs == {}
    async with running(ROOM) as parts, httpx.AsyncClient(base_url=f"http://{parts.http}") as client:
        assert (await client.get("/admin/engines", headers={"authorization": "Bearer x"})).status_code == 403


async def test_a_switched_policy_decides_and_reaches_the_engines():
    async with running(LOCKED) as parts, client_at(parts.grpc) as stub:
        from services.dispatcher.admin import switch_policy

        async with fleet(parts.grpc, "w0", "w1", key="worker-key") as workers:
            switch_policy(parts, "strict-tiers+most-loaded")
            calls = [heard(stub.Submit(asking(f"r{i}", 40), metadata=key("user-key"))) for i in range(6)]
            for said in await asyncio.gather(*calls):
                assert said.ending.reason == "length"
            assert sorted(len(worker.seen) for worker in workers) == [0, 6]
            assert parts.heart.desk.faults == []


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A small authority with a server's and a client's certificate."""
    folder = tmp_path_factory.mktemp("tls")

    def run(*arguments):
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new = (
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    )
    run(
        *new, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
    )  # fmt: skip
    for name in ("server", "client"):
        run(*new, "-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-CA", "ca.pem",
            "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
            "-addext", "basicConstraints=critical,CA:FALSE")  # fmt: skip
    return folder


@pytest.mark.parametrize("mutual", [False, True])
async def test_tls_and_mutual_tls_on_both_doors(certificates, mutual):
    import ssl

    ca, server, secret = (str(certificates / name) for name in ("ca.pem", "server.pem", "server.key"))
    listen = Listen("127.0.0.1:0", "127.0.0.1:0", server, secret, ca if mutual else "")
    context = ssl.create_default_context(cafile=ca)
    anonymous = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificates / "client.pem", certificates / "client.key")
    async with running(replace(ROOM, listen=listen)) as parts:
        async with httpx.AsyncClient(verify=context) as client:
            assert (await client.get(f"https://{parts.http}/live")).status_code == 200
        async with httpx.AsyncClient(verify=anonymous) as client:
            if mutual:
                with pytest.raises(httpx.TransportError):
                    await client.get(f"https://{parts.http}/live")
            else:
                assert (await client.get(f"https://{parts.http}/live")).status_code == 200
        own = ((certificates / "client.key").read_bytes(), (certificates / "client.pem").read_bytes())
        for pair in (own, (None, None)):
            credentials = grpc.ssl_channel_credentials((certificates / "ca.pem").read_bytes(), *pair)
            async with grpc.aio.secure_channel(parts.grpc, credentials) as channel:
                stub = dispatcher_pb2_grpc.DispatcherStub(channel)
                ask = stub.Cancel(door.CancelRequest(request_id="none"), timeout=3)
                if mutual and pair[0] is None:
                    with pytest.raises(grpc.aio.AioRpcError):
                        await ask
                else:
                    assert not (await ask).cancelled


async def test_health_and_reflection_answer():
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

    async with running(ROOM) as parts, grpc.aio.insecure_channel(parts.grpc) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "windtunnel.v1.Dispatcher", "windtunnel.v1.WorkerLink"):
            said = await health.Check(health_pb2.HealthCheckRequest(service=name))
            assert said.status == health_pb2.HealthCheckResponse.SERVING
        mirror = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = mirror.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        names = {one.name async for answer in call for one in answer.list_services_response.service}
        assert {"windtunnel.v1.Dispatcher", "windtunnel.v1.WorkerLink"} <= names


async def test_bytes_that_are_no_message_end_their_own_call_only():
    async with running(ROOM) as parts, FakeWorker(parts.grpc), client_at(parts.grpc) as stub:
        async with grpc.aio.insecure_channel(parts.grpc) as channel:
            raw = bytes
            for method in ("/windtunnel.v1.Dispatcher/Submit", "/windtunnel.v1.Dispatcher/Converse"):
                call = channel.stream_stream(method, request_serializer=raw, response_deserializer=raw)
                with contextlib.suppress(grpc.aio.AioRpcError):
                    async for _ in call(iter([b"\xff\xff\xff not a message"]), timeout=2):
                        pass
            call = channel.stream_stream("/windtunnel.v1.WorkerLink/Link", request_serializer=raw)
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for _ in call(iter([b"\x00" * 50]), timeout=2):
                    pass
        assert (await heard(stub.Submit(asking("r")))).ending.reason == "length"


BAD_REGISTRATIONS = [
    {"protocol": 9}, {"worker_id": ""}, {"worker_id": "a\nb"}, {"costs": [1.0]}, {"costs": [float("nan")] * 7},
    {"limits": link.Limits(sequences_max=1)},
]  # fmt: skip


@pytest.mark.parametrize(
    "wrong", BAD_REGISTRATIONS, ids=[str(next(iter(one))) + str(i) for i, one in enumerate(BAD_REGISTRATIONS)]
)
async def test_a_worker_that_makes_no_sense_is_sent_away(wrong):
    async with running(ROOM) as parts, grpc.aio.insecure_channel(parts.grpc) as channel:
        said = FakeWorker(parts.grpc).registration()
        for name, value in wrong.items():
            if name == "costs":
                del said.costs[:]
                said.costs.extend(value)
            elif name == "limits":
                said.limits.CopyFrom(value)
            else:
                setattr(said, name, value)
        call = worker_pb2_grpc.WorkerLinkStub(channel).Link(iter([link.WorkerMessage(register=said)]))
        messages = [message async for message in call]
        assert [message.WhichOneof("kind") for message in messages] == ["goodbye"]
        assert not messages[0].goodbye.reconnect
        assert parts.links.workers == {}


@pytest.mark.parametrize("driver", ["vllm", "paced"])
async def test_a_real_engine_that_cannot_run_the_policy_is_sent_away_and_told_why(driver):
    """It would go on with its own policy, and what it did would bear this one's name."""
    config = changed(scheduling={"scheduler": "slai+least-requests"})
    async with running(config) as parts, grpc.aio.insecure_channel(parts.grpc) as channel:
        said = FakeWorker(parts.grpc).registration()
        said.driver = driver
        call = worker_pb2_grpc.WorkerLinkStub(channel).Link(iter([link.WorkerMessage(register=said)]))
        (message,) = [message async for message in call]
        assert "vLLM" in message.goodbye.why
        assert "waiting_rank" in message.goodbye.why
        assert parts.links.workers == {}


async def test_no_policy_is_switched_to_that_a_worker_there_cannot_run():
    async with running(ROOM) as parts, fleet(parts.grpc, "w0") as (_,):
        switch_policy(parts, "slai+least-requests")
        switch_policy(parts, "edf+least-requests")
        parts.links.workers["w0"].said.driver = "vllm"
        with pytest.raises(InputError, match="waiting_rank"):
            switch_policy(parts, "slai+least-requests")
        assert parts.heart.scheduler.name == "edf+least-requests"


wild = st.integers(0, 2**64 - 1) | st.integers(0, 3)
small = st.integers(0, 2**32 - 1) | st.integers(0, 3)
submissions = st.builds(
    door.SubmitRequest, request_id=st.text(max_size=8), tier=small, tenant=st.text(max_size=4),
    session=st.integers(-(2**63), 2**63 - 1), forecast_tokens=st.floats(), luck=st.floats(),
    prompt=st.builds(request_pb2.Prompt, synthetic=st.builds(request_pb2.Synthetic, tokens=small))
    | st.builds(request_pb2.Prompt, text=st.text(max_size=9)),
    sampling=st.builds(
        request_pb2.Sampling, max_tokens=small, min_tokens=small, ignore_eos=st.booleans(), seed=wild,
        temperature=st.floats(), passed_on=st.binary(max_size=5),
    ),
    from_index=wild,
)  # fmt: skip
said_by_workers = st.one_of(
    st.builds(
        link.WorkerMessage,
        tokens=st.builds(
            link.TokenBatch,
            requests=st.lists(
                st.builds(
                    link.RequestTokens, number=wild, attempt=small, started_after_s=st.floats(),
                    run=st.builds(request_pb2.TokenRun, offset=wild, tokens=st.lists(small, max_size=3)),
                    final=st.none() | st.builds(link.Final, reason=st.text(max_size=6), preemptions=small),
                ),
                max_size=3,
            ),
        ),
    ),
    st.builds(
        link.WorkerMessage,
        report=st.builds(
            link.Report, sequence=wild, waiting=st.lists(wild, max_size=3), running=st.lists(wild, max_size=3),
            computed_tokens=st.lists(st.integers(0, 2**62), max_size=4), blocks_free=small,
            queued_blocks=st.integers(0, 2**62), pending_tokens=st.integers(0, 2**62), step_s=st.floats(),
        ),
    ),
    st.builds(
        link.WorkerMessage,
        migration=st.builds(
            link.MigrationStep, migration=wild, number=wild, copied=st.builds(link.Copied, generated=wild)
        ),
    ),
    st.builds(link.WorkerMessage, leaving=st.builds(link.Leaving)),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(submissions, max_size=4), st.lists(said_by_workers, max_size=6))
def test_any_well_formed_message_leaves_the_dispatcher_whole(asked, said):
    """Whatever fields hold, the books add up and an honest request is served after it."""

    async def play():
        config = changed(ROOM, timeouts={"engine_grace_s": 0.05})
        async with (
            running(config) as parts,
            fleet(parts.grpc, "w0") as (worker,),
            client_at(parts.grpc) as stub,
        ):
            async with FakeWorker(parts.grpc, "mad", frozen=True) as mad:
                calls = [
                    asyncio.create_task(heard(stub.Submit(one), seed=one.sampling.seed)) for one in asked
                ]
                for message in said:
                    mad.out.put_nowait(message)
                await asyncio.sleep(0.03)
            for call in calls:
                call.cancel()
            honest = await heard(stub.Submit(asking("honest")))
            assert honest.ending.reason == "length"
            for answer in list(parts.heart.answers.values()):
                parts.heart.cancel(answer)
            assert parts.heart.desk.board.row_of == {}
            assert int(parts.heart.desk.board.view.engines.waiting[worker.welcomes[0].engine]) == 0

    asyncio.run(play())


def test_configuration_is_checked_by_name(tmp_path):
    path = tmp_path / "wt.toml"
    path.write_text(
        '[listen]\nhttp = "127.0.0.1:1"\n[[tiers]]\nname = "a"\nttft_s = 1\n[keys]\nadmin = "x"\n'
        '[[keys.user]]\nkey = "k"\ntenant = "t"\n[store]\nurl = "file:x"\n'
    )
    config = options(["--config", str(path), "--grpc", "127.0.0.1:2", "--scheduler", "edf+p2c"])
    assert (config.listen.http, config.listen.grpc, config.tiers[0].ttft_s) == (
        "127.0.0.1:1",
        "127.0.0.1:2",
        1.0,
    )
    assert (config.keys.user[0].tenant, config.scheduling.scheduler) == ("t", "edf+p2c")
    for text, word in (
        ("[limits]\nbody_byte = 3", "body_byte"), ("[limits]\nbody_bytes = 0", "body_bytes"), ("x", "TOML"),
        ("[listen]\nhttp = 5", "http"), ("tiers = []", "tier"), ("[store]\nwhen_away = 'hope'", "when_away"),
        ("[keys]\nadmin='a'\nworker='a'", "same"), ("[scheduling]\ndefault_tier = 4", "default_tier"),
        ("[listen]\nclient_ca = 'x'", "client_ca"), ("[[keys.user]]\nkey = 'x'", "keys"), ("keys = 3", "keys"),
    ):  # fmt: skip
        path.write_text(text)
        with pytest.raises(InputError, match=word):
            read(path)
    with pytest.raises(InputError, match="unknown store"):
        store_of(replace(Config().store, url="mysql://x"))
    assert checked(Config()).listen.http.startswith("127.0.0.1"), "loopback unless told otherwise"


def test_logs_hide_what_is_secret():
    event = {"event": "x", "authorization": "Bearer a", "api_key": "b", "prompt": "c", "worker": "w0"}
    shown = without_secrets(None, "info", dict(event))
    assert [shown[name] for name in ("authorization", "api_key", "prompt")] == ["[hidden]"] * 3
    assert shown["worker"] == "w0"


async def test_what_nobody_waits_for_is_not_kept_for_ever():
    """Ended answers go after keep_s, and over the bound at once: memory follows what is open."""
    config = changed(ROOM, timeouts={"keep_s": 0.05}, limits={"open_requests": 128})
    async with running(config) as parts, fleet(parts.grpc, "w0", pace=9), client_at(parts.grpc) as stub:
        for start in range(0, 200, 50):
            await asyncio.gather(*(heard(stub.Submit(asking(f"r{start + i}", 3))) for i in range(50)))
            assert len(parts.heart.answers) <= 128 + 50
        await until(lambda: not parts.heart.answers and not parts.heart.by_id and not parts.heart.progressed)
        assert isinstance(parts, Parts)
        assert len(parts.heart.desk.board.number) <= 128
