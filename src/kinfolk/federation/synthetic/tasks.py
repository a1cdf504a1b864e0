"""Synthetic tasks: Gaussian classes in groups, linear regressions in groups, LEAF's synthetic data.

A new one is a class here and its line in `SYNTHETIC`. LEAF's is the recipe of Li et al., Federated
optimization in heterogeneous networks (2020), with alpha and beta as the variances of its formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from kinfolk.federation.assemble import describe
from kinfolk.federation.partition.draws import label_distribution
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

Floats = NDArray[np.float32]
# Draws that many rows (x, y) from a distribution that is fixed already.
Draw = Callable[[int], tuple[Tensor, Tensor]]


class SyntheticTask(Protocol):
    """A synthetic task. Its printed form tells all that its rows depend on."""

    line: ClassVar[str]  # what it is, in one line
    grouped: ClassVar[bool]  # whether its clients are in groups

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
        """How one client of this group draws rows; `rng` is the client's own."""

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """How a whole group draws rows, all labels as often as one another."""

    def describe(self) -> str:
        """The federation in one short line."""


@dataclass(frozen=True)
class Gaussians:
    """Rows about class means, and every group has its own means.

    Two means lie `separation` apart, on average of the squares; rows have deviation 1 in every feature.

    >>> task = Gaussians(DataSpec(features=3, classes=2), Seed(0))
    >>> x, y = task.group(0, Seed(0).numpy("test"))(4)
    >>> tuple(x.shape), y.tolist()
    ((4, 3), [0, 1, 0, 1])
    """

    spec: DataSpec
    seed: Seed
    line: ClassVar[str] = "synthetic: Gaussian classes, every group with its own means"
    grouped: ClassVar[bool] = True

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return self.spec.classes

    @cached_property
    def means(self) -> Floats:
        """[groups, classes, features]."""
        shape = (self.spec.classes, self.spec.features)
        return _points(self.spec, self.seed, "means", shape)

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """Labels by the client's own distribution, uniform if the partition is "iid"."""
        own = self.spec.partition == "dirichlet"
        shares = (
            label_distribution(self.classes, self.spec, rng)
            if own
            else np.full(self.classes, 1 / self.classes)
        )
        heights = np.cumsum(shares)[:-1]

        def draw(count: int) -> tuple[Tensor, Tensor]:
            return self._rows(group, np.searchsorted(heights, rng.random(count), side="right"), rng)

        return draw

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """All labels as often as one another."""
        return lambda count: self._rows(group, np.arange(count) % self.classes, rng)

    def describe(self) -> str:
        """As of rows from files."""
        return describe(self.spec)

    def _rows(self, group: int, y: NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        x = rng.standard_normal((len(y), self.spec.features), dtype=np.float32)
        x += self.means[group, y]
        return from_numpy(x), from_numpy(y)


@dataclass(frozen=True)
class Linear:
    """Rows x from a standard normal, y a weighted sum of x and noise; every group has its own weights.

    >>> task = Linear(DataSpec(features=3, noise=0.0), Seed(0))
    >>> x, y = task.client(1, Seed(0).numpy("test"))(4)
    >>> bool((x @ from_numpy(task.weights[1]) - y).abs().max() < 1e-6)
    True
    """

    spec: DataSpec
    seed: Seed
    line: ClassVar[str] = "synthetic: linear regression, every group with its own weights"
    grouped: ClassVar[bool] = True
    classes: ClassVar[int] = 0

    @cached_property
    def weights(self) -> Floats:
        """[groups, features]."""
        return _points(self.spec, self.seed, "weights", (self.spec.features,))

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """All clients of a group draw from one distribution."""

        def draw(count: int) -> tuple[Tensor, Tensor]:
            x = rng.standard_normal((count, self.spec.features), dtype=np.float32)
            off = np.float32(self.spec.noise) * rng.standard_normal(count, dtype=np.float32)
            return from_numpy(x), from_numpy(x @ self.weights[group] + off)

        return draw

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """As its clients do."""
        return self.client(group, rng)

    def describe(self) -> str:
        """With what sets groups apart."""
        groups = "one group" if self.spec.shift == "none" else f"{self.spec.groups} groups of weights"
        return f"linear, {groups}, {self.spec.test} test"


@dataclass(frozen=True)
class LeafSynthetic:
    """Every client has a softmax model and a distribution of rows of its own; there are no groups.

    As published, `leaf_alpha` adds one number to all weights of a client. That moves the scores of all
    classes alike, so labels do not depend on it; `leaf_beta` does change the rows.

    >>> x, y = LeafSynthetic(DataSpec(features=5), Seed(0)).client(0, Seed(0).numpy("test"))(7)
    >>> tuple(x.shape), bool(((y >= 0) & (y < 10)).all())
    ((7, 5), True)
    """

    spec: DataSpec
    seed: Seed
    line: ClassVar[str] = "synthetic: LEAF's synthetic(alpha, beta), every client with its own model"
    grouped: ClassVar[bool] = False

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
        """Nothing: clients have no rows in common."""
        raise NotImplementedError("there are no groups; `check_spec` allows local tests only")

    def describe(self) -> str:
        """With the two variances."""
        return f"leaf_synthetic({self.spec.leaf_alpha:g}, {self.spec.leaf_beta:g}), {self.spec.test} test"


SYNTHETIC: dict[str, type[Gaussians] | type[Linear] | type[LeafSynthetic]] = {
    "gaussians": Gaussians,
    "linear": Linear,
    "leaf_synthetic": LeafSynthetic,
}


def _points(spec: DataSpec, seed: Seed, word: str, shape: tuple[int, ...]) -> Floats:
    """Normal points, `separation` apart on average of the squares; a group's do not depend on the others'."""
    each = spec.separation / np.sqrt(2 * spec.features)
    count = 1 if spec.shift == "none" else spec.groups
    points = [seed.numpy("data", word, g).standard_normal(shape) for g in range(count)]
    laid: Floats = (each * np.stack(points)).astype(np.float32)
    return laid
