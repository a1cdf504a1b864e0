"""The baseline of label counts, against counting by hand."""

import numpy as np
import pytest

from kinfolk.algorithms.majority_label import MajorityLabel
from kinfolk.contract import toy
from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss


def labelled():
    """Three clients with labels of their own; (federation, training labels, test labels)."""
    train = {"ada": [2, 2, 2, 1, 1, 0], "ben": [1], "cleo": [3, 0, 3, 0, 0, 3, 1, 3, 3]}
    test = {"ada": [2, 1, 2, 0], "ben": [0, 1], "cleo": [3, 3, 0, 2, 1]}
    draw = np.random.Generator(np.random.PCG64(3))
    sides = [
        {c: (draw.normal(size=(len(y), 1, 8, 8)), np.array(y)) for c, y in s.items()} for s in (train, test)
    ]
    return from_arrays(sides[0], test=sides[1], classes=4), train, test


@pytest.mark.parametrize("engine", ["loop", "batched"])
def test_everyone_gets_its_commonest_label(engine):
    federation, train, test = labelled()
    outcome = toy.play_rounds(MajorityLabel(toy.learner("mlp", federation)), federation, engine, rounds=3)
    for who, (correct, loss) in outcome.scores["personal"].items():
        counts = np.bincount(train[who], minlength=4)
        assert outcome.memories[who]["counts"].tolist() == counts.tolist()
        shares = (counts + 1) / (len(train[who]) + 4)
        assert correct == sum(y == counts.argmax() for y in test[who])
        assert loss == pytest.approx(-np.log(shares[test[who]]).mean(), rel=1e-5)
    assert outcome.ledger["count"] == {"down": 0, "up": 0}


def test_a_client_never_asked_knows_nothing():
    federation, _, _ = labelled()
    method = MajorityLabel(toy.learner("mlp", federation))
    outcome = toy.play_rounds(method, federation, rounds=2, cohort=lambda number: ["cleo"])
    for who in ("ada", "ben"):
        assert outcome.scores["personal"][who][1] == pytest.approx(np.log(4), rel=1e-5)
    assert outcome.scores["personal"]["cleo"][1] != pytest.approx(np.log(4), rel=1e-3)


def test_numbers_are_refused():
    learner = Learner(toy.learner("mlp", toy.ragged()).module, find_loss("mse"), 1)
    with pytest.raises(KinfolkError, match=r"counts one class a row"):
        MajorityLabel(learner)
