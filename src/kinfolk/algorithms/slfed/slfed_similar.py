"""SLFed with lists of those who are most alike, by one name of ours: the published lists find no groups."""

from __future__ import annotations

from dataclasses import dataclass

from kinfolk.algorithms.slfed.probe_images import Kind
from kinfolk.algorithms.slfed.similar_peers import Rank
from kinfolk.algorithms.slfed.similarity import Compare
from kinfolk.algorithms.slfed.slfed import SLFed


@dataclass(frozen=True)
class SLFedSimilar(SLFed):
    """SLFed with lists of the most similar peers (ours): finds groups where the published lists do not.

    After rounds alone clients compare, image by image, what their models see in rows that were searched for
    in a model, and list those who stand out. Every option of SLFed can still be set; these have new defaults.
    """

    images: Kind = "back_search"
    images_count: int = 200
    compare: Compare = "images"
    rank: Rank = "similarity"
    local_rounds: int = 12
