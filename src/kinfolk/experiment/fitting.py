"""The network that a run begins with: weights of a file, what is frozen, adapters."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import ModelSpec
from kinfolk.learning.freezing import freeze
from kinfolk.learning.lora import add_lora
from kinfolk.learning.network import run
from kinfolk.learning.pretrained import fill, load_weights
from kinfolk.types import Rows, Tree


def fitted(network: nn.Module, spec: ModelSpec, rows: Rows, first: Tree | None = None) -> nn.Module:
    """The network as the `[model]` table wants it; the one that is given stays as it is.

    `first` is a whole network, as a run folder keeps it, and takes the place of weights from a file.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 3))
    >>> frozen = fitted(network, ModelSpec(train=("1.*",)), torch.zeros(1, 2))
    >>> [p.requires_grad for p in frozen.parameters()], network[0].weight.requires_grad
    ([False, False, True, True], True)
    """
    weights, lora = spec.weights if first is None else "", spec.lora
    if spec.fresh and not spec.weights:
        raise KinfolkError("model.fresh", list(spec.fresh), "is about a file of weights; set model.weights")
    if first is None and not (weights or spec.train or lora.rank):
        return network
    network = copy.deepcopy(network)
    if weights:
        load_weights(network, weights, spec.fresh)
    if spec.train:
        freeze(network, spec.train)
    if lora.rank:
        added = add_lora(network, lora.rank, lora.alpha, lora.layers, train=bool(spec.train))
        _check_called(network, added, rows, spec.output)
    if first is not None:
        fill(network, first)
    return network


def _check_called(network: nn.Module, layers: Sequence[str], rows: Rows, output: str) -> None:
    """Refuse adapters that would do nothing: a network may take a layer's matrix and not call the layer."""
    called: set[str] = set()
    hooks = [
        network.get_submodule(path).register_forward_pre_hook(lambda _, __, path=path: called.add(path))
        for path in layers
    ]
    with torch.no_grad():
        run(network.eval(), rows, output)
        network.train()
    for hook in hooks:
        hook.remove()
    for path in layers:
        if path not in called:
            remedy = "the network does not call this layer, so an adapter would do nothing; name other layers"
            raise KinfolkError("model.lora.layers", path, remedy)
