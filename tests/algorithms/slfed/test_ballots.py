"""Ballot stuffing: what liars who praise one another gain by the published rule, and by the capped one."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from kinfolk.algorithms.slfed.opinion import Evidence, Opinion
from kinfolk.algorithms.slfed.trust import (
    TrustOptions,
    add_contacts,
    add_hearsay,
    capped,
    no_evidence,
    opinions,
)

PATH = Path(__file__).parents[3] / "benchmarks" / "ballots.py"
SPEC = importlib.util.spec_from_file_location("ballots_benchmark", PATH)
ballots = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(ballots)
Town, taken = ballots.Town, ballots.taken
ROUNDS = 10


@pytest.fixture(scope="module")
def shares():
    """The share of places on honest lists that 6 liars of 24 take, by rule."""
    return {rule: taken(24, 6, 0, ROUNDS, hearsay=rule) for rule in ("published", "capped")}


def test_by_the_published_rule_six_liars_of_24_take_most_places(shares):
    assert shares["published"] > 0.5


def test_by_the_capped_rule_they_take_what_chance_gives_them(shares):
    """6 of 23 are 26 %; over seven rounds and 18 lists that is drawn to within a few percent."""
    assert shares["capped"] < 6 / 23 + 0.06
    assert shares["capped"] > 6 / 23 - 0.08


@pytest.mark.parametrize("liars", [6, 12])
def test_no_lie_changes_any_list_by_the_capped_rule(liars):
    """The bound: a list is made of who was met how often, which follows from seed and names, and of draws."""
    honest, lying = (Town(24, liars, 1, lying=lies, hearsay="capped") for lies in (False, True))
    for number in range(6):
        assert torch.equal(honest.lists(number), lying.lists(number))
    different = [Town(24, liars, 1, lying=lies, hearsay="published") for lies in (False, True)]
    pairs = [[town.lists(number) for town in different] for number in range(6)]
    assert any(not torch.equal(*pair) for pair in pairs), "the lie has no effect at all"


def test_capped_lists_go_by_contacts_and_among_equals_by_draw():
    town = Town(12, 3, 5, hearsay="capped")
    for number in range(5):
        asked = town.lists(number)
        for i, who in enumerate(town.names):
            met = town.books[who]["met"].numpy()
            here, others = asked[i].numpy(), [j for j in range(12) if j != i and met[j]]
            if here.any():
                assert met[here].min() >= max(met[j] for j in others if not here[j])
    # Over many clients nobody is favoured by a name that sorts first.
    places = sum(Town(12, 0, s, hearsay="capped").lists(0) for s in range(40)).sum(0).numpy()
    assert places.min() > 0
    assert places.max() < 3 * places.min()


def test_hearsay_moves_sigma_by_no_more_than_one_contact_would():
    """|s' - s| <= 1 / (N + 1) with N = alpha + beta + 2, whatever is told by however many."""
    draw = np.random.default_rng(3)
    for _ in range(50):
        trust = no_evidence(6)
        for _ in range(int(draw.integers(1, 5))):
            trust = add_contacts(trust, {i: torch.tensor(float(draw.random())) for i in range(1, 6)})
        told = {}
        for teller in range(1, 6):
            parts = draw.dirichlet([0.3, 0.3, 0.1], size=6).T
            told[teller] = Opinion(*torch.from_numpy(parts / parts.sum(0)))
        for mode in ("recompute", "accumulate"):
            after = trust
            for _ in range(3):
                after = add_hearsay(after, told, 0, TrustOptions(mode, "capped"))
            whole = (trust["alpha"] + trust["beta"]).numpy()[1:] + 2
            moved = (opinions(after).s - opinions(trust).s).abs().numpy()[1:]
            assert (moved <= 1 / (whole + 1) + 1e-12).all()
            free = add_hearsay(add_hearsay(trust, told, 0, TrustOptions(mode)), told, 0, TrustOptions(mode))
            assert float((free["told_alpha"] + free["told_beta"]).max()) > 1, "nothing had to be capped"


def test_what_is_capped_keeps_its_proportions_and_small_evidence_is_left_alone():
    alpha, beta = torch.tensor([6.0, 0.2, 0.0]), torch.tensor([2.0, 0.3, 0.0])
    got = capped(Evidence(alpha, beta))
    np.testing.assert_allclose(got.alpha, [0.75, 0.2, 0], rtol=1e-5)
    np.testing.assert_allclose(got.beta, [0.25, 0.3, 0], rtol=1e-5)
