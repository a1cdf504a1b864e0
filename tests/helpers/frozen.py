"""The contract's learners with a part of their network frozen."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from kinfolk.contract import toy
from kinfolk.learning.freezing import freeze
from kinfolk.learning.learner import Learner
from kinfolk.learning.lora import add_lora


def part_frozen(learner: Learner) -> Learner:
    """The first layer frozen, its BatchNorm too; adapters on the first matrix there is."""
    network = copy.deepcopy(learner.module)
    if any(isinstance(m, torch.nn.Conv2d) for m in network.modules()):
        norms = ["norm2.*"] if any(name.startswith("norm2.") for name in learner.names) else []
        freeze(network, ["conv2.*", *norms, "head.*"])
    else:
        freeze(network, ["head.*"])
        with toy.DATA.borrowed("adapters"):
            add_lora(network, rank=2, alpha=2, train=True)
    return replace(learner, module=network)
