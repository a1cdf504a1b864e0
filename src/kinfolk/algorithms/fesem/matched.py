"""Matched averaging of whole networks, layer by layer from the first up (FedMA, FeSEM-MA).

Wang et al.: Federated Learning with Matched Averaging. ICLR 2020. Long et al.: Multi-center federated
learning. World Wide Web 26, 2023.

A unit is the vector of its incoming weights and bias. What normalises it (BatchNorm) goes with it and takes
no part in the matching. A matched unit is the mean of the clients' units, not the MAP value that guides the
matching: the MAP shrinks towards the prior, and equal networks would not average to themselves.

The common layer has exactly the clients' width, so that the shapes of the model stay what they are. With
`growth = 1` (the default) every unit is matched in every client. With more, up to 1.5, a layer may widen by
that factor while it is matched; then only the units stay that most clients have.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kinfolk.algorithms.fesem.chain import Chain, Layer
from kinfolk.algorithms.fesem.matching import Matching, match_layer
from kinfolk.streams import Seed
from kinfolk.types import Tree

# Products of two clients' units that a CPU has taken before a GPU has answered; clients take turns, and each
# waits for an answer.
_SMALL = 1e8

# (one leaf of all clients, [clients, ...]) -> what stands for them, [...], in place of the mean
Middle = Callable[[Tensor], Tensor]


def match_next(
    models: Tree, chain: Chain, layer: int, seed: Seed, how: Matching, middle: Middle | None = None
) -> tuple[Tree, Tensor]:
    """Match hidden layer number `layer` of a stack of models whose lower layers are common already.

    Gives the stack, in which the layer is the common one in every row and the inputs of the next layer follow
    its order; and the common unit of each unit, [clients, units], -1 where it was cut off. With a `middle`,
    which needs every unit in every client (`growth` = 1), units that were put together are given to it.

    For retraining between layers: let clients train `chain.after(layer)` of these models, stack what they
    return and match the next layer; end with `common_model`.

    >>> from torch import nn
    >>> from kinfolk.algorithms.fesem.chain import chain_of
    >>> chain = chain_of(nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)))
    >>> stack = {"0.weight": torch.tensor([[[1.0], [5.0]], [[5.0], [1.0]]]), "0.bias": torch.zeros(2, 2),
    ...          "2.weight": torch.tensor([[[3.0, 4.0]], [[4.0, 3.0]]]), "2.bias": torch.zeros(2, 1)}
    >>> match_next(stack, chain, 0, Seed(0), Matching())[0]["2.weight"].tolist()
    [[[3.0, 4.0]], [[3.0, 4.0]]]
    """
    here, following = chain.layers[layer], chain.layers[layer + 1]
    number, units = models[here.weight].shape[:2]
    found = match_layer(units_of(models, here), Seed(seed.number("layer", layer)), how)
    counts = found.flatten().bincount()
    # The units that most clients have; in doubt the earlier ones.
    kept = counts.sort(descending=True, stable=True).indices[:units].sort().values
    common = {}
    for name in here.leaves():
        leaf = models[name]
        made = _middle_of(_aligned(leaf, found), middle) if middle else _mean(leaf, found, len(counts))
        common[name] = made[kept.to(leaf.device)].expand(number, *made[:units].shape)
    inputs = _reindexed(models[following.weight], found, len(counts), following.block)
    inputs = inputs[:, :, kept.to(inputs.device)].flatten(2, 3)
    place = torch.full_like(counts, -1).scatter(0, kept, torch.arange(units))
    return {**models, **common, following.weight: inputs}, place[found]


def common_model(
    models: Tree, chain: Chain, class_counts: Tensor | None = None, middle: Middle | None = None
) -> Tree:
    """The one model of a stack whose hidden layers are common already, in the order of its leaves.

    With `class_counts` [clients, classes], each class of the output layer is averaged by who has seen it:
    n_jc / sum_j n_jc, and evenly where nobody has. All else is averaged evenly; of integers (counters of
    batches) the largest stays. With a `middle` that is taken instead, and everybody counts alike.

    >>> from torch import nn
    >>> from kinfolk.algorithms.fesem.chain import chain_of
    >>> chain = chain_of(nn.Linear(1, 2, bias=False))
    >>> stack = {"weight": torch.tensor([[[0.0], [0.0]], [[4.0], [4.0]]]), "n": torch.tensor([4, 9])}
    >>> common_model(stack, chain, torch.tensor([[3, 0], [1, 0]]))
    {'weight': tensor([[1.],
            [2.]]), 'n': tensor(9)}
    """
    last, hidden = chain.layers[-1], {name for layer in chain.layers[:-1] for name in layer.leaves()}
    device, number = models[last.weight].device, len(models[last.weight])
    even = torch.full((number,), 1 / number, dtype=torch.float64, device=device)
    by_class = even
    if class_counts is not None:
        seen = class_counts.double().to(device)
        total = seen.sum(0)
        by_class = torch.where(total > 0, seen / total.clamp(min=1e-300), 1 / number)

    def one(name: str, leaf: Tensor) -> Tensor:
        if name in hidden:
            return leaf[0]
        if not leaf.is_floating_point():
            return leaf.amax(0)
        if middle:
            return _middle_of(leaf, middle)
        shares = by_class if name in last.leaves() else even
        wide = shares.reshape(*shares.shape, *[1] * (leaf.dim() - shares.dim()))
        return (leaf.double() * wide).sum(0).to(leaf.dtype)

    return {name: one(name, leaf) for name, leaf in models.items()}


def units_of(models: Tree, layer: Layer) -> Tensor:
    """The vectors of a layer's units, [clients, units, D]: incoming weights, then the bias."""
    parts = [models[layer.weight].flatten(2)]
    if layer.bias:
        parts.append(models[layer.bias][:, :, None])
    vectors = torch.cat(parts, 2).detach()
    small = vectors[0].numel() * vectors.shape[1] < _SMALL
    return vectors.cpu() if small else vectors


