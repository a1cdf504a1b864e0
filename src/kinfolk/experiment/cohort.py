"""Who is asked in a round."""

from __future__ import annotations

from kinfolk.streams import Seed
from kinfolk.types import Client


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
