"""FL+HC against merges that are done here one by one, and against FedAvg before and within groups."""

import numpy as np
import pytest
import torch
from turned import turned

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fl_hc import FLHC
from kinfolk.clustering.hierarchy import agglomerate
from kinfolk.contract import toy
from kinfolk.contract.compare import message_difference
from kinfolk.contract.spoil import Passing
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed

LINKAGES = ("average", "complete", "single", "ward")


def flat(model):
    return np.concatenate([t.double().numpy().ravel() for t in model.values()])


def merged(points, apart, linkage, threshold):
    """Groups as sets of places: the two nearest are merged as long as they lie within the threshold."""
    groups = [[i] for i in range(len(apart))]

    def far(a, b):
        if linkage == "ward":
            gap = points[a].mean(0) - points[b].mean(0)
            return np.sqrt(2 * len(a) * len(b) / (len(a) + len(b)) * gap @ gap)
        between = apart[np.ix_(a, b)]
        return {"average": between.mean, "complete": between.max, "single": between.min}[linkage]()

    while len(groups) > 1:
        pairs = [(far(a, b), i, j) for i, a in enumerate(groups) for j, b in enumerate(groups) if i < j]
        least, i, j = min(pairs)
        if least > threshold:
            break
        groups[i] += groups.pop(j)
    return {frozenset(g) for g in groups}


def as_sets(labels):
    labels = np.asarray(labels)
    return {frozenset(np.flatnonzero(labels == k).tolist()) for k in set(labels.tolist())}


@pytest.mark.parametrize("linkage", LINKAGES)
def test_groups_are_merged_up_to_the_threshold(linkage):
    points = Seed(1).numpy("points").normal(size=(14, 3))
    apart = np.linalg.norm(points[:, None] - points[None], axis=2)
    counts = set()
    for threshold in (0.5, 1.0, 1.5, 2.2, 3.0, 9.0):
        found = as_sets(agglomerate(torch.from_numpy(apart), linkage, threshold))
        assert found == merged(points, apart, linkage, threshold)
        counts.add(len(found))
        again = as_sets(agglomerate(torch.from_numpy(apart), linkage, k=len(found)))
        assert again == found
    assert len(counts) > 3


def played(rounds, absent=None, engine="batched", groups=3, **options):
    """(outcome, what clients sent by (task, round), the learner)."""
    federation, truth = turned(groups)
    learner = toy.learner("mlp", federation)
    sent = {}

    def note(request, reply):
        if "model" in reply.body:
            who = reply.clients[0]
            sent.setdefault(request.task, {})[who] = reply.row(who)["model"]
        return reply

    wrap = lambda engine: Passing(engine, note)  # noqa: E731
    method = FLHC(learner, **options)
    outcome = toy.play_rounds(method, federation, engine, rounds, absent=absent, wrap=wrap)
    return outcome, sent, learner, truth, federation


@pytest.mark.parametrize("distance", ["cosine", "euclidean"])
@pytest.mark.parametrize("linkage", LINKAGES)
def test_groups_are_those_of_the_updates(distance, linkage):
    if (distance, linkage) == ("cosine", "ward"):
        pytest.skip("is refused")
    threshold = {"cosine": 0.6, "euclidean": 1.0}[distance]
    got, sent, learner, _, federation = played(
        1, cluster_after=0, distance=distance, linkage=linkage, threshold=threshold
    )
    w = flat(learner.first)
    updates = np.stack([flat(sent["cluster"][c]) - w for c in federation.clients])
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    apart = (
        1 - units @ units.T if distance == "cosine" else np.linalg.norm(updates[:, None] - updates, axis=2)
    )
    assert as_sets(got.groups) == merged(updates, apart, linkage, threshold)


def test_groups_are_counted_and_are_the_true_ones():
    for groups in (1, 2, 3):
        got, _, _, truth, _ = played(4, groups=groups, cluster_after=3)
        assert as_sets(got.groups) == as_sets(truth)


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_before_it_is_fedavg_and_after_fedavg_in_each_group(engine):
    got, sent, learner, _, federation = played(1, engine=engine, cluster_after=1)
    plain = toy.play_rounds(FedAvg(learner), federation, engine, 1, score=False).state.model
    assert not got.state.split
    assert "cluster" not in sent
    assert message_difference({n: t[0] for n, t in got.state.centres.items()}, plain, 1e-6) == ""
    got, sent, _, _, _ = played(2, engine=engine, cluster_after=1)
    rows = federation.splits["train"].counts().numpy().astype(np.float64)
    group = np.array(got.groups)
    assert got.state.k == 3
    for k in range(3):
        mine = np.flatnonzero(group == k)
        told = np.stack([flat(sent["update"][federation.clients[i]]) for i in mine])
        found = flat({n: t[k] for n, t in got.state.centres.items()})
        np.testing.assert_allclose(found, np.average(told, axis=0, weights=rows[mine]), rtol=1e-4, atol=1e-5)


def test_who_did_not_answer_joins_the_largest_group_and_groups_are_sought_once():
    away = ("c03", "c07")
    got, _, _, truth, federation = played(
        3, absent=lambda context, who: context.round == 1 and who in away, cluster_after=1
    )
    here = [i for i, c in enumerate(federation.clients) if c not in away]
    group, truth = np.array(got.groups), truth.numpy()
    assert as_sets(group[here]) == as_sets(truth[here])
    largest = np.bincount(group[here]).max()
    for i in set(range(12)) - set(here):
        assert (group[here] == group[i]).sum() == largest
    asked = got.ledger["cluster"]["up"]
    assert asked == 10 * 4 * len(flat(toy.learner("mlp", federation).first))


def test_options_that_do_not_fit_are_refused():
    learner = toy.learner("mlp", toy.ragged())
    with pytest.raises(KinfolkError, match="linkage = 'ward': needs"):
        FLHC(learner, linkage="ward")
    with pytest.raises(KinfolkError, match="most = 0"):
        FLHC(learner, most=0)
    with pytest.raises(KinfolkError, match="compares every two of 5000 clients"):
        FLHC(learner).init(learner.first, tuple(f"c{i}" for i in range(5000)), Seed(0))
