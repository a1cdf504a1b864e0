"""Test rows never appear in training: every shift, partition and test split, by row and by image."""

from itertools import product

import numpy as np
import pytest
import torch

from kinfolk.errors import KinfolkError
from kinfolk.federation import sources
from kinfolk.federation.assemble import from_rows
from kinfolk.federation.datasets.multi_source import DIGIT_SOURCES, pictures
from kinfolk.federation.datasets.rows import CENTRED, Rows
from kinfolk.federation.federation import Federation
from kinfolk.federation.partition.choose_tests import TEST_SPLITS
from kinfolk.federation.partition.partitions import PARTITIONS
from kinfolk.federation.shifts import SHIFTS
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

ONE_SOURCE = [shift for shift in SHIFTS if shift != "source"]


def images(count: int, shape: tuple[int, ...], published: bool, seed: int) -> Rows:
    """Random pictures of ten classes, no two alike, by eight clients."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, *shape)).astype(np.uint8)
    test = np.arange(count) % 4 == 0 if published else None
    y, client = rng.permutation(np.arange(count) % 10), rng.integers(0, 8, count)
    return Rows(x, y, 10, CENTRED, test, client, tuple(f"writer-{i:02d}" for i in range(8)))


COLOURED = images(600, (3, 6, 6), False, 1)
DIGITS = {
    "mnist": images(320, (1, 28, 28), True, 2),
    "usps": images(320, (1, 16, 16), True, 3),
    "svhn": images(320, (3, 32, 32), True, 4),
    "sign_digits": images(360, (1, 64, 64), False, 5),
}


def spec_of(name: str, shift: str, partition: str, test: str) -> DataSpec:
    return DataSpec(
        name, 0 if partition == "natural" else 8, 12, 4, shift, partition, alpha=5.0, test=test, valid=0.2,
        ragged=0.3, scale_rows=0.004, test_rows=9,
    )  # fmt: skip


def check_apart(f: Federation, base: np.ndarray, case: tuple[str, ...]) -> None:
    """`base` tells, for every row of the pool, which picture it is a view of."""
    learnt = torch.cat([f.splits["train"].row, f.splits["valid"].row]).unique().numpy()
    tested = f.splits["test"].row.unique().numpy()
    assert not set(learnt) & set(tested), case
    assert not set(base[learnt]) & set(base[tested]), case
    looks = [{f.x[r].numpy().tobytes() for r in rows} for rows in (learnt, tested)]
    assert not looks[0] & looks[1], case
    assert (f.splits["test"].counts() > 0).all(), case
    for i in range(len(f.clients)):
        train, valid = (f.splits[s].rows(i).tolist() for s in ("train", "valid"))
        assert train, case
        assert valid, case
        assert not set(base[train]) & set(base[valid]), case


def test_in_groups_of_one_source():
    n = len(COLOURED.x)
    for case in product(ONE_SOURCE, PARTITIONS, TEST_SPLITS):
        f = from_rows(COLOURED, spec_of("made", *case), Seed(4))
        check_apart(f, np.arange(len(f.x)) % n, case)
        # What a row is a view of: the first group sees pictures as they are.
        assert np.array_equal(f.x[:n].numpy(), COLOURED.x), case
        for name, split in f.splits.items():
            owners = torch.arange(len(f.clients)).repeat_interleave(split.counts())
            rows = torch.cat([split.rows(i) for i in range(len(f.clients))])
            if (case[-1], name) != ("global", "test"):
                assert torch.equal(rows // n, f.truth[owners]), case


def test_in_groups_of_four_sources(monkeypatch):
    monkeypatch.setattr(sources, "find", lambda name, root: DIGITS[name])
    for case in product([p for p in PARTITIONS if p != "natural"], TEST_SPLITS):
        f = sources.build(spec_of("multi_source", "source", *case), Seed(4))
        check_apart(f, np.arange(len(f.x)), case)
        check_sources(f, case)


def test_four_sources_do_not_say_whose_row_is_whose(monkeypatch):
    without = {n: Rows(r.x, r.y, 10, CENTRED, r.test) for n, r in DIGITS.items()}
    monkeypatch.setattr(sources, "find", lambda name, root: without[name])
    with pytest.raises(KinfolkError, match="'multi_source' does not say whose row is whose"):
        sources.build(spec_of("multi_source", "source", "natural", "local"), Seed(4))


def check_sources(f: Federation, case: tuple[str, ...]) -> None:
    """Each group has the pictures of one source, tested on its published test rows."""
    start = 0
    for g, name in enumerate(DIGIT_SOURCES):
        rows = DIGITS[name]
        end = start + len(rows.x)
        assert torch.equal(f.x[start:end], pictures(torch.from_numpy(rows.x))), case
        inside = f.splits["test"].row[(f.splits["test"].row >= start) & (f.splits["test"].row < end)] - start
        if rows.test is not None:
            assert rows.test[inside.numpy()].all(), case
        for i in np.flatnonzero(f.truth.numpy() == g):
            own = f.splits["train"].rows(i)
            assert ((own >= start) & (own < end)).all(), case
        start = end
    assert start == len(f.x), case
