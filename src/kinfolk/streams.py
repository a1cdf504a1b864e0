"""Named random streams: every draw follows from (run seed, purpose, round, client), none from a global one.

A client derives its own numbers from its own name, so the order in which clients are visited, the
engine that visits them and the draws of everybody else can not change what it sees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator
from torch import device as Device

from kinfolk.types import Client


def _number(word: str | int) -> int:
    """A stable 64-bit number for a word; Python's own hash changes from process to process."""
    if isinstance(word, int):
        return word & 0xFFFF_FFFF_FFFF_FFFF
    return int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "little")


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
        return np.random.SeedSequence([_number(self.run), *map(_number, words)])

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
        with torch.random.fork_rng(devices=[device] if device is not None and device.type == "cuda" else []):
            torch.manual_seed(self.number(*words))
            yield


@dataclass(frozen=True)
class Turn:
    """Where a run stands: what every request carries so that a client can derive its own streams."""

    seed: Seed
    round: int
    clients: tuple[Client, ...]
