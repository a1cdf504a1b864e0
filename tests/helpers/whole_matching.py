"""FedMA on the server alone: all layers matched in turn, and a common model cut back to one client."""

from itertools import pairwise
from typing import NamedTuple

import torch

from kinfolk.algorithms.fesem.chain import Chain, chain_of
from kinfolk.algorithms.fesem.matched import common_model, match_next
from kinfolk.algorithms.fesem.matching import Matching


class Average(NamedTuple):
    """A matched average and who went where: by hidden layer, [clients, own units]."""

    model: dict[str, torch.Tensor]
    assignments: tuple[torch.Tensor, ...]


def matched_average(models, network, seed, growth=1.0, class_counts=None):
    """The matched average of a stack of models (every leaf [clients, ...])."""
    chain = network if isinstance(network, Chain) else chain_of(network)
    assignments, here = [], models
    for layer in range(len(chain.layers) - 1):
        here, assignment = match_next(here, chain, layer, seed, Matching(growth=growth))
        assignments.append(assignment)
    return Average(common_model(here, chain, class_counts), tuple(assignments))


def restore_width(model, chain, own):
    """A common model cut back to the units of one client, whose row of each assignment `own` holds."""
    model = dict(model)
    for place, (here, following) in zip(own, pairwise(chain.layers), strict=True):
        for name in here.leaves():
            model[name] = model[name][place]
        inputs = model[following.weight]
        blocks = inputs.reshape(len(inputs), -1, following.block, *inputs.shape[2:])
        model[following.weight] = blocks[:, place].flatten(1, 2)
    return model
