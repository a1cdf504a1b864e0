"""Trimmed means and medians of groups, against SciPy and NumPy; and what they keep out."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import trim_mean
from turned import turned

from kinfolk.algorithms.blocks.aggregator import Aggregator, RobustGroupMean
from kinfolk.algorithms.blocks.many_models import GroupMeans
from kinfolk.algorithms.blocks.start import Start
from kinfolk.algorithms.clustered_fl import ClusteredFL
from kinfolk.algorithms.clustered_hdbscan import ClusteredHDBSCAN
from kinfolk.algorithms.fesem.fesem import FeSEM
from kinfolk.algorithms.hypcluster import HypCluster
from kinfolk.algorithms.ifca import IFCA
from kinfolk.algorithms.mdicfl.back_search import BackSearch
from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.algorithms.mdicfl.start import HeldStart
from kinfolk.algorithms.robust import Robust
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.contract.spoil import Passing
from kinfolk.engines.cohort import GuardSpec
from kinfolk.errors import KinfolkError
from kinfolk.types import Client, Stack

DRAW = np.random.Generator(np.random.PCG64(5))
POINTS = DRAW.normal(size=(23, 2, 3))
SIZES = DRAW.integers(1, 9, size=23)
GROUP = DRAW.permutation(np.arange(23) % 2)  # of 3 groups: the last has nobody
MINE = [np.flatnonzero(np.equal(GROUP, g)) for g in range(2)]
NAMES = [Client(f"c{i:02}") for i in range(23)]
LENIENT = GuardSpec(norm=0)  # what is kept out here would not come this far
KEEP = {"w": torch.full((3, 2, 3), 7.0), "n": torch.tensor([1, 2, 3])}


def chunk(rows) -> Stack:
    models = {"w": torch.from_numpy(POINTS[rows]).float(), "n": torch.tensor(rows)}
    return Stack(tuple(NAMES[i] for i in rows), torch.from_numpy(SIZES[rows]), {"model": models})


def places(chunk: Stack) -> torch.Tensor:
    return torch.from_numpy(GROUP[[NAMES.index(c) for c in chunk.clients]])


def folded(mean, trim=0.1, weights="uniform", parts=(range(9), range(9, 23))):
    by = Aggregator(mean, trim, weights).fold(KEEP, places)
    total = by.begin()
    for rows in parts:
        total = by.add(total, chunk(list(rows)))
    return by.end(total)


@pytest.mark.parametrize(
    ("mean", "trim", "by_hand"),
    [
        ("trimmed", 0.2, lambda mine: trim_mean(mine, 0.2, axis=0)),
        ("trimmed", 0.05, lambda mine: mine.mean(0)),  # too few to cut anybody
        ("median", 0.2, lambda mine: np.median(mine, axis=0)),
    ],
)
def test_uniform_middles_against_scipy(mean, trim, by_hand):
    models, member, mass = folded(mean, trim)
    for g in range(2):
        mine = POINTS[MINE[g]].astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(models["w"][g], by_hand(mine), rtol=1e-5)
        assert models["n"][g] == MINE[g].max()
    assert torch.equal(models["w"][2], KEEP["w"][2])
    assert int(models["n"][2]) == 3
    assert models["w"].dtype == torch.float32
    assert member == dict(zip(NAMES, GROUP.tolist(), strict=True))
    assert mass.tolist() == [*np.bincount(GROUP).tolist(), 0]


def test_sizes_weigh_what_is_left_after_trimming():
    models, _, mass = folded("trimmed", 0.2, "size")
    medians, _, _ = folded("median", weights="size")
    assert mass.tolist() == [SIZES[MINE[0]].sum(), SIZES[MINE[1]].sum(), 0]
    for g in range(2):
        mine, sizes = POINTS[MINE[g]].astype(np.float32), SIZES[MINE[g]]
        cut = int(0.2 * len(mine))
        for i, j in np.ndindex(2, 3):
            order = np.argsort(mine[:, i, j])
            kept = order[cut : len(order) - cut]
            expected = np.average(mine[kept, i, j].astype(float), weights=sizes[kept])
            np.testing.assert_allclose(models["w"][g, i, j], expected, rtol=1e-5)
            # A member of size n counts as n members.
            repeated = np.median(np.repeat(mine[:, i, j].astype(float), sizes))
            np.testing.assert_allclose(medians["w"][g, i, j], repeated, rtol=1e-5)


@pytest.mark.parametrize("mean", ["trimmed", "median"])
@pytest.mark.parametrize("weights", ["uniform", "size"])
def test_how_replies_arrive_does_not_matter(mean, weights):
    whole = folded(mean, 0.2, weights, [range(23)])
    order = DRAW.permutation(23)
    parts = [np.sort(part) for part in np.split(order, [4, 5, 17])]
    found = folded(mean, 0.2, weights, parts)
    assert all(torch.equal(whole[0][n], found[0][n]) for n in KEEP)
    assert whole[1] == found[1]
    assert torch.equal(whole[2], found[2])


def test_nobody_and_members_without_rows_leave_the_models():
    assert folded("median", parts=[])[0] is KEEP
    by = Aggregator("median", weights="size").fold(KEEP, places)
    empty = Stack(chunk([0, 1]).clients, torch.zeros(2, dtype=torch.int64), chunk([0, 1]).body)
    models, member, mass = by.end(by.add(by.begin(), empty))
    assert message_difference(models, KEEP, 0) == ""
    assert set(member) == {"c00", "c01"}
    assert not mass.any()


def test_the_plain_mean_stays_the_fold_that_sums():
    assert isinstance(Aggregator("mean").fold(KEEP, places), GroupMeans)
    assert isinstance(Aggregator("trimmed").fold(KEEP, places), RobustGroupMean)


METHODS = {
    "fesem": lambda learner, **more: FeSEM(learner, k=2, start=Start(restarts=3, warm_epochs=2), **more),
    "ifca": lambda learner, **more: IFCA(learner, k=2, **more),
    "hypcluster": lambda learner, **more: HypCluster(learner, k=2, **more),
    "clustered_fl": lambda learner, **more: ClusteredFL(learner, split_after=1, **more),
    "mdicfl": lambda learner, **more: MDICFL(
        learner,
        k=2,
        start=HeldStart("shared_kmeans", 2, 3, "body_directions", shared_rounds=1),
        pseudo=PseudoRows(samples=3),
        search=BackSearch(5),
        **more,
    ),
    "clustered_hdbscan": lambda learner, **more: ClusteredHDBSCAN(learner, min_size=3, **more),
    "robust": lambda learner, **more: Robust(
        learner, k=2, first_epochs=2, **{"aggregate": Aggregator(), **more}
    ),
}


def aggregated(name, more):
    """How each method is told how to aggregate."""
    if not more:
        return more
    weights = "size" if name in ("hypcluster", "clustered_hdbscan") else "uniform"
    return {"aggregate": Aggregator(more.get("mean", "mean"), more.get("trim", 0.1), weights)}


@cache
def centres(name, bad="nobody", **more):
    federation, _ = turned(2)
    method = METHODS[name](toy.learner("mlp", federation), **aggregated(name, more))
    outcome = toy.play_rounds(method, federation, rounds=2, wrap=poisoned(bad), score=False, guard=LENIENT)
    return outcome.state.centres


def poisoned(bad):
    """One client sends a tenth of its model in every coordinate, and 3 more."""

    def change(request, reply):
        if bad not in reply.clients or "model" not in reply.body:
            return reply
        at = [reply.clients.index(bad)]
        model = {n: t.clone() for n, t in reply.tree("model").items()}
        for t in model.values():
            t[at] = t[at] / 10 + 3
        return Stack(reply.clients, reply.size, {**reply.body, "model": model})

    return lambda engine: Passing(engine, change)


@pytest.mark.parametrize("name", METHODS)
def test_cutting_nobody_gives_the_means(name):
    assert message_difference(centres(name, mean="trimmed", trim=0.0), centres(name), 1e-5) == ""
    assert message_difference(centres(name, mean="median"), centres(name), 1e-3) != ""


@pytest.mark.parametrize(("mean", "most"), [("mean", np.inf), ("trimmed", 0.2), ("median", 0.2)])
def test_a_poisoned_member_is_kept_out_of_the_middle(mean, most):
    clean, found = (centres("ifca", bad, mean=mean, trim=0.25) for bad in ("nobody", "c03"))
    moved = max(float((found[n] - clean[n]).abs().max()) for n in clean)
    assert moved < most
    assert mean != "mean" or moved > 0.25


def test_rounds_that_all_share_take_the_middle_too():
    federation, _ = turned(2)
    method = MDICFL(
        toy.learner("mlp", federation), start=HeldStart("shared_kmeans"), k=2, aggregate=Aggregator("median")
    )
    clean, found = (
        toy.play_rounds(
            method, federation, rounds=1, wrap=poisoned(bad), score=False, guard=LENIENT
        ).state.centres
        for bad in ("nobody", "c03")
    )
    assert max(float((found[n] - clean[n]).abs().max()) for n in clean) < 0.2


@pytest.mark.parametrize("name", METHODS)
def test_a_share_that_leaves_nobody_is_refused(name):
    with pytest.raises(KinfolkError, match=r"trim = 0.5: give 0 or more and less than 0.5"):
        METHODS[name](toy.learner("mlp", toy.alike()), **aggregated(name, {"trim": 0.5}))
