"""What adding an engine or an engine option takes: one class in the registry, one field in the table."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from small_spec import SPEC

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.contract.checks import check_engines_agree
from kinfolk.engines.choose import ENGINES, engine_names
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import check
from kinfolk.script import Ask
from kinfolk.streams import RoundContext
from kinfolk.types import Stack

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "recipes.md"


def block(heading: str) -> dict[str, Any]:
    """What the page's block under a heading defines."""
    section = PAGE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    names: dict[str, Any] = {"__name__": "recipe"}
    source = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    exec(compile(source, "recipe", "exec", dont_inherit=True), names)
    return names


Joined = block("An engine")["Joined"]
WithMost = block("An engine option")["WithMost"]
del ENGINES["joined"]  # the fixture registers it, test by test


class Wrong(Joined):
    """Forgets the first client."""

    name = "wrong"

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        for stack in super().replies(request, context):
            yield stack.at(stack.clients[1:])


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one line that a new engine adds to the registry."""
    monkeypatch.setitem(ENGINES, "joined", Joined)


def test_an_engine_is_a_class_in_the_registry(tmp_path):
    assert "joined" in engine_names()["engine.name"]
    assert "joined" in engine_names()["engine.inner"], "a rank may use what stays in its process"
    ends = {}
    for name in ("joined", "loop"):
        spec = check(replace(SPEC, engine=EngineSpec(name, "cpu")))
        ends[name] = run(spec, tmp_path / name).summary
        assert json.loads((tmp_path / name / "run.json").read_text())["choice"]["name"] == name
    assert ends["joined"] == ends["loop"]


def test_the_conformance_suite_compares_a_new_engine_with_the_loop(monkeypatch):
    check_engines_agree(FedAvg)
    monkeypatch.setitem(ENGINES, "wrong", Wrong)
    with pytest.raises(AssertionError, match="engine 'wrong' does not agree with 'loop'"):
        check_engines_agree(FedAvg)


def test_an_engine_that_is_not_registered_is_refused(monkeypatch):
    monkeypatch.delitem(ENGINES, "joined")
    with pytest.raises(KinfolkError, match=r"engine.name = 'joined': give one of auto, loop, batched, "):
        check(replace(SPEC, engine=EngineSpec("joined")))


def test_an_option_is_a_field_of_the_table_and_a_use_in_the_engine(monkeypatch, tmp_path):
    sizes = []
    replies = Joined.replies

    def noted(self: Joined, *given: Any) -> Iterator[Stack]:
        for stack in replies(self, *given):
            sizes.append(len(stack))
            yield stack

    monkeypatch.setattr(Joined, "replies", noted)
    run(replace(SPEC, engine=WithMost("joined", "cpu", most=5)), tmp_path / "run")
    assert max(sizes) == 5, "of eight clients"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["choice"]["most"] == 5
