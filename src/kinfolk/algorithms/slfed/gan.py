"""A vanilla GAN that a client trains on its own rows, as objectives that an engine can run.

Goodfellow et al.: Generative Adversarial Nets. NeurIPS 2014. Fully connected layers; a generator of
100-128-256-512-1024-out and a discriminator of out-512-256-1.

All of it is in float64. Images are sent as bytes, and the byte of a pixel must not depend on the order in
which an engine adds numbers up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinfolk.errors import at_least
from kinfolk.learning.network import Prepare, call, plain
from kinfolk.learning.noise import normal, uniform
from kinfolk.learning.norm import RowBatchNorm
from kinfolk.learning.optim import Adam
from kinfolk.task import Batch, Carry, Fit, Objective, Plan, TrainStep
from kinfolk.types import Tree, plain_rows

# Of the carry: the networks, and the key of the client's noise.
PART, KEY = "work.gan", "key"
_LATENT, _BETAS = 100, (0.5, 0.999)
# What noise is used for.
_WEIGHTS, _GENERATOR, _DISCRIMINATOR, _IMAGES = range(4)
# Images are made so many at a time.
_TOGETHER = 128


@dataclass(frozen=True)
class Gan:
    """How large the networks are and how they are trained: `[algorithm.gan]`.

    >>> gan = Gan(width=0.125)
    >>> tree = gan.first(torch.tensor(7), 16)
    >>> gan.images(tree, torch.tensor(7), 5).shape
    torch.Size([5, 16])
    """

    width: float = 1.0  # factor on all hidden layers
    epochs: int = 10
    rows: int = 2000  # the most rows a GAN is shown; 0: all
    steps: int = 0  # > 0: that many steps instead of epochs (2000 rows, 10 epochs: 313)
    batch: int = 64
    lr: float = 2e-4

    def __post_init__(self) -> None:
        at_least("algorithm.gan.rows", self.rows, 0)

    def first(self, key: Tensor, pixels: int) -> Tree:
        """Networks before training: weights uniform in +-1/sqrt(inputs), from the client's key."""
        tree: Tree = {"step": torch.zeros_like(key)}
        for place, (path, layer) in enumerate(self._networks(pixels, True).named_modules()):
            if isinstance(layer, nn.Linear):
                spread = layer.in_features**-0.5
                for side, part in enumerate(("weight", "bias")):
                    shape = tuple(layer.get_parameter(part).shape)
                    drawn = uniform(key, shape, _WEIGHTS, 2 * place + side)
                    tree[f"{path}.{part}"] = (2 * drawn - 1) * spread
            elif isinstance(layer, RowBatchNorm):
                for part, leaf in layer.state_dict().items():
                    value = 1.0 if part in ("weight", "running_var") else 0.0
                    kind = torch.float64 if leaf.is_floating_point() else leaf.dtype
                    tree[f"{path}.{part}"] = torch.full(leaf.shape, value, dtype=kind, device=key.device)
        return tree

    def fit(self, low: float = -1.0, high: float = 1.0) -> Fit:
        """For each batch of rows in [low, high] the generator takes a step, then the discriminator."""
        names = [n for n, _ in self._networks(1, True).named_parameters()]
        adam = Adam(betas=_BETAS)

        def descent(objective: Objective, side: str) -> TrainStep:
            mine = tuple(n for n in names if n.startswith(side))
            return TrainStep(objective, adam, mine, self.lr, part=PART)

        def judge(model: Tree, batch: Batch, carry: Carry) -> Tensor:
            return self.discriminator_loss(model, batch, carry, low, high)

        plan = Plan(self.batch, self.epochs, self.steps, drop_single=True, rows=self.rows)
        both = (descent(self.generator_loss, "generator"), descent(judge, "discriminator"))
        return Fit(both, plan)

    def generator_loss(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """-log D(G(z)), averaged over the batch; counts the steps."""
        fake = self._fakes(model, batch, carry[KEY], _GENERATOR)
        model["step"].add_(1)
        return batch.mean(F.softplus(-self._judged(model, fake)))

    def discriminator_loss(self, model: Tree, batch: Batch, carry: Carry, low: float, high: float) -> Tensor:
        """The mean of -log D(x) and -log(1 - D(G(z)))."""
        fake = self._fakes(model, batch, carry[KEY], _DISCRIMINATOR).detach()
        real = to_unit(plain_rows(batch.x).flatten(1).double(), low, high)
        wrong = F.softplus(-self._judged(model, real)) + F.softplus(self._judged(model, fake))
        return batch.mean(wrong) / 2

    def images(self, model: Tree, key: Tensor, count: int) -> Tensor:
        """So many images [count, pixels] in [-1, 1] of the trained generator, by its running statistics."""
        z = normal(key, (count, _LATENT), _IMAGES)
        made = [self._call("generator", model, part, False) for part in torch.split(z, _TOGETHER)]
        return torch.cat(made)

    def _fakes(self, model: Tree, batch: Batch, key: Tensor, use: int) -> Tensor:
        z = normal(key, (len(batch.row), _LATENT), use, model["step"])
        return self._call("generator", model, z, True, batch.weight)

    def _judged(self, model: Tree, x: Tensor) -> Tensor:
        return self._call("discriminator", model, x, True).squeeze(1)

    def _call(
        self,
        side: Literal["generator", "discriminator"],
        model: Tree,
        x: Tensor,
        train: bool,
        weight: Tensor | None = None,
    ) -> Tensor:
        pixels = model["discriminator.0.weight"].shape[-1]
        network = self._networks(pixels, train).get_submodule(side)
        tree = {n.removeprefix(f"{side}."): t for n, t in model.items() if n.startswith(side)}
        return call(network, tree, x, weight)

    def _networks(self, pixels: int, train: bool) -> nn.Module:
        return _networks(pixels, self.width, train, self._prepare())

    def _prepare(self) -> Prepare:
        return plain

    def prepared(self, prepare: Prepare) -> Gan:
        """The same GAN, its networks prepared as those of a learner are."""
        return _Prepared(**{f.name: getattr(self, f.name) for f in fields(Gan)}, how=prepare)


@dataclass(frozen=True)
class _Prepared(Gan):
    how: Prepare = plain

    def _prepare(self) -> Prepare:
        return self.how


class _Blank(nn.Linear):
    """A layer that is not given first weights: they are the tree's, and to draw them is not allowed here."""

    def reset_parameters(self) -> None:
        """Leave everything as it is."""


def _dense(into: int, out: int) -> nn.Linear:
    layer: nn.Module = _Blank(into, out)
    layer.__class__ = nn.Linear
    assert isinstance(layer, nn.Linear)
    return layer


@lru_cache(maxsize=16)
def _networks(pixels: int, width: float, train: bool, prepare: Prepare) -> nn.Module:
    """Both networks, without numbers: they say what is done, the tree says with what."""
    g = [_LATENT, *(max(2, round(width * n)) for n in (128, 256, 512, 1024)), pixels]
    d = [pixels, *(max(2, round(width * n)) for n in (512, 256)), 1]
    with torch.device("meta"):
        making: list[nn.Module] = [_dense(g[0], g[1]), nn.LeakyReLU(0.2)]
        for a, b in pairwise(g[1:5]):
            making += [_dense(a, b), nn.BatchNorm1d(b), nn.LeakyReLU(0.2)]
        making += [_dense(g[4], g[5]), nn.Tanh()]
        judging: list[nn.Module] = [_dense(d[0], d[1]), nn.LeakyReLU(0.2)]
        judging += [_dense(d[1], d[2]), nn.LeakyReLU(0.2), _dense(d[2], d[3])]
        both = nn.ModuleDict({"generator": nn.Sequential(*making), "discriminator": nn.Sequential(*judging)})
    return prepare(both).train(train)


def to_unit(x: Tensor, low: float, high: float) -> Tensor:
    """Numbers of [low, high] in [-1, 1].

    >>> to_unit(torch.tensor([0.0, 1.0]), 0.0, 1.0)
    tensor([-1.,  1.])
    """
    return (x - low) * (2 / (high - low)) - 1


def to_bytes(x: Tensor) -> Tensor:
    """Numbers of [-1, 1] as bytes, the nearest one; what lies outside is cut.

    >>> to_bytes(torch.tensor([-1.0, 0.01, 3.0]))
    tensor([  0, 129, 255], dtype=torch.uint8)
    """
    return ((x + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def from_bytes(images: Tensor, low: float | Tensor, high: float | Tensor) -> Tensor:
    """Bytes as the numbers of [low, high] that a network is given, in float32.

    >>> from_bytes(torch.tensor([0, 255], dtype=torch.uint8), 0.0, 1.0)
    tensor([0., 1.])
    """
    return images.float() * ((high - low) / 255) + low
