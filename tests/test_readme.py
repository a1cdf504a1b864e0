"""What the documents tell a reader to type works, and what they show is what is printed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pandas as pd
import pytest
from pages import ROOT, blocks, commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder that looks like the repository's root; commands find there what earlier ones have written."""
    folder = tmp_path_factory.mktemp("root")
    (folder / "examples").symlink_to(ROOT / "examples")
    return folder


@pytest.fixture
def room(folder, monkeypatch):
    """That folder as the working directory of this process, and a terminal of 100 columns."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    return folder


@pytest.fixture
def typed(room, command_line):
    """Type a command that must succeed: what it prints."""

    def call(command: str) -> str:
        code, out, err = command_line(*command.split()[1:])
        assert code == 0, out + err
        return out

    return call


@pytest.fixture
def python(room, capsys):
    """Run a script: what it prints."""

    def call(script: str) -> str:
        exec(compile(script, "example", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return call


def test_readme_commands_run_one_after_another(typed):
    for command in commands("README.md"):  # one shows what another has made
        typed(command)


def test_the_command_that_is_installed_starts():
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    words = [sys.executable, "-m", "kinfolk", "--version"]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("kinfolk ")


def test_data_commands_run_one_after_another(typed):
    for command in commands("docs/your-data/data.md"):  # one reads what another has written
        typed(command)


def test_group_commands_run_and_print_what_is_shown(typed, python):
    (example,) = blocks("docs/methods/groups.md", "python")
    python(example)
    shown = blocks("docs/methods/groups.md", "text")
    choose, train, place, *members = commands("docs/methods/groups.md")
    printed = typed(f"{choose} --k 2 --rounds 1 --seeds 1")
    assert printed.splitlines()[0].split() == shown[0].splitlines()[0].split()
    typed(train)
    groups = [[row.split()[i] for i in (0, 2)] for row in shown[-1].splitlines()[2:10]]
    assert [[row.split()[i] for i in (0, 2)] for row in typed(place).splitlines()[2:10]] == groups
    for command in members:
        typed(command)


def test_commands_that_take_models_home_run_one_after_another(typed, python):
    for command in commands("docs/results/models.md"):  # all use what the first has made
        typed(command)
    (example,) = blocks("docs/results/models.md", "python")
    said, shape = python(example).splitlines()
    assert said.endswith("('no', 'yes')")
    assert shape == "(40, 2)"


def test_the_first_model_is_had_by_the_commands_of_its_page(typed, python):
    """Up to a file that torch alone opens, whose answers are those of `kinfolk predict`."""
    for command in commands("docs/your-data/first-model.md"):
        typed(command)
    (example,) = blocks("docs/your-data/first-model.md", "python")
    said = pd.read_csv("predictions.csv")["prediction"]
    assert python(example).strip() == f"tensor({[int(one == 'yes') for one in said[:5]]})"


@pytest.mark.slow
def test_commands_on_comparing_run_one_after_another(room, command_line, python):
    for command in commands("docs/methods/comparing.md"):
        code, out, err = command_line(*shlex.split(command)[1:])
        assert code == 0, out + err
    (example,) = blocks("docs/methods/comparing.md", "python")
    assert "chosen settings" in python(example)


@pytest.mark.parametrize("command", commands("docs/extend/add-an-algorithm.md"))
def test_guide_commands_run(command, typed):
    typed(command)


def test_readme_names_make_targets_that_exist():
    targets = re.findall(r"^make (\w+)", "\n".join(blocks("README.md", "bash")), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_the_python_example_is_short_and_prints_a_table(python):
    (example,) = blocks("README.md", "python")
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 15
    printed = python(example)
    assert "fedavg_tuned" in printed
    assert "±" in printed


def test_the_data_examples_print_what_they_say(python):
    found, tokens, prices, columns = (
        python(example) for example in blocks("docs/your-data/data.md", "python")
    )
    assert found == "{'0': 20, '1': 20} ('ann', 'bob')\n"
    assert tokens == "mask 12 (bool), tokens 12 (int16) 2 rounds done\n"
    assert prices == "True\n[400000.]\n"
    assert columns == "('age', 'sex=f', 'sex=m', 'sex=x', 'seen', 'seen.month')\n"


def test_the_records_example_reads_the_readme_run(room, typed, python):
    (example,) = blocks("docs/results/run-folders.md", "python")
    if not (room / "runs/first").exists():
        typed("kinfolk run digits --out runs/first --set run.rounds=2")
    assert "centre" in python(example)


def test_the_guide_shows_the_example_as_it_is():
    (shown,) = blocks("docs/extend/add-an-algorithm.md", "python")
    assert shown == (ROOT / "examples/towards_the_median.py").read_text()


def test_the_demo_table_in_the_readme_has_what_the_demo_compares():
    (table,) = blocks("README.md", "text")
    demo = re.search(r"^DEMO := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert demo is not None
    for word in demo[1].split():
        assert re.search(rf"^ {word.replace(',', ' ')} ", table, re.MULTILINE), word


def test_pretrained_commands_run_one_after_another(typed, python):
    for command in commands("docs/your-network/pretrained.md"):  # all use what the first has made
        typed(command)
    (example,) = blocks("docs/your-network/pretrained.md", "python")
    trained, layer = python(example).splitlines()
    adapters, head = 2 * (4 + 16) + 2 * (16 + 16), 16 * 3 + 3
    assert trained == f"{adapters + head} of {4 * 16 + 16 + 16 * 16 + 16 + head}"
    assert layer == "Linear(in_features=4, out_features=16, bias=True)"
