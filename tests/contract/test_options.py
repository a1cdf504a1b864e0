"""Every option of every algorithm, found from its fields: it runs, survives, stops and agrees."""

from dataclasses import dataclass
from typing import Literal

import pytest
from option_variants import check_variant, others, variants
from test_contract import METHODS

from kinfolk.algorithms import ALGORITHMS, with_options
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.errors import KinfolkError
from kinfolk.learning.learner import Learner

# Cheap settings of costly methods; none of the checks is about how good they are.
CHEAP = {name: dict(METHODS[name][1]) for name in ALGORITHMS}
CHEAP["mdicfl"] |= {
    "generator.iterations": 3,
    "pseudo.samples": 2,
    "search.iterations": 2,
    "start.restarts": 2,
}
for clustered in ("fesem", "fesem_ma", "fesem_shared"):
    CHEAP[clustered] |= {"start.warm_epochs": 1, "start.restarts": 2}
for serverless in ("slfed", "slfed_similar"):
    CHEAP[serverless] |= {"images.kind": "noise"}
CASES = [
    pytest.param(name, options, id=f"{name} {label}")
    for name, kind in ALGORITHMS.items()
    for label, options in variants(kind, CHEAP[name]).items()
    # Images of a GAN differ between engines by a byte here and there, and lists by similarity follow them.
    # Text is for rows of tokens, which have tests of their own.
    if (name, label) not in {("slfed_similar", "images.kind=gan"), ("mdicfl", "pseudo.sampler=text")}
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "options"), CASES)
def test_every_option_keeps_the_contract(name, options, monkeypatch):
    if options.get("epsilon") and name == "mdicfl":  # coins that come out alike, for runs to be compared
        monkeypatch.setattr("secrets.token_bytes", lambda n: b"s" * n)
    assert options, "no value of this option can be tried: give it a default that others can be told from"
    check_variant(lambda learner: with_options(ALGORITHMS[name], learner, options))


@dataclass(frozen=True)
class Many(FedAvg):
    """Options of every kind."""

    learner: Learner
    law: Literal["a", "b", "c"] = "b"
    flag: bool = True
    size: float = 0.0
    count: int = 5
    only: Literal["x", "y"] = "x"

    def __post_init__(self):
        if 0 < self.size <= 1:
            raise KinfolkError("size", self.size, "more than 1")
        if self.only == "y" and self.law != "c":
            raise KinfolkError("only", self.only, "needs law = 'c'")


def test_what_is_tried_follows_from_the_fields():
    tried = list(others(Many))
    assert [(name, value) for name, value in tried if not name.startswith("aggregate.")] == [
        ("weights", "uniform"),
        ("law", "a"),
        ("law", "c"),
        ("flag", False),
        ("size", 1.0),
        ("size", 2.0),
        ("size", 0.5),
        ("only", "y"),
    ]
    assert ("aggregate.name", "krum") in tried
    found = variants(Many, {"count": 3})
    assert found["only=y"] == {"count": 3, "law": "c", "only": "y"}
    assert "size=1.0" not in found
    assert found["size=2.0"] == {"count": 3, "size": 2.0}


@dataclass(frozen=True)
class Never(FedAvg):
    """An option that nobody can choose."""

    learner: Learner
    law: Literal["a", "b"] = "a"

    def __post_init__(self):
        if self.law == "b":
            raise KinfolkError("law", self.law, "is not there yet")


def test_an_option_that_can_not_be_tried_is_not_passed_over():
    assert variants(Never, {})["law="] == {}
