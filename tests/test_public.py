"""The public surface: what it holds, and that examples and documentation use nothing else."""

import ast
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import kinfolk
from kinfolk import authoring

ROOT = Path(__file__).parents[1]
PUBLIC = {"kinfolk": set(kinfolk.__all__), "kinfolk.authoring": set(authoring.__all__)}
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


def private(code, also=()):
    """What the code imports of Kinfolk that is not public."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found += [one.name for one in node.names if one.name.split(".")[0] == "kinfolk"]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "kinfolk":
            found += [f"{node.module}:{one.name}" for one in node.names]
    return [
        name
        for name in found
        if name not in PUBLIC
        and name.split(":")[-1] not in PUBLIC.get(name.split(":")[0], ())
        and not name.startswith(tuple(also))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_import_only_what_is_public(page):
    # How a paper's figures were made is told by the package that makes them.
    also = ("kinfolk.papers",) if page.parent.name == "papers" else ()
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        assert private(block, also) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_examples_import_only_what_is_public_and_run(script, tmp_path, monkeypatch):
    assert private(script.read_text()) == []
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(script), run_name="__main__")


def test_what_is_not_public_is_seen():
    assert private("from kinfolk.script import ask") == ["kinfolk.script:ask"]
    assert private("import kinfolk.types\nfrom kinfolk import api") == ["kinfolk.types", "kinfolk:api"]
    assert private("import kinfolk, numpy\nfrom kinfolk.authoring import ask\nfrom kinfolk import run") == []


@pytest.mark.parametrize("name", sorted(kinfolk.__all__))
def test_every_public_name_is_there_and_documented(name):
    thing = getattr(kinfolk, name)
    assert name == "__version__" or thing.__doc__


def test_there_is_nothing_else():
    assert dir(kinfolk) == sorted(kinfolk.__all__)
    with pytest.raises(AttributeError, match="no attribute 'federation_of'"):
        _ = kinfolk.federation_of


def test_reading_results_does_not_wait_for_torch():
    code = "import sys, kinfolk; kinfolk.load_runs, kinfolk.KinfolkError; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
