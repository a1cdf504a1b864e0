"""Whom to ask: the peers whose uncertainty lies under a threshold that moves with all of them.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Client

# Equal uncertainties must not be told apart from their own mean by rounding.
SLACK = 1e-9


def threshold(uncertainty: Tensor) -> float:
    """The mean of the known peers' uncertainty if it lies below their median, else that of the lower half.

    The lower half of n are floor(n/2) peers, at least one; of nobody there is no threshold.

    >>> import torch
    >>> threshold(torch.tensor([0.125, 0.75, 1.0])), threshold(torch.tensor([0.25, 0.5, 1.0, 1.0]))
    (0.625, 0.6875)
    """
    ranked = _numbers("uncertainty", uncertainty).sort().values
    n = len(ranked)
    if not n:
        raise KinfolkError("uncertainty", [], "knows nobody; there is no threshold")
    median = (ranked[(n - 1) // 2] + ranked[n // 2]) / 2
    mean = ranked.mean()
    # A mean that is the median but for rounding is not below it: the list must not hang on the last bit.
    return float(mean if mean < median - SLACK else ranked[: max(1, n // 2)].mean())


def choose(uncertainty: Tensor, similarity: Tensor, names: Sequence[Client]) -> tuple[Client, ...]:
    """The peers to ask, sorted by name: u <= threshold, never more than floor(n/2) of the n known.

    Where more pass, those of low uncertainty come first, then of high similarity, then by name. Of
    nobody, and of a single known peer (half of one is none), nobody is asked.

    >>> import torch
    >>> choose(torch.tensor([0.5, 0.5, 0.5, 0.5]), torch.tensor([0.1, 0.4, 0.2, 0.4]), ["a", "b", "c", "d"])
    ('b', 'd')
    """
    u, s = _numbers("uncertainty", uncertainty).tolist(), _numbers("similarity", similarity).tolist()
    if not len(u) == len(s) == len(set(names)) == len(names):
        raise KinfolkError("names", len(names), f"give one name each for {len(u)} uncertainties")
    if not u:
        return ()
    limit = threshold(uncertainty) + SLACK
    # Differences that are only rounding do not decide before similarity does.
    ranked = sorted((round(u[i], 9), -s[i], names[i]) for i in range(len(u)) if u[i] <= limit)
    return tuple(sorted(name for _, _, name in ranked[: len(u) // 2]))


def _numbers(field: str, values: Tensor) -> Tensor:
    values = values.detach().double().cpu()
    inside = (values >= 0) & (values <= 1)
    if values.dim() != 1 or not bool(inside.all()):
        raise KinfolkError(field, values.tolist(), "give a list of numbers in [0, 1]")
    return values
