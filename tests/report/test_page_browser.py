"""The report in a real browser: drawn without a complaint or a request, sorted, picked, printed, audited."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from made_up_groups import make_choice, make_grouped

from kinfolk.report.page.chart import PICKED, Chart, round_parameter
from kinfolk.report.page.sections import SECTIONS, Entry, Section, fill
from kinfolk.report.page.write import Report

CHROMIUM = Path("/usr/bin/chromium")
AXE = Path(__file__).parent / "assets" / "axe.min.js"
HOSTILE = "<script>alert(1)</script>"
CLIENTS = (HOSTILE, "=1+1", "مستشفى الرياض", "clinic 🏥", *(f"client-{i:02d}" for i in range(116)))

if not CHROMIUM.exists():
    pytest.skip(f"no browser: {CHROMIUM} is missing", allow_module_level=True)
sync_api: Any = pytest.importorskip("playwright.sync_api", reason="no playwright: pip install playwright")


@dataclass
class Opened:
    """A page, and everything that it said or asked for."""

    page: Any
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def draw_all(self) -> None:
        for figure in self.page.query_selector_all("figure"):
            if figure.is_visible():
                figure.scroll_into_view_if_needed()
        undrawn = "[...document.querySelectorAll('figure')].filter(f => f.offsetParent && " \
            "f.querySelector('.picture') && !f.dataset.drawn).length"  # fmt: skip
        self.until(f"{undrawn} === 0")

    def until(self, expression: str) -> None:
        """Wait for something; not by Playwright's own means, since the page forbids to evaluate text."""
        for _ in range(200):
            if self.page.evaluate(expression):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(expression)

    def shown(self, chart: str, expression: str) -> Any:
        """What a chart holds: `view` is its Vega view."""
        return self.page.evaluate(f"() => {{ const {{view}} = views.get('{chart}'); return {expression} }}")


def rounds_of(runs: Any) -> Chart:
    """A chart with a slider, as those of models have one."""
    import pandas as pd

    rounds = [0, 3, 6]
    rows = [{"round": r, "client": f"client-{i:02d}", "x": i + r} for r in rounds for i in range(5)]
    spec = {
        "width": "container", "height": 80, "params": [PICKED, round_parameter(rounds)],
        "data": {"values": rows}, "transform": [{"filter": "datum.round === round"}], "mark": "point",
        "encoding": {"x": {"field": "x", "type": "quantitative"}},
    }  # fmt: skip
    return Chart("by-round", "By round", spec, pd.DataFrame(rows), "Points move.", rounds=rounds)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    material = Report.of([make_grouped(folder / "c", clients=CLIENTS), make_choice(folder / "k")]).material
    sections = (*SECTIONS, Section("Slider", (Entry((rounds_of,)),)))
    return Report(material, tuple(fill(material, sections)), folder / "report.html").write()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield chromium
        chromium.close()


def opened(browser: Any, report: Path, width: int = 1440, theme: str = "light") -> Opened:
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.console.append(f"{message.type}: {message.text}"))
    found.page.on("pageerror", lambda error: found.console.append(f"error: {error}"))
    found.page.on("dialog", lambda dialog: (found.console.append("a dialog"), dialog.dismiss()))
    found.page.on("request", lambda request: found.requests.append(request.url))
    found.page.goto(report.as_uri())
    found.page.wait_for_selector("html[data-ready]", state="attached")
    return found


@pytest.fixture
def tab(browser: Any, report: Path) -> Iterator[Opened]:
    found = opened(browser, report)
    yield found
    found.page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1440])
