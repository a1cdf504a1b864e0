"""What a newer version has written is refused, and left as it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_runs import SPEC, go

from kinfolk.errors import KinfolkError
from kinfolk.experiment.attack_lab import Asked, attack_lab
from kinfolk.experiment.choose_k import Trial, choose_k
from kinfolk.experiment.compare import compare
from kinfolk.experiment.record import readable
from kinfolk.experiment.spec import override
from kinfolk.experiment.tune import tune
from kinfolk.report.follow import Followed
from kinfolk.report.read import load_runs, read_facts

GROUPS = override(SPEC, ["algorithm.name=ifca", "algorithm.k=2"])
# What goes on in a folder, and the file that says of what format it is.
WRITERS: dict[str, Callable[[Path], Any]] = {
    "run.json": lambda folder: go(folder, resume=True),
    "compare.json": lambda folder: compare(SPEC, ["local"], 1, folder, resume=True),
    "tune.json": lambda folder: tune(SPEC, ["fedavg;local.lr=0.05"], folder, resume=True),
    "attack.json": lambda folder: attack_lab(
        SPEC, Asked(("fedavg",), ("noise",), ("mean",), (0.3,)), 1, folder, resume=True
    ),
    "choose-k.json": lambda folder: choose_k(GROUPS, folder, Trial((1, 2), 4, 1, 1), resume=True),
}


@pytest.mark.parametrize("file", WRITERS)
def test_going_on_in_a_folder_of_a_newer_format_is_refused_and_changes_nothing(tmp_path, file):
    WRITERS[file](tmp_path)
    facts = json.loads((tmp_path / file).read_text())
    assert facts["format"] == 1
    (tmp_path / file).write_text(json.dumps({**facts, "format": 2}))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(KinfolkError, match="is of format 2, this version reads 1"):
        WRITERS[file](tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_newer_format_is_not_read(tmp_path):
    for name in ("compare", "choose-k"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"format": 2, "runs": ["a"]}))
    for read in (
        load_runs,
        lambda folder: read_facts(folder, "choose-k"),
        lambda folder: Followed(folder).look(),
    ):
        with pytest.raises(KinfolkError, match="is of format 2, this version reads 1"):
            read(tmp_path)


@pytest.mark.parametrize("form", [2, 10**30, "2", "1", None, 1.5, True, [1]])
def test_a_format_that_is_not_known_is_not_taken_for_an_old_one(form):
    with pytest.raises(KinfolkError, match=r"run = 'r': is of format .*, this version reads 1"):
        readable(Path("r"), {"format": form})


def test_what_has_no_format_is_of_an_older_version():
    readable(Path("r"), {"versions": {"kinfolk": "0.1"}})


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 3}', "\0"])
def test_trials_that_cannot_be_read_are_named(tmp_path, text):
    (tmp_path / "trials.json").write_text(text)
    with pytest.raises(KinfolkError, match=r"trials\.json'.* remove it, and all trials are made again"):
        tune(SPEC, ["fedavg;local.lr=0.05"], tmp_path, resume=True)
