"""Every command line on a page, run or not, names commands, options, settings and algorithms that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from pages import PAGES, ROOT, all_blocks, inline_commands, typed

import kinfolk.papers.commands  # noqa: F401  (adds its commands)
from kinfolk.algorithms import ALGORITHMS
from kinfolk.algorithms.options import check_options
from kinfolk.cli.commands import app
from kinfolk.configs import config_names, find_config, find_paper
from kinfolk.errors import KinfolkError
from kinfolk.experiment.method import parse_method
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import load, override
from kinfolk.federation.datasets.catalogue import CATALOGUE
from kinfolk.papers.paper import load_paper

# What stands for something of the reader's: RUN, SPEC, "...".
PLACEHOLDER = re.compile(r"[A-Z][A-Z-]*|\.\.\.|…")
GROUPS = {name.partition("/")[0] for name in config_names()}


def check(words: list[str]) -> None:
    """Raise if a command line cannot be meant for what is here."""
    words = [word for word in words if word not in ("...", "…")]
    if "kinfolk" in words[1:]:  # torchrun ... -m kinfolk
        words = words[words.index("kinfolk") :]
    if words[0] == "kinfolk":
        check_kinfolk(words[1:])
    elif words[0] == "make":
        assert all(
            re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)
            for target in words[1:]
            if "=" not in target
        )
    elif words[0] == "python" and words[1] != "-m":
        script = ROOT / words[1]
        said = script.read_text() + "--set"  # passed on to an experiment
        for word in words[2:]:
            name = word.partition("=")[0]
            assert not name.startswith("--") or name in said or script.parent.name == "peers", name
    elif words[0] == "pytest" or words[:3] == ["python", "-m", "pytest"]:
        assert all((ROOT / word).exists() for word in words if word.startswith("tests/"))
    else:
        assert words[0] in ("pip", "python3", "torchrun") or words[:3] == ["python", "-m", "build"], words


def check_kinfolk(words: list[str]) -> None:
    """Parse a command as the command line does, and look up what it names."""
    command: Any = typer.main.get_command(app)
    while words and hasattr(command, "commands") and not words[0].startswith("-"):
        assert words[0] in command.commands, f"no command {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):  # `kinfolk data`, `kinfolk --version`
        assert all(any(word in one.opts for one in command.params) for word in words), words
        return
    if words and words[-1].startswith("--"):  # a page may speak of an option by its name alone
        assert any(words[-1] in one.opts for one in command.params), words[-1]
        words = words[:-1]
    for one in command.params:  # or of a command
        one.required = False
    with command.make_context(command.name, [*words], resilient_parsing=False) as context:
        look_up(command.name, {name: value for name, value in context.params.items() if value})


def look_up(command: str, given: dict[str, Any]) -> None:
    """Raise if a name, a setting or an algorithm of a command line is not there."""
    if command == "reproduce":
        if "paper" in given:
            paper = load_paper(find_paper(given["paper"])).only(given.get("table") or [])
            labels = {row.label for table in paper.tables for row in table.rows}
            assert set(given.get("row") or []) <= labels
        given = {}
    if command == "list":
        assert given.get("what", "all") in ("algorithms", "data", "models", "configs", "settings", "all")
    if command == "fetch" and not PLACEHOLDER.fullmatch(given.get("name", "X")):
        assert given["name"] in CATALOGUE
    spec = override(experiment(given.get("spec")), [*(given.get("set_") or ())])
    for space in given.get("space") or ():
        override(spec, [space.partition(",")[0]])
    found = given.get("algorithm") or ()
    for text in [found] if isinstance(found, str) else found:
        if not PLACEHOLDER.fullmatch(text) and ":" not in text:
            named(parse_method(text, spec).spec)
    named(spec)


def named(spec: Experiment) -> None:
    """Raise if there is no such algorithm, or one without these options."""
    name, options = spec.algorithm.name, spec.algorithm.options
    assert name in ALGORITHMS, name
    check_options(name, ALGORITHMS[name], options)


def experiment(name: Path | None) -> Experiment:
    """The experiment of a packaged configuration; of the reader's own files the usual one stands in."""
    text = "" if name is None else name.as_posix()
    if text.partition("/")[0] in GROUPS:
        return load(find_config(text))
    return Experiment()


@pytest.mark.parametrize("page", PAGES)
def test_every_command_line_of_a_page_can_be_meant(page):
    lines = [words for block in all_blocks(page) for words in block.typed]
    for words in [*lines, *(shlex.split(line) for line in inline_commands(page))]:
        try:
            check(words)
        except Exception as error:
            raise AssertionError(f"{page}: {shlex.join(words)}: {error}") from error


@pytest.mark.parametrize(
    "line",
    [
        "kinfolk rum digits",
        "kinfolk run digits --sett run.rounds=5",
        "kinfolk run digts/none --set run.round=5",
        "kinfolk run mdicfl/rotated-minst",
        "kinfolk compare digits -a fedavgg",
        "kinfolk compare digits -a fesem,clusters=4",
        "kinfolk compare digits -a 'fedavg;local.rate=1'",
        "kinfolk reproduce fesem --table rotated",
        "kinfolk reproduce mdicfl --row Globe",
        "kinfolk tune digits --space local.rate=1,2",
        "kinfolk data fetch minst",
        "kinfolk list config",
        "make demos",
        "python benchmarks/engine.py",
        "python benchmarks/lists.py --nothing",
        "torchrun --nproc-per-node 2 -m kinfolk run digits --set engine.nam=distributed",
    ],
)
def test_a_slip_is_found(line):
    (words,) = typed(line)
    with pytest.raises((KinfolkError, AssertionError, OSError, typer._click.exceptions.UsageError)):
        check(words)


@pytest.mark.parametrize(
    "how", ["/bin/sh -c 'echo >{0}'", "echo >{0}", "PATH=/bin; touch {0}", "(. {1}; touch {0})"]
)
def test_reading_a_block_runs_nothing(how, tmp_path):
    script, made = tmp_path / "activate", tmp_path / "made"
    script.write_text("PATH=/bin:/usr/bin")
    with pytest.raises(ValueError, match=r"restricted|readonly"):
        typed(how.format(made, script))
    assert typed(f". {script}\ntouch {made}") == [["touch", str(made)]]
    assert not made.exists()
