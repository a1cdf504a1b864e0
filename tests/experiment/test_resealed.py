"""A checkpoint whose checksums fit and that says what no run has written: the one before is taken."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same_end, go

from kinfolk.codec import decode, encode
from kinfolk.errors import KinfolkError
from kinfolk.experiment import checkpoint
from kinfolk.experiment.record import read_audit
from kinfolk.experiment.segments import One, packed

NEWEST = "checkpoints/round-000003"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    room = tmp_path_factory.mktemp("whole")
    go(room / "four", "run.rounds=4")
    return room / "four"


def forge(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    body = json.loads((folder / "manifest.json").read_bytes())
    del body["sha256"]
    change(body)
    (folder / "manifest.json").write_bytes(checkpoint._render(body))


def replace(folder: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Other tensors in a file of a checkpoint, whose checksum fits them."""
    message, header = decode((folder / name).read_bytes())
    change(message)
    data = encode(message, header)
    (folder / name).write_bytes(data)
    facts = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    forge(folder, lambda body: body["files"].update({name: facts}))


def add_memory(folder: Path, place: int) -> None:
    """One more file with a client's memory, as the manifest knows it."""
    data = encode(packed([One.of(place, {"n": torch.zeros(1)})]))
    name, digest = f"memory-{'0' * 32}.safetensors", hashlib.sha256(data).hexdigest()
    (folder / name).write_bytes(data)
    forge(folder, lambda body: body["files"].update({name: {"bytes": len(data), "sha256": digest}}))


FACTS = {
    "no voids": lambda facts: facts.pop("voids"),
    "voids in words": lambda facts: facts.update(voids="none"),
    "a summary that is a list": lambda facts: facts.update(summary=[]),
    "a state of another method": lambda facts: facts["state"].update(k=3),
    "clients that there are not": lambda facts: facts.update(unheard=[99]),
    "no federation": lambda facts: facts.pop("federation"),
    "health of another kind": lambda facts: facts.update(health={"traces": {"centre": {"x": 1}}}),
    "health with a strange name": lambda facts: facts["health"].update(look=None),
    "usual lengths that are none": lambda facts: facts.update(usual=[1]),
    "a count that is none": lambda facts: facts.update(extra="much"),
}
TENSORS = {
    "other names": lambda message: message["model"].update(x=torch.zeros(1)),
    "other axes": lambda message: message["model"].update(
        {next(iter(message["model"])): torch.zeros(1, 1, 1, 1)}
    ),
    "no tree": lambda message: message.update(model=torch.zeros(1)),
}


@pytest.mark.parametrize("what", [*FACTS, *TENSORS, "a memory of nobody", "a memory that none has"])
def test_a_run_goes_on_from_the_checkpoint_before(whole: Path, tmp_path: Path, what: str) -> None:
    go(tmp_path / "r")
    newest = tmp_path / "r" / NEWEST
    if what in FACTS:
        forge(newest, lambda body: FACTS[what](body["facts"]))
    elif what in TENSORS:
        replace(newest, "state.safetensors", TENSORS[what])
    else:
        add_memory(newest, {"a memory of nobody": 99, "a memory that none has": 0}[what])
    go(tmp_path / "r", "run.rounds=4", resume=True)
    told = [line["text"] for line in read_audit(tmp_path / "r") if line["event"] == "warning"]
    assert len(told) == 1
    assert told[0].startswith("round-000003 is skipped: what it says is not where a run can stand")
    assert_same_end(tmp_path / "r", whole)


def test_where_none_is_sound_the_error_says_so(tmp_path: Path) -> None:
    go(tmp_path / "r")
    for folder in sorted((tmp_path / "r/checkpoints").iterdir()):
        forge(folder, lambda body: body["facts"].pop("voids"))
    with pytest.raises(
        KinfolkError, match=r"no sound checkpoint \(round-000003 is skipped: .*KeyError: 'voids'"
    ):
        go(tmp_path / "r", "run.rounds=4", resume=True)


def test_other_rows_are_no_damage(tmp_path: Path) -> None:
    go(tmp_path / "r")
    forge(tmp_path / "r" / NEWEST, lambda body: body["facts"].update(federation="another"))
    with pytest.raises(KinfolkError, match="not those the run began with"):
        go(tmp_path / "r", "run.rounds=4", resume=True)
