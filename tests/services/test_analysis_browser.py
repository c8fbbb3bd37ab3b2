"""The pages in a real browser: no complaint, no foreign request, readable on a phone, in the dark and by keyboard."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, sync_playwright

from tests.analysis.test_browser import CHROMIUM, FLAGS, PATIENCE_MS
from tests.services.analysis_stage import AWAY, Stage, build, damaged, key, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    found = build(tmp_path_factory.mktemp("stage"))
    damaged(found)
    return found


@pytest.fixture(scope="module")
def site(stage, tmp_path_factory) -> Iterator[str]:
    """The service over the stage's folders, with a Prometheus that is away; it must end gracefully."""
    log = tmp_path_factory.mktemp("site") / "log"
    process, url = start(log, "--results", stage.root, "--traffic", stage.traffic, "--prometheus", AWAY)
    for _ in range(100):  # a busy machine takes its time; what is known now is shown at once later
        if httpx.get(f"{url}/api/portability/results.sweep", timeout=60).status_code == 200:
            break
    yield url
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    process.stdout.close()
    told = log.read_text()
    assert '"event":"stopped"' in told
    assert '"level":"error"' not in told


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    assert CHROMIUM, "install chromium, or name one by WINDTUNNEL_CHROMIUM"
    with sync_playwright() as play:
        found = play.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield found
        found.close()


def opened(
    browser: Browser, url: str, width: int = 1200, scheme: str = "light", **more
) -> tuple[Page, list[str]]:
    """Open a page and wait for its charts; return it with what it complained of or asked elsewhere for."""
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme, **more)
    page.set_default_timeout(PATIENCE_MS)
    said: list[str] = []
    origin = "/".join(url.split("/")[:3])
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(f"error: {error}"))
    page.on("request", lambda request: None if request.url.startswith(origin) else said.append(request.url))
    page.goto(url)
    if more.get("java_script_enabled", True) and page.locator("#specs").count():
        page.locator('html[data-drawn="all"]').wait_for()
    return page, said


def pages(site: str) -> dict[str, str]:
    """Every page in every state that it has, by name."""
    sim, live = (f"results.{name}/{key('edf', name).run_id}" for name in ("sim", "live"))
    hypothesis = httpx.get(f"{site}/api/portability/results.sweep", timeout=120).json()["hypotheses"][0]
    names = ("a", "b", "source_x", "region_x", "metric_x", "source_y", "region_y", "metric_y")
    return {
        "runs, one folder damaged": "/",
        "no run matches": "/?q=nothing-at-all",
        "run": f"/runs/{live}",
        "invalid run": f"/runs/results.live/{key('late', 'live').run_id}",
        "now, Prometheus away": "/now",
        "compare, nothing chosen": "/compare",
        "compare studies": "/compare?a=results.sim&b=results.live",
        "compare runs": f"/compare?a={sim}&b={live}",
        "portability, choice": "/portability",
        "portability": "/portability/results.sweep",
        "portability of damaged data": "/portability/results.broken",
        "pair": "/portability/results.sweep/pair?" + urlencode({name: hypothesis[name] for name in names}),
        "tiers, choice": "/tiers",
        "tiers": "/tiers/results.sim",
        "traffic": "/traffic",
        "not found": "/runs/nothing/here",
    }


def refused(words: str) -> bool:
    """Whether a complaint is only the browser's note that a page came with an error status."""
    return "the server responded with a status of" in words


def test_every_page_is_clean_in_light_and_dark(browser, site):
    """No script error, no blocked style, no foreign request, and nothing that axe finds wrong."""
    for name, path in pages(site).items():
        for scheme in ("light", "dark"):
            page, said = opened(browser, site + path, scheme=scheme)
            assert [words for words in said if not refused(words)] == [], name
            found = Axe().run(page).response["violations"]
            assert [(one["id"], one["nodes"][0]["html"]) for one in found] == [], (name, scheme)
            page.close()


def test_no_page_scrolls_sideways_on_a_phone(browser, site):
    for name, path in pages(site).items():
        page, _ = opened(browser, site + path, width=390)
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        page.close()


def test_the_dark_is_dark(browser, site):
    page, _ = opened(browser, f"{site}/", scheme="light")
    look = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(look)
    page.emulate_media(color_scheme="dark")
    assert light == "rgb(255, 255, 255)"
    assert page.evaluate(look) == "rgb(18, 22, 28)"
    page.close()


