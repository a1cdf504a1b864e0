"""How MD-ICFL starts, and how long the first clusters stand."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.algorithms.blocks.start import Start
from kinfolk.errors import at_least


@dataclass(frozen=True)
class HeldStart(Start):
    """Options `[algorithm.start]`: as for other methods, and when clusters may change.

    >>> HeldStart().stands(0.7), HeldStart().stands(0.9), HeldStart("random_partition").stands(0.7)
    (True, False, False)
    """

    # Clusters that k-means found stand while one of their models is less confident than this of its pseudo
    # rows: every model is near an unsure one. 0: they never do.
    confidence: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("algorithm.start.confidence", self.confidence, 0)

    def stands(self, confidence: float) -> bool:
        """Whether clusters stand, the least confident of their models being so confident."""
        return self.trains and confidence < self.confidence
