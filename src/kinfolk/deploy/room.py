"""How long a message between lead and sites may be. Both know it from what they have agreed on.

What is longer is refused before it is decoded, so that nobody fills the memory of another. Nothing here is
tight: it is what honest messages stay well below, and what a machine can hold that could hold the run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kinfolk.engines.wire import LINE, ROOM
from kinfolk.experiment.build import Parts
from kinfolk.script import ShowsRows
from kinfolk.shares.secure_sum import IN_FLIGHT
from kinfolk.types import row_leaves

# Bytes of what a site says of itself (names of columns and classes), and of the agreement of all.
INTRODUCTION, AGREEMENT = 1 << 22, 1 << 24
# No number that travels is wider: a share is a word of eight bytes, a score a double.
WIDEST = 8
# Models of which a request holds at most so many, and two for each client.
MODELS = 64


@dataclass(frozen=True)
class Rooms:
    """Bytes at most, in one run."""

    letter: int  # from one client to another
    letters: int  # all that one client writes, or is handed, in one exchange
    request: int  # of the lead to a site

    @staticmethod
    def of(parts: Parts) -> Rooms:
        """The rooms of a run.

        >>> from kinfolk.experiment.build import build_parts
        >>> from kinfolk.experiment.sections import Experiment
        >>> rooms = Rooms.of(build_parts(Experiment()))
        >>> rooms.letter < rooms.letters < rooms.request
        True
        """
        algorithm, rows = parts.algorithm, parts.federation
        first, peers = parts.learner.first, len(rows.clients)
        model = sum(LINE + WIDEST * leaf.numel() for leaf in first.values())
        row = sum(WIDEST * math.prod(leaf.shape[1:]) for leaf in row_leaves(rows.x))
        shown = row * algorithm.rows_shown() if isinstance(algorithm, ShowsRows) else 0
        of_peers = peers * (LINE + WIDEST * peers)  # opinions, commitments and other books of all
        letter = ROOM + shown + of_peers + peers * model
        letters = peers * (ROOM + shown + of_peers) + min(peers * peers * model, int(IN_FLIGHT))
        return Rooms(letter, letters, ROOM + letters + (MODELS + 2 * peers) * model)


# Where nobody knows the run's parts.
ANY = Rooms(1 << 30, 1 << 31, 1 << 32)
