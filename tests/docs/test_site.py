"""The site is built strictly, without a network, from all there is to read; what is amiss stops it."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from pages import ROOT

import build_site
import kinfolk
import round_figure
import site_api
import site_check
import site_notebooks
import site_reference
import site_stage
from kinfolk import authoring
from kinfolk.algorithms import ALGORITHMS
from kinfolk.experiment.sections import describe


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, with notebooks as they are stored: their cells are run by tests of their own."""
    out = tmp_path_factory.mktemp("built") / "site"
    build_site.build(out, run_notebooks=False)
    return out


def test_every_page_is_built_and_can_be_searched_without_a_server(site):
    names = {name.removesuffix(".md") + ".html" for name in site_stage.written_pages().values()}
    assert names <= {str(path.relative_to(site)) for path in site.rglob("*.html")}
    index = json.loads((site / "search.js").read_text().partition("=")[2].strip().rstrip(";"))
    assert names <= {item["location"].partition("#")[0] for item in index["items"]}
    assert "iframe-worker.js" in (site / "index.html").read_text()


def test_nothing_is_loaded_from_elsewhere_and_every_link_holds(site):
    assert not list(site_check.faults(site))


def test_no_fence_and_no_mark_is_left_in_the_text(site):
    for path in site.rglob("*.html"):
        text = re.sub(r"<(pre|code).*?</\1>", "", path.read_text(), flags=re.DOTALL)
        assert "```" not in text, path.name
        assert "&lt;!--" not in text, path.name


FAULTS = {
    "loads https://": '<script src="https://cdn.example/a.js"></script>',
    "loads //": '<img alt="x" src="//cdn.example/a.png">',
    "loads http://": '<link rel="stylesheet" href="http://fonts.example/css">',
    "loads https://b": '<p style="background: url(https://b.example/c.png)">',
    "links to no.html: is not there": '<a href="no.html">x</a>',
    "no such place": '<a href="index.html#nowhere">x</a>',
    "without a text": '<img src="a.png">',
    "would be fetched": '<pre class="mermaid">graph TD</pre>',
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_page_is_found(fault, tmp_path):
    (tmp_path / "a.png").touch()
    (tmp_path / "a.css").write_text("p { background: url(a.png) }")
    sound = '<p id="here"><a href="#here">x</a> <a href="https://example.org">y</a> <img alt="z" src="a.png">'
    (tmp_path / "index.html").write_text(sound)
    assert not list(site_check.faults(tmp_path))
    (tmp_path / "index.html").write_text(sound + FAULTS[fault])
    (found,) = site_check.faults(tmp_path)
    assert fault in found


def test_a_fault_of_a_style_sheet_is_found(tmp_path):
    (tmp_path / "a.css").write_text("@import 'https://fonts.example/css';")
    assert len(list(site_check.faults(tmp_path))) == 1


def test_a_page_that_is_not_in_the_navigation_stops_the_build():
    with pytest.raises(SystemExit, match=r"lost\.md"):
        build_site.navigation([{"Home": "index.md"}], ["index.md", "lost.md"])


def test_a_link_that_leads_to_nothing_stops_the_build():
    with pytest.raises(SystemExit, match=r"docs/faq\.md: no\.md leads to nothing"):
        site_stage.relinked("[x](no.md)", "docs/faq.md", set())


def test_links_out_of_the_pages_lead_to_pages_about_what_they_name():
    wanted: set[str] = set()
    text = "[a](../README.md) [b](../examples/own_data.py) [c](adr/0003-flat-rows.md#x) `[d](e)` [f](#g)"
    found = site_stage.relinked(text, "docs/faq.md", wanted)
    page = "source/examples/own_data.py.md"
    assert found == f"[a](readme.md) [b]({page}) [c](adr/0003-flat-rows.md#x) `[d](e)` [f](#g)"
    assert wanted == {"examples/own_data.py"}
    assert (ROOT / "examples/own_data.py").read_text() in site_stage.source_page(
        "examples/own_data.py", set()
    )


@pytest.mark.parametrize("module", [kinfolk, authoring], ids=lambda module: module.__name__)
def test_the_reference_has_every_public_name_with_what_its_docstring_says(module):
    page = site_api.api_page(module, "")
    headings = re.findall(r"^### (\S+)$", page, re.MULTILINE)
    assert sorted(headings) == sorted(module.__all__)
    for name in module.__all__:
        thing = getattr(module, name)
        if inspect.isfunction(thing):
            assert (thing.__doc__ or "").partition("\n")[0] in page, name
    assert " object at 0x" not in page
    assert "ForwardRef" not in page


def test_the_reference_has_every_algorithm_command_and_setting():
    pages = site_reference.pages()
    assert re.findall(r"^## (\S+)$", pages["algorithms.md"], re.MULTILINE) == list(ALGORITHMS)
    assert {"run", "data import", "reproduce"} <= set(
        re.findall(r"^## (.+)$", pages["command-line.md"], re.M)
    )
    assert "| `--seeds" in pages["command-line.md"]
    for name, _, meaning in describe():
        assert f"| `{name.rpartition('.')[2]}` |" in pages["settings.md"]
        assert meaning.partition(" ")[0] in pages["settings.md"]


def test_a_notebook_shows_what_its_cells_print_and_end_with(tmp_path):
    cells = [("markdown", "# Title\n"), ("code", "x = 2\nprint('said')\nx + 1"), ("code", "y = x")]
    book = tmp_path / "small.ipynb"
    book.write_text(json.dumps({"cells": [{"cell_type": kind, "source": [text]} for kind, text in cells]}))
    page = site_notebooks.page(book)
    assert page.startswith(
        "# Title\n\n\n```python\nx = 2\nprint('said')\nx + 1\n```\n\n```text\nsaid\n3\n```"
    )
    assert page.count("```text") == 1
    assert "```text" not in site_notebooks.page(book, run=False)


def test_the_figure_of_a_round_is_as_the_script_draws_it():
    assert round_figure.FIGURE.read_text() == round_figure.draw()
