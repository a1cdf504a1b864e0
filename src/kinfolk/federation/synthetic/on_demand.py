"""Federations of synthetic rows: described at once, each client's rows made when they are asked for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kinfolk.federation.assemble import group_count
from kinfolk.federation.federation import Federation, Split, client_names
from kinfolk.federation.partition.holdout import Ints, held_count
from kinfolk.federation.soundness import check
from kinfolk.federation.spec import DataSpec
from kinfolk.federation.synthetic.tasks import SYNTHETIC, SyntheticTask
from kinfolk.streams import Seed


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
