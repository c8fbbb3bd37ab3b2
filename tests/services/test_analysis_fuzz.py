"""The analysis API under schemathesis: no answer is our fault, and each is as the API's description says."""

import signal
from collections import defaultdict

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.services.analysis_stage import AWAY, build, damaged, key, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

AS_DESCRIBED = [content_type_conformance, response_schema_conformance, status_code_conformance]
RUN = key("edf", "live").run_id
KNOWN = {
    "study": ("results.live", "results.sweep", "results.broken"),
    "run_id": (RUN,),
    "a": ("results.sim", f"results.live/{RUN}"),
    "b": ("results.live", f"results.sim/{key('edf', 'sim').run_id}"),
    "scheduler": ("edf",),
    "source": ("azure_surrogate", "auto"),
    "file": ("traffic/good.csv", "traffic/bad.csv"),
}
"""Values that are there: strings made up from the description alone would never be found."""


@pytest.fixture(scope="module")
def schema(tmp_path_factory):
    """The description that a running service gives of itself; afterwards it must still be in order."""
    stage = build(tmp_path_factory.mktemp("stage"))
    damaged(stage)
    log = stage.root.parent / "log"
    process, url = start(log, "--results", stage.root, "--traffic", stage.traffic, "--prometheus", AWAY)
    yield schemathesis.openapi.from_url(f"{url}/openapi.json")
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()
    assert '"level":"error"' not in log.read_text()


def with_known(case, chosen: dict[str, str]):
    """Put values that are there into the places that have their names."""
    places = {"path": case.path_parameters, "query": case.query}
    for one in case.operation.definition.raw.get("parameters", ()):
        if one["name"] in chosen and one["in"] in places:
            places[one["in"]][one["name"]] = chosen[one["name"]]
    if isinstance(case.body, dict) and "file" in case.body:
        case.body |= {name: chosen[name] for name in case.body.keys() & chosen.keys()}
    return case


@pytest.mark.parametrize(
    "mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["allowed", "broken"]
)
def test_no_request_is_our_fault(schema, mode):
    """No 5xx but the two kinds of 503; every answer has a status, a type and a shape that are described."""
    seen = defaultdict(set)
    known = st.fixed_dictionaries({name: st.sampled_from(values) for name, values in KNOWN.items()})
    for operation in (found.ok() for found in schema.get_all_operations()):
        try:
            strategy = operation.as_strategy(generation_mode=mode)
        except Exception as error:  # nothing about a route without input can be broken
            assert "negat" in str(error).lower() or "no schemas" in str(error).lower()  # noqa: PT017
            continue

        @seed(1)
        @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), database=None)
        @given(case=strategy, chosen=st.just({}) | known)
        def ask(case, chosen):
            response = (with_known(case, chosen) if mode is GenerationMode.POSITIVE else case).call(
                timeout=60
            )
            seen[case.operation.label].add(response.status_code)
            if response.status_code >= 500:
                assert response.json()["error"]["code"] in ("working", "prometheus_away"), response.text
            case.validate_response(response, checks=AS_DESCRIBED)

        try:
            ask()
        except Unsatisfiable:
            continue
    if mode is GenerationMode.POSITIVE:
        assert len(seen) == 13
        for label in ("GET /api/runs/{study}/{run_id}", "GET /api/compare", "POST /api/traffic/named"):
            assert {200, 404} <= seen[label], (label, seen)
    else:
        assert set().union(*seen.values()) <= {400, 404, 413, 422}
        assert len(seen) > 8