def _mean(leaf: Tensor, assignment: Tensor, width: int) -> Tensor:
    """The mean [width, ...] of the clients' units [clients, units, ...] that were put together."""
    total = torch.zeros(width, *leaf.shape[2:], dtype=torch.float64, device=leaf.device)
    mass, share = torch.zeros(width, dtype=torch.float64, device=leaf.device), 1 / len(leaf)
    for rows, place in zip(leaf, assignment.to(leaf.device), strict=True):
        total[place] += share * rows.double()  # no unit of a client is there twice
        mass[place] += share
    return (total / mass.reshape(-1, *[1] * (leaf.dim() - 2))).to(leaf.dtype)


def _aligned(leaf: Tensor, assignment: Tensor) -> Tensor:
    """The clients' units [clients, units, ...] in the common order, if everybody has every unit."""
    client = torch.arange(len(leaf), device=leaf.device)[:, None]
    made = torch.empty_like(leaf)
    made[client, assignment.to(leaf.device)] = leaf
    return made


def _middle_of(leaf: Tensor, middle: Middle) -> Tensor:
    return middle(leaf.double()).to(leaf.dtype)


def _reindexed(weight: Tensor, assignment: Tensor, width: int, block: int) -> Tensor:
    """Inputs [clients, units, inputs, ...] in the order of the common layer below, a block for each of its
    units, [clients, units, width, block, ...]; 0 for units not had."""
    number, units = weight.shape[:2]
    blocks = weight.reshape(number, units, -1, block, *weight.shape[3:])
    made = weight.new_zeros(number, units, width, block, *weight.shape[3:])
    client = torch.arange(number, device=weight.device)[:, None]
    # Both indices in front: [clients, inputs, units, ...] on both sides.
    made.movedim(2, 1)[client, assignment.to(weight.device)] = blocks.movedim(2, 1)
    return made
