"""Opinions against their algebra: properties to 1e-12, the paper's dynamics, and what is refused."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from kinfolk.algorithms.slfed.opinion import (
    Evidence,
    Opinion,
    add,
    checked,
    discount,
    first_evidence,
    meet,
    to_evidence,
    to_opinion,
)
from kinfolk.errors import KinfolkError

numbers = st.floats(0, 1, allow_subnormal=False)


def f64(value):
    return torch.tensor(value, dtype=torch.float64)


@st.composite
def opinions(draw, least=1e-3):
    """A valid opinion of at least that much uncertainty."""
    u = draw(st.floats(least, 1))
    s = draw(numbers) * (1 - u)
    return Opinion(f64(s), f64(1 - u - s), f64(u))


amounts = st.floats(0, 1e4, allow_subnormal=False)
evidences = st.builds(lambda a, b: Evidence(f64(a), f64(b)), amounts, amounts)


def close(x, y, tolerance=1e-12):
    return all(torch.allclose(a, b, rtol=0, atol=tolerance) for a, b in zip(x, y, strict=True))


def consensus(x, y):
    """Jøsang's operator on opinions: what adding their evidence must come to."""
    k = x.u + y.u - x.u * y.u
    both_sure = k == 0
    k = torch.where(both_sure, torch.ones_like(k), k)
    s = torch.where(both_sure, (x.s + y.s) / 2, (x.s * y.u + y.s * x.u) / k)
    d = torch.where(both_sure, (x.d + y.d) / 2, (x.d * y.u + y.d * x.u) / k)
    return Opinion(s, d, x.u * y.u / k)


@given(opinions(), opinions(), opinions())
def test_consensus_knows_no_order(x, y, z):
    assert close(consensus(x, y), consensus(y, x))
    assert close(consensus(consensus(x, y), z), consensus(x, consensus(y, z)))
    joint = consensus(x, y)
    assert close([sum(joint)], [f64(1.0)])
    assert joint.u <= torch.minimum(x.u, y.u) + 1e-12


@given(evidences, evidences)
def test_consensus_is_addition_of_evidence(x, y):
    assert close(consensus(to_opinion(x), to_opinion(y)), to_opinion(add(x, y)))
    total = x.alpha + x.beta + 2
    assert close(to_opinion(x), (x.alpha / total, x.beta / total, 2 / total))


@given(evidences)
def test_evidence_survives_a_round_trip(x):
    back = to_evidence(to_opinion(x))
    assert torch.allclose(torch.stack(back), torch.stack(x), rtol=1e-11, atol=1e-11)


@given(opinions(least=0))
def test_the_vacuous_opinion_is_neutral(x):
    nothing = Opinion(f64(0.0), f64(0.0), f64(1.0))
    assert close(consensus(x, nothing), x)
    assert close(consensus(nothing, x), x)


@given(opinions(least=0), opinions(least=0), opinions(least=0))
def test_discount_is_an_opinion_and_a_chain_knows_no_order(x, y, z):
    told = discount(x, y)
    checked(told)
    assert close([sum(told)], [f64(1.0)])
    assert told.u >= y.u - 1e-12  # what is told is never surer than the teller
    assert close(discount(discount(x, y), z), discount(x, discount(y, z)))


def test_discount_by_hand_and_at_the_ends():
    about, told = Opinion(f64(0.6), f64(0.1), f64(0.3)), Opinion(f64(0.5), f64(0.3), f64(0.2))
    assert close(discount(about, told), (f64(0.3), f64(0.18), f64(0.52)))
    sure, never = (Opinion(f64(s), f64(1 - s), f64(0.0)) for s in (1.0, 0.0))
    assert close(discount(sure, told), told)
    assert close(discount(never, told), (f64(0.0), f64(0.0), f64(1.0)))


@given(numbers, numbers, opinions(least=1e-6))
def test_dogmatic_opinions(a, b, other):
    x, y = (Opinion(f64(v), f64(1 - v), f64(0.0)) for v in (a, b))
    assert close(consensus(x, y), (f64((a + b) / 2), f64(1 - (a + b) / 2), f64(0.0)))
    assert close(consensus(x, other), x)
    assert close(consensus(other, x), x)


@given(st.lists(numbers, max_size=12))
def test_uncertainty_depends_on_the_number_of_contacts_only(lambdas):
    held = first_evidence()
    for value in lambdas:
        held = meet(held, f64(value))
    s, d, u = to_opinion(held)
    n = len(lambdas)
    assert close((s, d, u), (f64((1 + sum(lambdas)) / (4 + n)), 1 - s - u, f64(2 / (4 + n))))
    assert s <= (1 + n) / (4 + n) + 1e-12


def test_tensors_of_any_shape_go_alike():
    generator = torch.Generator().manual_seed(3)
    alpha, beta = torch.rand(2, 4, 5, generator=generator, dtype=torch.float64) * 9
    many = to_opinion(Evidence(alpha, beta))
    told = discount(Opinion(*(p[:, :, None] for p in many)), Opinion(*(p[None, :4].mT for p in many)))
    one = discount(Opinion(*(p[1, 2] for p in many)), Opinion(*(p[3, 2] for p in many)))
    assert close([part[1, 2, 3] for part in told], one)


@pytest.mark.parametrize(
    ("parts", "field"),
    [
        ((0.5, 0.5, 0.5), "peer"),
        ((0.5, 0.25, 0.25 - 1e-6), "peer"),
        ((-0.1, 0.6, 0.5), "peer.s"),
        ((0.5, -0.1, 0.6), "peer.d"),
        ((0.5, 0.5, float("nan")), "peer.u"),
        ((float("inf"), 0.0, 0.0), "peer.s"),
        ((-0.5, 0.5, 1.0), "peer.s"),
    ],
)
def test_a_bad_opinion_is_refused_and_not_repaired(parts, field):
    good = (0.25, 0.25, 0.5)
    bad = Opinion(*(f64([g, p]) for g, p in zip(good, parts, strict=True)))
    with pytest.raises(KinfolkError) as caught:
        checked(bad, "peer")
    assert caught.value.field == field


def test_other_refusals():
    with pytest.raises(KinfolkError, match=r"opinion.d .*shape"):
        checked(Opinion(torch.ones(2), torch.zeros(1), torch.zeros(2)))


@given(opinions(), st.floats(-1e-10, 1e-10))
def test_rounding_is_no_mistake(x, off):
    assume(x.s + off >= 0)
    given = Opinion(x.s + off, x.d, x.u)
    assert all(torch.equal(*pair) for pair in zip(checked(given), given, strict=True)), "nothing is repaired"
