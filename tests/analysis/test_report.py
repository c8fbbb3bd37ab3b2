"""The report is one file, opens without network, holds every section, and warns where it must."""

import json
import re
from html.parser import HTMLParser

import pytest

from analysis.contents import contents
from analysis.findings import find
from analysis.numerals import ceiling, interval, number, tau
from analysis.report import render, write_report
from loadgen.result import InputError

SMALL = {"sources": ("azure_surrogate", "burstgpt_surrogate"), "regions": (0.85, 1.1), "windows": 8}
SECTIONS = (
    "summary", "ranks", "agreement", "reversals", "differences", "curves", "metrics", "cards", "precision",
    "portable", "causes", "fidelity", "controls", "trust", "methods", "reproduce",
)  # fmt: skip
VOID = {"meta", "link", "br", "img", "input", "hr", "circle", "rect", "path", "line", "polygon", "polyline"}


class Page(HTMLParser):
    """Collects what the page loads, its ids and links, and whether every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.loads, self.ids, self.links, self.tags, self.open = [], [], [], [], []
        self.pictures, self.scripts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "srcset", "data", "action")]
        if tag == "a":
            self.links.append(named["href"])
        elif "href" in named or "xlink:href" in named:
            self.loads.append(named.get("href") or named.get("xlink:href"))
        if tag == "script":
            self.scripts.append(named)
        if tag == "div" and named.get("role") == "group" and "legend" not in named["class"]:
            self.pictures.append(named["aria-label"])
        if "id" in named:
            self.ids.append(named["id"])

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} closes something else, line {self.getpos()[0]}"


@pytest.fixture(scope="module")
def text(found, usual, stats):
    return render(found, usual, stats)


def without_scripts(text):
    return re.sub(r"<script.*?</script>", "", text, flags=re.S)


def test_page_needs_nothing_but_itself(text):
    page = Page(text)
    assert page.loads == []
    assert not {"link", "iframe", "img", "object", "embed"} & set(page.tags)
    assert page.scripts == [{"type": "application/json", "id": "specs"}, {"type": "module"}]
    assert not re.search(r"https?://(?!www\.w3\.org/)|@import|url\(", without_scripts(text))
    assert "default-src 'none'" in text
    assert page.open == []


def test_page_has_every_section_and_every_link_lands(text):
    page = Page(text)
    assert set(SECTIONS) <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert {link.removeprefix("#") for link in page.links} == set(SECTIONS) - {"summary"}


def test_page_fits_phone_dark_mode_and_print(text):
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert "@media (prefers-color-scheme: dark)" in text
    assert "@media print" in text
    outside = re.sub(r'<div class="wide".*?</div>', "", without_scripts(text), flags=re.S)
    assert "<table" not in outside, "a table outside a box that scrolls"


def test_pictures_are_told_and_take_the_pages_colours(text, found, stats):
    page = Page(text)
    held = contents(found, stats, ())
    drawn = [one for listed in held.figures.values() for one in listed]
    assert sorted(page.pictures) == sorted(one.told for one in drawn)
    assert all(page.pictures)
    charts = json.loads(re.search(r'id="specs">(.*?)</script>', text, re.S)[1])["charts"]
    assert set(charts) == {one.name for one in drawn}
    assert not re.search(r"#[0-9a-fA-F]{3,6}\b|rgb\(|\bblack\b", json.dumps(charts))


def test_page_says_what_was_run_and_how_to_repeat_it(text):
    for wanted in (
        "fcfs-prefill",
        "oracle-srpt",
        "b" * 64,
        "c" * 64,
        "0123456789abcdef",
        "windtunnel sweep",
        "numpy",
    ):
        assert wanted in text
    assert "name = &#34;made&#34;" in text
    assert text.count("surrogate") > 5


def test_page_says_loudly_when_controls_came_out_wrongly(sweep, text):
    assert 'role="alert"' not in text
    folder = sweep("wrong", controls={"random": -1.0, "lifo": 5.0, "oracle-srpt": 7.0}, **SMALL)
    assert 'role="alert"' in render(find(folder), folder)


def test_names_are_escaped(found, usual):
    odd = found.study._replace(plan={"name": "<script>alert(1)</script>"})
    assert "<script>alert" not in render(found._replace(study=odd), usual)


def test_a_name_cannot_end_the_script(found, usual):
    runs = found.study.runs.assign(label="</script><b>")
    text = render(found._replace(study=found.study._replace(runs=runs)), usual)
    assert "</script><b>" not in text
    assert Page(text).open == []


def test_same_results_same_bytes(usual, text, tmp_path):
    assert write_report(usual, tmp_path / "a.html").read_text(encoding="utf-8") == text


@pytest.mark.parametrize("metric", ["ttft_p95_s", "throughput_tokens_per_s", "attainment:S2"])
def test_any_metric_can_be_reported(usual, metric):
    page = Page(render(find(usual, metric), usual))
    assert set(SECTIONS) <= set(page.ids)


def test_smallest_sweep_and_no_plan(sweep):
    folder = sweep(sources=("azure_surrogate",), regions=(0.5,), windows=1, controls={})
    for name in ("plan.json", "plan.toml"):
        (folder / name).unlink()
    page = Page(render(find(folder), folder))
    assert set(SECTIONS) <= set(page.ids)


def test_a_path_that_cannot_be_written_is_said(found, usual):
    with pytest.raises(InputError, match="can't write the report"):
        write_report(usual, usual / "plan.json" / "report.html", findings=found)


def test_numbers_for_people():
    assert number(0.5) == "0.500"
    assert number(1234.5) == "1,234"
    assert number(-0.00001) == "−1e−05"
    assert number(None) == number(float("nan")) == "–"
    assert number(0.0) == "0"
    assert interval(1.0, 1.0) == "1.00"
    assert interval(0.5, 0.75) == "0.500 to 0.750"
    assert tau(-0.001) == "0.00"
    assert tau(float("nan")) == "–"
    assert (ceiling(0.5), ceiling(0.0), ceiling(-0.2), ceiling(float("nan"))) == ("0.50", "–", "–", "–")


def test_an_untestable_top_set_is_marked(sweep):
    folder = sweep(sources=("azure_surrogate",), regions=(0.95,), windows=6)
    text = render(find(folder), folder)
    assert "ith 6 windows nothing can be shown worse; at least 7 are needed" in text
    assert '<td class="left">untestable</td>' in text
    assert "too few windows to show it worse than the best" in text
    assert '"text":"1•"' not in text
