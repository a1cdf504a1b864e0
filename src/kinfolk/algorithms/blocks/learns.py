"""What a block may ask of the algorithm that it is part of."""

from __future__ import annotations

from typing import Protocol

from kinfolk.learning.learner import Learner


class Learns(Protocol):
    """An algorithm that has a learner."""

    @property
    def learner(self) -> Learner:
        """The network and how it is trained."""
        ...
