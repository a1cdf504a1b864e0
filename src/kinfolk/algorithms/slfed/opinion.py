"""Opinions of subjective logic, and the evidence behind them, for one peer or for tensors of peers.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.
Jøsang: A Logic for Uncertain Probabilities. 2001.

With alpha = 2s/u and beta = 2d/u, consensus is the addition of evidence. To keep evidence and to make
opinions of it when one is asked for is exact and knows no order.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError

# How far s + d + u may be from one, and each from [0, 1]: rounding, not a mistake.
TOLERANCE = 1e-9


class Opinion(NamedTuple):
    """Similarity, dissimilarity and uncertainty: float64, of one shape, at least 0, together 1."""

    s: Tensor
    d: Tensor
    u: Tensor


class Evidence(NamedTuple):
    """How much speaks for (alpha) and against (beta) similarity: float64, of one shape, at least 0."""

    alpha: Tensor
    beta: Tensor


def first_evidence() -> Evidence:
    """What everyone starts a direct acquaintance with: alpha = beta = 1, the opinion (1/4, 1/4, 1/2).

    >>> to_opinion(first_evidence())
    Opinion(s=tensor(0.2500, dtype=torch.float64), d=tensor(0.2500, dtype=torch.float64), \
u=tensor(0.5000, dtype=torch.float64))
    """
    return Evidence(torch.ones((), dtype=torch.float64), torch.ones((), dtype=torch.float64))


def meet(evidence: Evidence, similarity: Tensor) -> Evidence:
    """After a direct contact of the given similarity: alpha + lambda, beta + 1 - lambda.

    >>> meet(first_evidence(), torch.tensor(0.75)).alpha
    tensor(1.7500, dtype=torch.float64)
    """
    similarity = similarity.double()
    return Evidence(evidence.alpha + similarity, evidence.beta + (1 - similarity))


def add(first: Evidence, second: Evidence) -> Evidence:
    """The evidence of both: what consensus of their opinions comes to.

    >>> add(first_evidence(), first_evidence()).beta
    tensor(2., dtype=torch.float64)
    """
    return Evidence(first.alpha + second.alpha, first.beta + second.beta)


def to_opinion(evidence: Evidence) -> Opinion:
    """s = alpha / (alpha + beta + 2), d likewise, u = 2 / (alpha + beta + 2); no evidence is (0, 0, 1).

    >>> to_opinion(Evidence(torch.tensor(6.0), torch.tensor(2.0))).s
    tensor(0.6000)
    """
    alpha, beta = evidence
    whole = alpha + beta + 2
    return Opinion(alpha / whole, beta / whole, 2 / whole)


def to_evidence(opinion: Opinion) -> Evidence:
    """alpha = 2s/u, beta = 2d/u. An opinion without uncertainty has no finite evidence; none here has.

    >>> to_evidence(Opinion(torch.tensor(0.5), torch.tensor(0.25), torch.tensor(0.25))).alpha
    tensor(4.)
    """
    s, d, u = opinion
    # Up to the tolerance a part may be just below 0; evidence may not.
    return Evidence((2 * s / u).clamp(min=0), (2 * d / u).clamp(min=0))


def discount(about_teller: Opinion, told: Opinion) -> Opinion:
    """What is told, weighed by what is thought of the teller: s = s_AB s_BC, d = s_AB d_BC, the rest is u.

    The shapes are broadcast, so that one teller's row, or all tellers of all peers, go in one call. What is
    thought of a teller is never without uncertainty, so neither is this, whatever was told.

    >>> ann = Opinion(torch.tensor(0.5), torch.tensor(0.0), torch.tensor(0.5))
    >>> discount(ann, ann).u
    tensor(0.7500)
    """
    trust, doubt, unsure = about_teller
    return Opinion(trust * told.s, trust * told.d, doubt + unsure + trust * told.u)


def checked(opinion: Opinion, field: str = "opinion") -> Opinion:
    """The opinion in float64, or an error that names what is wrong with it; nothing is repaired.

    >>> checked(Opinion(torch.tensor(0.5), torch.tensor(0.5), torch.tensor(0.5)), "opinion of 'ann'")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: opinion of 'ann' = 1.5: must sum to 1
    """
    parts = Opinion(*(part.double() for part in opinion))
    for name, part in zip(("s", "d", "u"), parts, strict=True):
        if part.shape != parts.s.shape:
            raise KinfolkError(
                f"{field}.{name}", tuple(part.shape), f"must have shape {tuple(parts.s.shape)}"
            )
        bad = ~((part >= -TOLERANCE) & (part <= 1 + TOLERANCE))  # NaN is caught too
        if bool(bad.any()):
            raise KinfolkError(f"{field}.{name}", float(part[bad][0]), "must lie in [0, 1]")
    whole = parts.s + parts.d + parts.u
    off = (whole - 1).abs() > TOLERANCE
    if bool(off.any()):
        raise KinfolkError(field, float(whole[off][0]), "must sum to 1")
    return parts
