"""Every block of bash or Python on a page is run, or says above itself why not."""

from __future__ import annotations

import re
import tomllib

import pytest
from pages import PAGES, ROOT, Block, all_blocks, read

from kinfolk.experiment.spec import parse

# Pages that another test runs and looks at more closely.
ELSEWHERE = {
    "README.md": "tests/test_readme.py",
    "docs/extend/add-an-algorithm.md": "tests/test_readme.py",
    "docs/extend/recipes.md": "tests/engines/test_recipes.py",
    "docs/methods/comparing.md": "tests/test_readme.py",
    "docs/methods/groups.md": "tests/test_readme.py",
    "docs/results/models.md": "tests/test_readme.py",
    "docs/results/run-folders.md": "tests/test_readme.py",
    "docs/your-data/data.md": "tests/test_readme.py",
    "docs/your-data/first-model.md": "tests/test_readme.py",
    "docs/your-network/losses-and-metrics.md": "tests/test_losses_page.py",
    "docs/your-network/pretrained.md": "tests/test_readme.py",
    "docs/your-network/python.md": "tests/test_python_page.py",
}
HERE = [page for page in PAGES if page not in ELSEWHERE and any(block.runs for block in all_blocks(page))]
SLOW = [page for page in HERE if any(block.mark == "slow" for block in all_blocks(page))]


@pytest.fixture
def run(tmp_path, monkeypatch, command_line):
    """Run blocks in their order, in one folder that looks like the repository's root and in one namespace."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    names: dict[str, object] = {"__name__": "__main__"}

    def call(blocks: list[Block]) -> None:
        for block in blocks:
            if block.language == "python":
                exec(compile(block.text, f"{block.page}, line {block.line}", "exec"), names)
            for words in block.typed:
                assert words[0] == "kinfolk", f"{block.page}: nobody runs {words}; say why above the block"
                code, out, err = command_line(*words[1:])
                assert code == 0, f"{block.page}: {words}: {out}{err}"

    return call


@pytest.mark.parametrize("page", HERE)
def test_the_blocks_of_a_page_run_one_after_another(page, run):
    run([block for block in all_blocks(page) if block.runs and block.mark != "slow"])


@pytest.mark.slow
@pytest.mark.parametrize("page", SLOW)
def test_the_blocks_that_take_longer_run_too(page, run):
    run([block for block in all_blocks(page) if block.runs])


def test_pages_that_are_run_elsewhere_are_named_there():
    for page, test in ELSEWHERE.items():
        assert page in PAGES
        assert page.rpartition("/")[2] in (ROOT / test).read_text(), page


@pytest.mark.parametrize("page", PAGES)
def test_blocks_say_what_they_are(page):
    """No other language and no indented block, which would not be run."""
    assert {block.language for block in all_blocks(page)} <= {"bash", "python", "text", "toml"}
    assert not re.search(r"^ +```", read(page), re.MULTILINE)
    assert not re.search(r"^    (kinfolk|python|make|pip) ", read(page), re.MULTILINE)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(b.language == "toml" for b in all_blocks(page))]
)
def test_tables_of_settings_are_read(page):
    for block in all_blocks(page):
        if block.language == "toml":
            assert tomllib.loads(block.text)
            parse(block.text)