def test_the_page_is_drawn_without_a_complaint_a_request_or_an_overflow(
    browser: Any, report: Path, width: int, theme: str
) -> None:
    found = opened(browser, report, width, theme)
    found.draw_all()
    for summary in found.page.query_selector_all("summary"):
        if summary.is_visible():
            summary.click()
    assert found.console == []
    assert [url for url in found.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert [url for url in found.requests if url.startswith("file:")] == [report.as_uri()]
    assert found.page.evaluate("document.documentElement.scrollWidth") == width
    figures = "[...document.querySelectorAll('.picture')].filter(p => p.offsetParent)"
    assert found.page.evaluate(f"{figures}.length") >= 10
    wide = f"{figures}.filter(p => p.scrollWidth > p.clientWidth + 1).map(p => p.parentNode.id)"
    assert found.page.evaluate(wide) == []
    empty = f"{figures}.filter(p => !p.querySelector('svg, canvas')).length"
    assert found.page.evaluate(empty) == 0
    found.page.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, report: Path, theme: str) -> None:
    found = opened(browser, report, theme=theme)
    found.draw_all()
    found.page.click("summary >> visible=true >> nth=0")
    # Playwright's own world may run axe although the page lets nothing in.
    results = found.page.evaluate(f"() => {{ {AXE.read_text()}; return axe.run() }}")
    serious = [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in results["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert len(results["passes"]) > 20
    found.page.context.close()


def column(tab: Opened, table: str, place: int) -> list[str]:
    rows = f"[...document.querySelectorAll('[data-table={table}] tbody tr')]"
    found: list[str] = tab.page.evaluate(f"{rows}.map(row => row.cells[{place}].textContent)")
    return found


def test_a_table_is_sorted_by_its_heads_in_both_directions_also_by_keyboard(tab: Opened) -> None:
    head = tab.page.locator("[data-table=clients-table] th", has_text="fedavg").locator("button")
    place = 4
    head.click()
    values = [float(text) for text in column(tab, "clients-table", place)]
    assert values == sorted(values, reverse=True)
    head.focus()
    tab.page.keyboard.press("Enter")
    values = [float(text) for text in column(tab, "clients-table", place)]
    assert values == sorted(values)
    assert len(values) == 100
    sorts = tab.page.eval_on_selector_all(
        "[data-table=clients-table] th", "heads => heads.map(th => th.getAttribute('aria-sort'))"
    )
    assert sorts[place] == "ascending"
    assert sorts.count("none") == len(sorts) - 1
    assert "120 rows" in tab.page.inner_text("[data-table=clients-table] .told")


def test_the_file_of_a_table_has_all_rows_and_no_formulas(tab: Opened, tmp_path: Path) -> None:
    with tab.page.expect_download() as download:
        tab.page.click("[data-table=clients-table] button.csv")
    assert download.value.suggested_filename == "clients-table.csv"
    lines = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    assert len(lines) == 1 + len(CLIENTS)
    assert lines[0].startswith("client,group,training rows")
    assert any(line.startswith("'=1+1,") for line in lines)
    assert any(line.startswith(HOSTILE) for line in lines)


def test_the_slider_moves_the_round_and_says_so(tab: Opened) -> None:
    slider = tab.page.locator("#by-round input[type=range]")
    slider.scroll_into_view_if_needed()
    slider.focus()
    tab.page.wait_for_selector("#by-round[data-drawn]")
    assert tab.shown("by-round", "view.signal('round')") == 6
    tab.page.keyboard.press("ArrowLeft")
    tab.until("views.get('by-round').view.signal('round') === 3")
    assert slider.get_attribute("aria-valuetext") == "round 3"
    assert tab.page.inner_text("#by-round output") == "3"
    tab.page.select_option("#theme", "dark")
    tab.until("views.get('by-round').dark")
    assert tab.shown("by-round", "view.signal('round')") == 3, "a chart that is drawn anew stays there"


def picked(tab: Opened, chart: str) -> list[str]:
    found: list[str] = tab.shown(chart, "view.signal('picked')")
    return found


def test_a_client_is_picked_by_keyboard_and_every_chart_shows_it(tab: Opened) -> None:
    tab.draw_all()
    tab.page.locator("button.pick", has_text="client-05").first.focus()
    tab.page.keyboard.press("Enter")
    for chart in ("clients-sorted", "gains-over-all", "membership-fesem-k-3", "convergence-rounds"):
        assert picked(tab, chart) == ["client-05"], chart
    assert "client-05" in tab.page.inner_text("#picked")
    assert tab.page.inner_text("[data-table=clients-table] tr.is-picked td >> nth=0") == "client-05"
    assert tab.page.evaluate("document.activeElement.dataset.client") == "client-05", "the focus stays"
    marks = "view.scenegraph().root.items[0].items.flatMap(group => group.items || [])"
    dots = f"{marks}.filter(one => one.size).map(one => [one.datum.client, one.opacity])"
    faded = tab.shown("clients-sorted", dots)
    bright = {client for client, opacity in faded if opacity > 0.5}
    assert bright == {"client-05"}
    assert len(faded) == 3 * len(CLIENTS)
    tab.page.fill("#find", "client-11")
    tab.page.keyboard.press("Enter")
    assert picked(tab, "clients-sorted") == ["client-05", "client-11"]
    tab.page.click("#clear")
    assert picked(tab, "clients-sorted") == []
    assert tab.page.is_hidden("#picked")


def click(tab: Opened, chart: str, datum: str, **how: Any) -> None:
    """Click on the last mark whose datum passes: it lies on top."""
    tab.page.locator(f"#{chart}").scroll_into_view_if_needed()
    tab.page.wait_for_selector(f"#{chart}[data-drawn]")
    # Where the middle of the mark is on the screen.
    where = tab.page.evaluate(f"""() => {{
        const {{view}} = views.get('{chart}');
        let found;
        const walk = (item, x, y) => {{
            if (item.datum && item.bounds && !item.items && ({datum})(item.datum)) {{
                const b = item.bounds;
                found = [x + (b.x1 + b.x2) / 2, y + (b.y1 + b.y2) / 2];
            }}
            const inner = item.mark && item.mark.marktype === 'group' ? [x + item.x, y + item.y] : [x, y];
            for (const one of item.items || []) walk(one, ...inner);
        }};
        const pad = view.padding(), origin = view.origin();
        walk(view.scenegraph().root, origin[0] + pad.left, origin[1] + pad.top);
        const box = document.querySelector('#{chart} .picture').getBoundingClientRect();
        return [found[0] + box.left, found[1] + box.top];
    }}""")
    tab.page.keyboard.down("Shift") if how.get("shift") else None
    tab.page.mouse.click(*where)
    tab.page.keyboard.up("Shift") if how.get("shift") else None


def test_clicks_pick_clients_and_with_shift_more_and_a_second_click_lets_go(tab: Opened) -> None:
    click(tab, "gains-over-all", "d => d.client === 'client-07'")
    assert picked(tab, "gains-over-all") == ["client-07"]
    click(tab, "membership-fesem-k-3", "d => d.client === 'client-09'", shift=True)
    assert picked(tab, "gains-over-all") == ["client-07", "client-09"]
    click(tab, "membership-fesem-k-3", "d => d.client === 'client-20'")
    assert picked(tab, "gains-over-all") == ["client-20"]
    click(tab, "membership-fesem-k-3", "d => d.client === 'client-20'")
    assert picked(tab, "gains-over-all") == []


def test_a_click_on_a_group_picks_its_clients(tab: Opened) -> None:
    tab.page.evaluate("clicked({}, {datum: {group: 1, method: 'ifca k=3'}})")
    tab.draw_all()
    expected = {name for i, name in enumerate(CLIENTS) if i % 3 == 1}
    assert set(picked(tab, "clients-sorted")) == expected
    assert f"and {len(expected) - 3} more" in tab.page.inner_text("#picked")


def test_hostile_names_are_only_names(tab: Opened) -> None:
    tab.draw_all()
    assert HOSTILE in column(tab, "clients-table", 0)
    tab.page.fill("#find", HOSTILE)
    tab.page.keyboard.press("Enter")
    assert HOSTILE in tab.page.inner_text("#picked")
    tab.page.evaluate(
        "showTip(null, {clientX: 9, clientY: 9}, null, {client: '<img src=x onerror=alert(1)>'})"
    )
    assert tab.page.inner_text("#tip").count("<img") == 1
    assert tab.page.query_selector("#tip img") is None
    assert tab.console == []


def test_one_of_several_charts_is_shown_and_drawn_when_it_is_chosen(tab: Opened) -> None:
    assert tab.page.is_visible("#convergence-rounds")
    assert not tab.page.is_visible("#convergence-bytes")
    tab.page.locator("label", has_text="what was sent").click()
    assert tab.page.is_visible("#convergence-bytes")
    assert not tab.page.is_visible("#convergence-rounds")
    tab.page.wait_for_selector("#convergence-bytes[data-drawn] svg")


def test_the_theme_follows_the_system_and_can_be_chosen(tab: Opened) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    tab.draw_all()
    light = tab.page.evaluate(colour)
    tab.page.emulate_media(color_scheme="dark")
    tab.until("views.get('clients-sorted').dark")
    assert tab.page.evaluate(colour) != light
    tab.page.select_option("#theme", "light")
    assert tab.page.evaluate(colour) == light
    assert not tab.page.evaluate("views.get('clients-sorted').dark")


def test_a_chart_that_was_hidden_while_the_theme_changed_comes_back_in_it(tab: Opened) -> None:
    tab.draw_all()
    tab.page.locator("label", has_text="what was sent").click()
    tab.page.select_option("#theme", "dark")
    assert not tab.page.evaluate("views.get('convergence-rounds').dark"), "nobody sees it"
    tab.page.locator("label").get_by_text("round", exact=True).click()
    assert tab.page.evaluate("views.get('convergence-rounds').dark")


def test_on_paper_everything_is_drawn_in_light_colours(browser: Any, report: Path) -> None:
    found = opened(browser, report, theme="dark")
    before = found.page.evaluate("document.querySelectorAll('figure[data-drawn]').length")
    printed = found.page.pdf(format="A4")
    after = "[...document.querySelectorAll('figure:not([hidden])')].filter(f => f.querySelector('.picture'))"
    assert found.page.evaluate(f"{after}.length") > before
    assert found.page.evaluate(f"{after}.filter(f => !f.dataset.drawn).length") == 0
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 3
    assert found.console == []
    found.page.context.close()


def test_without_a_script_the_words_and_tables_are_there(browser: Any, report: Path) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(report.as_uri())
    assert "After 6 rounds" in page.inner_text("#convergence-rounds figcaption")
    assert page.is_visible("#convergence-bytes"), "nothing is hidden behind a switch that does nothing"
    assert page.locator("[data-table=comparison] tbody tr").count() == 4
    context.close()
