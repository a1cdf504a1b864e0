"""Logs are lines of JSON about sites, rounds, bytes and seconds; nothing that a site holds is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from deployed import spec_of

from kinfolk.codec import encode
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.logs import KINDS, events, log_to, logged, no_log
from kinfolk.deploy.site import Site
from kinfolk.engines import one
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.types import Client

# What is in the data of these sites, and in the text of an error there.
COLUMN, LABEL, PERSON = "hiv_status", "positive", "Ann Smith"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Any]:
    """The logs of a run over three sites, one of which fails in its second round with a text full of rows."""
    draw = np.random.default_rng(0)
    own = {
        c: (draw.normal(41.123456, 7, size=(20, 3)), np.array([LABEL, "no"] * 10))
        for c in ("ann", "bob", "cem")
    }
    rows, perform = from_arrays(own), one.perform

    def fails(task: Any, message: Any, memory: Any, held: Any, who: Client, context: Any) -> Any:
        if who == "cem" and context.round == 1:
            raise ValueError(f"row of {PERSON}: {COLUMN}={held.x[0].tolist()}")
        return perform(task, message, memory, held, who, context)

    monkeypatch.setattr(one, "perform", fails)
    sites = {c: Site(c, rows.only(c), tmp_path / c) for c in rows.clients}
    doors = {c: logged(site.answer, log_to(tmp_path / "log" / f"{c}.jsonl")) for c, site in sites.items()}
    (tmp_path / "log").mkdir()
    watch = events("first", log_to(tmp_path / "log" / "lead.jsonl"))
    lead(
        spec_of("fedavg", rounds=3), tmp_path / "first", Threads(doors), list(sites), seconds=60, watch=watch
    )
    return tmp_path / "log", rows


def test_a_scan_finds_no_row_class_column_model_or_text_of_an_error(logs: tuple[Path, Any]):
    folder, rows = logs
    text = "".join(path.read_text() for path in folder.iterdir())
    assert not [word for word in (COLUMN, LABEL, PERSON, "Smith", str(folder)) if word in text]
    numbers = {f"{abs(float(v)):.4f}" for v in rows.x.flatten()} | {str(float(v)) for v in rows.x.flatten()}
    assert len(numbers) > 100
    assert not [number for number in numbers if number in text]
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o077 == 0
        for line in lines(path):
            assert set(line) <= {"time", "event", *KINDS}


def test_who_asked_what_and_what_it_cost_can_be_read(logs: tuple[Path, Any]):
    folder, _ = logs
    asked = [line for line in lines(folder / "cem.jsonl") if line["event"] == "request"]
    assert [line["do"] for line in asked[:3]] == ["introduce", "begin", "ask"]
    assert all(line["got"] > 0 and line["sent"] > 0 and line["seconds"] >= 0 for line in asked)
    failed = [line for line in asked if "error" in line]
    assert failed
    assert {(line["round"], line["error"]) for line in failed} == {(1, "ValueError")}
    rounds = [line for line in lines(folder / "lead.jsonl") if line["event"] == "round"]
    assert [(line["round"], line.get("answered")) for line in rounds] == [(0, None), (1, 3), (2, 2), (3, 3)]
    assert rounds[1]["bytes"]["update.up"] > 0
    assert rounds[1]["phases"]["update"] > 0
    assert lines(folder / "lead.jsonl")[-1]["sites"] == ["ann", "bob", "cem"]


def test_a_lead_that_sends_lines_and_private_words_writes_none_into_a_sites_log(tmp_path: Path):
    rows = from_arrays({"ann": (np.zeros((4, 2)), np.array([0, 1, 0, 1]))})
    door = logged(Site(Client("ann"), rows.only(Client("ann"))).answer, log_to(tmp_path / "log"))
    for do in ('x"}\n{"event": "forged"', "a" * 5000, "\x1b[2J"):
        door(encode({}, {"to": "ann", "do": do, "task": do, "round": do}))
    door(b"no message")
    found = lines(tmp_path / "log")
    assert [line["event"] for line in found] == ["request"] * 4
    assert all(line.get("do", "?") == "?" for line in found)


def test_without_a_log_a_door_is_what_it_was():

    def answer(data: bytes) -> bytes:
        return data

    assert logged(answer, no_log) is answer
