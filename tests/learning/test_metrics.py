from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score, top_k_accuracy_score
from torch.func import vmap

from kinfolk.learning.losses import find_loss
from kinfolk.learning.metrics import blank, count, pooled_macro_f1, scores
from kinfolk.scores import SCORES, summary
from kinfolk.streams import Seed
from kinfolk.task import Batch
from kinfolk.types import map_leaves, stack_messages


def _rows(seed: int, number: int, classes: int):
    """Outputs with ties in them (few distinct values) and labels; classes = 0 gives a regression."""
    draw = Seed(seed).numpy("rows", number, classes)
    if classes == 0:
        return tuple(torch.from_numpy(draw.normal(size=number)).float() for _ in range(2))
    out = torch.from_numpy(draw.integers(-3, 4, size=(number, classes))).float()
    return out, torch.from_numpy(draw.integers(classes, size=number))


def _tally(out, y, classes, cuts=(), weight=None):
    """The tally of rows that arrive in batches cut at the given places."""
    tally = blank(classes)
    row_loss = find_loss("cross_entropy" if classes else "mse").row_loss
    edges = [0, *sorted(cuts), len(y)]
    for a, b in pairwise(edges):
        part = None if weight is None else weight[a:b]
        batch = Batch(torch.zeros(b - a, 1), y[a:b], torch.arange(a, b), part)
        tally = count(tally, out[a:b], batch, row_loss(out[a:b], y[a:b]))
    return tally


def _one_client(tally):
    return map_leaves(lambda t: t[None], tally)


def _assert_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype
        torch.testing.assert_close(a[name], b[name], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("classes", [2, 3, 5, 6, 62])
def test_scores_agree_with_scikit_learn(classes):
    clients = [_rows(seed, number, classes) for seed, number in enumerate((1, 4, 40))]
    found = scores(stack_messages([_tally(out, y, classes) for out, y in clients]))
    assert ("top5" in found) == (classes > 5)
    for i, (out, y) in enumerate(clients):
        said = out.numpy().argmax(1)
        assert found["accuracy"][i] == pytest.approx(accuracy_score(y, said))
        f1 = f1_score(y, said, labels=np.union1d(y, said), average="macro", zero_division=0)
        assert found["macro_f1"][i] == pytest.approx(f1)
        loss = torch.nn.functional.cross_entropy(out.double(), y).item()
        assert found["loss"][i] == pytest.approx(loss, rel=1e-5)


def test_top5_agrees_with_scikit_learn_and_gives_ties_to_the_lower_class():
    draw = Seed(1).numpy("distinct")
    out = torch.from_numpy(draw.permuted(np.tile(np.arange(9.0), (50, 1)), axis=1))
    y = torch.from_numpy(draw.integers(9, size=50))
    found = scores(_one_client(_tally(out, y, 9)))
    assert found["top5"] == pytest.approx(top_k_accuracy_score(y, out.numpy(), k=5, labels=range(9)))
    tied = _tally(torch.zeros(9, 9), torch.arange(9), 9)
    assert (tied["top5"].item(), tied["correct"].item()) == (5, 1)


def test_a_row_of_nan_is_not_in_the_top_five_and_its_loss_is_infinite():
    tally = _tally(torch.full((3, 7), torch.nan), torch.tensor([3, 5, 6]), 7)
    assert tally["top5"] == tally["correct"] == 0
    assert scores(_one_client(tally))["loss"] == np.inf


def test_pooled_macro_f1_is_over_all_rows_and_all_classes():
    clients = [_rows(seed, 15, 6) for seed in range(4)]
    clients = [(out[:, :5], y.clamp(max=3)) for out, y in clients]
    clients = [(torch.cat([out, torch.full((15, 1), -9.0)], 1), y) for out, y in clients]
    tally = stack_messages([_tally(out, y, 6) for out, y in clients])
    y = np.concatenate([y for _, y in clients])
    said = np.concatenate([out.numpy().argmax(1) for out, _ in clients])
    assert 5 not in y
    assert 5 not in said  # a class that nobody met counts, with 0
    expected = f1_score(y, said, labels=range(6), average="macro", zero_division=0)
    assert pooled_macro_f1(tally) == pytest.approx(expected)
    assert np.isnan(pooled_macro_f1(_one_client(blank(6))))


def test_regression_scores_agree_with_numpy():
    out, y = _rows(0, 30, 0)
    found = scores(_one_client(_tally(out[:, None], y, 0, cuts=(7, 11))))
    error = out.double().numpy() - y.double().numpy()
    assert set(found) == {"loss", "mse", "mae"}
    assert all(SCORES[name].lower_is_better for name in found)
    assert found["mse"] == pytest.approx(np.mean(error**2))
    assert found["mae"] == pytest.approx(np.mean(np.abs(error)))
    assert found["loss"] == pytest.approx(np.mean(error**2))


@pytest.mark.parametrize("classes", [0, 7])
def test_a_client_without_rows_has_no_score(classes):
    tally = stack_messages([blank(classes), _tally(*_rows(0, 5, classes), classes)])
    for values in scores(tally).values():
        assert np.isnan(values[0])
        assert np.isfinite(values[1])


def test_count_leaves_its_argument_alone():
    before = blank(3)
    kept = map_leaves(torch.clone, before)
    count(before, torch.eye(3), Batch(torch.zeros(3), torch.arange(3), torch.arange(3), None), torch.ones(3))
    _assert_same(before, kept)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 99),
    number=st.integers(0, 20),
    classes=st.sampled_from([0, 2, 4, 8]),
    data=st.data(),
)
def test_any_split_into_batches_gives_the_same_tally(seed, number, classes, data):
    out, y = _rows(seed, number, classes)
    cuts = data.draw(st.lists(st.integers(0, number), max_size=5))
    _assert_same(_tally(out, y, classes, cuts), _tally(out, y, classes))


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    numbers=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    classes=st.sampled_from([0, 3, 8]),
)
def test_vmapped_over_padded_clients_equals_one_by_one(seed, numbers, classes):
    clients = [_rows(seed + i, n, classes) for i, n in enumerate(numbers)]
    alone = stack_messages([_tally(out, y, classes) for out, y in clients])

    def padded(t, fill):
        room = torch.full((6 - len(t), *t.shape[1:]), fill, dtype=t.dtype)
        return torch.cat([t, room])

    out = torch.stack([padded(o, torch.nan) for o, _ in clients])
    y = torch.stack([padded(t, 0) for _, t in clients])
    weight = torch.stack([padded(torch.ones(n), 0.0) for n in numbers])
    together = vmap(lambda o, t, w: _tally(o, t, classes, cuts=(4,), weight=w))(out, y, weight)
    _assert_same(together, alone)


