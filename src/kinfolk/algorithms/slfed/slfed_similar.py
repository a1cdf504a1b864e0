"""SLFed with lists of the most similar peers, by one name of ours: the published lists find no groups."""

from __future__ import annotations

from dataclasses import dataclass, field

from kinfolk.algorithms.slfed.probe_images import ImageOptions
from kinfolk.algorithms.slfed.similarity import Compare
from kinfolk.algorithms.slfed.slfed import SLFed
from kinfolk.algorithms.slfed.trust import TrustOptions


@dataclass(frozen=True)
class SLFedSimilar(SLFed):
    """SLFed with lists of the most similar peers (ours): finds groups where the published lists do not.

    After rounds alone clients compare, image by image, what their models see in rows that were searched for
    in a model, and list those who stand out. Every option of SLFed can still be set; these have new defaults.
    """

    images: ImageOptions = field(default_factory=lambda: ImageOptions("back_search", 200))
    compare: Compare = "images"
    trust: TrustOptions = field(default_factory=lambda: TrustOptions(rank="similarity"))
    local_rounds: int = 12
