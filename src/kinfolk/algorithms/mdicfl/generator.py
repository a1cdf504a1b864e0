"""Conditional generators, MD-ICFL-2: a small network learns to make inputs that a model takes for a class.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
The network is that of Zhu, Hong, Zhou: Data-free knowledge distillation for heterogeneous federated learning.
ICML 2021, with rows in place of features:

    [noise, one-hot label] -> hidden, BatchNorm, ReLU -> row

One network for each model; all learn in one optimisation, every tensor with the models in front.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.errors import at_least
from kinfolk.learning.inputs import costs_of, minimise
from kinfolk.learning.learner import Learner
from kinfolk.streams import RoundContext
from kinfolk.types import Tree

# Not bias1: BatchNorm takes it away again. Its gradient is nothing but rounding, which Adam would scale up to
# steps like any other.
TRAINED = ("weight1", "scale", "shift", "weight2", "bias2")


@dataclass(frozen=True)
class Generator:
    """A conditional generator for each of K models."""

    iterations: int = 1000
    lr: float = 0.01
    batch: int = 100
    noise: int = 16  # numbers from N(0, 1) beside the label
    hidden: int = 0  # width; 0: 512 for images of three channels or more, 256 for anything else
    output: Literal["tanh", "none"] = "tanh"  # tanh where inputs lie in [-1, 1]; never of tokens
    warm: bool = False  # go on from the networks of the round before

    def __post_init__(self) -> None:
        for name, least in {"iterations": 0, "lr": 0, "batch": 2, "noise": 1, "hidden": 0}.items():
            at_least(f"algorithm.generator.{name}", getattr(self, name), least)

    def draw(
        self,
        wanted: PseudoRows,
        learner: Learner,
        models: Tree,
        shape: tuple[int, ...],
        context: RoundContext,
        kept: Tree,
    ) -> tuple[Tensor, Tree]:
        """Rows [K, classes * samples, *shape] of K models, class after class; and the networks to keep."""
        k, device = len(next(iter(models.values()))), next(iter(models.values())).device
        nets = kept or {n: t.to(device) for n, t in self.first(k, learner.outputs, shape, context).items()}
        nets = {n: t.clone() for n, t in nets.items()}
        self.train(wanted, nets, learner, models, shape, context)
        y = wanted.labels(learner.outputs).expand(k, -1)
        noise = _normal((len(y[0]), self.noise), k, context, "draw")
        with torch.no_grad():
            x = self.rows(nets, noise.to(device), y.to(device), learner.outputs, shape, training=False)
        return x, nets if self.warm else {}

    def first(self, k: int, classes: int, shape: tuple[int, ...], context: RoundContext) -> Tree:
        """Fresh networks, every leaf [K, ...], with the first weights that `torch.nn` would give layers."""
        inputs, hidden, out = self.noise + classes, self.width(shape), math.prod(shape)
        sizes = {"weight1": (hidden, inputs), "bias1": (hidden,), "weight2": (out, hidden), "bias2": (out,)}
        nets = {}
        for name, size in sizes.items():
            bound = 1 / math.sqrt(inputs if name.endswith("1") else hidden)
            draws = [
                torch.rand(size, generator=context.seed.torch("pseudo", context.round, j, name))
                for j in range(k)
            ]
            nets[name] = (2 * torch.stack(draws) - 1) * bound
        ones, zeros = torch.ones(k, hidden), torch.zeros(k, hidden)
        norm = {"scale": ones, "shift": zeros, "mean": zeros.clone(), "variance": ones.clone()}
        return nets | norm

    def width(self, shape: tuple[int, ...]) -> int:
        """The number of hidden units for rows of this shape."""
        return self.hidden or (512 if len(shape) == 3 and shape[0] >= 3 else 256)

    def rows(
        self, nets: Tree, noise: Tensor, y: Tensor, classes: int, shape: tuple[int, ...], training: bool
    ) -> Tensor:
        """Rows out of noise [K, rows, noise] and labels [K, rows]; in training BatchNorm's means follow."""
        asked = (y[..., None] == torch.arange(classes, device=y.device)).to(noise)
        z = torch.cat([noise, asked], -1)
        h = torch.baddbmm(nets["bias1"][:, None], z, nets["weight1"].transpose(1, 2))
        k, rows, width = h.shape
        mean, variance, scale, shift = (nets[n].view(-1) for n in ("mean", "variance", "scale", "shift"))
        h = h.transpose(0, 1).reshape(rows, k * width)
        h = F.batch_norm(h, mean, variance, scale, shift, training=training)
        h = h.relu().reshape(rows, k, width).transpose(0, 1)
        x = torch.baddbmm(nets["bias2"][:, None], h, nets["weight2"].transpose(1, 2))
        return (x.tanh() if self.output == "tanh" else x).reshape(k, rows, *shape)

    def train(
        self,
        wanted: PseudoRows,
        nets: Tree,
        learner: Learner,
        models: Tree,
        shape: tuple[int, ...],
        context: RoundContext,
    ) -> None:
        """Let the networks learn, in place: CE(h(model; x), y) + the pull, y drawn uniformly."""
        k, device = len(nets["scale"]), nets["scale"].device
        noise = _normal((self.iterations, self.batch, self.noise), k, context, "train").transpose(0, 1)
        labels = _uniform((self.iterations, self.batch), learner.outputs, k, context).transpose(0, 1)
        noise, labels = noise.to(device).contiguous(), labels.to(device).contiguous()
        costs = costs_of(learner, models, wanted.cost(learner), torch.zeros(k, 1, *shape, device=device))
        now = torch.zeros(1, dtype=torch.int64, device=device)

        def loss(leaves: list[Tensor]) -> Tensor:
            e, y = noise.index_select(0, now)[0], labels.index_select(0, now)[0]
            own = {**nets, **dict(zip(TRAINED, leaves, strict=True))}
            x = self.rows(own, e, y, learner.outputs, shape, training=True)
            # Models do not mix, so that the sum's gradient is each one's own.
            return costs(x, y).mean(1).sum()

        params, rest = [nets[n] for n in TRAINED], [nets["mean"], nets["variance"], now]
        minimise(loss, params, self.lr, self.iterations, after=lambda: now.add_(1), changed=rest)


def _normal(size: tuple[int, ...], k: int, context: RoundContext, use: str) -> Tensor:
    """Numbers from N(0, 1), [K, *size], each model's from a stream of its own."""
    draws = [
        torch.randn(size, generator=context.seed.torch("pseudo", context.round, j, use)) for j in range(k)
    ]
    return torch.stack(draws)


def _uniform(size: tuple[int, ...], classes: int, k: int, context: RoundContext) -> Tensor:
    """Labels, all equally likely, [K, *size]."""
    words = ("pseudo", context.round)
    streams = [context.seed.torch(*words, j, "labels") for j in range(k)]
    return torch.stack([torch.randint(classes, size, generator=stream) for stream in streams])
