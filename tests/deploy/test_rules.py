"""Rules and configuration of Prometheus, held against promtool and against what the services show."""

import re
import shutil
import subprocess
from pathlib import Path

import promql_parser
import pytest
import yaml

from tests.deploy.test_dashboards import known, selectors  # noqa: F401 - `known` is a fixture

FOLDER = Path(__file__).resolve().parent.parent.parent / "deploy" / "prometheus"
RULES = [
    rule for group in yaml.safe_load((FOLDER / "rules.yml").read_text())["groups"] for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (apt-get install prometheus): rules were not run",
)


def promtool(*arguments):
    done = subprocess.run(["promtool", *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_accepts_configuration_and_rules():
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "rules.yml")


@needs_promtool
def test_alerts_fire_when_they_should_and_only_then():
    promtool("test", "rules", "rules_test.yml")


def test_every_rule_names_only_metrics_that_are_shown(known):  # noqa: F811
    named = [one.name for rule in RULES for one in selectors(promql_parser.parse(rule["expr"]))]
    assert sorted(set(named) - known) == []


def test_every_alert_says_what_to_do_and_is_tested():
    tested = (FOLDER / "rules_test.yml").read_text()
    for name, rule in ALERTS.items():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert {"summary", "remedy"} <= set(rule["annotations"]), name
        assert len(re.findall(rf"alertname: {name}\b", tested)) >= 2, (
            f"{name} needs a case that fires and one that doesn't"
        )
