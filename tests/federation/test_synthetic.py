"""Synthetic federations: how rows are drawn, from names alone; how little a million clients take."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kinfolk.federation.soundness import check
from kinfolk.federation.sources import SOURCES, build
from kinfolk.federation.spec import DataSpec
from kinfolk.federation.synthetic import SYNTHETIC, LeafSynthetic
from kinfolk.streams import Seed

GAUSS = DataSpec("gaussians", 40, 30, 4, "source", features=12, classes=5, test="local", valid=0.2)
LINEAR = replace(GAUSS, name="linear")
LEAF = replace(GAUSS, name="leaf_synthetic", shift="none")


@pytest.mark.parametrize("spec", [GAUSS, LINEAR, LEAF], ids=lambda s: s.name)
def test_rows_are_made_from_the_clients_number_alone(spec):
    f = build(replace(spec, ragged=0.5), Seed(3))
    names = [f.clients[i] for i in (7, 3, 21)]
    together = f.among(names)
    check(together)
    assert len(f.x) == 0
    assert together.clients == tuple(sorted(names))
    for who in names:
        alone = f.only(who)
        for split in ("train", "valid", "test"):
            a, b = (g.take(g.splits[split].rows(g.place(who))) for g in (together, alone))
            assert torch.equal(a[0], b[0])
            assert torch.equal(a[1], b[1])
            assert len(a[1]) == f.splits[split].count(f.place(who))
    again, other = build(replace(spec, ragged=0.5), Seed(3)), build(replace(spec, ragged=0.5), Seed(4))
    assert again.fingerprint() == f.fingerprint() != other.fingerprint()
    assert not torch.equal(other.only(names[0]).x[:3], f.only(names[0]).x[:3])


@pytest.mark.parametrize("spec", [GAUSS, LINEAR, LEAF], ids=lambda s: s.name)
def test_rows_and_splits_are_counted_as_asked(spec):
    f = build(spec, Seed(0))
    assert f.splits["train"].counts().tolist() == [24] * 40
    assert f.splits["valid"].counts().tolist() == [6] * 40
    assert f.splits["test"].counts().tolist() == [8] * 40  # a quarter of 30, rounded
    more = build(replace(spec, test_rows=50), Seed(0))
    assert more.splits["test"].count(3) == 50
    assert torch.equal(more.only(f.clients[3]).x[:30], f.only(f.clients[3]).x[:30])
    assert f.shape == (12,)
    assert f.classes == (0 if spec.name == "linear" else 5)
    assert f.x.dtype == torch.float32
    assert f.y.dtype == (torch.float32 if spec.name == "linear" else torch.int64)


def test_sizes_are_log_normal_with_the_mean_asked_for():
    f = build(replace(LEAF, clients=5000, rows=50, ragged=0.8, valid=0.0), Seed(0))
    counts = f.splits["train"].counts().double()
    assert counts.min() >= 1
    assert counts.mean().item() == pytest.approx(50, rel=0.05)
    assert counts.log().std().item() == pytest.approx(0.8, rel=0.06)


def everything(f, split="train"):
    """All rows by client: (x, y, client)."""
    held = f.among(f.clients)
    s = held.splits[split]
    x, y = held.take(s.row)
    return x.numpy().astype(np.float64), y.numpy(), np.repeat(np.arange(len(f.clients)), s.counts().numpy())


def test_each_gaussian_group_has_its_own_class_means():
    spec = replace(GAUSS, clients=12, rows=4000, groups=3, separation=4.0, partition="iid", valid=0.0)
    f = build(spec, Seed(1))
    assert f.truth.bincount().tolist() == [4, 4, 4]
    x, y, who = everything(f)
    group = f.truth.numpy()[who]
    means = np.array([[x[(group == g) & (y == c)].mean(0) for c in range(5)] for g in range(3)])
    rest = x - means[group, y]
    assert np.cov(rest.T) == pytest.approx(np.eye(12), abs=0.03)
    for i in range(12):  # clients of a group share its means
        mine = who == i
        for c in range(5):
            assert np.abs(x[mine & (y == c)].mean(0) - means[f.truth[i], c]).max() < 0.2
    flat = means.reshape(15, 12)
    apart = ((flat[:, None] - flat) ** 2).sum(2)[np.triu_indices(15, 1)]
    assert apart.mean() == pytest.approx(16.0, rel=0.3)
    assert apart.min() > 1
    assert np.bincount(y) / len(y) == pytest.approx(np.full(5, 0.2), abs=0.01)


def test_gaussian_labels_follow_a_dirichlet_law_for_each_client():
    spec = replace(GAUSS, clients=600, rows=100, partition="dirichlet", alpha=2.0, valid=0.0, features=1)
    _, y, who = everything(build(spec, Seed(1)))
    counts = np.stack([np.bincount(y[who == i], minlength=5) for i in range(600)])
    # Dirichlet-multinomial: n p (1 - p) (n + A) / (1 + A).
    assert counts.var(0).mean() == pytest.approx(100 * 0.16 * 102 / 3, rel=0.12)
    _, tested, owner = everything(build(spec, Seed(1)), "test")
    for i in np.flatnonzero(counts.max(1) > 95):  # the test rows follow the same law
        assert np.bincount(tested[owner == i], minlength=5).argmax() == counts[i].argmax()


def test_every_task_is_a_source_by_its_line_in_the_table():
    assert {name: SOURCES[name].line for name in SYNTHETIC} == {n: task.line for n, task in SYNTHETIC.items()}


def test_group_and_global_tests_are_balanced_and_shared():
    f = build(replace(GAUSS, test="group", test_rows=20), Seed(1))
    held = {who: f.only(who) for who in f.clients[:12]}
    tests = {who: h.take(h.splits["test"].rows(0)) for who, h in held.items()}
    by_group: dict[int, torch.Tensor] = {}
    for i, who in enumerate(f.clients[:12]):
        g = int(f.truth[i])
        assert tests[who][1].bincount().tolist() == [4] * 5
        assert torch.equal(tests[who][0], by_group.setdefault(g, tests[who][0]))
    assert len({t.numpy().tobytes() for t in by_group.values()}) == 4
    # Rows 0 and 5 have one label: were the noise the same in all groups, both would differ alike.
    gap = by_group[0] - by_group[1]
    assert (gap[0] - gap[5]).abs().max() > 0.1
    whole = build(replace(GAUSS, test="global", test_rows=20), Seed(1))
    assert whole.splits["test"].count(0) == 80
    shared = whole.only(whole.clients[5])
    expected = torch.cat([by_group[g] for g in range(4)])
    assert torch.equal(shared.x[shared.splits["test"].rows(0)], expected)


def test_linear_groups_have_their_own_weights_and_noise():
    spec = replace(LINEAR, clients=9, rows=3000, groups=3, noise=0.5, separation=2.0, valid=0.0)
    f = build(spec, Seed(2))
    x, y, who = everything(f)
    group = f.truth.numpy()[who]
    found = []
    for g in range(3):
        weights, *_ = np.linalg.lstsq(x[group == g], y[group == g], rcond=None)
        assert (y[group == g] - x[group == g] @ weights).std() == pytest.approx(0.5, rel=0.03)
        found.append(weights)
    gaps = [np.linalg.norm(found[a] - found[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    assert min(gaps) > 0.5
    assert np.mean(np.square(gaps)) == pytest.approx(4.0, rel=0.7)
    assert build(replace(spec, shift="none"), Seed(2)).truth.tolist() == [0] * 9


def test_leaf_rows_have_the_published_spread_and_labels_of_one_softmax_model():
    spec = replace(LEAF, clients=400, rows=200, valid=0.0, leaf_alpha=0.5, leaf_beta=2.0)
    f = build(spec, Seed(0))
    assert f.truth is None
    x, y, who = everything(f)
    centre = np.stack([x[who == i].mean(0) for i in range(400)])
    rest = x - centre[who]
    assert rest.var(0) == pytest.approx(np.arange(1, 13) ** -1.2, rel=0.05)
    # Centres: one number of variance beta for each client, and 1 for each feature.
    assert centre.mean(1).var() == pytest.approx(2.0 + 1 / 12, rel=0.25)
    assert (centre - centre.mean(1, keepdims=True)).var() == pytest.approx(11 / 12, rel=0.1)
    # Labels are the largest of five linear functions, so two classes part along a line: a fit finds it.
    from sklearn.linear_model import LogisticRegression

    accurate = []
    for i in range(8):
        mine = who == i
        if len(set(y[mine])) > 1:
            model = LogisticRegression(C=1e4, max_iter=3000).fit(x[mine], y[mine])
            accurate.append(model.score(x[mine], y[mine]))
    assert len(accurate) > 3
    assert min(accurate) > 0.97


def test_leaf_alpha_moves_all_weights_of_a_client_together():
    world = LeafSynthetic(replace(LEAF, leaf_alpha=4.0), Seed(0))
    models = [world.model(Seed(0).numpy("test", i)) for i in range(400)]
    middles = np.array([np.append(weight, bias).mean() for weight, bias, _ in models])
    assert middles.var() == pytest.approx(4.0 + 1 / 65, rel=0.25)
    weights = np.stack([weight for weight, _, _ in models])
    assert (weights - middles[:, None, None]).var() == pytest.approx(1.0, rel=0.03)
    # One number added to every score changes no label.
    plain, moved = (everything(build(replace(LEAF, leaf_alpha=a), Seed(0))) for a in (0.0, 4.0))
    assert np.array_equal(plain[0], moved[0])
    assert (plain[1] == moved[1]).mean() > 0.999


def test_a_million_clients_are_described_without_making_their_rows():
    # What it costs is measured by benchmarks/federations.py; here: nothing is made before it is asked for.
    federation = build(DataSpec("gaussians", 1_000_000, 30, 10, "source", features=20, test="local"), Seed(0))
    assert len(federation.x) == 0
    assert (len(federation.clients), federation.clients[-1]) == (1_000_000, "client-999999")
    assert federation.truth is not None
    assert federation.truth.bincount().tolist() == [100_000] * 10
    assert len(federation.only(federation.clients[-1]).x) >= 2
