"""Slander and ballot stuffing among peers: what liars say, and how far the trust of the honest can move."""

from functools import cache

import pytest
import torch
from film import EASY, NAMES, Film, learner, nine, slfed

from kinfolk.algorithms.slfed.trust import direct_evidence, opinions
from kinfolk.attacks.attack import Attack
from kinfolk.contract.compare import message_difference
from kinfolk.errors import KinfolkError
from kinfolk.script import client_tasks
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client

BAD = frozenset(map(Client, "bfh"))
HONEST = [c for c in NAMES if c not in BAD]


class Armed:
    """SLFed some of whose clients lie."""

    def __init__(self, inner, kind, who=BAD):
        self.inner, self.attack, self.learner = inner, Attack(kind, who, 4, Seed(3)), inner.learner
        self.init, self.round, self.eval_inputs = inner.init, inner.round, inner.eval_inputs
        self.init_client = self.attack.with_flag(inner.init_client, client_tasks(inner))

    def tasks(self):
        return self.attack.arm(self.inner.tasks())

    def eval_tasks(self):
        return {}


@cache
def film(kind, rounds=4, **options):
    return Film(Armed(slfed(learner(), shares__scheme="plain", **EASY, **options), kind), nine(), rounds)


def told(kind, who):
    """What a client tells in the third round, and what it thinks."""
    past = film(kind)
    memory = past.after[2, "counts"][who]
    swap = Armed(slfed(learner(), shares__scheme="plain", **EASY), kind).tasks()["opinions"]
    sent = swap.send(memory, Peer(who, RoundContext(Seed(0), 2, NAMES)))
    assert sent
    return [m["opinions"] for m in sent.values()], torch.stack(opinions(memory["trust"]))


@pytest.mark.parametrize("kind", ["slander", "ballot_stuffing"])
def test_liars_lie_and_the_honest_say_what_they_think(kind):
    for who in NAMES:
        said, thought = told(kind, who)
        for one in said:
            for i, c in enumerate(NAMES):
                if who not in BAD:
                    expected = thought[:, i].tolist()
                elif kind == "slander":
                    expected = thought[:, i].tolist() if c in BAD else [0, 1, 0]
                else:
                    expected = [1, 0, 0] if c in BAD else [0, 0, 1]
                assert one[:, i].tolist() == expected


def own_evidence(memory, place):
    """(alpha, beta) of own contacts with a peer."""
    trust = memory["trust"]
    return float(trust["alpha"][place]), float(trust["beta"][place])


@pytest.mark.parametrize("kind", ["slander", "ballot_stuffing"])
@pytest.mark.parametrize("hearsay", ["published", "capped"])
def test_the_trust_of_honest_peers_stays_above_the_stated_bound(kind, hearsay):
    """Capped: alpha / (N + 1). Published: alpha / (N + sum of 2 s / (1 - s) over the tellers just met)."""
    past = film(kind, 5, trust__hearsay=hearsay, trust__teller_weight="direct")
    tight = 0.0
    for number in range(5):
        for me in HONEST:
            before, after = past.after[number, "counts"][me], past.after[number, "opinions"][me]
            s = opinions(direct_evidence(before["trust"])).s
            met = [NAMES[i] for i, lately in enumerate(before["lately"].tolist()) if lately]
            weight = sum(float(2 * s[NAMES.index(c)] / (1 - s[NAMES.index(c)])) for c in met)
            for i in (NAMES.index(c) for c in HONEST if c != me):
                alpha, beta = own_evidence(after, i)
                more = 1 if hearsay == "capped" else weight
                bound = alpha / (alpha + beta + 2 + more)
                sigma = float(opinions(after["trust"]).s[i])
                assert sigma >= bound - 1e-12
                tight = max(tight, bound / sigma if sigma else 0)
    # A bound that is never near says nothing; ballots say nothing of the honest.
    assert tight > 0.8 or kind == "ballot_stuffing"


def test_slander_lowers_the_trust_in_honest_peers_and_ballots_raise_it_in_liars():
    def mean(kind, of):
        books = [film(kind).after[3, "opinions"][me]["trust"] for me in HONEST]
        return sum(float(opinions(b).s[[NAMES.index(c) for c in of]].sum()) for b in books)

    assert mean("slander", HONEST) < mean("none", HONEST) - 0.5
    assert mean("ballot_stuffing", sorted(BAD)) > mean("none", sorted(BAD)) + 0.5


def test_before_anybody_has_heard_a_lie_the_honest_are_as_they_were():
    clean, bad = film("none", 1), film("slander", 1)
    for c in NAMES:
        for step in ("begin", "generate_images", "counts"):
            a, b = ({k: v for k, v in one.after[0, step][c].items() if not k.startswith("attack.")}
                    for one in (clean, bad))  # fmt: skip
            assert message_difference(a, b, 0) == ""


def test_where_nobody_tells_opinions_nobody_can_lie():
    silent = {"talk": PeerTask(lambda memory, me: {}, lambda inbox, memory, me: memory)}
    with pytest.raises(KinfolkError, match=r"run.attack = 'slander': clients of this algorithm tell"):
        Attack("slander", BAD, 4, Seed(0)).arm(silent)
