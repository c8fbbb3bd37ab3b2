"""Controls come out where they must, and a planted result that puts them wrongly is noticed."""

import pytest

from analysis.controls import BROKEN, KEPT, UNKNOWN, broken, check_controls
from analysis.scores import study

GOOD = {"random": -1.0, "lifo": -6.0, "oracle-srpt": 7.0}
SMALL = {"sources": ("azure_surrogate", "burstgpt_surrogate"), "regions": (0.5, 0.95), "windows": 6}


def test_controls_in_their_places_are_as_expected(sweep):
    checks = check_controls(study(sweep(**SMALL)))
    assert [(check.control, check.status) for check in checks] == [
        ("oracle-srpt", KEPT),
        ("lifo", KEPT),
        ("random", KEPT),
    ]


@pytest.mark.parametrize(("control", "worth"), [("oracle-srpt", 1.0), ("lifo", 5.0), ("random", 6.0)])
def test_a_planted_control_is_broken(sweep, control, worth):
    checks = check_controls(study(sweep(controls=GOOD | {control: worth}, **SMALL)))
    assert [check.control for check in broken(checks)] == [control]


def test_only_pressed_regions_count(sweep):
    checks = check_controls(study(sweep(**SMALL | {"regions": (0.5, 0.7)})))
    assert {check.status for check in checks} == {UNKNOWN}


def test_controls_that_were_not_run_are_unknown(sweep):
    checks = check_controls(study(sweep(controls={"lifo": -6.0}, **SMALL)))
    assert [(check.control, check.status) for check in checks if check.status == UNKNOWN] == [
        ("oracle-srpt", UNKNOWN),
        ("random", UNKNOWN),
    ]
    assert not [check for check in checks if check.status == BROKEN]


def test_controls_are_never_ranked(sweep):
    of = study(sweep(**SMALL))
    assert set(of.controls) == set(GOOD)
    assert not set(of.controls) & set(of.schedulers)
