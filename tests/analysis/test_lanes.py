"""The picture of one run: what its rows say, and that it is a page of its own."""

import re

import altair as alt
import numpy as np
import pytest

from analysis.charts import still
from analysis.lanes import MOVES_MAX, Lanes, Move, Span, figures, lane_rows, page, thinned
from analysis.tables import Table


def shown(looks: int = 5, moves: int = 2) -> Lanes:
    at_s = np.arange(looks, dtype=float)
    memory = np.outer(np.linspace(0, 1, looks), [1.0, 0.5])
    return Lanes(
        at_s=at_s.tolist(), memory=memory, reserved=np.tile([0.0, 0.1], (looks, 1)),
        batch=np.outer(np.arange(looks), [2, 1]), waiting=np.outer(np.arange(looks), [1, 0, 3]),
        engines=("engine 0", "engine 1"), tiers=("gold", "silver", "rest"),
        spans=(Span(1, "draining", 1.0, 3.0),),
        moves=tuple(Move(number, 0, 1, 1.0, 1.5, 1.5 + 0.01 * number, number % 2 == 0) for number in range(moves)),
    )  # fmt: skip


def test_memory_grows_from_the_floor_of_its_lane():
    rows = [row for row in lane_rows(shown()) if row["kind"] == "kv"]
    full = next(row for row in rows if row["lane"] == 0 and row["at"] == 4.0)
    half = next(row for row in rows if row["lane"] == 1 and row["at"] == 4.0)
    assert full["y2"] - full["y"] == pytest.approx(2 * (half["y2"] - half["y"]))
    assert 0.0 < full["y"] < full["y2"] < 1.0
    assert 1.0 < half["y"] < half["y2"] < 2.0


def test_arrows_go_from_begin_at_the_source_to_end_at_the_target():
    rows = lane_rows(shown())
    line, tip = (
        next(row for row in rows if row["kind"] == kind and row["request"] == "0") for kind in ("move", "tip")
    )
    assert (line["at"], line["y"], line["y2"]) == (1.0, 0.5, 1.5)
    assert (tip["at"], tip["y"], tip["way"]) == (1.5, 1.5, "triangle-down")
    given_up = next(row for row in rows if row["kind"] == "tip" and row["request"] == "1")
    assert given_up["end"] == "given up"


def test_of_many_moves_the_longest_standing_still_are_drawn():
    rows = [row for row in lane_rows(shown(moves=MOVES_MAX + 50)) if row["kind"] == "move"]
    assert len(rows) == MOVES_MAX
    assert min(float(row["ms"]) for row in rows) > 10.0 * 49


def test_thinning_keeps_peaks_and_ends():
    values = np.zeros((1000, 2))
    values[437, 1] = 9.0
    kept = thinned(values, 50)
    assert len(kept) <= 52
    assert {0, 437, 999} <= {*kept.tolist()}
    assert thinned(values[:40], 50).tolist() == list(range(40))


def test_charts_are_lawful_vega_lite():
    for figure in figures(shown()):
        alt.Chart.from_dict(still(figure), validate=True)


def test_the_page_is_whole_and_asks_no_network():
    table = Table("tiers", "Tiers", ("tier", "met"), ("text", "share"), (("gold</script>", 0.5),))
    text = page(shown(), "edf on <window>", ["4 engines"], [table])
    assert "edf on &lt;window&gt;" in text
    assert "gold&lt;/script&gt;" in text
    assert "default-src 'none'" in text
    assert "draining" in text
    assert not re.search(r"(src|href)=.https?:", text)
