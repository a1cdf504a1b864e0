"""Deals without reuse, and SLFed's distributions: counted by hand, whatever the order of clients."""

from collections import Counter

import numpy as np
import pytest

from kinfolk.errors import KinfolkError
from kinfolk.federation.partition.draws import row_counts
from kinfolk.federation.partition.partitions import PARTITIONS
from kinfolk.federation.partition.slfed_dist import MIX, class_rows, mixed
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client

SINGLE = [name for name, p in PARTITIONS.items() if not p.reuse and p.deal]
DEALT = [name for name, p in PARTITIONS.items() if p.deal]


def named(count: int, rows: int = 0) -> dict[Client, int]:
    return {Client(f"c{i:03d}"): rows for i in range(count)}


def deal(name: str, labels: np.ndarray, sizes: dict[Client, int], seed: int = 1, **spec) -> dict:
    return PARTITIONS[name].deal(labels, sizes, DataSpec(partition=name, **spec), Seed(seed))


def counted(labels: np.ndarray, dealt: dict) -> np.ndarray:
    return np.stack([np.bincount(labels[rows], minlength=labels.max() + 1) for rows in dealt.values()])


@pytest.mark.parametrize("name", DEALT)
def test_the_order_of_clients_does_not_matter(name):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    sizes = {who: 20 + i for i, who in enumerate(named(12))}
    spec = {"alpha": 5.0, "scale_rows": 0.01}
    there, back = deal(name, labels, sizes, **spec), deal(name, labels, dict(reversed(sizes.items())), **spec)
    assert {who: rows.tolist() for who, rows in there.items()} == {who: back[who].tolist() for who in sizes}
    other = deal(name, labels, sizes, seed=2, **spec)
    assert any(there[who].tolist() != other[who].tolist() for who in sizes)


@pytest.mark.parametrize("name", SINGLE)
def test_no_row_is_dealt_twice_and_sizes_are_kept(name):
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 60))
    sizes = {who: 20 + i for i, who in enumerate(named(12))}
    dealt = deal(name, labels, sizes, alpha=20.0)
    rows = np.concatenate(list(dealt.values()))
    assert len(np.unique(rows)) == len(rows)
    assert rows.min() >= 0
    assert rows.max() < 600
    if PARTITIONS[name].sized:
        assert {who: len(rows) for who, rows in dealt.items()} == sizes
    else:
        assert len(rows) == 600


@pytest.mark.parametrize("name", [n for n in SINGLE if PARTITIONS[n].sized])
def test_more_rows_than_there_are_is_refused(name):
    labels = np.arange(100) % 10
    assert sum(map(len, deal(name, labels, named(4, 25)).values())) == 100
    with pytest.raises(KinfolkError, match=r"ask for 104 rows, 100 are there .* give at most 25") as caught:
        deal(name, labels, named(4, 26), rows=26)
    assert (caught.value.field, caught.value.value) == ("data.rows", 26)


def test_shards_are_runs_of_the_sorted_labels():
    """The classic split: 100 clients, 200 pieces, each of one digit."""
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(10), 600))
    counts = counted(labels, deal("shards", labels, named(100, 60)))
    assert set(np.unique(counts)) == {0, 30, 60}
    assert (counts > 0).sum(1).max() == 2
    # Pieces are drawn: a second one of the same class comes once in about eleven.
    assert 1 <= ((counts > 0).sum(1) == 1).sum() <= 25
    assert counts.sum(0).tolist() == [600] * 10
    many = counted(labels, deal("shards", labels, named(100, 60), shards=5))
    assert (many > 0).sum(1).mean() > 3.5


def test_shards_of_few_rows_are_drawn_from_all_classes():
    labels = np.repeat(np.arange(10), 600)
    counts = counted(labels, deal("shards", labels, named(20, 10)))
    assert (counts.sum(0) > 0).all()
    assert counts.sum(0) == pytest.approx(np.full(10, 20), abs=16)


def test_quantity_has_the_labels_of_the_pool_whatever_the_size():
    labels = np.repeat(np.arange(2), [2000, 6000])
    names = list(named(40))
    sizes = row_counts(names, len(labels), DataSpec(rows=0, ragged=1.0), Seed(0))
    assert sum(sizes.values()) == 8000
    assert max(sizes.values()) > 5 * min(sizes.values()) > 0
    counts = counted(labels, deal("quantity", labels, sizes))
    assert counts.sum(1).tolist() == [sizes[who] for who in names]
    assert counts.sum(0).tolist() == [2000, 6000]
    large = counts[counts.sum(1) > 300]
    assert large[:, 1] / large.sum(1) == pytest.approx(np.full(len(large), 0.75), abs=0.08)


def test_all_rows_are_shared_out_equally_unless_ragged():
    names = list(named(7))
    assert list(row_counts(names, 30, DataSpec(rows=0), Seed(0)).values()) == [5, 5, 4, 4, 4, 4, 4]
    ragged = np.array(
        [list(row_counts(list(named(400)), 10**6, DataSpec(rows=0, ragged=0.7), Seed(0)).values())]
    )
    assert ragged.sum() == 10**6
    assert np.log(ragged).std() == pytest.approx(0.7, rel=0.1)
    assert min(row_counts(names, 8, DataSpec(rows=0, ragged=3.0), Seed(0)).values()) == 1
    with pytest.raises(KinfolkError, match=r"data\.clients = 7: 7 of them share 6 training rows"):
        row_counts(names, 6, DataSpec(rows=0, clients=7), Seed(0))


