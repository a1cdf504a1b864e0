"""A paper's tables: read, run, shown next to what was reported, and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.experiment import local_models
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.local_models import first_picture, principal
from kinfolk.experiment.paper import load_paper
from kinfolk.experiment.reproduce import reproduce, row_spec
from kinfolk.experiment.sections import Experiment
from kinfolk.report.reproduction import (
    cells,
    load_sheets,
    markdown,
    models_figure,
    sheet_figure,
    sheet_table,
)

ROOT = Path(__file__).parents[2]
PAPERS = sorted((ROOT / "configs").glob("*/reproduce.toml"))

TINY = """
title = "A paper"
[[tables]]
name = "digits"
title = "Table 1"
spec = "tiny.toml"
columns = [["accuracy", "micro"], ["macro_f1", "pooled"], ["ari", ""]]
picture = "Theirs"
[[tables.rows]]
label = "Theirs"
run = "fesem,k=2"
model = "personal"
reported = ["90.1 ± 1.0", "88.0", "-"]
why = "another network"
[[tables.rows]]
label = "Slower"
run = "fedavg"
set = ["local.lr=0.01"]
"""
ROW = """
[[tables.rows]]
label = "After"
run = "local"
"""
SPEC = """
[data]
clients = 8
[model]
hidden = [8]
[run]
rounds = 2
"""


@pytest.fixture
def paper(tmp_path):
    (tmp_path / "reproduce.toml").write_text(TINY)
    (tmp_path / "tiny.toml").write_text(SPEC)
    return load_paper(tmp_path / "reproduce.toml")


@pytest.mark.parametrize("path", PAPERS, ids=lambda p: p.parent.name)
@pytest.mark.parametrize("small", [False, True])
def test_every_row_of_every_paper_has_a_sound_spec(path, small):
    for sheet in load_paper(path).sheets:
        labels = [row.label for row in sheet.rows]
        assert len(set(labels)) == len(labels)
        assert set(sheet.curves) <= set(labels)
        assert sheet.picture in ["", *labels]
        for row in sheet.rows:
            row_spec(sheet, row, path.parent, small, [])


def test_a_paper_is_run_shown_and_gone_on_with(paper, tmp_path):
    out = tmp_path / "runs"
    reproduce(paper, out, tmp_path, seeds=2)
    sheet = load_sheets(out)[0]
    first, second = cells(sheet)
    assert first["reported"] == ["90.1 ± 1.0", "88.0", "-"]
    assert first["model"] == "personal"
    assert [n["seeds"] for n in first["numbers"]] == [2, 2, 2]
    assert second["model"] == "centre"
    assert second["obtained"][2] == "-", "one model has no groups"
    lines = (out / "digits" / "fesem-k=2-seed0" / "rounds.jsonl").read_text().splitlines()
    told = json.loads(lines[-1])
    by_hand = [
        json.loads((out / "digits" / f"fesem-k=2-seed{k}" / "rounds.jsonl").read_text().splitlines()[-1])
        for k in (0, 1)
    ]
    mean = np.mean([one["summary"]["personal"]["accuracy"]["micro"] for one in by_hand])
    assert first["numbers"][0]["mean"] == pytest.approx(mean)
    assert told["summary"]["centre"] != told["summary"]["personal"]
    assert "another network" in markdown(sheet)
    assert sheet_table(sheet).row_count == 3
    assert sheet_figure(sheet, out / "digits" / "figure.png").stat().st_size > 10_000
    held = json.loads((out / "digits" / "picture.json").read_text())
    assert len(held["client"]) == len(held["x"]) == len(held["group"]) == 8
    reproduce(paper, out, tmp_path, seeds=2)
    again = (out / "digits" / "fesem-k=2-seed0" / "rounds.jsonl").read_text().splitlines()
    assert again == lines, "seconds and all: nothing was run twice"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('run = "fedavg"', 'runs = "fedavg"', "no such key; did you mean 'run'"),
        ('"88.0", "-"', '"88.0"', "one for each column"),
        ('label = "Slower"', "", "label"),
    ],
)
def test_a_faulty_paper_is_one_line(old, new, match, tmp_path):
    (tmp_path / "reproduce.toml").write_text(TINY.replace(old, new))
    with pytest.raises(KinfolkError, match=match):
        load_paper(tmp_path / "reproduce.toml")


def test_settings_of_algorithms_belong_to_the_rows(paper, tmp_path):
    with pytest.raises(KinfolkError, match="a row names its own algorithm"):
        reproduce(paper, tmp_path / "runs", tmp_path, changes=["algorithm.k=3"])


def test_a_table_that_is_not_there(paper):
    with pytest.raises(KinfolkError, match="did you mean 'digits'"):
        paper.only(["digit"])


def test_principal_axes_are_those_of_the_covariance():
    points = torch.from_numpy(np.random.default_rng(0).normal(size=(12, 5)) * [5, 3, 1, 1, 1])
    place, share = principal(points)
    here = points.numpy() - points.numpy().mean(0)
    values, vectors = np.linalg.eigh(here.T @ here)
    wanted = here @ vectors[:, ::-1][:, :2]
    np.testing.assert_allclose(np.abs(place.numpy()), np.abs(wanted), atol=1e-9)
    np.testing.assert_allclose(share.numpy(), values[::-1][:2] / values.sum(), atol=1e-12)


def test_principal_axes_are_the_same_in_blocks_of_columns(monkeypatch):
    points = torch.from_numpy(np.random.default_rng(5).normal(size=(7, 40)) + 9).float()
    whole, share = principal(points)
    monkeypatch.setattr(local_models, "BLOCK", 9)
    place, again = principal(points)
    left, size, _ = np.linalg.svd(points.numpy().astype("float64") - points.double().mean(0).numpy())
    assert np.allclose(place.abs().numpy(), np.abs(left[:, :2] * size[:2]), atol=1e-5)
    assert np.allclose(share.numpy(), size[:2] ** 2 / (size**2).sum())
    torch.testing.assert_close(again, share)
    torch.testing.assert_close(place.abs(), whole.abs())


def test_models_from_one_start_are_grouped_and_drawn(tmp_path):
    parts = build_parts(Experiment())
    held = first_picture(parts, 5, 4)
    assert held["client"] == list(parts.federation.clients)
    assert held["truth"] == parts.federation.truth.tolist()
    pairs = set(zip(held["group"], held["truth"], strict=True))
    assert len(pairs) == 4, "four turns, four groups, one for each"
    assert models_figure(held, tmp_path / "models.png").stat().st_size > 10_000


def test_a_row_that_breaks_down_is_told_and_the_others_go_on(tmp_path):
    broken = TINY.replace('set = ["local.lr=0.01"]', 'set = ["local.lr=1e30", "run.rounds=5"]')
    (tmp_path / "reproduce.toml").write_text(broken.replace("[[tables.rows]]", ROW + "[[tables.rows]]", 1))
    (tmp_path / "tiny.toml").write_text(SPEC)
    reproduce(load_paper(tmp_path / "reproduce.toml"), tmp_path / "out", tmp_path, seeds=1)
    (sheet,) = load_sheets(tmp_path / "out")
    rows = {row["label"]: row for row in cells(sheet)}
    assert rows["Slower"]["obtained"][0] == "-"
    assert rows["Slower"]["why"] == "broke down in 1 of 1 seeds"
    assert rows["Theirs"]["why"] == "another network"
    assert all(rows[label]["obtained"][0] != "-" for label in ("Theirs", "After"))


def test_a_run_that_has_not_finished_does_not_count(paper, tmp_path):
    """What was scored before the first round is no result."""
    reproduce(paper, tmp_path / "out", tmp_path, seeds=2)
    (sheet,) = load_sheets(tmp_path / "out")
    before = {row["label"]: row for row in cells(sheet)}
    cut = sheet.folder / sheet.facts["rows"][0]["runs"][1] / "run.json"
    facts = json.loads(cut.read_text())
    cut.write_text(json.dumps({**facts, "status": "running"}))
    label = sheet.facts["rows"][0]["label"]
    row = {row["label"]: row for row in cells(sheet)}[label]
    assert (row["some"], before[label]["some"]) == ("1 of 2 seeds", "")
    assert [n["seeds"] for n in row["numbers"]] == [1] * len(sheet.columns)
    assert f"| {label} (1 of 2 seeds) |" in markdown(sheet)
