"""What one peer keeps about all others from round to round, and how it grows by contacts and hearsay.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.

The evidence is a tree of tensors [peers]: that of own contacts, that of what others told, and the
similarities met so far. Opinions are made of it when they are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

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
from kinfolk.types import Tree

Rank = Literal["uncertainty", "similarity"]
# The most that all hearsay about one peer weighs if it is capped: as much as one own contact.
CAP = 1.0


@dataclass(frozen=True)
class TrustOptions:
    """What is believed of peers, and who of them is asked: `[algorithm.trust]`."""

    memory: Literal["recompute", "accumulate"] = "recompute"  # what becomes of earlier hearsay
    # Ours, "capped": lists by own contacts alone, and in sigma hearsay weighs at most as much as one contact.
    hearsay: Literal["published", "capped"] = "published"
    teller_weight: Literal["all", "direct"] = "all"  # what a teller is believed by: hearsay too, or contacts
    tell: Literal["all", "direct"] = "all"  # opinions that are passed on: hearsay too, or of contacts only
    rank: Rank = "uncertainty"  # whom to ask; "similarity" is ours: those who stand out by it
    conflict_aware: bool = False  # the variance of similarities is added to the uncertainty


def no_evidence(peers: int) -> Tree:
    """Nobody was met and nothing was told.

    >>> known(no_evidence(2))
    tensor([False, False])
    """
    names = ("alpha", "beta", "told_alpha", "told_beta", "met", "sum", "squares")
    return {name: torch.zeros(peers, dtype=torch.float64) for name in names}


def add_contacts(trust: Tree, similar: Mapping[int, Tensor]) -> Tree:
    """The evidence after direct contacts: `similar` gives lambda by the peer's place.

    >>> add_contacts(no_evidence(2), {1: torch.tensor(0.75)})["alpha"]
    tensor([0.0000, 1.7500], dtype=torch.float64)
    """
    trust = {name: leaf.clone() for name, leaf in trust.items()}
    for i, value in similar.items():
        before = Evidence(trust["alpha"][i], trust["beta"][i]) if trust["met"][i] else first_evidence()
        trust["alpha"][i], trust["beta"][i] = meet(before, value)
        trust["met"][i] += 1
        trust["sum"][i] += value.double()
        trust["squares"][i] += value.double().square()
    return trust


def known(trust: Tree) -> Tensor:
    """Of whom there is any evidence, [peers] of bool."""
    return (trust["alpha"] + trust["beta"] + trust["told_alpha"] + trust["told_beta"]) > 0


def direct_evidence(trust: Tree) -> Tree:
    """The evidence without what others told.

    >>> known(direct_evidence({**no_evidence(2), "told_alpha": torch.ones(2)}))
    tensor([False, False])
    """
    nothing = torch.zeros_like(trust["alpha"])
    return {**trust, "told_alpha": nothing, "told_beta": nothing}


def opinions(trust: Tree, conflict_aware: bool = False) -> Opinion:
    """What is thought of everybody, own contacts and hearsay together; of a stranger (0, 0, 1).

    The paper's uncertainty falls with every contact, however much contacts disagree. If `conflict_aware`,
    the variance of the similarities met is added to it, and the rest shrinks to make room.

    >>> opinions(add_contacts(no_evidence(2), {1: torch.tensor(0.75)})).u
    tensor([1.0000, 0.4000], dtype=torch.float64)
    """
    direct = Evidence(trust["alpha"], trust["beta"])
    whole = to_opinion(add(direct, Evidence(trust["told_alpha"], trust["told_beta"])))
    if not conflict_aware:
        return whole
    met = trust["met"].clamp(min=1)
    variance = (trust["squares"] / met - (trust["sum"] / met).square()).clamp(min=0)
    u = (whole.u + variance).clamp(max=1)
    shrunk = (1 - u) / (1 - whole.u).clamp(min=1e-300)  # where u is 1 the other two are 0 as it is
    return Opinion(whole.s * shrunk, whole.d * shrunk, u)


def checked_told(told: object, peers: int, teller: str) -> Opinion:
    """What a peer tells of everybody, [3, peers]: s, d and u; refused with the teller's name.

    >>> checked_told(torch.ones(3, 2), 2, "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: opinions of 'bob' = 3.0: must sum to 1
    """
    fits = isinstance(told, Tensor) and told.is_floating_point() and tuple(told.shape) == (3, peers)
    if not fits:
        raise KinfolkError(f"opinions of {teller!r}", None, f"must be numbers of shape {(3, peers)}")
    assert isinstance(told, Tensor)
    return checked(Opinion(*told.unbind()), f"opinions of {teller!r}")


def capped(evidence: Evidence) -> Evidence:
    """The evidence, of each peer scaled down to a total of CAP where it is more.

    >>> capped(Evidence(torch.tensor([3.0, 0.25]), torch.tensor([1.0, 0.25])))
    Evidence(alpha=tensor([0.7500, 0.2500]), beta=tensor([0.2500, 0.2500]))
    """
    scale = (CAP / (evidence.alpha + evidence.beta)).clamp(max=1)  # of nothing: 1
    return Evidence(evidence.alpha * scale, evidence.beta * scale)


def add_hearsay(trust: Tree, told: Mapping[int, Opinion], me: int, options: TrustOptions) -> Tree:
    """The evidence after this round's opinions, by the teller's place, each weighed by what is thought of it.

    A teller's weight is its s by own contacts and hearsay ("all"), or by contacts alone ("direct").
    "recompute": who was heard of has this round's hearsay and no older one; who is known by hearsay alone
    keeps what there was. "accumulate": all hearsay adds up forever. What is told of oneself, and what a
    teller says of itself, is not heard. "capped": what is told of a peer weighs at most one own contact.

    >>> sure = Opinion(*torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.5, 0.5]], dtype=torch.float64))
    >>> met = add_contacts(no_evidence(2), {1: torch.tensor(0.75)})
    >>> torch.equal(add_hearsay(met, {1: sure}, 0, TrustOptions())["told_alpha"], met["told_alpha"])
    True
    """
    direct = options.teller_weight == "direct"
    mine = opinions(direct_evidence(trust) if direct else trust, options.conflict_aware)
    heard = Evidence(torch.zeros_like(trust["alpha"]), torch.zeros_like(trust["alpha"]))
    for teller in sorted(told):
        of_teller = Opinion(*(part[teller] for part in mine))
        alpha, beta = (part.clone() for part in to_evidence(discount(of_teller, told[teller])))
        alpha[[me, teller]] = beta[[me, teller]] = 0.0
        heard = add(heard, Evidence(alpha, beta))
    before = Evidence(trust["told_alpha"], trust["told_beta"])
    if options.memory == "accumulate":
        after = add(before, heard)
    else:
        keeps = (trust["met"] == 0) & (heard.alpha + heard.beta == 0)
        after = Evidence(*(torch.where(keeps, old, new) for old, new in zip(before, heard, strict=True)))
    after = capped(after) if options.hearsay == "capped" else after
    return {**trust, "told_alpha": after.alpha, "told_beta": after.beta}
