"""What a run refuses before it writes anything, and what it survives: damage, a full disk, other data."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import assert_same_end, flat, go, saved
from torch import Tensor, nn

from kinfolk.errors import KinfolkError
from kinfolk.experiment import checkpoint, record
from kinfolk.experiment.record import read_audit
from kinfolk.federation.own_data.arrays import from_arrays


def test_a_folder_that_is_taken_is_left_alone(tmp_path):
    go(tmp_path / "r")
    before = {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()}
    with pytest.raises(KinfolkError, match="a run is there already; add resume=True"):
        go(tmp_path / "r", "run.seed=5")
    assert {p: p.read_bytes() for p in (tmp_path / "r").rglob("*") if p.is_file()} == before


def test_a_checkpoint_of_another_experiment_is_refused_with_the_difference(tmp_path):
    go(tmp_path / "r")
    with pytest.raises(KinfolkError) as refused:
        go(tmp_path / "r", "local.lr=0.2", "local.batch=7", "run.rounds=5", resume=True)
    assert "local.lr: 0.1 there, 0.2 here" in str(refused.value)
    assert "local.batch: 20 there, 7 here" in str(refused.value)
    assert "rounds" not in str(refused.value)
    assert saved(tmp_path / "r")[0] == 3


def test_other_data_under_the_same_spec_are_refused(tmp_path):
    def data(shift: float) -> Any:
        draw = np.random.default_rng(0)
        rows = [(draw.normal(size=(9, 3)) + shift, draw.integers(0, 2, 9)) for _ in range(3)]
        return from_arrays(rows)

    go(tmp_path / "r", "data.name=own", federation=data(0), network=lambda: nn.Linear(3, 2))
    with pytest.raises(KinfolkError, match="the data are not those the run began with"):
        go(tmp_path / "r", "data.name=own", federation=data(1), network=lambda: nn.Linear(3, 2), resume=True)


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_a_damaged_checkpoint_is_passed_over_and_said_so(tmp_path, damage):
    go(tmp_path / "whole", "run.rounds=4")
    go(tmp_path / "r", "run.rounds=3")
    file = tmp_path / "r/checkpoints/round-000003/state.safetensors"
    data = bytearray(file.read_bytes())
    if damage == "flip":
        data[-5] ^= 1
    file.write_bytes(bytes(data[: -10 if damage == "cut" else None]))
    if damage == "gone":
        file.unlink()
    told: list[Any] = []
    result = go(
        tmp_path / "r", "run.rounds=4", resume=True, watch=lambda event, facts: told.append((event, facts))
    )
    warnings = [facts["text"] for event, facts in told if event == "warning"]
    assert len(warnings) == 1
    assert "round-000003 is skipped" in warnings[0]
    assert [facts["round"] for event, facts in told if event == "resume"] == [2]
    assert [line["text"] for line in read_audit(tmp_path / "r") if line["event"] == "warning"] == warnings
    assert result.rounds == 4
    assert_same_end(tmp_path / "r", tmp_path / "whole")


FULL = OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("place", ["checkpoint", "scores", "rounds"])
def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch, place):
    go(tmp_path / "whole", "run.rounds=4")
    home, name = {
        "checkpoint": (checkpoint, "_write_bytes"),
        "scores": (record, "write_bytes"),
        "rounds": (record, "_append"),
    }[place]
    write = getattr(home, name)

    def full(path: Path, *rest: Any, **how: Any) -> None:
        if "000003" in str(path) or (place == "rounds" and rest[0].get("round") == 3):
            with record.disk_errors("run", path.parent):
                raise FULL
        write(path, *rest, **how)

    monkeypatch.setattr(home, name, full)
    with pytest.raises(KinfolkError, match=r"No space left on device.*free space"):
        go(tmp_path / "r", "run.rounds=4")
    monkeypatch.undo()
    assert saved(tmp_path / "r")[0] == 2
    go(tmp_path / "r", "run.rounds=4", resume=True)
    assert_same_end(tmp_path / "r", tmp_path / "whole")
    assert not [p for p in (tmp_path / "r").rglob("*") if "tmp" in p.name]


class Pair(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x.flatten(1), 0


REFUSED: list[tuple[Sequence[str], Mapping[str, Any], str]] = [
    ([], {"network": lambda: flat(nn.Linear(64, 7))}, r"outputs of shape \(7,\), the data need 10 classes"),
    ([], {"network": lambda: nn.Linear(64, 10)}, "cannot take rows of shape"),
    ([], {"network": lambda: nn.Conv2d(1, 10, 3)}, "gives outputs of shape"),
    ([], {"network": Pair}, "gives a tuple"),
    ([], {"network": lambda: flat(nn.Linear(64, 10)).requires_grad_(False)}, "no parameters"),
    (["local.batch=1"], {"network": lambda: flat(nn.BatchNorm1d(64), nn.Linear(64, 10))}, "BatchNorm"),
    (["local.loss=mse"], {}, r"local\.loss = 'mse': the data have 10 classes"),
    (["run.split=valid"], {}, r"run\.split = 'valid'"),
    (["run.target=0.5", "run.target_score=acuracy"], {}, "did you mean 'accuracy'"),
    (["algorithm.name=fedavgg"], {}, "did you mean 'fedavg'"),
    (["algorithm.name=fedprox", "algorithm.nu=1"], {}, r"algorithm\.nu"),
    (["model.name=mpl"], {}, "did you mean 'mlp'"),
    (["engine.device=cuda", "engine.name=workers"], {}, r"engine\.device"),
]


@pytest.mark.parametrize(("changes", "options", "told"), REFUSED, ids=[told for _, _, told in REFUSED])
def test_what_is_refused_writes_nothing(tmp_path, changes, options, told):
    with pytest.raises(KinfolkError, match=told) as refused:
        go(tmp_path / "r", *changes, **options)
    assert len(str(refused.value).splitlines()) == 1
    assert os.listdir(tmp_path) == []


def regression() -> Any:
    draw = np.random.default_rng(0)
    return from_arrays([(draw.normal(size=(9, 3)), draw.normal(size=9)) for _ in range(3)])


def test_numbers_are_not_classes(tmp_path):
    with pytest.raises(KinfolkError, match="the data have numbers to predict"):
        go(
            tmp_path / "r",
            "local.loss=cross_entropy",
            federation=regression(),
            network=lambda: nn.Linear(3, 1),
        )
    with pytest.raises(KinfolkError, match="the data need 1 numbers"):
        go(tmp_path / "r", federation=regression(), network=lambda: nn.Linear(3, 2))
    result = go(tmp_path / "r", federation=regression(), network=lambda: nn.Linear(3, 1))
    assert set(result.summary["centre"]) == {"loss", "mse", "mae"}
