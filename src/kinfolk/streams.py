"""Named random streams: every draw follows from (run seed, purpose, round, client), none from a global one.

A client derives its own numbers from its own name, so the order in which clients are visited, the
engine that visits them and the draws of everybody else cannot change what it sees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Generator
from torch import device as Device

from kinfolk.types import Client


@dataclass(frozen=True)
class Seed:
    """A run's seed, from which every named stream follows.

    >>> a, b = Seed(1).numpy("batch", 0, "ann"), Seed(1).numpy("batch", 0, "ann")
    >>> bool(a.integers(10**9) == b.integers(10**9))
    True
    >>> Seed(1).number("batch", 0, "ann") == Seed(1).number("batch", 0, "bob")
    False
    """

    run: int

    def _sequence(self, words: tuple[str | int, ...]) -> np.random.SeedSequence:
        # A digest of fixed length: NumPy's own pool forgets where one word ends and the next begins, and
        # Python's hash changes from process to process.
        named = json.dumps([int(self.run), *(w if isinstance(w, str) else int(w) for w in words)])
        digest = hashlib.blake2b(named.encode(), digest_size=32).digest()
        return np.random.SeedSequence(np.frombuffer(digest, dtype="<u4").astype(np.uint32))

    def numpy(self, *words: str | int) -> np.random.Generator:
        """A NumPy generator of its own for this purpose."""
        return np.random.Generator(np.random.PCG64(self._sequence(words)))

    def number(self, *words: str | int) -> int:
        """One 63-bit number for this purpose, for libraries that take an integer seed."""
        return int(self._sequence(words).generate_state(1, np.uint64)[0] >> 1)

    def torch(self, *words: str | int) -> Generator:
        """A torch generator (CPU) of its own for this purpose."""
        return Generator().manual_seed(self.number(*words))

    @contextmanager
    def borrowed(self, *words: str | int, device: Device | None = None) -> Iterator[None]:
        """Torch's global generators (CPU, and the device's), seeded for this purpose and put back afterwards.

        For code that draws from the global generator and takes no other: the initial weights of a
        `torch.nn` module and dropout.
        """
        # Not torch.manual_seed: it would reseed the generators of all devices, which are not put back.
        lent = [torch.default_generator]
        if device is not None and device.type == "cuda":
            lent.append(torch.cuda.default_generators[device.index or 0])
        before = [generator.get_state() for generator in lent]
        try:
            for generator in lent:
                generator.manual_seed(self.number(*words))
            yield
        finally:
            for generator, state in zip(lent, before, strict=True):
                generator.set_state(state)


@dataclass(frozen=True)
class Few:
    """The same few of many clients whenever somebody asks: those first in an order that the seed gives.

    >>> few = Few(Seed(0), (Client("a"), Client("b"), Client("c"), Client("d")))
    >>> few.of(few.clients, 2), few.of([Client("d"), Client("b")], 2)
    (('a', 'c'), ('b', 'd'))
    """

    seed: Seed
    clients: tuple[Client, ...]

    @cached_property
    def _rank(self) -> dict[Client, int]:
        order = self.seed.numpy("few").permutation(len(self.clients))
        return {self.clients[i]: rank for rank, i in enumerate(order.tolist())}

    def of(self, who: Sequence[Client], most: int) -> tuple[Client, ...]:
        """At most so many of `who`, sorted by name."""
        if len(who) <= most:
            return tuple(sorted(who))
        return tuple(sorted(sorted(who, key=self._rank.__getitem__)[:most]))


@dataclass(frozen=True)
class RoundContext:
    """Where a run stands: what every request carries so that a client can derive its own streams."""

    seed: Seed
    round: int
    clients: tuple[Client, ...]
    participation: float = 1.0  # the fraction of them that takes part in a round
    room: int = 0  # bytes of replies that the server can hold at once; 0: nobody has said

    @property
    def cohort(self) -> tuple[Client, ...]:
        """Who takes part in this round; everybody can work it out.

        >>> RoundContext(Seed(0), 3, (Client("a"), Client("b"), Client("c")), 0.5).cohort
        ('a', 'c')
        """
        return sample(self.seed, self.round, self.clients, self.participation)


def sample(seed: Seed, round: int, clients: tuple[Client, ...], participation: float) -> tuple[Client, ...]:
    """The cohort of a round: max(1, round(R N)) clients; the same for every algorithm of one seed.

    >>> sample(Seed(0), 3, (Client("a"), Client("b"), Client("c")), 0.5) == sample(
    ...     Seed(0), 3, (Client("a"), Client("b"), Client("c")), 0.5)
    True
    """
    drawn = seed.numpy("sample", round).permutation(len(clients))[: cohort_size(len(clients), participation)]
    return tuple(clients[i] for i in sorted(drawn.tolist()))


def cohort_size(clients: int, participation: float) -> int:
    """How many of so many clients a round asks.

    >>> cohort_size(24, 0.1), cohort_size(3, 0.01)
    (2, 1)
    """
    return max(1, round_half_up(participation * clients))


def round_half_up(value: float) -> int:
    """Ordinary rounding; Python's own would make half of three clients two and half of five two as well."""
    return int(value + 0.5)
