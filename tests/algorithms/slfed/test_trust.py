"""Evidence of peers: against the published formulas in NumPy, and how far and how fast opinions spread."""

import numpy as np
import pytest
import torch

from kinfolk.algorithms.slfed.opinion import Opinion
from kinfolk.algorithms.slfed.trust import (
    TrustOptions,
    add_contacts,
    add_hearsay,
    checked_told,
    known,
    no_evidence,
    opinions,
)
from kinfolk.errors import KinfolkError

LAMBDAS = (0.9, 0.2, 0.6)


def lam(value):
    return torch.tensor(value, dtype=torch.float64)


def triple(trust, i):
    return tuple(float(part[i]) for part in opinions(trust))


def discounted(teller, told):
    s = teller[0]
    return s * told[0], s * told[1], teller[1] + teller[2] + s * told[2]


def fused(x, y):
    k = x[2] + y[2] - x[2] * y[2]
    return (x[0] * y[2] + y[0] * x[2]) / k, (x[1] * y[2] + y[1] * x[2]) / k, x[2] * y[2] / k


def test_contacts_add_to_alpha_and_beta():
    trust = no_evidence(3)
    for value in LAMBDAS:
        trust = add_contacts(trust, {1: lam(value)})
    alpha, beta = 1 + sum(LAMBDAS), 1 + sum(1 - v for v in LAMBDAS)
    np.testing.assert_allclose(triple(trust, 1), np.array([alpha, beta, 2]) / (alpha + beta + 2), rtol=1e-12)
    assert triple(trust, 1)[2] == pytest.approx(2 / (4 + 3))
    assert known(trust).tolist() == [False, True, False]
    assert triple(trust, 0) == (0, 0, 1)


def test_hearsay_is_discount_and_consensus_as_published():
    """Client 0 met 1 and 2 and hears of 3 from both; of 1 from 2; nobody tells of 0 or of himself."""
    trust = add_contacts(no_evidence(4), {1: lam(0.9), 2: lam(0.3)})
    of_one, of_two = triple(trust, 1), triple(trust, 2)
    told = np.array([[0.4, 0.5, 0.2, 0.6], [0.2, 0.2, 0.4, 0.1], [0.4, 0.3, 0.4, 0.3]])
    rows = {1: Opinion(*torch.from_numpy(told)), 2: Opinion(*torch.from_numpy(told[:, ::-1].copy()))}
    after = add_hearsay(trust, rows, 0, TrustOptions("recompute"))
    of_three = fused(discounted(of_one, told[:, 3]), discounted(of_two, told[:, 0]))
    np.testing.assert_allclose(triple(after, 3), of_three, rtol=1e-10)
    np.testing.assert_allclose(triple(after, 1), fused(of_one, discounted(of_two, told[:, 2])), rtol=1e-10)
    np.testing.assert_allclose(triple(after, 2), fused(of_two, discounted(of_one, told[:, 2])), rtol=1e-10)
    assert not known(after)[0]
    # The next round: of 3 nobody tells, and 1 is met again.
    quiet = Opinion(*(torch.tensor([0.0] * 4 if part < 2 else [1.0] * 4).double() for part in range(3)))
    again = add_hearsay(add_contacts(after, {1: lam(0.9)}), {1: quiet}, 0, TrustOptions("recompute"))
    assert triple(again, 3) == triple(after, 3)  # known by hearsay alone: it stays
    assert triple(again, 2) == pytest.approx(of_two)  # met before: only the own evidence stays
    more = add_hearsay(after, rows, 0, TrustOptions("accumulate"))
    assert triple(more, 3)[2] < triple(after, 3)[2]
    assert float(more["told_alpha"][3]) > 1.9 * float(after["told_alpha"][3])


def test_disagreement_raises_uncertainty_only_if_it_is_asked_for():
    steady, torn = no_evidence(1), no_evidence(1)
    for a, b in ((0.5, 0.9), (0.5, 0.1)):
        steady, torn = add_contacts(steady, {0: lam(a)}), add_contacts(torn, {0: lam(b)})
    np.testing.assert_allclose(triple(steady, 0), triple(torn, 0))  # the paper's formulas see no difference
    plain, aware = (opinions(torn, flag) for flag in (False, True))
    assert float(aware.u[0]) == pytest.approx(float(plain.u[0]) + np.var([0.9, 0.1]))
    assert float(aware.s[0] / aware.d[0]) == pytest.approx(float(plain.s[0] / plain.d[0]))
    assert float(sum(part[0] for part in aware)) == pytest.approx(1)
    torch.testing.assert_close(opinions(steady, True).u, opinions(steady).u)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (torch.full((3, 2), 1 / 3), "must sum to 1"),  # float32 is not near enough
        (torch.tensor([[1.5, 0.5], [0.0, 0.0], [-0.5, 0.5]]).double(), r"\[0, 1\]"),
        (torch.full((3, 2), float("nan")).double(), r"\[0, 1\]"),
        (torch.ones(3, 3), "shape"),
        (torch.ones(3, 2, dtype=torch.int64), "numbers"),
        (None, "numbers"),
    ],
)
def test_what_is_no_opinion_is_refused_by_name(told, why):
    if told is not None and told.dtype == torch.float32 and told.shape == (3, 2):
        told = told + 1e-3
    with pytest.raises(KinfolkError, match=f"'bob'.*{why}"):
        checked_told(told, 2, "bob")


def spread(n, direct, rounds, mode="recompute"):
    """(fewest known, mean uncertainty of the known) after each round; links go both ways."""
    draw = np.random.Generator(np.random.PCG64(0))
    books, found = [no_evidence(n) for _ in range(n)], []
    for _ in range(rounds):
        near = [set() for _ in range(n)]
        for i in range(n):
            for j in draw.permutation([j for j in range(n) if j != i])[:direct]:
                near[i].add(int(j))
                near[int(j)].add(i)
        books = [add_contacts(b, {j: lam(0.6) for j in near[i]}) for i, b in enumerate(books)]
        told = [opinions(b) for b in books]
        books = [
            add_hearsay(b, {j: told[j] for j in near[i]}, i, TrustOptions(mode)) for i, b in enumerate(books)
        ]
        whom = [known(b) for b in books]
        doubts = torch.cat([opinions(b).u[w] for b, w in zip(books, whom, strict=True)])
        found.append((min(int(w.sum()) for w in whom), float(doubts.mean())))
    return found


def test_two_partners_reach_everybody_before_the_fourth_round_and_one_does_not():
    two, one = spread(24, 2, 5), spread(24, 1, 5)
    assert two[2][0] == 23
    assert one[2][0] < 23
    assert all(a[1] < b[1] for a, b in zip(two[1:], one[1:], strict=True))


def test_hearsay_that_adds_up_for_ever_leaves_no_doubt():
    kept, summed = spread(12, 2, 25)[-1][1], spread(12, 2, 25, "accumulate")[-1][1]
    assert summed < 0.2 * kept
