"""A run folder has one writer: a second run, comparison or search is refused and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from small_runs import SPEC, assert_same_end, go

from kinfolk.errors import KinfolkError
from kinfolk.experiment.compare import compare
from kinfolk.experiment.record import read_audit
from kinfolk.experiment.score_again import score_again
from kinfolk.experiment.tune import tune
from kinfolk.lock import is_written

WHO = f"is being written by process {os.getpid()} on "


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused_after_the_first_round(folder: Path, second: Any) -> Any:
    """A listener that tries a second writer once, and sees that it leaves everything as it is."""

    def listen(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1:
            before = files(folder)
            with pytest.raises(KinfolkError, match=WHO) as refused:
                second()
            assert len(str(refused.value).splitlines()) == 1
            assert files(folder) == before
            tried.append(facts["round"])

    tried: list[int] = []
    listen.tried = tried  # type: ignore[attr-defined]
    return listen


@pytest.mark.parametrize("resume", [False, True])
def test_a_second_run_in_the_folder_is_refused_and_the_first_ends_as_if_alone(tmp_path, resume):
    go(tmp_path / "whole")
    listen = refused_after_the_first_round(tmp_path / "r", lambda: go(tmp_path / "r", resume=resume))
    go(tmp_path / "r", watch=listen)
    assert listen.tried == [1]
    assert is_written(tmp_path / "r") is False
    assert_same_end(tmp_path / "r", tmp_path / "whole")
    assert [line["event"] for line in read_audit(tmp_path / "r")] == ["start"]
    go(tmp_path / "r", resume=True)


def test_a_second_comparison_is_refused_while_the_first_is_between_two_runs(tmp_path):
    tried = []

    def watch(title: str, seed: int) -> Any:  # called before a run begins
        with pytest.raises(KinfolkError, match=WHO):
            compare(SPEC, ["local", "fedavg"], 1, tmp_path / "c", resume=True)
        tried.append(title)
        return lambda event, facts: None

    compare(SPEC, ["local", "fedavg"], 1, tmp_path / "c", watch=watch)
    assert tried == ["local", "fedavg"]


def test_a_second_search_is_refused(tmp_path):
    tried = []

    def tell(title: str, spent: float) -> None:
        with pytest.raises(KinfolkError, match=WHO):
            tune(SPEC, ["fedavg"], tmp_path / "t", resume=True)
        tried.append(title)

    tune(SPEC, ["fedavg;local.lr=0.05"], tmp_path / "t", tell=tell)
    assert set(tried) == {"fedavg lr=0.05"}


def test_models_are_not_scored_twice_at_once_in_one_folder(tmp_path):
    go(tmp_path / "r")
    tried = []

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "end":
            with pytest.raises(KinfolkError, match=WHO):
                score_again(tmp_path / "r", SPEC, tmp_path / "s")
            tried.append(event)

    score_again(tmp_path / "r", SPEC, tmp_path / "s", watch=watch)
    score_again(tmp_path / "r", SPEC, tmp_path / "s")
    assert tried == ["end"]
