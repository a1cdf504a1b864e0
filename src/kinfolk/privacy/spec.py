"""The `[privacy]` table."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class PrivacySpec:
    """The `[privacy]` table: differential privacy of clients.

    >>> PrivacySpec().mode
    'none'
    """

    # Who hides clients in noise: "none"; the "server", which is trusted with updates; each client, "local".
    mode: str = "none"
    # Longest update of a client, as a norm; longer ones are shortened to it.
    clip: float = 1.0
    # Standard deviation of the noise over what one client can change; 0: what epsilon needs for the run.
    noise: float = 0.0
    # Most that any client may spend: the run ends before a round that would go beyond it; 0: no limit.
    epsilon: float = 0.0
    # Probability with which epsilon may not hold; well below one over the number of clients.
    delta: float = 1e-5


CHOICES: dict[str, Collection[str]] = {"privacy.mode": ("none", "server", "local")}

RANGES: list[tuple[Callable[[Any], bool], str, str]] = [
    (lambda v: v > 0, "give a number above 0", "privacy.clip"),
    (lambda v: v >= 0, "give 0 or more", "privacy.noise privacy.epsilon"),
    (lambda v: 0 < v < 1, "give a number above 0 and below 1", "privacy.delta"),
]
