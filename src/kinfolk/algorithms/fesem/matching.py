"""Which neuron of one network is which of another: a layer matched under an Indian-buffet prior.

Yurochkin et al.: Bayesian Nonparametric Federated Learning of Neural Networks (PFNM). ICML 2019.
Wang et al.: Federated Learning with Matched Averaging (FedMA). ICLR 2020.

Common neurons are drawn from N(0, sigma0^2), a client's neuron from N(its common neuron, sigma^2). With
running sums g and G and the number n of clients of each common neuron, the best assignment of one
client's neurons, given all others, is a linear assignment problem; clients take turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from kinfolk.errors import KinfolkError, at_least
from kinfolk.streams import Seed

Array = NDArray[Any]
# Popularity counts no more than this in the prior, as in the papers' code.
MOST_POPULAR = 10


@dataclass(frozen=True)
class Matching:
    """Options `[algorithm.matching]`: how the units of a group's members are matched.

    >>> Matching(growth=2.0)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.matching.growth = 2.0: give 1 to 1.5, the factor of a width
    """

    retrain_epochs: int = 0  # of every member after each matched layer; 0: the server matches alone
    sweeps: int = 8  # times that every member may be matched again
    growth: float = 1.0  # how far a layer may widen while it is matched, before it is cut back
    gamma: float = 1.0  # mass of the buffet: how readily a new unit appears (FedMA: 7)
    sigma: float = 1.0  # of a member's unit around the common one
    sigma0: float = 1.0  # of common units around 0
    kappa: float = 2.0  # weight of a unit's popularity: 2 by the derivation, 1 in the code of PFNM

    def __post_init__(self) -> None:
        for name in ("retrain_epochs", "sweeps", "kappa"):
            at_least(f"algorithm.matching.{name}", getattr(self, name), 0)
        for name in ("gamma", "sigma", "sigma0"):
            if not getattr(self, name) > 0:
                raise KinfolkError(f"algorithm.matching.{name}", getattr(self, name), "give a number above 0")
        if not 1 <= self.growth <= 1.5:
            raise KinfolkError(
                "algorithm.matching.growth", self.growth, "give 1 to 1.5, the factor of a width"
            )


def match_layer(neurons: Tensor, seed: Seed, how: Matching) -> Tensor:
    """The common neuron of each of the clients' neurons [clients, L, D]: [clients, L].

    The first client seeds the common layer, the others are matched in turn; then in each sweep every
    client, in random order, is taken out (a neuron nobody else has goes with it) and matched again. Sweeps
    end early when one changes nothing, since no later one could. Products are taken where tensors lie and,
    on a CPU, in their own type; sums are double.

    >>> a = torch.eye(2)
    >>> match_layer(torch.stack([a, a.flip(0)]), Seed(0), Matching())
    tensor([[0, 1],
            [1, 0]])
    """
    clients = len(neurons)
    table = _Table(neurons, how)
    for j in range(clients):
        table.put(j)
    draw = seed.numpy("matching")
    for _ in range(how.sweeps if clients > 1 else 0):
        before = np.stack(table.assigned)
        for j in draw.permutation(clients).tolist():
            table.take(j)
            table.put(j)
        if np.array_equal(before, table.assigned):
            break
    return torch.from_numpy(np.stack(table.assigned))


def gains(
    products: Array,
    squares: Array,
    lengths: Array,
    precision: Array,
    counts: Array,
    clients: int,
    new: int,
    how: Matching,
) -> Array:
    """What it is worth to match each neuron v to each common one, and to each of `new` new ones.

    Of the vectors it takes v . g [l, L], |g|^2 [L] and |v|^2 [l]; `precision` is G [L]. Answers [l, L + new].

    >>> one = np.ones(1)
    >>> gains(np.array([[4.0]]), 4 * one, 4 * one, 2 * one, one, 2, 1, Matching()).round(3)
    array([[3.333, 0.614]])
    """
    one, first = how.sigma**-2, how.sigma0**-2
    own = one**2 * lengths[:, None]
    joined = (own + 2 * one * products + squares) / (one + precision) - squares / precision
    popular = np.minimum(np.minimum(counts, MOST_POPULAR), clients - 0.5)
    old = joined + how.kappa * np.log(popular / (clients - popular))
    rank = -2 * np.log(np.arange(1, new + 1)) + 2 * np.log(how.gamma / clients)
    return np.concatenate([old, own / (one + first) + rank], axis=1)


class _Table:
    """The running sums over the clients who sit at the table at the moment."""

    def __init__(self, neurons: Tensor, how: Matching) -> None:
        # On a GPU products of single numbers may be rounded to fewer digits.
        exact = neurons.dtype == torch.float32 and neurons.device.type == "cpu"
        self.layers = (neurons if exact else neurons.double()).unbind()
        self.how, self.most = how, int(how.growth * neurons.shape[1])
        self.g = self.layers[0].new_zeros((0, neurons.shape[2]), dtype=torch.float64)
        self.precision: Array = np.zeros(0)
        self.counts: Array = np.zeros(0, dtype=np.int64)
        self.assigned: list[Array] = [np.zeros(0, dtype=np.int64) for _ in self.layers]
        norms = (torch.linalg.vector_norm(v, dim=1, dtype=torch.float64) for v in self.layers)
        self.lengths: list[Array] = [_host(norm) ** 2 for norm in norms]

    def put(self, j: int) -> None:
        """Match client j to who is there and add it to the sums."""
        layer, old = self.layers[j], len(self.g)
        new = min(len(layer), self.most - old)
        # At an empty table every order is worth the same: keep the client's own.
        columns = np.arange(new)
        if old:
            products = _host(layer @ self.g.to(layer.dtype).T)
            squares = _host(torch.linalg.vector_norm(self.g, dim=1)) ** 2
            worth = gains(
                products,
                squares,
                self.lengths[j],
                self.precision,
                self.counts,
                len(self.layers),
                new,
                self.how,
            )
            columns = linear_sum_assignment(worth, maximize=True)[1]  # rows come in their order
        # Which new neuron is whose is worth the same in any order: it is the client's own, without gaps.
        fresh = columns >= old
        taken = int(fresh.sum())
        self.assigned[j] = np.where(fresh, old + np.cumsum(fresh) - 1, columns)
        self.g = torch.cat([self.g, self.g.new_zeros(taken, layer.shape[1])])
        self.precision = np.concatenate([self.precision, np.full(taken, self.how.sigma0**-2)])
        self.counts = np.concatenate([self.counts, np.zeros(taken, dtype=np.int64)])
        self._add(j, 1)

    def take(self, j: int) -> None:
        """Subtract client j; neurons it leaves without anybody are deleted and the others move up."""
        self._add(j, -1)
        self.assigned[j] = np.zeros(0, dtype=np.int64)
        kept = self.counts > 0
        if kept.all():
            return
        place = np.cumsum(kept) - 1
        self.g = self.g[torch.from_numpy(kept).to(self.g.device)]
        self.precision, self.counts = self.precision[kept], self.counts[kept]
        self.assigned = [place[a] for a in self.assigned]

    def _add(self, j: int, sign: int) -> None:
        where, one = self.assigned[j], self.how.sigma**-2  # no neuron of a client is there twice
        if np.array_equal(where, np.arange(len(self.g))):  # as most are: the same sum, no copies
            self.g.add_(self.layers[j], alpha=sign * one)
        else:
            place = torch.from_numpy(where).to(self.g.device)
            self.g.index_add_(0, place, self.layers[j].double(), alpha=sign * one)
        self.precision[where] += sign * one
        self.counts[where] += sign


def _host(values: Tensor) -> Array:
    on_host: Array = values.double().cpu().numpy()
    return on_host
