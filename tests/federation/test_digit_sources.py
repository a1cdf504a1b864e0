"""Digits of four origins: grey, 32 by 32, one origin to each group; and the real files where they are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import kinfolk
from kinfolk.errors import KinfolkError
from kinfolk.federation import sources
from kinfolk.federation.datasets.multi_source import DIGIT_SOURCES, multi_source, pictures
from kinfolk.federation.datasets.rows import CENTRED, Rows
from kinfolk.federation.sources import SOURCES, build, explain
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

DATA = Path(kinfolk.__file__).parents[3] / "shared" / "data"
SPEC = DataSpec("multi_source", clients=8, rows=20, shift="source", test_fraction=0.2)


def test_colours_turn_grey_by_luma():
    x = torch.randint(0, 256, (5000, 3, 32, 32), generator=Seed(0).torch("test"))
    expected = 0.299 * x[:, 0].double() + 0.587 * x[:, 1].double() + 0.114 * x[:, 2].double()
    seen = pictures(x.to(torch.uint8))
    assert seen.dtype == torch.uint8
    assert (seen[:, 0] - expected).abs().max() <= 0.501
    same = x[:10, :1].to(torch.uint8)
    assert torch.equal(pictures(same), same)


def test_halving_averages_and_constants_stay():
    x = torch.randint(0, 256, (4, 1, 64, 64), generator=Seed(0).torch("test")).to(torch.uint8)
    half = pictures(x).float()
    # A triangle of width four along each axis, away from the border: weights 1, 3, 3, 1 of 8.
    w = torch.tensor([1.0, 3, 3, 1]) / 8
    row, column = 2 * 7 - 1, 2 * 20 - 1
    expected = (x[:, 0, row : row + 4, column : column + 4].float() * w[:, None] * w).sum((1, 2))
    assert (half[:, 0, 7, 20] - expected).abs().max() <= 0.51
    for side in (16, 28, 64):
        assert (pictures(torch.full((2, 1, side, side), 200, dtype=torch.uint8)) == 200).all()


def test_colours_stay_where_they_are_asked_for_and_grey_is_all_three():
    x = torch.randint(0, 256, (6, 3, 32, 32), generator=Seed(0).torch("test")).to(torch.uint8)
    assert torch.equal(pictures(x, 3), x)
    assert torch.equal(pictures(x[:, :1], 3), x[:, :1].expand(6, 3, 32, 32))
    assert multi_source(replace(SPEC, channels=3), Seed(1), zeros).shape == (3, 32, 32)
    with pytest.raises(KinfolkError, match="give 1, grey, or 3, coloured"):
        build(replace(SPEC, channels=2), Seed(0))


def zeros(name: str) -> Rows:
    n, side = {"mnist": (100, 28), "usps": (80, 16), "svhn": (100, 32), "sign_digits": (60, 64)}[name]
    x = np.full((n, 3 if name == "svhn" else 1, side, side), DIGIT_SOURCES.index(name) * 10, np.uint8)
    test = None if name == "sign_digits" else np.arange(n) >= 0.8 * n
    return Rows(x, np.arange(n) % 10, 10, CENTRED, test)


def test_each_group_reads_its_own_origin():
    f = multi_source(SPEC, Seed(1), zeros)
    assert f.shape == (1, 32, 32)
    assert f.truth.bincount().tolist() == [2, 2, 2, 2]
    for i, g in enumerate(f.truth.tolist()):
        for split in ("train", "test"):
            assert (f.x[f.splits[split].rows(i)] == 10 * g).all()
    assert [len(f.splits["test"].rows(f.truth.tolist().index(g))) for g in range(4)] == [20, 10, 20, 10]
    two = multi_source(DataSpec("multi_source", clients=8, rows=20, groups=2, shift="source"), Seed(1), zeros)
    assert set(two.x.unique().tolist()) == {0, 10}


def test_every_data_set_is_a_source():
    assert set(sources.CATALOGUE) < set(SOURCES)
    assert {"digits", "own", "multi_source", "gaussians", "linear", "leaf_synthetic"} < set(SOURCES)
    assert SOURCES["multi_source"].files == DIGIT_SOURCES


# Small tables that every data set in the compact form can do.
REAL = {
    "mnist": {"clients": 4, "rows": 50},
    "usps": {"shift": "label_swap", "clients": 4, "rows": 50},
    "sign_digits": {"shift": "contrast", "clients": 4, "rows": 50, "test": "local"},
    "femnist": {"shift": "none", "clients": 0, "partition": "natural", "min_rows": 100, "test": "local"},
    "celeba": {"shift": "none", "clients": 30, "partition": "natural", "min_rows": 15, "test": "local"},
    "wisdm": {"shift": "none", "clients": 0, "partition": "natural", "test": "local"},
    "watch_har": {"shift": "none", "clients": 0, "partition": "natural", "test": "local", "valid": 0.2},
    "heart_disease": {"shift": "none", "clients": 0, "partition": "natural", "test": "local"},
    "landmine": {"shift": "none", "clients": 0, "partition": "natural", "test": "global"},
    "pendigits": {"shift": "noise", "clients": 8, "rows": 0, "partition": "shards"},
}


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data are not beside this repository")
@pytest.mark.parametrize("name", REAL)
def test_real_data_become_federations(name, monkeypatch):
    monkeypatch.setenv("KINFOLK_DATA", str(DATA))
    f = build(DataSpec(name, **REAL[name]), Seed(0))
    learnt = torch.cat([f.splits["train"].row, f.splits["valid"].row])
    assert not set(learnt.tolist()) & set(f.splits["test"].row.tolist())
    expected = {
        "femnist": 272,
        "celeba": 30,
        "wisdm": 36,
        "watch_har": 10,
        "heart_disease": 4,
        "landmine": 29,
    }
    assert len(f.clients) == expected.get(name, REAL[name]["clients"])
    x, y = f.take(f.splits["train"].rows(0))
    assert x.dtype == torch.float32
    assert len(x) == len(y) > 0
    if f.scale is not None:
        assert x.min() >= -1
        assert x.max() <= 1


@pytest.mark.skipif(not DATA.is_dir(), reason="the real data are not beside this repository")
def test_femnist_tells_whom_it_left_out(monkeypatch):
    monkeypatch.setenv("KINFOLK_DATA", str(DATA))
    spec = DataSpec("femnist", **REAL["femnist"])
    f = build(spec, Seed(0))
    assert "natural (272 of 540 clients, 8730 rows left out)" in f.name
    assert explain(spec, Seed(0), f)[0] == "left out 268 clients with fewer than 100 rows (8,730 rows)"
    assert len(f.x) == 47_220
