"""The headline, the cards and the methods claim no more than tests show."""

import numpy as np

from analysis.answers import REVERSAL, STABLE
from analysis.cards import cards
from analysis.findings import find
from analysis.headline import headline
from analysis.methods import methods
from analysis.words import BAD, GOOD, NOTE, OPEN, parameter_words


def tile(head, about):
    return next(one for one in head.tiles if about in one.about)


def with_family(stats, **changes):
    family = next(one for one in stats.families if one.name == "sources")
    return stats._replace(families=(family._replace(**changes),))


def test_the_headline_counts_what_the_family_found(found, stats):
    told = with_family(stats, size=40, counts={REVERSAL: 3, STABLE: 30}, least_p=0.001, detectable=0.07)
    head = headline(found, told)
    assert "3 of 40 pairs of schedulers are shown to change places" in head.sentences[1]
    assert "more than 0.02 on either side (Benjamini-Yekutieli, 5%)" in head.sentences[1]
    one = tile(head, "material reversals")
    assert (one.value, one.stands) == ("3 of 40", BAD)
    assert "one by 0.070 on either side would be found" in one.says


def test_no_reversal_is_not_sold_as_proof(found, stats):
    told = with_family(stats, size=40, counts={STABLE: 40}, least_p=0.001)
    assert tile(headline(found, told), "material reversals").stands == GOOD
    told = with_family(stats, size=40, counts={STABLE: 39, "undecided": 1}, least_p=0.001)
    head = headline(found, told)
    assert tile(head, "material reversals").stands == OPEN
    assert "No pair of schedulers is shown to change places" in head.sentences[1]
    told = with_family(stats, size=40, counts={"undecided": 40}, least_p=0.9)
    head = headline(found, told)
    assert "a lone reversal could not be shown" in head.sentences[1]
    assert "would be found" not in tile(head, "material reversals").says


def test_doubts_come_first_and_nothing_holds_beside_them(found, stats):
    sure = with_family(stats, size=40, counts={STABLE: 40}, least_p=0.001)
    doubted = found._replace(study=found.study._replace(expected=10_000))
    head = headline(doubted, sure)
    assert "incomplete" in head.doubts[0]
    assert not any(one.stands == GOOD for one in head.tiles)
    assert not headline(found, sure).doubts


def test_labels_stand_in_the_first_sentence(found, stats):
    assert "2 surrogate sources (azure_surrogate, burstgpt_surrogate)" in headline(found, stats).sentences[0]


def test_without_statistics_numbers_are_dashes_not_zeros(found):
    head = headline(found, None)
    assert tile(head, "material reversals").value == "–"
    assert tile(head, "portable").value == "–"
    assert tile(head, "most often first").stands in (GOOD, NOTE)


def test_one_source_says_nothing_about_other_traffic(sweep):
    of = find(sweep(sources=("azure_surrogate",), regions=(0.85,), windows=8))
    assert headline(of, None).sentences[1] == "With one source nothing can be said about other traffic."


def test_a_card_a_scheduler_says_its_places(found, stats):
    told = cards(found, stats)
    assert {card.name for card in told} == set(found.study.schedulers)
    ranks = [card.mean_rank for card in told]
    assert ranks == sorted(ranks)
    best = dict(told[0].lines)
    primary = [key for key in found.rankings if key[2] == found.study.primary]
    first = sum(found.rankings[key].rows[0].scheduler == told[0].name for key in primary)
    assert f"best mean in {first} of {len(primary)} conditions" in best["Places"]
    assert "rho 0.85" in best["attainment_tier"]


def test_methods_hold_every_parameter_that_was_run(found, stats, attributions):
    text = methods(found, stats, attributions)
    for wanted in (
        "azure_surrogate (surrogate): 8 windows of 100 requests", "llama-3.1-8b/a100-80g", "lognormal:0.2",
        "seed 1", "0123456789abcdef", "bbbbbbbbbbbb", "cccccccccccc", "lifo, oracle-srpt, random",
        "margin 0.02", "margin 5%", "2,000 bootstrap draws", "9,999 permutations", "Benjamini-Yekutieli",
        "Model Confidence Set", "Shapley", "both have the same targets in seconds",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert "{{" not in text
    assert all(part and part == " ".join(part.split()) for part in text.split("\n\n"))
    bare = methods(found, None, ())
    assert "Shapley" not in bare
    assert "Model Confidence Set" not in bare


def test_parameters_are_told_flat():
    assert parameter_words('{"cluster": {"k": 2}, "engine": {"phi": 0.9, "cap": "inf"}}') == (
        "cluster k = 2, phi = 0.9, cap = inf"
    )
    assert parameter_words("{}") == parameter_words("") == ""
    assert parameter_words("not json") == "not json"


def test_an_undefined_share_is_no_number(found, stats):
    lost = stats.components[0]._replace(portability=np.nan, why_not="fewer than 4 windows")
    head = headline(found, stats._replace(components=(lost,)))
    assert (tile(head, "portable").value, tile(head, "portable").says) == ("–", "fewer than 4 windows")
