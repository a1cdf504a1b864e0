"""Small learners, several models of one network, and a generator as an ordinary network."""

import math

import torch
from torch import nn

from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.streams import RoundContext, Seed

TURN = RoundContext(Seed(3), 2, ())


def seeded(make):
    with Seed(0).borrowed("init"):
        return make()


def learner_of(module, outputs=3):
    return Learner(module, find_loss("cross_entropy"), outputs)


def several(learner, k, spread=0.3):
    """K different models."""
    draw = torch.Generator().manual_seed(1)

    def one(t):
        if not t.is_floating_point():
            return t.expand(k, *t.shape).clone()
        return t + spread * t.abs().mean() * torch.randn(k, *t.shape, generator=draw)

    return {n: one(t).abs() if n.endswith("running_var") else one(t) for n, t in learner.first.items()}


def by_module(nets, k, shape):
    """One of the generators as an ordinary network."""
    hidden, inputs = nets["weight1"].shape[1:]
    out = math.prod(shape)
    net = nn.Sequential(
        nn.Linear(inputs, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, out), nn.Tanh()
    )
    names = {"0.weight": "weight1", "0.bias": "bias1", "1.weight": "scale", "1.bias": "shift"}
    names |= {"1.running_mean": "mean", "1.running_var": "variance", "3.weight": "weight2", "3.bias": "bias2"}
    net.load_state_dict({theirs: nets[ours][k] for theirs, ours in names.items()}, strict=False)
    return net
