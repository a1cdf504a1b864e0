"""Images that are means of several training rows of one class: what the class looks like, and no row.

Every row goes into one image at most, and always into the same, so that images made again tell nothing new;
a class with too few rows gives none. Rows have equal weight whatever their contrast, or one among dull ones
would show. A mean is dull itself, and a network takes dull images for something else, so it gets the contrast
that its rows have on average. It blurs rows, it proves no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.gan import to_bytes, to_unit
from kinfolk.task import Batch, Carry
from kinfolk.types import plain_rows

MADE, SUMS, LIGHT, SEEN = "work.means", "work.sums", "work.light", "work.rows_of_class"


@dataclass(frozen=True)
class RowMeans:
    """How many rows an image is the mean of; consecutive ones of a class, in the order of the client's rows.

    `room`, `add` for every batch, and `show` are the steps of passes over a client's training rows.
    """

    count: int
    classes: int
    of: int = 8
    low: float = -1.0  # the range of the numbers in a row
    high: float = 1.0

    def room(self, carry: Carry, batch: Batch) -> Carry:
        """Sums of nothing; image j of class c has place j * classes + c, so that classes take turns."""
        places, pixels = -(-self.count // self.classes) * self.classes, plain_rows(batch.x)[0].numel()
        zeros = torch.zeros(places, pixels, dtype=torch.float64, device=plain_rows(batch.x).device)
        seen = torch.zeros(self.classes, dtype=torch.int64, device=plain_rows(batch.x).device)
        return {**carry, SUMS: zeros, LIGHT: zeros[:, :2].clone(), SEEN: seen}

    def add(self, carry: Carry, batch: Batch) -> Carry:
        """Each row to its image: its shape, of mean 0 and deviation 1, and these two numbers apart."""
        y, device = plain_rows(batch.y).long(), plain_rows(batch.x).device
        mine = y[:, None] == torch.arange(self.classes, device=device)
        if batch.weight is not None:
            mine = mine & (batch.weight > 0)[:, None]
        before = carry[SEEN] + mine.long().cumsum(0) - 1  # rows of its class that came before a row
        nth = (before * mine).sum(1)
        place = torch.where(mine.any(1), nth // self.of * self.classes + y, -1)
        into = (torch.arange(len(carry[SUMS]), device=device)[:, None] == place).double()
        shapes, light = _apart(to_unit(plain_rows(batch.x).flatten(1).double(), self.low, self.high))
        sums = {SUMS: carry[SUMS] + into @ shapes, LIGHT: carry[LIGHT] + into @ light}
        return {**carry, **sums, SEEN: carry[SEEN] + mine.sum(0)}

    def show(self, carry: Carry, batch: Batch) -> Carry:
        """The images as bytes; who has few shows them again and again, who has one or none blank ones."""
        middle, deviation = (carry[LIGHT] / self.of)[:, :, None].unbind(1)
        images = middle + deviation * _apart(carry[SUMS])[0]
        place = torch.arange(len(images), device=images.device)
        # Only whole images: a mean of fewer rows would show more of each.
        whole = place // self.classes < (carry[SEEN] // self.of).gather(0, place % self.classes)
        made = whole.sum().clamp(max=self.count)
        made = made * (made > 1)  # a single image tells nothing apart, and peers would refuse it
        order = (~whole).long().sort(stable=True)[1]
        picked = order.gather(0, torch.arange(self.count, device=place.device) % made.clamp(min=1))
        shown = images.gather(0, picked[:, None].expand(-1, images.shape[1])) * (made > 0)
        kept = {key: carry[key] for key in carry if key not in (SUMS, LIGHT, SEEN)}
        return {
            **kept,
            MADE: made,
            "images": to_bytes(shown).reshape(self.count, *plain_rows(batch.x).shape[1:]),
        }


def _apart(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Rows with mean 0 and deviation 1, and both numbers of each [rows, 2]; a row of one colour is all 0."""
    mean = rows.mean(1, keepdim=True)
    deviation = (rows - mean).square().mean(1, keepdim=True).sqrt()
    return (rows - mean) / deviation.clamp(min=1e-12), torch.cat([mean, deviation], 1)
