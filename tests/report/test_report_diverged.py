"""A run that diverged is never ranked, starred or called the best, and the table says when and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from small_runs import go

from kinfolk.report.read import Run, load_runs
from kinfolk.report.tables import comparison_frame, comparison_rows, comparison_table, run_table

TOLD = "diverged at round 51: client f1912_13, norm 1e+09; lower local.lr or set local.clip"


def made(
    title: str, seed: int, value: float, diverged: str = "", score: str = "accuracy", **more: Any
) -> Run:
    facts: dict[str, Any] = {"title": title, "seed": seed, **more}
    if diverged:
        facts["diverged"] = {"text": TOLD, "models": {diverged: {"round": 51}}}
    return Run.of(facts, {"client": ["a", "b"], "value": [value, value], "rows": 10, "score": score})


def printed(runs: list[Run], width: int = 80) -> str:
    console = Console(width=width)
    table, notes = comparison_table(runs)
    with console.capture() as text:
        console.print(table)
        for note in notes:
            console.print(note, markup=False, soft_wrap=True)
    return text.get()


def test_a_method_that_diverged_comes_last_whatever_its_score():
    """The mse of a broken run may be the lowest of all, and its seeds may agree."""
    runs = [made("gone", seed, 7e7 + seed, "centre", "mse") for seed in (0, 1, 2)]
    runs += [made("fine", seed, 2e8 + seed * 1e7, score="mse") for seed in (0, 1, 2)]
    frame = comparison_frame(runs)
    assert frame["algorithm"].tolist() == ["fine", "gone"]
    assert frame["diverged"].tolist() == [0, 3]
    assert frame["apart"].tolist()[1] is None
    assert comparison_rows(runs)[1]["difference"] is None
    text = printed(runs, 100)
    rows = {line.split()[0]: line for line in text.splitlines() if line.split()[:1] in (["fine"], ["gone"])}
    assert "best" not in rows["gone"]
    assert " diverged" in rows["gone"]
    assert "=" not in rows["gone"]
    assert f"gone seed 0: {TOLD}" in text


def test_of_some_seeds_that_diverged_the_table_says_how_many():
    runs = [made("some", 0, 0.9, "centre"), made("some", 1, 0.95), made("some", 2, 0.9)]
    runs += [made("fine", seed, 0.5 + seed / 100) for seed in (0, 1, 2)]
    row = comparison_rows(runs)[1]
    assert (row["algorithm"], row["diverged"], row["runs"], row["apart"]) == ("some", 1, 3, None)
    lines = printed(runs).splitlines()
    place = next(i for i, line in enumerate(lines) if line.split()[:2] == ["some", "centre"])
    assert "1 of 3" in lines[place]
    assert max(map(len, lines[:place])) <= 80
    assert lines[place + 1].strip() == "diverged"


def test_only_the_kind_of_model_that_diverged_is_left_unranked():
    scores = {"client": ["a", "a"], "model": ["centre", "fine-tuned"], "value": [0.5, 0.9], "rows": 4}
    gone = {"diverged": {"text": TOLD, "models": {"fine-tuned": {}}}}
    frame = comparison_frame([Run.of({"title": "t", "seed": 0, **gone}, scores)])
    assert frame[["model", "diverged"]].values.tolist() == [["centre", 0], ["fine-tuned", 1]]


def test_where_all_have_diverged_nobody_is_best():
    runs = [made(name, seed, 0.5, "centre") for name in ("one", "two") for seed in (0, 1)]
    assert comparison_frame(runs)["apart"].tolist() == [None, None]
    rows = [line for line in printed(runs).splitlines() if " centre " in line]
    assert len(rows) == 2
    assert all("best" not in row and "=" not in row and "diverged" in row for row in rows)


def test_clients_left_out_and_rollbacks_are_told():
    events = [{"round": 6, "text": "diverged at round 6: loss 1e+05", "did": "back to the models of round 4"}]
    run = made(
        "fedavg", 0, 0.5, excluded=["ann", "bob"], events=events, exploded={"ann": "norm 1e9", "eve": "x"}
    )
    text = printed([run], 200)
    assert "fedavg seed 0: diverged at round 6: loss 1e+05: back to the models of round 4" in text
    assert "fedavg seed 0: without 2 clients from then on: ann, bob" in text
    assert "fedavg seed 0: replies far out of bounds or not finite: eve" in text


@pytest.mark.parametrize("answer", ["warn", "stop"])
def test_show_says_that_a_run_has_diverged(tmp_path: Path, answer: str) -> None:
    go(tmp_path / "r", "model.name=mlp", "model.hidden=[8]", "local.lr=1000", f"run.on_divergence={answer}")
    console = Console(width=100)
    with console.capture() as text:
        console.print(run_table(load_runs(tmp_path / "r")[0]))
    assert "diverged at round 1" in text.get()
    status = json.loads((tmp_path / "r" / "run.json").read_text())["status"]
    assert status == {"warn": "finished", "stop": "diverged"}[answer]
    assert comparison_rows(load_runs(tmp_path / "r"))[0]["diverged"] == 1
