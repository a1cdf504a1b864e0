"""The scripts under examples/ run as they stand, and say what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
# What each prints somewhere; one that only defines an algorithm prints nothing.
SAYS = {"own_data": "fedavg_tuned", "find_groups": "fesem", "towards_the_median": ""}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert SAYS[path.stem] in capsys.readouterr().out


def test_the_groups_of_the_example_are_found(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    path = next(path for path in EXAMPLES if path.stem == "find_groups")
    runpy.run_path(str(path), run_name="__main__")
    print(capsys.readouterr().out)