@pytest.mark.parametrize(
    ("means", "alpha", "total"), [("each", 0.5, 10.0), ("total", 10.0, 10.0), ("each", 5.0, 100.0)]
)
def test_classes_are_split_by_the_law_of_their_reading(means, alpha, total):
    """Each class is parted over N clients: Var p = (1/N)(1 - 1/N) / (A + 1), A the sum of concentrations."""
    labels = np.repeat(np.arange(50), 400)
    counts = counted(labels, deal("dirichlet_split", labels, named(20), alpha=alpha, alpha_means=means))
    parts = counts / 400
    assert counts.sum(0).tolist() == [400] * 50
    assert parts.var() == pytest.approx(0.05 * 0.95 / (total + 1), rel=0.15)


def test_a_split_is_drawn_again_until_all_have_rows():
    labels = np.repeat(np.arange(10), 20)
    sizes = [
        len(r)
        for r in deal(
            "dirichlet_split", labels, named(8), alpha=0.5, alpha_means="each", min_rows=18
        ).values()
    ]
    assert min(sizes) >= 18
    free = [len(r) for r in deal("dirichlet_split", labels, named(8), alpha=0.5, alpha_means="each").values()]
    assert min(free) < 18
    with pytest.raises(KinfolkError, match=r"data\.alpha = 0.01: 100 draws left somebody with fewer than 25"):
        deal("dirichlet_split", labels, named(8), alpha=0.01, min_rows=25)
    with pytest.raises(KinfolkError, match=r"data\.min_rows = 26: 8 clients .* 200 are there"):
        deal("dirichlet_split", labels, named(8), min_rows=26)


@pytest.mark.parametrize(("alpha", "share"), [(0.6, 0.45), (0.3, 0.59)])
def test_fed_dc_gives_five_common_classes_their_share(alpha, share):
    labels = np.repeat(np.arange(40), 5000)
    counts = counted(labels, deal("fed_dc", labels, named(100, 520), alpha=alpha, alpha_means="each"))
    assert (counts.sum(1) == 520).all()
    assert np.sort(counts, 1)[:, -5:].sum(1).mean() / 520 == pytest.approx(share, abs=0.03)


def test_fed_dc_draws_again_when_a_class_has_run_out():
    labels = np.repeat(np.arange(4), [10, 90, 100, 100])
    dealt = deal("fed_dc", labels, named(3, 100), alpha=0.4)
    assert sorted(np.concatenate(list(dealt.values())).tolist()) == list(range(300))
    # Until then everybody keeps to its own law: somebody has most of some class.
    assert (counted(labels, dealt).max(0) / [10, 90, 100, 100]).max() > 0.6


ROWS = {"dist0": 11_015, "dist1": 7_535, "dist2": 14_015}
CIFAR = np.repeat(np.arange(10), 5000)


@pytest.mark.parametrize("name", ROWS)
def test_dist_has_the_published_number_of_rows(name):
    counts = counted(CIFAR, deal(name, CIFAR, named(30)))
    table = {
        "dist0": {2000: 3, 1500: 2, 1000: 2, 5: 3},
        "dist1": {2500: 3, 5: 7},
        "dist2": {2000: 7, 5: 3},
    }[name]
    assert (counts.sum(1) == ROWS[name]).all()
    assert all(Counter(row.tolist()) == table for row in counts)
    # Which classes are common is drawn: each is rare for somebody and common for somebody.
    assert ((counts == 5).any(0) & (counts > 5).any(0)).all()


def test_dist3_is_the_published_mix():
    counts = counted(CIFAR, deal("dist3", CIFAR, named(50)))
    totals = Counter(counts.sum(1).tolist())
    assert [totals[n] for n in (*ROWS.values(), 20_000)] == [8, 7, 7, 8]
    other = counts[~np.isin(counts.sum(1), [*ROWS.values(), 20_000])]
    assert len(other) == 20
    assert other.min() >= 1
    assert other.max() <= 4000
    assert other.mean() == pytest.approx(2000, abs=330)  # four deviations of the mean of 200 draws
    assert other.std() == pytest.approx(4000 / 12**0.5, rel=0.15)
    rows = list(deal("dist3", CIFAR, named(50)).values())
    assert all(len(np.unique(own)) == len(own) for own in rows)


def test_dist_counts_are_scaled_and_mixes_of_any_size_are_near():
    small = np.repeat(np.arange(10), 300)
    counts = counted(small, deal("dist0", small, named(5), scale_rows=0.1))
    assert all(Counter(row.tolist()) == {200: 3, 150: 2, 100: 2, 1: 3} for row in counts)
    for count in (1, 7, 10, 49, 100):
        found = Counter(mixed(count, np.random.default_rng(0)))
        assert sum(found.values()) == count
        assert all(abs(found[kind] - n * count / 50) < 1 for kind, n in MIX.items())
    drawn = class_rows("any", 0.5, np.random.default_rng(0))
    assert drawn.max() <= 2000


def test_dist_refuses_pools_that_are_too_small_or_of_other_classes():
    small = np.repeat(np.arange(10), 300)
    for name, most in (("dist0", 0.15), ("dist1", 0.12), ("dist3", 0.075)):
        with pytest.raises(KinfolkError, match=f"300 are there; give at most {most}$") as caught:
            deal(name, small, named(50))
        assert caught.value.field == "data.scale_rows"
        deal(name, small, named(50), scale_rows=most)
    with pytest.raises(
        KinfolkError, match=r"data\.partition = 'dist1': it is about 10 classes, the rows have 9"
    ):
        deal("dist1", small[:2700], named(2))
