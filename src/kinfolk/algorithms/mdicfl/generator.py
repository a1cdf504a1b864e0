"""Rows made out of a model alone: a small network learns to make inputs that the model takes for a class.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
Its MD-ICFL-2; the network is that of Zhu, Hong, Zhou: Data-free knowledge distillation for heterogeneous
federated learning. ICML 2021, with rows in place of features:

    [noise, label as one of C] -> hidden, BatchNorm, ReLU -> row

One network for each model; all learn in one optimisation, every tensor with the models in front.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from kinfolk.algorithms.mdicfl.back_search import Adam, Prior, batchable, labels, losses, repeat
from kinfolk.algorithms.mdicfl.input_gradient import rows_innermost
from kinfolk.learning.learner import Learner
from kinfolk.streams import RoundContext
from kinfolk.types import Tree

# Not bias1: BatchNorm takes it away again. Its gradient is nothing but rounding, which Adam would scale up to
# steps like any other.
TRAINED = ("weight1", "scale", "shift", "weight2", "bias2")


@dataclass(frozen=True)
class Generators:
    """A conditional generator for each of K models."""

    samples: int = 30  # M: rows for each class
    iterations: int = 1000
    lr: float = 0.01
    batch: int = 100
    noise: int = 16  # numbers from N(0, 1) beside the label
    hidden: int = 0  # width; 0: 512 for images of three channels or more, 256 for anything else
    output: Literal["tanh", "none"] = "tanh"  # tanh where inputs lie in [-1, 1]
    warm_start: bool = False  # go on from the networks of the round before
    diversity_weight: float = 0.0  # against rows of a class that are all alike
    # What BatchNorm goes by when rows are drawn: means "running" since training began, or of the "batch".
    statistics: Literal["running", "batch"] = "running"
    prior: Prior = field(default_factory=Prior)

    def draw(
        self, learner: Learner, models: Tree, shape: tuple[int, ...], turn: RoundContext, kept: Tree
    ) -> tuple[Tensor, Tree]:
        """Rows [K, classes * samples, *shape] of K models, class after class; and the networks to keep."""
        k, device = len(next(iter(models.values()))), next(iter(models.values())).device
        nets = kept or {n: t.to(device) for n, t in self.first(k, learner.outputs, shape, turn).items()}
        nets = {n: t.clone() for n, t in nets.items()}
        self.train(nets, learner, models, shape, turn)
        y = labels(learner.outputs, self.samples).expand(k, -1)
        noise = _normal((len(y[0]), self.noise), k, turn, "draw")
        drawn = {n: t.clone() for n, t in nets.items()}  # by the batch, running means would follow
        by_batch = self.statistics == "batch"
        with torch.no_grad():
            x = self.rows(drawn, noise.to(device), y.to(device), learner.outputs, shape, training=by_batch)
        return x, nets if self.warm_start else {}

    def first(self, k: int, classes: int, shape: tuple[int, ...], turn: RoundContext) -> Tree:
        """Fresh networks, every leaf [K, ...], with the first weights that `torch.nn` would give layers."""
        inputs, hidden, out = self.noise + classes, self.width(shape), math.prod(shape)
        sizes = {"weight1": (hidden, inputs), "bias1": (hidden,), "weight2": (out, hidden), "bias2": (out,)}
        nets = {}
        for name, size in sizes.items():
            bound = 1 / math.sqrt(inputs if name.endswith("1") else hidden)
            draws = [
                torch.rand(size, generator=turn.seed.torch("pseudo", turn.round, j, name)) for j in range(k)
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
        """What the networks make of noise [K, rows, noise] and labels [K, rows]; BatchNorm's means follow."""
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
        self, nets: Tree, learner: Learner, models: Tree, shape: tuple[int, ...], turn: RoundContext
    ) -> None:
        """Let the networks learn, in place: CE(h(model; x), y) + prior, y drawn evenly."""
        k, device = len(nets["scale"]), nets["scale"].device
        noise = _normal((self.iterations, self.batch, self.noise), k, turn, "train").transpose(0, 1)
        wanted = _even((self.iterations, self.batch), learner.outputs, k, turn).transpose(0, 1)
        noise, wanted = noise.to(device).contiguous(), wanted.to(device).contiguous()
        together = batchable(learner, models, torch.zeros(k, 1, *shape, device=device))
        adam = Adam([nets[n] for n in TRAINED], self.lr)
        now = torch.zeros(1, dtype=torch.int64, device=device)

        def step() -> None:
            e, y = noise.index_select(0, now)[0], wanted.index_select(0, now)[0]
            leaves = {n: nets[n].detach().requires_grad_() for n in TRAINED}
            with torch.enable_grad():
                x = self.rows({**nets, **leaves}, e, y, learner.outputs, shape, training=True)
                # Models do not mix, so that the sum's gradient is each one's own.
                total = losses(learner, models, x, y, self.prior, together).mean(1).sum()
                if self.diversity_weight:
                    total = total + self.diversity_weight * alikeness(x, e).sum()
            adam.step(torch.autograd.grad(total, list(leaves.values())))
            now.add_(1)

        with nullcontext() if device.type == "cuda" else rows_innermost():
            repeat(step, self.iterations, [*nets.values(), *adam.tensors, now])


def alikeness(x: Tensor, noise: Tensor) -> Tensor:
    """How alike rows x [K, rows, ...] are that were made of unlike noise [K, rows, noise]: [K], in (0, 1].

    exp(-mean over pairs of (mean |x_i - x_j|) (mean (e_i - e_j)^2)), as in Zhu et al. 2021.

    >>> alikeness(torch.ones(1, 3, 2), torch.eye(3)[None])
    tensor([1.])
    """
    flat = x.flatten(2)
    apart = torch.cdist(flat, flat, p=1) / flat.shape[-1]
    unlike = (noise[:, :, None] - noise[:, None]).square().mean(-1)
    return (-(apart * unlike).mean((1, 2))).exp()


def _normal(size: tuple[int, ...], k: int, turn: RoundContext, use: str) -> Tensor:
    """Numbers from N(0, 1), [K, *size], each model's from a stream of its own."""
    draws = [torch.randn(size, generator=turn.seed.torch("pseudo", turn.round, j, use)) for j in range(k)]
    return torch.stack(draws)


def _even(size: tuple[int, ...], classes: int, k: int, turn: RoundContext) -> Tensor:
    """Labels, all equally likely, [K, *size]."""
    words = ("pseudo", turn.round)
    streams = [turn.seed.torch(*words, j, "labels") for j in range(k)]
    return torch.stack([torch.randint(classes, size, generator=stream) for stream in streams])
