"""Laws that made-up rows follow: Gaussian groups, linear regressions in groups, LEAF's synthetic data.

The last is the recipe of Li et al., Federated optimization in heterogeneous networks (2020), with
alpha and beta as the variances of the paper's formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from kinfolk.federation.draws import spec_law
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

Floats = NDArray[np.float32]
# Draws that many rows (x, y) from a law that is fixed already.
Draw = Callable[[int], tuple[Tensor, Tensor]]


class World(Protocol):
    """A made-up world. Its printed form tells all that its rows depend on."""

    @property
    def spec(self) -> DataSpec:
        """The table it was made from."""

    @property
    def seed(self) -> Seed:
        """What it draws from."""

    @property
    def classes(self) -> int:
        """How many classes there are; 0: regression."""

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """The law of one client of this group; `rng` is the client's own."""

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """The law of a whole group, all labels as often as one another."""


@dataclass(frozen=True)
class Gaussians:
    """Rows about class means, and every group has its own means.

    Two means lie `separation` apart, on average of the squares; rows have deviation 1 in every feature.

    >>> world = Gaussians(DataSpec(features=3, classes=2), Seed(0))
    >>> x, y = world.group(0, Seed(0).numpy("test"))(4)
    >>> tuple(x.shape), y.tolist()
    ((4, 3), [0, 1, 0, 1])
    """

    spec: DataSpec
    seed: Seed

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.spec.classes

    @cached_property
    def means(self) -> Floats:
        """[groups, classes, features]."""
        shape = (self.spec.classes, self.spec.features)
        return _apart(self.spec, self.seed, "means", shape)

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """Labels by the client's own law, uniform if the partition is "iid"."""
        dealt = self.spec.partition == "dirichlet"
        law = spec_law(self.classes, self.spec, rng) if dealt else np.full(self.classes, 1 / self.classes)
        heights = np.cumsum(law)[:-1]

        def draw(count: int) -> tuple[Tensor, Tensor]:
            return self._rows(group, np.searchsorted(heights, rng.random(count), side="right"), rng)

        return draw

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """All labels as often as one another."""
        return lambda count: self._rows(group, np.arange(count) % self.classes, rng)

    def _rows(self, group: int, y: NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        x = rng.standard_normal((len(y), self.spec.features), dtype=np.float32)
        x += self.means[group, y]
        return from_numpy(x), from_numpy(y)


@dataclass(frozen=True)
class Linear:
    """Rows x from a standard normal law, y a weighted sum of x and noise; every group has its own weights.

    >>> world = Linear(DataSpec(features=3, noise=0.0), Seed(0))
    >>> x, y = world.client(1, Seed(0).numpy("test"))(4)
    >>> bool((x @ from_numpy(world.weights[1]) - y).abs().max() < 1e-6)
    True
    """

    spec: DataSpec
    seed: Seed
    classes: int = 0

    @cached_property
    def weights(self) -> Floats:
        """[groups, features]."""
        return _apart(self.spec, self.seed, "weights", (self.spec.features,))

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """All clients of a group have one law."""

        def draw(count: int) -> tuple[Tensor, Tensor]:
            x = rng.standard_normal((count, self.spec.features), dtype=np.float32)
            off = np.float32(self.spec.noise) * rng.standard_normal(count, dtype=np.float32)
            return from_numpy(x), from_numpy(x @ self.weights[group] + off)

        return draw

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """The law of its clients."""
        return self.client(group, rng)


@dataclass(frozen=True)
class LeafSynthetic:
    """Every client has a softmax model and a law of rows of its own; there are no groups.

    As published, `leaf_alpha` adds one number to all weights of a client. That moves the scores of all
    classes alike, so labels do not depend on it; `leaf_beta` does change the rows.

    >>> x, y = LeafSynthetic(DataSpec(features=5), Seed(0)).client(0, Seed(0).numpy("test"))(7)
    >>> tuple(x.shape), bool(((y >= 0) & (y < 10)).all())
    ((7, 5), True)
    """

    spec: DataSpec
    seed: Seed

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.spec.classes

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """The most likely class of each row by the client's own model."""
        weight, bias, centre = self.model(rng)
        spread = (np.arange(1, len(centre) + 1) ** -0.6).astype(np.float32)  # variance j ** -1.2

        def draw(count: int) -> tuple[Tensor, Tensor]:
            x = centre + spread * rng.standard_normal((count, len(centre)), dtype=np.float32)
            return from_numpy(x), from_numpy((x @ weight + bias).argmax(1))

        return draw

    def model(self, rng: np.random.Generator) -> tuple[Floats, Floats, Floats]:
        """(W, b, centre of x): W and b about one number of the client, the centre about another."""
        d, c = self.spec.features, self.classes
        of_model = np.sqrt(self.spec.leaf_alpha) * rng.standard_normal()
        of_rows = np.sqrt(self.spec.leaf_beta) * rng.standard_normal()
        weight = (of_model + rng.standard_normal((d, c))).astype(np.float32)
        bias = (of_model + rng.standard_normal(c)).astype(np.float32)
        return weight, bias, (of_rows + rng.standard_normal(d)).astype(np.float32)

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """Nothing: clients have no law in common."""
        raise NotImplementedError("there are no groups; `check_spec` allows local tests only")


def _apart(spec: DataSpec, seed: Seed, word: str, shape: tuple[int, ...]) -> Floats:
    """Normal points, `separation` apart on average of the squares; a group's do not depend on the others'."""
    each = spec.separation / np.sqrt(2 * spec.features)
    count = 1 if spec.shift == "none" else spec.groups
    points = [seed.numpy("data", word, g).standard_normal(shape) for g in range(count)]
    laid: Floats = (each * np.stack(points)).astype(np.float32)
    return laid
