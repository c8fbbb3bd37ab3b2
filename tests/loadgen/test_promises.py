"""Promises as text and as TOML: what is left out, and clear words for what can't be."""

from math import inf

import pytest

from loadgen.plan import TierSpec
from loadgen.promises import EXAMPLE, USUAL, Promise, read_promises
from schedulers.errors import InputError


def test_text_says_targets_shares_and_what_is_owed():
    assert read_promises(
        "gold:ttft=0.5,tpot=0.05,share=0.2,attain=0.95; rest:ttft_s=2,e2e=30,weight=0.5"
    ) == (
        Promise(TierSpec("gold", 0.5, 0.05, 0.2), 0.95),
        Promise(TierSpec("rest", 2.0, inf, 0.8, 30.0, 0.5), 0.9),
    )


def test_silent_tiers_share_what_is_left():
    shares = [one.tier.share for one in read_promises("a:ttft=1,share=0.4;b:ttft=2;c:ttft=3")]
    assert shares == pytest.approx([0.4, 0.3, 0.3])


@pytest.mark.parametrize("text", [USUAL, EXAMPLE])
def test_what_help_shows_reads(text):
    assert sum(one.tier.share for one in read_promises(text)) == pytest.approx(1.0)


def test_a_file_says_the_same(tmp_path):
    path = tmp_path / "tiers.toml"
    path.write_text(
        '[[tiers]]\nname = "gold"\nttft_s = 0.5\ntpot_s = 0.05\nshare = 0.2\nattain = 0.95\n'
        '[[tiers]]\nname = "rest"\nttft_s = 2\nshare = 0.8\n'
    )
    text = "gold:ttft=0.5,tpot=0.05,share=0.2,attain=0.95;rest:ttft=2,share=0.8"
    assert read_promises(str(path)) == read_promises(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no tier is named"),
        ("gold", "is no tier"),
        (":ttft=1", "is no tier"),
        ("gold:ttft", "none of ttft"),
        ("gold:speed=1", "none of ttft"),
        ("gold:ttft=fast", "no number"),
        ("gold:ttft=1,ttft_s=2", "given twice"),
        ("gold:ttft=0", "ttft_s of tier gold is not above 0"),
        ("gold:ttft=nan", "ttft_s of tier gold is not above 0"),
        ("gold:weight=inf", "infinite"),
        ("gold:attain=1.5", "attain of tier gold"),
        ("gold:share=0.5", "sum to 0.5"),
        ("gold:share=1;rest:ttft=1", "1 tiers have none"),
        ("gold:share=-1;rest:share=2", "not in"),
        ("gold:ttft=1;gold:ttft=2", "one name"),
    ],
)
def test_wrong_text_is_told(text, said):
    with pytest.raises(InputError, match=said) as error:
        read_promises(text)
    assert error.value.fix


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tiers = 3", "no tiers"),
        ("[[tiers]]\nttft_s = 1", "no name"),
        ('[[tiers]]\nname = "a"\nspeed = 1', "speed"),
        ('[[tiers]]\nname = "a"\nttft_s = "1"', "ttft_s"),
        ("[[tiers]", "not a TOML"),
    ],
)
def test_wrong_files_are_told(tmp_path, text, said):
    path = tmp_path / "tiers.toml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        read_promises(str(path))
    assert error.value.where == str(path)


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        read_promises(str(tmp_path / "none.toml"))
