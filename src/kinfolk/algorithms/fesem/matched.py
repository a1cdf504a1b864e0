"""Matched averaging of whole networks, layer by layer from the first up (FedMA, FeSEM-MA).

Wang et al.: Federated Learning with Matched Averaging. ICLR 2020. Long et al.: Multi-center federated
learning. World Wide Web 26, 2023.

A unit is the vector of its incoming weights and bias. What normalises it (BatchNorm) goes with it and takes
no part in the matching. A matched unit is the mean of the clients' units, not the MAP value that guides the
matching: the MAP shrinks towards the prior, and equal networks would not average to themselves.

Widths: with `growth = 1` (the default) the common layer has exactly the clients' width, every unit is matched
in every client, and the shapes of the model stay what they are. With more, up to 1.5, a layer may grow by
that factor; `cut_back` then gives everyone the same units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kinfolk.algorithms.fesem.chain import Chain, Layer
from kinfolk.algorithms.fesem.matching import Prior, match_layer
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed
from kinfolk.types import Tree

# Products of two clients' units that a CPU has taken before a GPU has answered; clients take turns, and each
# waits for an answer.
_SMALL = 1e8


# (one leaf of all clients, [clients, ...]) -> what stands for them, [...], in place of the mean
Middle = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Step:
    """One layer matched: what clients go on with."""

    models: Tree  # stack: the layer is the common one in every row, the next layer's inputs follow its order
    shared: Tree  # the leaves of the common layer
    assignment: Tensor  # [clients, own units]: the common unit of each


def match_next(
    models: Tree,
    chain: Chain,
    layer: int,
    seed: Seed,
    prior: Prior | None = None,
    sweeps: int = 8,
    growth: float = 1.0,
    weights: Tensor | None = None,
    middle: Middle | None = None,
) -> Step:
    """Match hidden layer number `layer` of a stack of models whose lower layers are common already.

    With a `middle`, which wants every unit in every client (`growth` = 1), units that were put together are
    given to it, in place of a mean by `weights`.

    For retraining between layers: give `step.models` to the clients, let them train `chain.after(layer)`,
    stack what they return and match the next layer; end with `common_model`.

    >>> from torch import nn
    >>> from kinfolk.algorithms.fesem.chain import chain_of
    >>> chain = chain_of(nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)))
    >>> stack = {"0.weight": torch.tensor([[[1.0], [5.0]], [[5.0], [1.0]]]), "0.bias": torch.zeros(2, 2),
    ...          "2.weight": torch.tensor([[[3.0, 4.0]], [[4.0, 3.0]]]), "2.bias": torch.zeros(2, 1)}
    >>> match_next(stack, chain, 0, Seed(0)).models["2.weight"].tolist()
    [[[3.0, 4.0]], [[3.0, 4.0]]]
    """
    if not 0 <= layer < len(chain.layers) - 1:
        raise KinfolkError("layer", layer, f"give 0 to {len(chain.layers) - 2}, the hidden layers")
    if not 1 <= growth <= 1.5:
        raise KinfolkError("growth", growth, "give 1 to 1.5, the factor by which a layer may widen")
    here, following = chain.layers[layer], chain.layers[layer + 1]
    number, units = models[here.weight].shape[:2]
    cap = int(growth * units)
    found = match_layer(_vectors(models, here), Seed(seed.number("layer", layer)), prior, sweeps, cap)
    assignment = torch.from_numpy(np.stack(found.assignments))
    width = len(found.counts)
    shares = _shares(models, here, weights)
    if middle and growth > 1:
        raise KinfolkError("growth", growth, "give 1 with a middle: new units are not had by everybody")
    shared = {
        name: _of_clients(_aligned(models[name], assignment), middle)
        if middle
        else _mean(models[name], assignment, width, shares)
        for name in here.leaves()
    }
    inputs = _reindexed(models[following.weight], assignment, width, following.block)
    common = {name: leaf.expand(number, *leaf.shape) for name, leaf in shared.items()}
    return Step({**models, **common, following.weight: inputs}, shared, assignment)


def cut_back(step: Step, chain: Chain, layer: int, width: int) -> Step:
    """A step whose layer grew, with the `width` units only that most clients have; in doubt the earlier ones.

    The assignment says -1 where a client's unit was cut off.

    >>> from torch import nn
    >>> from kinfolk.algorithms.fesem.chain import chain_of
    >>> chain = chain_of(nn.Sequential(nn.Linear(1, 3, bias=False), nn.Linear(3, 1, bias=False)))
    >>> stack = {"0.weight": torch.tensor([[[1.0], [2.0], [3.0]]] * 2), "1.weight": torch.ones(2, 1, 3)}
    >>> grown = Step(stack, {"0.weight": stack["0.weight"][0]}, torch.tensor([[0, 2], [1, 2]]))
    >>> small = cut_back(grown, chain, 0, 2)
    >>> small.shared["0.weight"].T, small.models["1.weight"].shape, small.assignment.tolist()
    (tensor([[1., 3.]]), torch.Size([2, 1, 2]), [[0, 1], [-1, 1]])
    """
    counts = step.assignment.flatten().bincount()
    if len(counts) <= width:
        return step
    kept = counts.sort(descending=True, stable=True).indices[:width].sort().values
    place = torch.full_like(counts, -1).scatter(0, kept, torch.arange(width))
    following = chain.layers[layer + 1]
    inputs, kept = step.models[following.weight], kept.to(step.models[following.weight].device)
    blocks = inputs.reshape(*inputs.shape[:2], len(counts), following.block, *inputs.shape[3:])
    shared = {name: leaf[kept] for name, leaf in step.shared.items()}
    common = {name: leaf.expand(len(inputs), *leaf.shape) for name, leaf in shared.items()}
    models = {**step.models, **common, following.weight: blocks[:, :, kept].flatten(2, 3)}
    return Step(models, shared, place[step.assignment])


def average_output(
    models: Tree, chain: Chain, class_counts: Tensor | None = None, weights: Tensor | None = None
) -> Tree:
    """The leaves of the output layer, once all hidden layers are common.

    With `class_counts` [clients, classes], each class is averaged by who has seen it: n_jc / sum_j n_jc, and
    evenly where nobody has. Else by `weights` [clients], or evenly.

    >>> from torch import nn
    >>> from kinfolk.algorithms.fesem.chain import chain_of
    >>> chain = chain_of(nn.Linear(1, 2, bias=False))
    >>> stack = {"weight": torch.tensor([[[0.0], [0.0]], [[4.0], [4.0]]])}
    >>> average_output(stack, chain, torch.tensor([[3, 0], [1, 0]]))["weight"].T
    tensor([[1., 2.]])
    """
    last = chain.layers[-1]
    number, classes = models[last.weight].shape[:2]
    shares = _shares(models, last, weights)[:, None].expand(number, classes)
    if class_counts is not None:
        if class_counts.shape != (number, classes):
            raise KinfolkError("class_counts", tuple(class_counts.shape), f"give [{number}, {classes}]")
        seen = class_counts.double().to(shares.device)
        total = seen.sum(0)
        shares = torch.where(total > 0, seen / total.clamp(min=1e-300), 1 / number)
    return {name: _weighted(models[name], shares) for name in last.leaves()}


def common_model(
    models: Tree,
    chain: Chain,
    class_counts: Tensor | None = None,
    weights: Tensor | None = None,
    middle: Middle | None = None,
) -> Tree:
    """The one model of a stack whose hidden layers are common already, in the order of its leaves.

    The output layer is that of `average_output`. Leaves outside the chain are averaged as they stand; of
    integers (counters of batches) the largest stays. With a `middle` it is taken of all these, and everybody
    counts alike.

    >>> from torch import nn
    >>> from kinfolk.algorithms.fesem.chain import chain_of
    >>> chain = chain_of(nn.Linear(1, 1))
    >>> weight = torch.tensor([[[1.0]], [[3.0]]])
    >>> common_model({"weight": weight, "bias": torch.zeros(2, 1), "n": torch.tensor([4, 9])}, chain)
    {'weight': tensor([[2.]]), 'bias': tensor([0.]), 'n': tensor(9)}
    """
    if middle:
        model = {name: _of_clients(models[name], middle) for name in chain.layers[-1].leaves()}
    else:
        model = average_output(models, chain, class_counts, weights)
    model |= {name: models[name][0] for layer in chain.layers[:-1] for name in layer.leaves()}
    shares = _shares(models, chain.layers[0], weights)
    for name in models.keys() - model.keys():
        leaf = models[name]
        if not leaf.is_floating_point():
            model[name] = leaf.amax(0)
        else:
            model[name] = _of_clients(leaf, middle) if middle else _weighted(leaf, shares)
    return {name: model[name] for name in models}


def _vectors(models: Tree, layer: Layer) -> list[Tensor]:
    """The vectors of a layer's units for each client: incoming weights, then the bias."""
    parts = [models[layer.weight].flatten(2)]
    if layer.bias:
        parts.append(models[layer.bias][:, :, None])
    vectors = torch.cat(parts, 2).detach()
    small = vectors[0].numel() * vectors.shape[1] < _SMALL
    return list(vectors.cpu() if small else vectors)


