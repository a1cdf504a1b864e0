"""What the page on advice tells a reader to type works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/methods/advise.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.slow
def test_the_commands_run_one_after_another_and_print_what_is_shown(kinfolk):
    typed = [line.partition("#")[0].split()[1:] for line in blocks("bash")[0].splitlines()]
    advise, show, run = typed
    code, out, err = kinfolk(*advise, "--budget", 420, "--set", "model.hidden=[8]")
    assert code == 0, err
    shown = blocks("text")[0]
    for start in (
        "24 clients",
        "note: a fifth",
        "plan: at most",
        " method ",
        "because",
        "spent:",
        "folder:",
        "next:",
    ):
        assert any(line.startswith(start) for line in out.splitlines()), start
        assert any(line.startswith(start) for line in shown.splitlines()), start
    assert kinfolk(*show)[0] == 0
    assert kinfolk(*run, "--set", "run.rounds=6")[0] == 0


@pytest.mark.slow
def test_the_python_example_prints_an_answer(capsys):
    exec(compile(blocks("python")[0], "example", "exec"), {"__name__": "__main__"})
    answer, confidence, rows = capsys.readouterr().out.split()
    assert answer in ("local", "fedavg", "unclear")
    assert confidence == "low"
    assert int(rows) >= 3


def test_the_table_of_the_page_is_about_the_federations_of_the_benchmark():
    source = (ROOT / "benchmarks/advise.py").read_text()
    names = re.findall(r'Case\(\s*"([^"]+)"', source)
    assert len(names) >= 14
    for name in names:
        assert f"| {name} |" in PAGE, name
