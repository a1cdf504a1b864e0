"""What is said of a federation before anything trains."""

from __future__ import annotations

import numpy as np
import pytest

from kinfolk.advice.look import FEWEST_ROWS, check_clients, constant_scores, look
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.scaling import standardized
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed


def clients(labels, columns=3, move=0.0, valid=0.2):
    draw = np.random.default_rng(0)
    rows = {
        f"c{i:02}": (draw.normal(size=(len(y), columns)) + move * i, np.asarray(y))
        for i, y in enumerate(labels)
    }
    return from_arrays(rows, valid=valid, test_fraction=0.2, classes=int(max(map(max, labels))) + 1)


def seen(federation, of=0):
    return look(federation, of or len(federation.clients), Seed(0))


def even(rows=80):
    return np.arange(rows) % 4


def test_clients_that_are_alike_get_no_note():
    found = seen(clients([even() for _ in range(10)]))
    assert found.notes == []
    assert found.too_little == ""
    assert found.facts["training rows"] == [51, 51.0, 51]
    assert found.facts["validation rows"] == 130
    assert found.facts["label skew"] < 0.05
    assert found.facts["feature shift"] < 0.02


def test_label_skew_is_what_chance_does_not_explain():
    one_class_each = seen(clients([np.full(80, i % 4) for i in range(12)]))
    assert one_class_each.facts["label skew"] == pytest.approx(0.73, abs=0.03)
    assert any(note.startswith("strong label skew: 0.7") for note in one_class_each.notes)
    two_each = seen(clients([np.arange(80) % 2 + 2 * (i % 2) for i in range(12)]))
    assert two_each.facts["label skew"] == pytest.approx(0.46, abs=0.03)
    # Ten rows of four classes differ by chance, and that is no skew.
    draw = np.random.default_rng(1)
    assert seen(clients([draw.integers(0, 4, 12) for _ in range(60)])).facts["label skew"] < 0.05


def test_sizes_a_rare_class_and_shifted_columns_are_told():
    sizes = seen(clients([even(40)] * 9 + [even(400)]))
    assert any("quantity skew: the largest client has 10 times" in note for note in sizes.notes)
    rare = seen(clients([np.arange(80) % 10 == 0] * 9))
    rows = clients([np.arange(80) % 10 == 0] * 9)
    assert look(rows, 9, Seed(0), "balanced_accuracy").notes == [], "judged by another score already"
    assert any("91% of the rows are of one class" in note for note in rare.notes)
    shifted = seen(clients([even()] * 10, move=0.5))
    # Client means 0, 0.5, ..., 4.5 around rows of deviation 1: variance 2.06 of 3.06.
    assert shifted.facts["feature shift"] == pytest.approx(2.06 / 3.06, abs=0.03)
    assert any("feature shift: 6" in note for note in shifted.notes)
    assert seen(clients([even()] * 10), of=500).notes == ["10 of 500 clients, drawn evenly, take part"]


def test_too_few_rows_are_said_before_anything_is_spent():
    rows = 4 * FEWEST_ROWS // 10  # two or so of each client's go to validation
    few, enough = seen(clients([even(12)] * 10)), seen(clients([even(rows * 2)] * 10))
    assert few.facts["validation rows"] == 20
    assert few.too_little.startswith("there are 20 validation rows in all")
    assert "3 times as many rows would do" in few.too_little
    assert enough.too_little == ""
    assert enough.facts["validation rows"] >= FEWEST_ROWS


@pytest.mark.parametrize(
    ("labels", "line"),
    [([even()], "data.clients = 1"), ([np.zeros(20, int)] * 3, "there is nothing to predict")],
)
def test_one_client_and_constant_labels_are_refused(labels, line):
    with pytest.raises(KinfolkError, match=line):
        check_clients(clients(labels))
    check_clients(clients([even(), even()]))


def test_a_constant_answer_is_the_clients_own_most_frequent_class():
    made = clients([np.arange(40) % 4 // 3, np.arange(40) % 2])  # a quarter, and a half, of class 1
    found = constant_scores(made, "accuracy")
    for i, who in enumerate(made.clients):
        train, valid = (made.y[made.splits[s].rows(i)].numpy() for s in ("train", "valid"))
        assert found[who] == pytest.approx((valid == np.bincount(train).argmax()).mean())
    assert constant_scores(made, "mse") is None
    assert constant_scores(made, "auroc") is None


def test_a_constant_answer_to_a_regression_is_in_the_units_of_the_data():
    draw = np.random.default_rng(0)
    rows = {name: (draw.normal(size=(50, 2)), 1000 + 100 * draw.normal(size=50)) for name in "ab"}
    plain = from_arrays(rows, valid=0.3)
    scaled = standardized(plain, "global", "global")
    expected = []
    for i in range(2):
        train, valid = (plain.y[plain.splits[s].rows(i)].numpy() for s in ("train", "valid"))
        expected.append(((valid - train.mean()) ** 2).mean())
    for made in (plain, scaled):
        assert constant_scores(made, "mse").tolist() == pytest.approx(expected, rel=1e-4)
    assert constant_scores(plain, "accuracy") is None


def test_rows_that_are_made_when_asked_for_are_looked_at_too():
    made = build(DataSpec("gaussians", clients=6, rows=60, valid=0.2, shift="source", test="local"), Seed(0))
    found = seen(made)
    assert found.facts["validation rows"] == 72
    assert constant_scores(made, "accuracy").notna().all()