def test_charts_are_drawn_under_a_policy_without_inline_code(browser, site):
    run = f"/runs/results.live/{key('edf', 'live').run_id}"
    for path, least in ((run, 2), ("/portability/results.sweep", 2)):
        page, said = opened(browser, site + path)
        assert page.locator(".live.drawn svg").count() >= least
        assert said == []
        page.evaluate(
            "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')"
        )
        page.wait_for_timeout(300)
        assert page.evaluate("window.ran") is None
        page.close()


def test_the_keyboard_reaches_everything(browser, site):
    """The first stop skips to the content, focus shows, and a search works without a mouse."""
    page, _ = opened(browser, f"{site}/")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.name") == "q"
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.type("live edf")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=live*")
    assert "1 run." in page.locator("main [role=status]").inner_text()
    page.close()


def test_numbers_are_there_without_a_script(browser, site):
    run = f"/runs/results.live/{key('edf', 'live').run_id}"
    attained = httpx.get(f"{site}/api{run}").json()["tiers"][0]["attainment"]
    page, _ = opened(browser, site + run, java_script_enabled=False)
    assert f"{attained:.3f}" in page.locator("main").inner_text()
    page.locator("summary", has_text="Timeline").click()
    assert page.locator("table", has_text="Stretches of the run").locator("tbody tr").count() == 40
    page.close()


def test_a_file_is_sent_and_a_bad_one_is_explained(browser, site, stage):
    page, _ = opened(browser, f"{site}/traffic")
    page.get_by_label("Send a file").set_input_files(stage.traffic / "good.csv")
    page.get_by_role("button", name="Characterise").click()
    page.get_by_role("heading", name="good.csv").wait_for()
    assert "400 rows read, 400 kept" in page.locator("main").inner_text()
    page.get_by_label("Send a file").set_input_files(stage.traffic / "bad.csv")
    page.get_by_role("button", name="Characterise").click()
    page.get_by_role("alert").wait_for()
    assert "line 3" in page.get_by_role("alert").inner_text()
    page.get_by_label("or take one").select_option("traffic/good.csv")
    page.get_by_role("button", name="Characterise").click()
    page.get_by_role("heading", name="traffic/good.csv").wait_for()
    page.close()


def test_from_a_reversal_map_down_to_a_run(browser, site):
    page, _ = opened(browser, f"{site}/")
    page.get_by_role("link", name="Portability", exact=True).click()
    page.get_by_role("link", name="results/sweep").click()
    page.get_by_label("Scheduler", exact=True).select_option("edf")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**scheduler=edf*")
    page.locator("table", has_text="Pairs of schedulers").locator("tbody a").first.click()
    page.get_by_role("heading", name="window by window").wait_for()
    page.locator("tbody a").first.click()
    page.get_by_role("heading", name="By tier").wait_for()
    assert "/runs/results.sweep/" in page.url
    page.close()


def test_nothing_yet_is_no_error(browser, tmp_path):
    """An empty folder: every page says what is missing, and what to do."""
    (tmp_path / "out").mkdir()
    process, url = start(tmp_path / "log", "--results", tmp_path / "out")
    for path, words in (("/", "No results yet"), ("/now", "No live numbers"), ("/compare", "no results yet"),
                        ("/portability", "no results yet"), ("/tiers", "no results yet")):  # fmt: skip
        page, said = opened(browser, url + path)
        assert words in page.locator("main").inner_text()
        assert said == []
        assert Axe().run(page).response["violations"] == []
        page.close()
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    process.stdout.close()


def test_screenshots(browser, site, tmp_path):
    """Pictures of every page go to WINDTUNNEL_SHOTS, if that names a folder, to be looked at."""
    folder = Path(os.environ.get("WINDTUNNEL_SHOTS", tmp_path))
    shutil.rmtree(folder, ignore_errors=True)
    for name, path in pages(site).items():
        for look, width, scheme in (
            ("light", 1200, "light"),
            ("dark", 1200, "dark"),
            ("phone", 390, "light"),
        ):
            page, _ = opened(browser, site + path, width, scheme)
            file = folder / f"{name.replace(', ', '-').replace(' ', '-')}-{look}.png"
            page.screenshot(path=file, full_page=True)
            assert file.stat().st_size > 5_000
            page.close()
