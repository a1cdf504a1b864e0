"""Federations without files: synthetic tasks, described at once; a client's rows are made when asked for.

Gaussian classes in groups, linear regressions in groups, LEAF's synthetic data. A new one is a class here and
its line in `SYNTHETIC`. LEAF's is the recipe of Li et al., Federated optimization in heterogeneous networks
(2020), with alpha and beta as the variances of its formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from kinfolk.federation.assemble import describe, group_count
from kinfolk.federation.federation import Federation, Split, client_names
from kinfolk.federation.partition.draws import label_distribution
from kinfolk.federation.partition.holdout import Ints, held_count
from kinfolk.federation.soundness import check
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

Floats = NDArray[np.float32]
# Draws that many rows (x, y) from a distribution that is fixed already.
Draw = Callable[[int], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class SyntheticTask:
    """A synthetic task. Its printed form tells all that its rows depend on."""

    spec: DataSpec
    seed: Seed
    line: ClassVar[str]  # what it is, in one line
    grouped: ClassVar[bool] = True  # whether its clients are in groups

    @property
    def classes(self) -> int:
        """How many classes there are; 0: regression."""
        return self.spec.classes

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """How one client of this group draws rows; `rng` is the client's own."""
        raise NotImplementedError

    def group(self, group: int, rng: np.random.Generator) -> Draw:
        """How a whole group draws rows, all labels as often as one another."""
        return self.client(group, rng)

    def describe(self) -> str:
        """The federation in one short line."""
        return describe(self.spec)

    def points(self, word: str, *shape: int) -> Floats:
        """Normal points, `separation` apart on average of the squares; [groups, *shape].

        A group's do not depend on the others'.
        """
        each = self.spec.separation / np.sqrt(2 * self.spec.features)
        groups = range(group_count(self.spec))
        drawn = [self.seed.numpy("data", word, g).standard_normal(shape) for g in groups]
        laid: Floats = (each * np.stack(drawn)).astype(np.float32)
        return laid


@dataclass(frozen=True)
class Gaussians(SyntheticTask):
    """Rows about class means, and every group has its own means.

    Two means lie `separation` apart, on average of the squares; rows have deviation 1 in every feature.

    >>> task = Gaussians(DataSpec(features=3, classes=2), Seed(0))
    >>> x, y = task.group(0, Seed(0).numpy("test"))(4)
    >>> tuple(x.shape), y.tolist()
    ((4, 3), [0, 1, 0, 1])
    """

    line: ClassVar[str] = "synthetic: Gaussian classes, every group with its own means"

    @cached_property
    def means(self) -> Floats:
        """[groups, classes, features]."""
        return self.points("means", self.spec.classes, self.spec.features)

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

    def _rows(self, group: int, y: NDArray[np.int64], rng: np.random.Generator) -> tuple[Tensor, Tensor]:
        x = rng.standard_normal((len(y), self.spec.features), dtype=np.float32)
        x += self.means[group, y]
        return from_numpy(x), from_numpy(y)


@dataclass(frozen=True)
class Linear(SyntheticTask):
    """Rows x from a standard normal, y a weighted sum of x and noise; every group has its own weights.

    >>> task = Linear(DataSpec(features=3, noise=0.0), Seed(0))
    >>> x, y = task.client(1, Seed(0).numpy("test"))(4)
    >>> bool((x @ from_numpy(task.weights[1]) - y).abs().max() < 1e-6)
    True
    """

    line: ClassVar[str] = "synthetic: linear regression, every group with its own weights"

    @property
    def classes(self) -> int:
        """None: regression."""
        return 0

    @cached_property
    def weights(self) -> Floats:
        """[groups, features]."""
        return self.points("weights", self.spec.features)

    def client(self, group: int, rng: np.random.Generator) -> Draw:
        """All clients of a group draw from one distribution."""

        def draw(count: int) -> tuple[Tensor, Tensor]:
            x = rng.standard_normal((count, self.spec.features), dtype=np.float32)
            off = np.float32(self.spec.noise) * rng.standard_normal(count, dtype=np.float32)
            return from_numpy(x), from_numpy(x @ self.weights[group] + off)

        return draw

    def describe(self) -> str:
        """With what sets groups apart."""
        groups = "one group" if self.spec.shift == "none" else f"{self.spec.groups} groups of weights"
        return f"linear, {groups}, {self.spec.test} test"


@dataclass(frozen=True)
class LeafSynthetic(SyntheticTask):
    """Every client has a softmax model and a distribution of rows of its own; there are no groups.

    As published, `leaf_alpha` adds one number to all weights of a client. That moves the scores of all
    classes alike, so labels do not depend on it; `leaf_beta` does change the rows.

    >>> x, y = LeafSynthetic(DataSpec(features=5), Seed(0)).client(0, Seed(0).numpy("test"))(7)
    >>> tuple(x.shape), bool(((y >= 0) & (y < 10)).all())
    ((7, 5), True)
    """

    line: ClassVar[str] = "synthetic: LEAF's synthetic(alpha, beta), every client with its own model"
    grouped: ClassVar[bool] = False

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

    def describe(self) -> str:
        """With the two variances."""
        return f"leaf_synthetic({self.spec.leaf_alpha:g}, {self.spec.leaf_beta:g}), {self.spec.test} test"


