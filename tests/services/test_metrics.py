"""What the dispatcher shows Prometheus: attainment is of arrivals, gaps are counted a message, targets are found."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from schedulers.decisions import MOVE, Decision
from services.config import TierConfig
from services.dispatcher.gauges import ENGINE_STATES, Announced
from services.dispatcher.process import running
from services.grids import TTFT_S, TierHistogram
from tests.services.fake_worker import fleet
from tests.services.live_stage import asking, changed, client_at, heard, until
from tests.services.test_http_door import body, web

QUICK = changed(timeouts={"engine_grace_s": 0.1, "resume_s": 0.2})


def values(text):
    """Samples of a page: (name, frozen labels) to value."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def at(found, name, **labels):
    return found.get((name, frozenset(labels.items())))


async def scraped(client):
    return values((await client.get("/metrics")).text)


async def test_attainment_is_of_all_that_ended_and_unknown_without_a_target():
    """A refused request counts as missed in a tier with a target; a tier without one has no series at all."""
    async with running(QUICK) as parts, fleet(parts.grpc, "w0"), web(parts) as client:
        for tier, tokens in (("0", 4), ("0", 4), ("1", 4), ("0", 10**6), ("1", 10**6)):
            await client.post("/v1/completions", json=body(tokens), headers={"x-windtunnel-tier": tier})
        found = await scraped(client)
        assert at(found, "windtunnel_slo_met_total", tier="0") == 2
        assert at(found, "windtunnel_slo_missed_total", tier="0", target="dropped") == 1
        assert at(found, "windtunnel_slo_target_seconds", tier="0", target="ttft") == 1.0
        ended = sum(
            value
            for (name, labels), value in found.items()
            if name == "windtunnel_requests_total" and ("tier", "0") in labels
        )
        assert ended == 3
        assert not [key for key in found if "slo" in key[0] and ("tier", "1") in key[1]]


async def test_a_tight_target_is_missed_by_name_and_a_request_may_bring_its_own():
    tight = changed(QUICK)
    tiers = (TierConfig("fast", ttft_s=1e-9, queue_max=9), TierConfig("slow", ttft_s=1e-9, tpot_s=9.0))
    async with running(tight.__class__(**{**vars(tight), "tiers": tiers})) as parts:
        async with fleet(parts.grpc, "w0"), web(parts) as client:
            for more in ({}, {"x-slo-ttft-ms": "60000"}):
                headers = {"x-windtunnel-tier": "1", **more}
                await client.post("/v1/completions", json=body(4), headers=headers)
            found = await scraped(client)
        assert at(found, "windtunnel_slo_missed_total", tier="1", target="ttft") == 1
        assert at(found, "windtunnel_slo_missed_total", tier="1", target="tpot") == 0
        assert at(found, "windtunnel_slo_met_total", tier="1") == 1


async def test_engines_have_one_state_and_load_only_while_they_are_here():
    async with (
        running(QUICK) as parts, web(parts) as client, fleet(parts.grpc, "w0"), fleet(parts.grpc, "w1") as crew,
    ):  # fmt: skip
        (other,) = crew
        await until(lambda: len(parts.links.workers) == 2)
        found = await scraped(client)
        assert at(found, "windtunnel_engine_kv_usage_ratio", engine="1") is not None
        await other.kill()
        lost = parts.links.workers["w1"]
        await until(lambda: not lost.connected and lost.death is None)
        found = await scraped(client)
        states = {
            name: at(found, "windtunnel_engine_state", engine="1", state=name) for name in ENGINE_STATES
        }
        assert states == {name: float(name == "lost") for name in ENGINE_STATES}
        assert at(found, "windtunnel_engine_kv_usage_ratio", engine="1") is None
        assert at(found, "windtunnel_engine_info", engine="0", worker="w0", profile="") == 1


async def test_a_move_is_counted_with_its_blocks_and_the_gap_that_it_made():
    async with running(QUICK) as parts, fleet(parts.grpc, "w0", "w1", migrates=True):
        async with client_at(parts.grpc) as stub, web(parts) as client:
            call = asyncio.create_task(heard(stub.Submit(asking("r", 300))))
            await until(lambda: parts.heart.answers)
            answer = next(iter(parts.heart.answers.values()))
            await until(lambda: len(answer.tokens) > 10)
            source = answer.engine
            parts.heart.desk.moving[answer.number] = source, 1 - source
            parts.heart.act([Decision(MOVE, answer.number, 1 - source, "test", source=source)])
            await call
            found = await scraped(client)
        assert at(found, "windtunnel_migrations_total", cause="test", outcome="committed") == 1
        assert at(found, "windtunnel_migration_stall_seconds_count") == 1
        assert at(found, "windtunnel_decisions_total", decision="move", reason="test") == 1
        gaps = at(found, "windtunnel_inter_token_latency_seconds_count", tier="0")
        assert 10 < gaps < 300
        assert at(found, "windtunnel_decision_seconds_count", hook="arrive") == 1
        assert at(found, "windtunnel_decision_seconds_sum", hook="arrive") > 0.0
        assert not parts.metrics.moved


async def test_a_load_generator_is_found_while_it_says_so():
    keyed = changed(QUICK, keys={"admin": "k"})
    async with running(keyed) as parts, web(parts) as client:
        put = {"metrics": "gen-1:9109", "lease_s": 60}
        assert (await client.put("/admin/replay", json=put)).status_code == 401
        client.headers["authorization"] = "Bearer k"
        for bad in ({"metrics": "x"}, {"metrics": "http://a:1/"}, {"metrics": "a:1", "lease_s": 1e9}):
            assert (await client.put("/admin/replay", json=bad)).status_code == 400
        assert (await client.put("/admin/replay", json=put)).status_code == 200
        listed = (await client.get("/targets")).json()
        assert listed == [{"targets": ["gen-1:9109"], "labels": {"job": "windtunnel-replay"}}]
        await client.put("/admin/replay", json=put | {"lease_s": 0})
        assert (await client.get("/targets")).json() == []


def test_leases_end_and_the_oldest_give_way():
    announced = Announced(most=2)
    for name, until_s in (("a", 5.0), ("b", 9.0), ("a", 7.0)):
        announced.note(name, until_s)
    assert list(announced.now(6.0)) == ["b", "a"]
    announced.note("c", 9.0)
    assert list(announced.now(6.0)) == ["a", "c"]
    assert list(announced.now(8.0)) == ["c"]


@pytest.mark.parametrize(
    ("value", "edge"), [(0.0, "0.001"), (0.001, "0.001"), (0.0011, "0.005"), (9e9, "+Inf")]
)
def test_a_cheap_histogram_says_what_the_library_says(value, edge):
    """Cumulative from the bucket on whose edge or below which the value lies."""
    mine = TierHistogram("wait_seconds", "Waiting", 2, TTFT_S)
    mine.observe(1, value)
    (family,) = mine.collect()
    rows = [one for one in family.samples if one.labels.get("tier") == "1"]
    buckets = {one.labels["le"]: one.value for one in rows if one.name.endswith("_bucket")}
    edges = list(buckets)
    assert [buckets[le] for le in edges] == [float(place >= edges.index(edge)) for place in range(len(edges))]
    assert {one.name.rsplit("_", 1)[1]: one.value for one in rows if "le" not in one.labels} == {
        "count": 1.0,
        "sum": value,
    }
