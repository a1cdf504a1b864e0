"""Which neuron of one network is which of another: a layer matched under an Indian-buffet prior.

Yurochkin et al.: Bayesian Nonparametric Federated Learning of Neural Networks (PFNM). ICML 2019.
Wang et al.: Federated Learning with Matched Averaging (FedMA). ICLR 2020.

Global neurons are drawn from N(mu0, sigma0^2), a client's neuron from N(its global neuron, sigma^2). With
running sums g and G and the number n of clients of each global neuron, the best assignment of one
client's neurons, given all others, is a linear assignment problem; clients take turns.
"""

from __future__ import annotations

from collections.abc import Sequence
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
class Prior:
    """The Gaussian and buffet parameters; the values of FeSEM's runs (FedMA has gamma = 7)."""

    sigma: float = 1.0  # of a client's neuron around its global neuron
    sigma0: float = 1.0  # of global neurons around mu0
    gamma: float = 1.0  # mass of the buffet: how readily new neurons appear
    mu0: float = 0.0
    kappa: float = 2.0  # weight of popularity: 2 by the derivation, 1 in the code of PFNM

    def __post_init__(self) -> None:
        for name in ("sigma", "sigma0", "gamma"):
            if not getattr(self, name) > 0:
                raise KinfolkError(f"prior.{name}", getattr(self, name), "give a number above 0")


@dataclass(frozen=True)
class Matched:
    """A layer's matching. `neurons` are MAP values: they are drawn towards mu0."""

    assignments: list[Array]  # by client, [L_j]: the global neuron of each of its neurons
    neurons: Array  # [L, D]: g / G
    counts: Array  # [L]: clients that have the neuron
    sums: tuple[Array, Array]  # g [L, D], G [L]


def match_layer(
    neurons: Sequence[Array | Tensor],
    seed: Seed,
    prior: Prior | None = None,
    sweeps: int = 8,
    cap: int | None = None,
) -> Matched:
    """Match the neurons [L_j, D] of several clients to at most `cap` global ones (default: the widest L_j).

    The widest client seeds the global layer, the others are matched in falling order of width; then in
    each sweep every client, in random order, is taken out (a neuron nobody else has goes with it) and
    matched again. Sweeps end early when one changes nothing, since no later one could. Products are taken
    where tensors lie and, on a CPU, in their own type; sums are double.

    >>> a = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> [m.tolist() for m in match_layer([a, a[::-1]], Seed(0)).assignments]
    [[0, 1], [1, 0]]
    """
    prior, layers = prior or Prior(), [_held(v) for v in neurons]
    cap = _check(layers, sweeps, cap)
    order = sorted(range(len(layers)), key=lambda j: -len(layers[j]))
    table = _Table(layers, prior, cap)
    for j in order:
        table.put(j)
    draw = seed.numpy("matching")
    for _ in range(sweeps if len(layers) > 1 else 0):
        before = [a.tolist() for a in table.assigned]
        for j in draw.permutation(len(layers)):
            table.take(int(j))
            table.put(int(j))
        if before == [a.tolist() for a in table.assigned]:
            break
    g = table.g.cpu().numpy()
    return Matched(table.assigned, g / table.precision[:, None], table.counts, (g, table.precision))


def gains(
    neurons: Array, g: Array, precision: Array, counts: Array, clients: int, new: int, prior: Prior
) -> Array:
    """The gain of matching each neuron [l, D] to each of the L global ones and to each of `new` new ones.

    `precision` is G, the same for all entries of a neuron, [L]. Answers [l, L + new].

    >>> gains(np.array([[2.0]]), np.array([[2.0]]), np.array([2.0]), np.array([1]), 2, 1, Prior()).round(3)
    array([[3.333, 0.614]])
    """
    known = _Known(neurons @ g.T, (g**2).sum(1), (neurons**2).sum(1), neurons.sum(1), neurons.shape[1])
    return _gains(known, precision, counts, clients, new, prior)


@dataclass(frozen=True)
class _Known:
    """All that gains need of the vectors themselves."""

    products: Array  # [l, L]: v . g
    squares: Array  # [L]: |g|^2
    lengths: Array  # [l]: |v|^2
    totals: Array  # [l]: the sum of the entries of v
    entries: int  # D


