"""The scripts under examples/ run as they stand, and print what they promise."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    # One that only defines an algorithm prints nothing.
    assert out or path.stem == "towards_the_median"
    if path.stem == "find_groups":
        best = next(line for line in out.splitlines() if " best " in line and "±" in line)
        assert best.split()[0] == "fesem", out
