"""The code on the page "From Python" runs, block after block, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

from kinfolk.experiment.callbacks import TOLD, WHICH

PAGE = (Path(__file__).parents[1] / "docs/your-network/python.md").read_text()


def test_the_blocks_run_one_after_another(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "__main__"}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        exec(compile(block, "python.md", "exec"), names)
    out = capsys.readouterr().out
    assert "fedprox mu=0.5, 5 rounds done" in out
    assert "2 seeds" in out
    assert "a callback said stop" in out
    assert out.endswith("\n6\n"), "an evaluation before training and one after each of five rounds"


def test_every_fact_that_callbacks_are_told_is_on_the_page():
    for name, facts in TOLD.items():
        (line,) = (line for line in PAGE.splitlines() if line.startswith(f"| `{name}`"))
        assert all(f"`{fact}`" in line for fact in facts), name
    assert all(f"`{fact}`" in PAGE for fact in WHICH)
