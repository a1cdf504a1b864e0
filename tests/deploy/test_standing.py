"""How a run stands fits 80 columns, and is the same for people and for machines."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from deployed import federated, sites_of, spec_of
from rich.console import Console

from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.control import Control
from kinfolk.deploy.lead import lead
from kinfolk.deploy.observe import Endpoint, Observed
from kinfolk.deploy.standing import of_server, shown
from kinfolk.errors import KinfolkError


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    spec, folder = spec_of("fedavg", rounds=2), tmp_path_factory.mktemp("run")
    sites = sites_of(federated(spec))
    seen = Observed("first", list(sites))
    lead(
        spec, folder / "run", Threads({c: s.answer for c, s in sites.items()}), list(sites), watch=seen.watch
    )
    first, second = sorted(sites)[:2]
    seen.watch("warning", {"text": "", "late": first})
    seen.watch("warning", {"text": "", "left": second})
    return seen


def drawn(told: Any) -> str:
    console = Console(width=80, record=True, force_terminal=False, file=StringIO())
    console.print(shown(told))
    return console.export_text()


def test_a_run_is_shown_in_80_columns_with_whoever_is_late_or_has_left(seen: Observed):
    told = seen.status()
    text = drawn(
        {"sites": {"north": 3.2}, "jobs": [{"job_id": "a" * 36, "status": "RUNNING"}], "runs": [told]}
    )
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    first, second, third = sorted(told["sites"])[:3]
    assert [line.split() for line in lines if line.startswith((first, second, third))] == [
        [first, "away", "1"],
        [second, "left", "0"],
        [third, "here", "0"],
    ]
    update = next(line for line in lines if line.startswith("update"))
    up, down = (told["bytes"][f"update.{way}"] for way in ("up", "down"))
    assert update.split()[1] == f"{told['seconds']['update']:.1f}"
    assert f"{down / 1e3:.3g} kB" in update
    assert f"{up / 1e3:.3g} kB" in update
    assert "round 2 of 2, 8 of 8 answered" in text


def test_what_a_server_shows_can_be_read_from_its_address(seen: Observed, kinfolk: Any):
    with Endpoint(seen, 0) as endpoint:
        url = f"http://127.0.0.1:{endpoint.port}"
        assert of_server(url)["runs"][0]["bytes"] == seen.status()["bytes"]
        code, out, _ = kinfolk("deploy", "status", "--server", url, "--json")
        assert (code, json.loads(out)["runs"][0]["run"]) == (0, "first")
        code, out, _ = kinfolk("deploy", "status", "--server", url)
        assert (code, "run first: finished" in out) == (0, True)
    with pytest.raises(KinfolkError, match="shows no run at the moment"):
        of_server(url)


def test_a_command_that_is_nothing_of_ours_changes_nothing(seen: Observed, tmp_path: Path):
    control = Control(seen, tmp_path)
    for asked in (None, "drain", ["drain"], {"do": "abort"}, {"drain": True}):
        assert control.answer(asked)["draining"] is False
    assert control.watch("round", {"round": 1}) is None
    (tmp_path / "drain").touch()
    assert control.answer(None)["draining"] is True
    assert Control(seen, tmp_path).answer(None)["draining"] is False  # it was about an earlier attempt


def test_draining_on_the_servers_machine_wants_a_run_that_is_there(kinfolk: Any, tmp_path: Path):
    code, _, err = kinfolk("deploy", "drain", "first", "--runs", str(tmp_path))
    assert (code, "there is no such run" in err) == (2, True)
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "run.json").write_text("{}")
    code, out, _ = kinfolk("deploy", "drain", "first", "--runs", str(tmp_path))
    assert (code, "kinfolk deploy resume first" in out) == (0, True)
    assert (tmp_path / "first" / "drain").exists()


def test_leaving_where_nobody_is_there_is_one_line(kinfolk: Any, tmp_path: Path):
    code, _, err = kinfolk("site", "leave", str(tmp_path))
    assert (code, err.count("\n")) == (2, 1)
    assert "is not running here" in err
    assert not (tmp_path / "leave").exists()