finite = st.floats(-5, 5)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(finite, st.integers(1, 9)), min_size=1, max_size=12), st.integers(0, 3))
def test_summary_agrees_with_brute_force(pairs, absent):
    values = np.array([v for v, _ in pairs] + [np.nan] * absent)
    rows = np.array([n for _, n in pairs] + [0] * absent)
    found = summary(values, rows)
    every_row = [v for v, n in pairs for _ in range(n)]
    ordered = sorted(v for v, _ in pairs)
    place = 0.1 * (len(ordered) - 1)
    low = ordered[int(place)]
    next_up = ordered[min(int(place) + 1, len(ordered) - 1)]
    mean = sum(ordered) / len(ordered)
    variance = sum((v - mean) ** 2 for v in ordered) / max(1, len(ordered) - 1)
    expected = {
        "micro": sum(every_row) / len(every_row),
        "macro": mean,
        "worst": ordered[0],
        "p10": low + (place - int(place)) * (next_up - low),
        "spread": variance**0.5,
        "best": ordered[-1],
    }
    assert found == pytest.approx(expected, abs=1e-9)
    # Turning every sign turns good into bad and nothing else.
    turned = summary(-values, rows, lower_is_better=True)
    spread = turned.pop("spread")
    assert spread == pytest.approx(expected.pop("spread"), abs=1e-9)
    assert {k: -v for k, v in turned.items()} == pytest.approx(expected, abs=1e-9)


def test_summary_of_one_of_none_and_of_an_infinite_loss():
    assert summary(np.array([0.4]), np.array([2]))["spread"] == 0.0
    assert all(np.isnan(v) for v in summary(np.array([np.nan]), np.array([0])).values())
    diverged = summary(np.array([1.0, np.inf]), np.array([1, 1]), lower_is_better=True)
    assert (diverged["worst"], diverged["macro"], diverged["best"]) == (np.inf, np.inf, 1.0)
    assert np.isnan(diverged["spread"])