SYNTHETIC: dict[str, type[SyntheticTask]] = {
    "gaussians": Gaussians,
    "linear": Linear,
    "leaf_synthetic": LeafSynthetic,
}


@dataclass(frozen=True)
class RowsOnDemand:
    """Makes the rows of client number i; what is not printed follows from what is.

    >>> made = RowsOnDemand(SYNTHETIC["gaussians"](DataSpec(clients=3, rows=5, features=2), Seed(0)))
    >>> {split: tuple(x.shape) for split, (x, y) in made(0).items()}
    {'train': (5, 2), 'valid': (0, 2), 'test': (10, 2)}
    """

    task: SyntheticTask

    @cached_property
    def sizes(self) -> Ints:
        """Rows to learn from, by client; log-normal with mean `rows` if `ragged`."""
        spec = self.task.spec
        if not spec.ragged:
            return np.full(spec.clients, spec.rows)
        z = self.task.seed.numpy("data", "size").standard_normal(spec.clients)
        factor = np.exp(spec.ragged * z - spec.ragged**2 / 2)
        drawn: Ints = np.maximum(1, np.rint(spec.rows * factor)).astype(np.int64)
        return drawn

    @cached_property
    def groups(self) -> Ints:
        """The known group of each client; sizes differ by one at most."""
        spec = self.task.spec
        numbers = np.arange(spec.clients) % group_count(spec)
        return self.task.seed.numpy("data", "group").permutation(numbers)

    @cached_property
    def held(self) -> Ints:
        """Rows of each client held out for validation."""
        counts, place = np.unique(self.sizes, return_inverse=True)
        return np.array([held_count(n, self.task.spec.valid) for n in counts.tolist()])[place]

    def tests(self, size: int) -> int:
        """Test rows of a client with `size` rows to learn from; of a whole group, by the mean of `rows`."""
        spec = self.task.spec
        if spec.test == "local":
            return spec.test_rows or max(1, round(spec.test_fraction * size))
        return spec.test_rows or max(1, self.task.classes, round(spec.test_fraction * spec.rows))

    def __call__(self, i: int) -> dict[str, tuple[Tensor, Tensor]]:
        """The rows of client number `i`."""
        size, group = int(self.sizes[i]), int(self.groups[i])
        draw = self.task.client(group, self.task.seed.numpy("data", "made", i))
        x, y = draw(size)
        kept = size - int(self.held[i])
        # Test rows come last, so that their number does not change what is learnt from.
        test = draw(self.tests(size)) if self.task.spec.test == "local" else self._shared(group)
        return {"train": (x[:kept], y[:kept]), "valid": (x[kept:], y[kept:]), "test": test}

    def _shared(self, group: int) -> tuple[Tensor, Tensor]:
        """The test rows of a group, or of all groups: the same for each of its clients."""
        spec, seed = self.task.spec, self.task.seed
        which = [group] if spec.test == "group" else range(group_count(spec))
        parts = [self.task.group(g, seed.numpy("data", "made test", g))(self.tests(0)) for g in which]
        return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def synthetic(spec: DataSpec, seed: Seed) -> Federation:
    """The synthetic federation of `spec`: no rows are there until somebody asks for a client's.

    >>> f = synthetic(DataSpec("gaussians", clients=1000, shift="source", test="local"), Seed(0))
    >>> len(f.x), int(f.splits["train"].counts().sum()), f.only(f.clients[7]).x.shape
    (0, 60000, torch.Size([75, 60]))
    """
    made = RowsOnDemand(SYNTHETIC[spec.name](spec, seed))
    tests = [made.tests(n) for n in range(int(made.sizes.max()) + 1)] if spec.test == "local" else []
    shared = made.tests(0) * (1 if spec.test == "group" else group_count(spec))
    federation = Federation(
        clients=tuple(client_names(spec.clients)),
        x=torch.zeros(0, spec.features),
        y=torch.zeros(0, dtype=torch.int64 if made.task.classes else torch.float32),
        splits={
            "train": _counted(made.sizes - made.held),
            "valid": _counted(made.held),
            "test": _counted(np.array(tests)[made.sizes] if tests else np.full(spec.clients, shared)),
        },
        classes=made.task.classes,
        truth=torch.from_numpy(made.groups) if made.task.grouped else None,
        name=made.task.describe(),
        maker=made,
    )
    check(federation.among(federation.clients[:1]))
    return federation


def _counted(counts: Ints) -> Split:
    """How many rows each client will have; which ones is not known yet."""
    start = torch.from_numpy(np.concatenate([[0], np.cumsum(counts)]))
    return Split(start, torch.zeros(0, dtype=torch.int64), torch.arange(len(counts)))
