"""The report in a real browser: no error, no network, readable on a phone, in the dark and on paper."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from analysis.fidelity_study import judged
from analysis.findings import find
from analysis.report import write_report
from tests.analysis.fidelity_world import make_study

CHROMIUM = (
    os.environ.get("WINDTUNNEL_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update",
)  # fmt: skip
PATIENCE_MS = 180_000
"""A busy machine draws slowly; nothing here is about speed."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def page_of(usual: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("browser")
    live = judged(make_study(folder / "study"), 3, "paced")
    return write_report(usual, folder / "report.html", findings=find(usual), fidelity=live)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "install chromium, or name one by WINDTUNNEL_CHROMIUM"
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


def opened(browser: Browser, path: Path, width: int = 1200, scheme: str = "light") -> tuple[Page, list[str]]:
    """Open the report and wait until every chart is drawn; return it with what it complained of or asked for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: said.append(request.url) if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.locator('html[data-drawn="all"]').wait_for()
    return page, said


def test_every_chart_is_drawn_without_complaint_and_without_network(browser, page_of):
    page, said = opened(browser, page_of)
    assert said == []
    charts = page.evaluate(
        "Object.keys(JSON.parse(document.getElementById('specs').textContent).charts).length"
    )
    assert page.locator(".live.drawn svg").count() == charts > 10
    blocked = page.evaluate("fetch('http://127.0.0.1:9/').then(() => 'answered', () => 'refused')")
    assert blocked == "refused"
    assert any("Content Security Policy" in one for one in said)
    page.close()


@pytest.mark.parametrize("width", [390, 820, 1200])
def test_no_width_needs_the_page_to_scroll_sideways(browser, page_of, width):
    page, _ = opened(browser, page_of, width)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = page.evaluate(
        """[...document.querySelectorAll('.fluid svg')].filter((one) => one.checkVisibility()
        && one.getBoundingClientRect().right > document.documentElement.clientWidth + 1).length"""
    )
    assert cut == 0
    page.close()


def test_charts_follow_the_dark_and_paper_is_white(browser, page_of):
    page, said = opened(browser, page_of, scheme="light")
    look = """() => { const text = document.querySelector('#figure-ranks svg text');
        return [getComputedStyle(document.body).backgroundColor, getComputedStyle(text).fill] }"""
    light = page.evaluate(look)
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(look)
    assert light[0] == "rgb(255, 255, 255)"
    assert all(one != other for one, other in zip(light, dark, strict=True))
    page.emulate_media(color_scheme="dark", media="print")
    assert page.evaluate(look) == light
    assert said == []
    page.close()


def test_paper_holds_every_open_part(browser, page_of, tmp_path):
    page, _ = opened(browser, page_of, scheme="dark")
    page.pdf(path=tmp_path / "report.pdf", print_background=True, format="A4")
    written = (tmp_path / "report.pdf").read_bytes()
    assert written.startswith(b"%PDF")
    assert len(written) > 100_000
    page.set_viewport_size({"width": 703, "height": 1000})  # A4 less its margins
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= 703
    page.close()


def test_pointing_choosing_and_picking_answer(browser, page_of):
    page, said = opened(browser, page_of)
    page.locator("#figure-ranks svg .mark-rect path").first.hover(force=True)  # the svg takes the pointer
    page.locator("#vg-tooltip-element.visible").wait_for()
    assert "in the top set" in page.locator("#vg-tooltip-element").inner_text()
    before = page.locator("#figure-matrix-source svg").inner_html()
    page.locator("#figure-matrix-source select").select_option(index=1)
    page.wait_for_timeout(500)
    assert page.locator("#figure-matrix-source svg").inner_html() != before
    curve = page.locator("#curves .chart svg").first
    plain = curve.inner_html()
    button = page.locator("button.pick").first
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    page.wait_for_timeout(500)
    assert curve.inner_html() != plain
    assert said == []
    page.close()
