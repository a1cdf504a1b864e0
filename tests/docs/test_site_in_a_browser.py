"""The site in a browser, opened from disk: both themes, windows of two sizes, search. Needs Chromium."""

from __future__ import annotations

import os
import shutil

import pytest

import build_site

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")
LOOKED_AT = ("index", "methods/which-method", "papers/fesem", "reference/settings", "extend/architecture")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, with notebooks as they are stored."""
    out = tmp_path_factory.mktemp("built") / "site"
    build_site.build(out, run_notebooks=False)
    return out


@pytest.fixture(scope="module")
def browser():
    """A browser without a window."""
    sandbox = [] if os.geteuid() else ["--no-sandbox"]  # root has none
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=sandbox)
        yield started
        started.close()


def opened(browser, faults, **how):
    """A page that notes what it asks of others, and what goes wrong in it."""
    page = browser.new_context(**how).new_page()
    page.on("request", lambda one: None if one.url.startswith(("file:", "data:")) else faults.append(one.url))
    page.on("console", lambda one: faults.append(one.text) if one.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(str(error)))
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_pages_fit_the_window_and_load_nothing_from_elsewhere(width, scheme, site, browser):
    faults: list[str] = []
    page = opened(browser, faults, viewport={"width": width, "height": 900}, color_scheme=scheme)
    for name in LOOKED_AT:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), name
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (scheme == "light"), background
    assert faults == []


def test_search_finds_without_a_server(site, browser):
    faults: list[str] = []
    page = opened(browser, faults, viewport={"width": 1440, "height": 900})
    page.goto((site / "index.html").as_uri())
    page.keyboard.press("Control+k")
    field = page.locator("input[placeholder='Search']").last
    field.wait_for()
    field.press_sequentially("silhouette", delay=30)
    result = page.locator("a[href*='methods/groups.html']").last
    result.wait_for()
    assert field.input_value() == "silhouette"
    assert "silhouette" in result.inner_text().lower()
    assert faults == []
