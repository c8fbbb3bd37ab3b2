"""Dashboards as files: what the code makes, in Grafana's shape, asking only for metrics that the services show."""

import json
import re
from pathlib import Path

import promql_parser
import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from deploy.grafana.__main__ import FOLDER, main, text
from deploy.grafana.boards import BOARDS
from deploy.grafana.panels import DATASOURCE_UID
from windtunnel.metrics import families

ROOT = Path(__file__).resolve().parent.parent.parent
WINDOWS = {"__rate_interval": "20s", "__interval": "5s", "__range": "5m"}


def board(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def shown(name):
    """Panels with queries, those inside of rows included."""
    panels = board(name)["panels"]
    return [
        panel
        for panel in panels + [p for row in panels for p in row.get("panels") or ()]
        if panel["type"] != "row"
    ]


def plain(expression, **chosen):
    """An expression as Grafana sends it."""
    values = WINDOWS | chosen
    return re.sub(r"\$\{?(\w+)\}?", lambda found: values.get(found[1], ".*"), expression)


def selectors(node):
    """Every vector selector of a parsed expression."""
    if isinstance(node, promql_parser.VectorSelector):
        return [node]
    parts = []
    for name in ("expr", "lhs", "rhs", "args", "param", "vector_selector", "vs", "matrix_selector"):
        found = getattr(node, name, None)
        for part in found if isinstance(found, list) else [found]:
            if part is not None and not isinstance(part, str | int | float):
                parts += selectors(part)
    return parts


@pytest.fixture(scope="module")
def known():
    """Names of all series, those of histograms and of recording rules included."""
    names = {"up"}
    for one in (one for rows in families().values() for one in rows):
        names |= (
            {one.name}
            if one.kind != "histogram"
            else {f"{one.name}_{end}" for end in ("bucket", "sum", "count")}
        )
    return names | set(re.findall(r"record: (\S+)", (ROOT / "deploy/prometheus/rules.yml").read_text()))


@pytest.mark.parametrize("name", BOARDS)
def test_files_are_what_the_code_makes(name):
    assert (FOLDER / f"{name}.json").read_text() == text(name), "run `make dashboards`"


def test_stale_files_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr("deploy.grafana.__main__.FOLDER", tmp_path)
    assert main(["--check"]) == 1
    assert main([]) == 0
    assert main(["--check"]) == 0
    (tmp_path / "engines.json").write_text("{}")
    assert main(["--check"]) == 1


@pytest.mark.parametrize("name", BOARDS)
def test_grafanas_own_model_loses_no_key(name):
    told = board(name)
    read = json.loads(JSONEncoder().encode(Dashboard.from_json(told)))
    assert [key for key in told if key not in read and told[key] is not None] == []
    for panel, again in zip(told["panels"], read["panels"], strict=True):
        assert set(panel) <= set(again)
        assert set(panel.get("options") or ()) <= set(again.get("options") or ())
        assert set(panel["gridPos"]) == set(again["gridPos"])


@pytest.mark.parametrize("name", BOARDS)
def test_panels_lie_side_by_side_and_know_their_source(name):
    told = board(name)
    assert told["uid"] == f"windtunnel-{name}"
    assert "windtunnel" in told["tags"]
    places = [(panel["title"], panel["gridPos"]) for panel in told["panels"]]
    assert [title for title, place in places if place["x"] + place["w"] > 24] == []
    taken = {}
    for title, place in places:
        for cell in (
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        ):
            assert taken.setdefault(cell, title) == title
    numbers = [panel["id"] for panel in told["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in shown(name):
        assert panel["description"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"
        references = [target["refId"] for target in panel["targets"]]
        assert references == list("ABCDEF"[: len(references)])
    variables = {one["name"]: one for one in told["templating"]["list"]}
    assert variables["datasource"]["current"]["value"] == DATASOURCE_UID
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps([panel["targets"] for panel in shown(name)])))
    assert used <= set(variables)
    assert {one["name"] for one in told["annotations"]["list"]} >= {
        "Run",
        "Policy switch",
        "Migration",
        "Scaling",
    }


@pytest.mark.parametrize("name", BOARDS)
def test_every_query_parses_and_names_only_metrics_that_are_shown(name, known):
    expressions = [target["expr"] for panel in shown(name) for target in panel["targets"]]
    expressions += [one["expr"] for one in board(name)["annotations"]["list"]]
    named = []
    for expression in expressions:
        found = selectors(promql_parser.parse(plain(expression)))
        assert found, expression
        named += [selector.name for selector in found]
    asked = [one["query"] for one in board(name)["templating"]["list"] if one["type"] == "query"]
    named += [re.fullmatch(r"label_values\((\w+), \w+\)", query)[1] for query in asked]
    assert sorted(set(named) - known) == []


def test_runs_and_tiers_can_be_chosen():
    chosen = {name: {one["name"] for one in board(name)["templating"]["list"]} for name in BOARDS}
    assert {"run", "tier"} <= chosen["overview"]
    assert {"run", "tier"} <= chosen["validity"]
    assert {"run_a", "run_b", "tier"} <= chosen["compare"]


def test_provisioning_names_the_same_source_and_a_folder_that_is_mounted():
    provisioning = ROOT / "deploy" / "grafana" / "provisioning"
    assert f"uid: {DATASOURCE_UID}" in (provisioning / "datasources" / "prometheus.yml").read_text()
    path = re.search(r"path: ([^}\s]+)", (provisioning / "dashboards" / "windtunnel.yml").read_text())[1]
    assert f"./deploy/grafana/dashboards:{path}:ro" in (ROOT / "docker-compose.yml").read_text()