def _gains(v: _Known, precision: Array, counts: Array, clients: int, new: int, prior: Prior) -> Array:
    one, first = prior.sigma**-2, prior.sigma0**-2
    lengths = one**2 * v.lengths[:, None]
    joined = (lengths + 2 * one * v.products + v.squares) / (one + precision) - v.squares / precision
    popular = np.minimum(np.minimum(counts, MOST_POPULAR), clients - 0.5)
    old = joined + prior.kappa * np.log(popular / (clients - popular))
    start = prior.mu0 * first
    moved = lengths + 2 * one * start * v.totals[:, None] + v.entries * start**2  # |v / sigma^2 + start|^2
    fresh = moved / (one + first) - v.entries * start**2 / first
    rank = -2 * np.log(np.arange(1, new + 1)) + 2 * np.log(prior.gamma / clients)
    return np.concatenate([old, fresh + rank], axis=1)


class _Table:
    """The running sums over the clients who sit at the table at the moment."""

    def __init__(self, layers: list[Tensor], prior: Prior, cap: int) -> None:
        self.layers, self.prior, self.cap = layers, prior, cap
        self.g = layers[0].new_zeros((0, layers[0].shape[1]), dtype=torch.float64)
        self.precision: Array = np.zeros(0)
        self.counts: Array = np.zeros(0, dtype=np.int64)
        self.assigned: list[Array] = [np.zeros(0, dtype=np.int64) for _ in layers]
        norms = (torch.linalg.vector_norm(v, dim=1, dtype=torch.float64) for v in layers)
        self.lengths: list[Array] = [_host(norm) ** 2 for norm in norms]
        self.totals: list[Array] = [_host(v.sum(1, dtype=torch.float64)) for v in layers]

    def put(self, j: int) -> None:
        """Match client j to who is there and add it to the sums."""
        layer, prior, old = self.layers[j], self.prior, len(self.g)
        new = max(min(len(layer), self.cap - old), len(layer) - old)
        # At an empty table every order is worth the same: keep the client's own.
        rows, columns = (np.arange(new),) * 2
        if old:
            products = _host(layer @ self.g.to(layer.dtype).T)
            squares = _host(torch.linalg.vector_norm(self.g, dim=1)) ** 2
            known = _Known(products, squares, self.lengths[j], self.totals[j], layer.shape[1])
            worth = _gains(known, self.precision, self.counts, len(self.layers), new, prior)
            rows, columns = linear_sum_assignment(worth, maximize=True)
        columns = columns[np.argsort(rows)]
        # Which new neuron is whose is worth the same in any order: it is the client's own, without gaps.
        fresh = columns >= old
        taken = int(fresh.sum())
        self.assigned[j] = np.where(fresh, old + np.cumsum(fresh) - 1, columns)
        if taken:
            blank = self.g.new_full((taken, layer.shape[1]), prior.mu0 * prior.sigma0**-2)
            self.g = torch.cat([self.g, blank])
            self.precision = np.concatenate([self.precision, np.full(taken, prior.sigma0**-2)])
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
        where, one = self.assigned[j], self.prior.sigma**-2  # no neuron of a client is there twice
        if np.array_equal(where, np.arange(len(self.g))):  # as most are: the same sum, no copies
            self.g.add_(self.layers[j], alpha=sign * one)
        else:
            place = torch.from_numpy(where).to(self.g.device)
            self.g.index_add_(0, place, self.layers[j].double(), alpha=sign * one)
        self.precision[where] += sign * one
        self.counts[where] += sign


def _held(neurons: Array | Tensor) -> Tensor:
    """Neurons in the type that products are taken in: on a GPU single ones may be rounded to fewer digits."""
    held = neurons if isinstance(neurons, Tensor) else torch.from_numpy(np.ascontiguousarray(neurons))
    return held if held.dtype == torch.float32 and held.device.type == "cpu" else held.double()


def _host(values: Tensor) -> Array:
    on_host: Array = values.double().cpu().numpy()
    return on_host


def _check(layers: list[Tensor], sweeps: int, cap: int | None) -> int:
    at_least("sweeps", sweeps, 0)
    if not layers or any(v.dim() != 2 or v.shape[1:] != layers[0].shape[1:] or not len(v) for v in layers):
        shapes = [tuple(v.shape) for v in layers]
        raise KinfolkError("neurons", shapes, "give [L_j, D] with one D for each client")
    # A largest and a smallest entry: NaN comes through both, and no copy as large as the layer is made.
    if not all(bool(torch.stack(v.aminmax()).isfinite().all()) for v in layers):
        raise KinfolkError("neurons", None, "they hold NaN or infinity; leave those clients out")
    widest = max(len(v) for v in layers)
    if cap is not None and cap < widest:
        raise KinfolkError("cap", cap, f"give {widest} or more, the width of the widest client")
    return widest if cap is None else cap
