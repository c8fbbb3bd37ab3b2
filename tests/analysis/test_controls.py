"""Controls come out where they must, and a planted result that puts them wrongly is noticed."""

import pytest

from analysis.controls import BROKEN, KEPT, UNKNOWN, beaten, broken, check_controls
from analysis.findings import find
from analysis.scores import study
from analysis.words import CONTROLS_TITLE, summary
from analysis.words import GOOD as GOOD_CARD

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


def test_a_good_scheduler_ahead_of_the_oracle_is_noted_and_breaks_nothing(sweep):
    """`edf` isn't among the policies that know less than the oracle by construction."""
    ahead = dict.fromkeys(SMALL["sources"], (0, 1, 2, 9, 4))
    folder = sweep(truth=ahead, **SMALL)
    oracle, *_ = check_controls(study(folder))
    assert (oracle.control, oracle.status) == ("oracle-srpt", KEPT)
    assert oracle.note == "edf beats oracle-srpt on e2e_mean_s: the oracle is a strong policy, not a bound"
    words = {one.about: one for one in summary(find(folder))}[CONTROLS_TITLE].text
    assert "strong policy, not a bound" in words
    assert "oracle-srpt beats 4 of 5" in words
    assert "Do not trust" not in words


def test_a_scheduler_behind_the_newest_first_is_noted_and_breaks_nothing(sweep):
    """`edf` doesn't serve in order of arrival: it may starve some for longer than lifo does."""
    behind = dict.fromkeys(SMALL["sources"], (0, 1, 2, -9, 4))
    _, lifo, _ = check_controls(study(sweep(truth=behind, **SMALL)))
    assert (lifo.control, lifo.status) == ("lifo", KEPT)
    assert lifo.note == "edf comes out behind lifo on e2e_p95_s: it starves some requests"


def test_a_control_that_knows_less_breaks_the_oracle_too(sweep):
    checks = check_controls(study(sweep(controls=GOOD | {"random": 9.0}, **SMALL)))
    assert {check.control for check in broken(checks)} == {"oracle-srpt", "random"}


def test_nothing_is_said_to_hold_while_a_control_is_broken(sweep):
    big = SMALL | {"windows": 10, "step": 0.2}
    assert GOOD_CARD in {one.stands for one in summary(find(sweep("good", **big)))}
    lost = summary(find(sweep("lost", controls=GOOD | {"lifo": 5.0}, **big)))
    assert GOOD_CARD not in {one.stands for one in lost}
    assert "Not claimed to hold: controls came out wrongly" in " ".join(one.text for one in lost)


def test_beaten_counts_ranked_schedulers_by_the_primary_metric(sweep):
    assert beaten(study(sweep(step=0.2, **SMALL))) == (
        ("lifo", 0, 5),
        ("oracle-srpt", 5, 5),
        ("random", 0, 5),
    )
