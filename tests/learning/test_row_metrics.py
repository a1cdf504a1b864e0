"""Metrics of all of a client's rows against scikit-learn and by hand, and what leaves a client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, balanced_accuracy_score, r2_score, roc_auc_score

from kinfolk.errors import KinfolkError
from kinfolk.learning.metrics import scores
from kinfolk.learning.row_metrics import METRICS, Metric, Scoring, find_metrics
from kinfolk.task import Batch
from kinfolk.types import stack_messages

DRAW = np.random.default_rng(0)


def normal(*shape: int) -> torch.Tensor:
    return torch.from_numpy(DRAW.normal(size=shape)).float()


def classes(rows: int, most: int) -> torch.Tensor:
    return torch.from_numpy(DRAW.permutation(np.arange(rows) % most))


def test_ranks_agree_with_scikit_learn():
    out, y = normal(40, 4), classes(40, 4)
    p = out.double().softmax(1).numpy()
    assert METRICS["auroc"](out, y) == pytest.approx(roc_auc_score(y, p, multi_class="ovr"), rel=1e-12)
    assert METRICS["average_precision"](out, y) == pytest.approx(average_precision_score(y, p), rel=1e-12)
    assert METRICS["balanced_accuracy"](out, y) == pytest.approx(balanced_accuracy_score(y, p.argmax(1)))
    two = y % 2
    points = (out[:, 1] - out[:, 0]).double().numpy()
    assert METRICS["auroc"](out[:, :2], two) == pytest.approx(roc_auc_score(two, points))
    assert METRICS["auroc"](out[:, :1], two) == pytest.approx(roc_auc_score(two, out[:, 0]))
    assert METRICS["balanced_accuracy"](out[:, :1], two) == pytest.approx(
        balanced_accuracy_score(two, out[:, 0] > 0)
    )
    labels = (normal(40, 4) > 0).float()
    assert METRICS["auroc"](out, labels) == pytest.approx(roc_auc_score(labels, out, average="macro"))


def test_classes_that_a_client_does_not_have_are_left_out():
    out, y = normal(30, 4), classes(30, 2)
    p = out.double().softmax(1).numpy()
    by_hand = np.mean([roc_auc_score(y == c, p[:, c]) for c in (0, 1)])
    assert METRICS["auroc"](out, y) == pytest.approx(by_hand)
    assert np.isnan(METRICS["auroc"](out, torch.zeros(30).long())), "one class cannot be ranked"
    assert METRICS["balanced_accuracy"](out, y) == pytest.approx(
        np.mean([(out.argmax(1)[y == c] == c).float().mean() for c in (0, 1)])
    )
    assert np.isnan(METRICS["auroc"](out * float("nan"), y)), "a model that has diverged"


def test_r2_and_the_c_index_by_their_definitions():
    out, y = normal(25, 2), normal(25, 2)
    assert METRICS["r2"](out, y) == pytest.approx(r2_score(y.double(), out.double()))
    assert np.isnan(METRICS["r2"](out[:1], y[:1]))
    time, event = (normal(25).abs() * 3).round(), (normal(25) > 0).float()
    risk = (normal(25) * 2).round()
    pairs = agreed = 0.0
    for i in range(25):
        for j in range(25):
            first = time[i] < time[j] or (time[i] == time[j] and event[j] == 0)
            if event[i] == 1 and first and i != j:
                pairs += 1
                agreed += 1.0 if risk[i] > risk[j] else 0.5 if risk[i] == risk[j] else 0.0
    expected = agreed / pairs
    assert METRICS["c_index"](risk[:, None], {"time": time, "event": event}) == pytest.approx(expected)
    assert METRICS["c_index"](risk, torch.stack([time, event], 1)) == pytest.approx(expected)
    assert np.isnan(METRICS["c_index"](risk, torch.stack([time, event * 0], 1)))


def scored(how: Scoring, out: torch.Tensor, y: torch.Tensor, size: int = 4) -> dict[str, float]:
    """What a server reads, of one client whose rows come in padded batches in another order."""
    carry = how.begin(torch.device("cpu"))
    order = torch.from_numpy(DRAW.permutation(len(out)))
    for some in order.split(size):
        row = torch.cat([some, some[:1].expand(size - len(some))])
        weight = (torch.arange(size) < len(some)).float()
        given = torch.where(weight.reshape(-1, *[1] * (out.dim() - 1)) > 0, out[row], torch.nan)
        carry = how.count(carry, given, Batch(torch.zeros(size, 1), y[row], row, weight), torch.zeros(size))
    reply = how.conclude(how.reply(carry))
    assert {name: (t.shape, t.dtype) for name, t in reply.items()} == {
        name: (t.shape, t.dtype) for name, t in how.expected.items()
    }
    assert all(t.isfinite().all() for t in reply.values())
    return {name: float(value[0]) for name, value in scores(stack_messages([reply])).items()}


def test_padding_and_the_order_of_rows_change_nothing_and_only_numbers_leave():
    out, y = normal(11, 3), classes(11, 3)
    seen = []

    def first_row(out, y):
        seen.append((out, y))
        return float(out[0, 0])

    extra = (*find_metrics(["auroc"], "class", 3), Metric(first_row))
    how = Scoring(3, "class", -1, extra, 15, {"out": out[:0], "y": y[:0]})
    found = scored(how, out, y)
    assert torch.equal(seen[0][0], out)
    assert torch.equal(seen[0][1], y)
    assert found["first_row"] == pytest.approx(float(out[0, 0]))
    assert found["auroc"] == pytest.approx(METRICS["auroc"](out, y))
    assert found["accuracy"] == pytest.approx(float((out.argmax(1) == y).float().mean()))


@pytest.mark.parametrize("axis", [1, -1])
def test_positions_count_and_those_without_a_class_do_not(axis):
    out, y = normal(11, 4, 3), classes(44, 3).reshape(11, 4)
    y[:, 0], y[2] = -100, -100
    how = Scoring(3, "positions", axis, find_metrics(["iou"], "positions", 3))
    found = scored(how, out if axis == -1 else out.movedim(-1, 1), y)
    keep = y >= 0
    truth, said = y[keep], out.argmax(-1)[keep]
    assert found["accuracy"] == pytest.approx(float((truth == said).double().mean()))
    nll = torch.nn.functional.cross_entropy(out[keep].double(), truth)
    assert found["perplexity"] == pytest.approx(float(nll.exp()), rel=1e-6)
    hits = [((truth == c) & (said == c)).sum() / ((truth == c) | (said == c)).sum() for c in range(3)]
    assert found["iou"] == pytest.approx(float(torch.stack(hits).mean()), rel=1e-6)


def test_labels_and_one_output():
    out, y = normal(11, 3), (normal(11, 3) > 0).float()
    found = scored(Scoring(3, "labels"), out, y)
    right = (out > 0) == (y > 0.5)
    assert found["accuracy"] == pytest.approx(float(right.double().mean()))
    f1 = [2 * (right & (y > 0))[:, c].sum() / ((out > 0)[:, c].sum() + y[:, c].sum()) for c in range(3)]
    assert found["macro_f1"] == pytest.approx(float(torch.stack(f1).mean()), rel=1e-6)
    found = scored(Scoring(2, "binary"), out[:, :1], y[:, 0].long())
    assert found["accuracy"] == pytest.approx(float(right[:, 0].double().mean()))


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda: "high", r"run.metrics = 'mine': gives a str \('high'\); give one number"),
        (lambda: None, r"run.metrics = 'mine': gives a NoneType"),
        (lambda: torch.zeros(2), r"gives a Tensor \(shape \(2,\)\)"),
        (lambda: [1.0, 2.0], "gives a list"),
        (lambda: 1 / 0, "run.metrics = 'mine': failed: ZeroDivisionError"),
    ],
)
def test_a_metric_that_gives_no_number_is_named(gives, words):
    out, y = normal(5, 3), classes(5, 3)
    how = Scoring(3, "class", -1, (Metric(lambda out, y: gives(), name="mine"),), 5, {"out": out, "y": y})
    with pytest.raises(KinfolkError, match=words):
        scored(how, out, y)


def test_names_that_are_not_known_or_do_not_fit():
    for wanted, target, words in (
        ("aurok", "class", "did you mean 'auroc'.*import path"),
        ("auroc", "numbers", "is for targets of kind class, binary, labels; these are of kind 'numbers'"),
        ("mse", "class", "these targets do not have it"),
        ("kinfolk.learning.row_metrics:auroc", "class", "called auroc already"),
    ):
        with pytest.raises(KinfolkError, match=words):
            find_metrics([wanted], target, 3)
    with pytest.raises(KinfolkError, match="give the function a name"):
        Metric(lambda out, y: 0.0)


def test_a_client_whose_positions_are_all_left_out_has_no_balanced_accuracy():
    found = METRICS["balanced_accuracy"](torch.zeros(2, 3, 4), torch.full((2, 3), -100))
    assert np.isnan(found)
