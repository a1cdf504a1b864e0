"""Who stands out, against every split tried in turn; and lists chosen by it."""

from itertools import pairwise

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.algorithms.slfed.opinion import Opinion
from kinfolk.algorithms.slfed.peer_lists import least_uncertain, listed, most_similar
from kinfolk.algorithms.slfed.trust import TrustOptions, add_contacts, add_hearsay, no_evidence
from kinfolk.streams import Seed


def by_hand(values, names):
    """The split of the better half with the least squares left over, each one tried."""
    ranked = sorted(zip(values, names, strict=True), key=lambda pair: (-pair[0], pair[1]))
    better = ranked[: len(ranked) // 2 + 1]
    v = np.array([value for value, _ in better])
    if len(set(v)) < 2:
        return ()
    left = [sum(((part - part.mean()) ** 2).sum() for part in (v[:k], v[k:])) for k in range(1, len(v))]
    if len(left) > 1 and np.diff(np.sort(left))[0] < 1e-9:
        return None  # two splits are as good, but for rounding
    return tuple(name for _, name in better[: int(np.argmin(left)) + 1])


@settings(deadline=None)
@given(st.lists(st.integers(0, 100).map(lambda n: n / 100), max_size=14), st.randoms(use_true_random=False))
def test_the_split_is_the_best_one_in_any_order(values, shuffle):
    names = [f"p{i:02}" for i in range(len(values))]
    expected = by_hand(values, names)
    pairs = list(zip(values, names, strict=True))
    shuffle.shuffle(pairs)
    found = most_similar(torch.tensor([v for v, _ in pairs], dtype=torch.float64), [n for _, n in pairs])
    assert expected is None or found == expected
    assert len(found) <= len(values) // 2
    assert all(values[names.index(a)] >= values[names.index(b)] for a, b in pairwise(found))


def test_a_group_is_found_whatever_levels_the_others_have():
    draw = Seed(0).numpy("levels")
    truth = np.repeat([0, 1, 2, 3], [5, 6, 6, 6])
    for _ in range(50):
        level = np.array([0.92, 0.80, 0.72, 0.65])[truth]
        values = torch.from_numpy(level + draw.uniform(-0.02, 0.02, len(level)))
        assert sorted(most_similar(values, [f"{i:02}" for i in range(23)])) == [f"{i:02}" for i in range(5)]


def met(*similar, peers=9, times=1):
    trust = no_evidence(peers)
    for _ in range(times):
        trust = add_contacts(trust, {i: torch.tensor(v, dtype=torch.float64) for i, v in enumerate(similar)})
    return trust


NAMES = list("abcdefghi")


def test_similarities_are_means_with_one_usual_contact_beforehand():
    trust = add_contacts(met(0.9, 0.5, 0.5, 0.5, times=3), {4: torch.tensor(0.72, dtype=torch.float64)})
    usual = (3 * (0.9 + 0.5 * 3) + 0.72) / 13
    values = [(3 * v + usual) / 4 for v in (0.9, 0.5, 0.5, 0.5)] + [(0.72 + usual) / 2]
    assert listed(trust, NAMES, "similarity") == by_hand(values, NAMES[:5]) == ("a",)
    # On the face of it e, which was met once, belongs to a.
    assert most_similar(trust["sum"][:5] / trust["met"][:5], NAMES[:5]) == ("a", "e")


def test_hearsay_lists_nobody_and_too_few_meetings_do_not_either():
    trust = met(0.9, 0.8, 0.3, 0.2)
    assert listed(trust, NAMES, "similarity") == ("a", "b")
    told = Opinion(*torch.tensor([[0.6] * 9, [0.1] * 9, [0.3] * 9], dtype=torch.float64))
    heard = add_hearsay(
        trust, {0: told}, 8, TrustOptions("recompute")
    )  # now eight are known, of whom four were met
    assert listed(heard, NAMES, "similarity") == ("a", "b")
    fewer = add_hearsay(met(0.9, 0.8, 0.3), {0: told}, 8, TrustOptions("recompute"))
    assert listed(fewer, NAMES, "similarity") == ()
    assert listed(no_evidence(3), NAMES[:3], "similarity") == ()
    assert listed(no_evidence(3), NAMES[:3], "uncertainty") == ()


def test_uncertainty_is_the_papers_rule():
    trust = add_contacts(met(0.1, 0.9, 0.5, 0.5), {0: torch.tensor(0.1)})
    u, s = (
        torch.tensor(v, dtype=torch.float64) for v in ([2 / 6] + [2 / 5] * 3, [1.2 / 6, 1.9 / 5, 0.3, 0.3])
    )
    assert listed(trust, NAMES, "uncertainty") == least_uncertain(u, s, NAMES[:4]) == ("a",)