def _mean(leaf: Tensor, assignment: Tensor, width: int, shares: Tensor) -> Tensor:
    """The mean [width, ...] of the clients' units [clients, units, ...] that were put together."""
    total = torch.zeros(width, *leaf.shape[2:], dtype=torch.float64, device=leaf.device)
    mass = torch.zeros(width, dtype=torch.float64, device=leaf.device)
    for rows, place, share in zip(leaf, assignment.to(leaf.device), shares, strict=True):
        total[place] += share * rows.double()  # no unit of a client is there twice
        mass[place] += share
    return (total / mass.reshape(-1, *[1] * (leaf.dim() - 2))).to(leaf.dtype)


def _aligned(leaf: Tensor, assignment: Tensor) -> Tensor:
    """The clients' units [clients, units, ...] in the common order, if everybody has every unit."""
    client = torch.arange(len(leaf), device=leaf.device)[:, None]
    made = torch.empty_like(leaf)
    made[client, assignment.to(leaf.device)] = leaf
    return made


def _of_clients(leaf: Tensor, middle: Middle) -> Tensor:
    return middle(leaf.double()).to(leaf.dtype)


def _reindexed(weight: Tensor, assignment: Tensor, width: int, block: int) -> Tensor:
    """Inputs [clients, units, inputs, ...] in the order of the common layer below; 0 for units not had."""
    number, units = weight.shape[:2]
    blocks = weight.reshape(number, units, -1, block, *weight.shape[3:])
    made = weight.new_zeros(number, units, width, block, *weight.shape[3:])
    client = torch.arange(number, device=weight.device)[:, None]
    # Both indices in front: [clients, inputs, units, ...] on both sides.
    made.movedim(2, 1)[client, assignment.to(weight.device)] = blocks.movedim(2, 1)
    return made.flatten(2, 3)


def _shares(models: Tree, layer: Layer, weights: Tensor | None) -> Tensor:
    """One positive share for each client, summing to 1."""
    leaf = models[layer.weight]
    weights = torch.ones(len(leaf)) if weights is None else weights
    if weights.shape != (len(leaf),) or not bool((weights > 0).all()):
        raise KinfolkError("weights", weights.tolist(), f"give {len(leaf)} positive numbers, one per client")
    shares = weights.double().to(leaf.device)
    return shares / shares.sum()


def _weighted(leaf: Tensor, shares: Tensor) -> Tensor:
    """The mean over clients with shares [clients] or [clients, units]."""
    wide = shares.reshape(*shares.shape, *[1] * (leaf.dim() - shares.dim()))
    return (leaf.double() * wide).sum(0).to(leaf.dtype)
