"""Made images that are copies of training rows: found by whom they lie near to, and replaced.

A copy is much nearer to one training row than to any other. The ratio of the squared distances to the
nearest and the second nearest row is compared with the same ratio of training rows among themselves. A
distance alone would not do: a blurred image, near the mean of all rows, is nearer to each of them than
they are to one another. It is a check against plain memorisation, no proof of privacy.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.gan import PART, from_bytes
from kinfolk.task import Batch, Carry, Plan, Scan
from kinfolk.types import plain_rows

SAMPLE, SAMPLE_NEAR, IMAGE_NEAR = "work.sample", "work.sample_near", "work.image_near"


@dataclass(frozen=True)
class CopyGuard:
    """How single a nearest row a made image may have: as single as all but this share of training rows."""

    low: float = -1.0  # the range of the numbers in a row
    high: float = 1.0
    quantile: float = 0.01
    rule: float = 1 / 9  # the least ratio where rows are too few for that: a third of the distance
    sample: int = 256  # training rows whose neighbours are looked for: the first ones

    def passes(self, batch: int = 256) -> tuple[Scan, Scan]:
        """Collect the sample; then find everybody's nearest training row."""
        plan = Plan(batch, shuffle=False)
        return Scan(self._collect, plan), Scan(self._look, plan)

    def begin(self, carry: Carry, rows: Tensor, pixels: int) -> Carry:
        """The carry before the passes; `rows` is how many training rows there are.

        The GAN has done its work, and with its optimisers it is larger than all else: it is let go.
        """
        far = torch.full((), float("inf"), dtype=torch.float64, device=rows.device)
        places = torch.arange(self.sample, device=rows.device)
        kept = {key: carry[key] for key in carry if key != PART and not key.startswith("optimiser.")}
        return {
            **kept,
            SAMPLE: torch.zeros(self.sample, pixels, dtype=torch.float64, device=rows.device),
            # Places beyond the client's rows are told by a distance that no pair has.
            SAMPLE_NEAR: torch.where(places < rows, far, -1.0)[:, None].expand(-1, 2).clone(),
            IMAGE_NEAR: far.expand(len(carry["images"]), 2).clone(),
        }

    def _collect(self, carry: Carry, batch: Batch) -> Carry:
        mine = batch.row[None, :] == torch.arange(self.sample, device=batch.row.device)[:, None]
        if batch.weight is not None:
            mine = mine & (batch.weight > 0)[None, :]
        return {**carry, SAMPLE: carry[SAMPLE] + mine.double() @ plain_rows(batch.x).flatten(1).double()}

    def _look(self, carry: Carry, batch: Batch) -> Carry:
        rows, places = (
            plain_rows(batch.x).flatten(1).double(),
            torch.arange(self.sample, device=batch.row.device),
        )
        padding = torch.zeros_like(batch.row, dtype=torch.bool) if batch.weight is None else batch.weight == 0
        images = from_bytes(carry["images"], self.low, self.high).flatten(1).double()
        itself = (batch.row[None, :] == places[:, None]) | padding[None, :]
        near = {}
        for key, points, left_out in (
            (SAMPLE_NEAR, carry[SAMPLE], itself),
            (IMAGE_NEAR, images, padding.expand(len(images), len(padding))),
        ):
            apart = squared_distances(points, rows).masked_fill(left_out, float("inf"))
            near[key] = torch.cat([carry[key], apart], 1).topk(2, dim=1, largest=False)[0]
        return {**carry, **near}

    def without_copies(self, carry: Carry) -> tuple[Tensor, Tensor, Tensor]:
        """(images, how many of them are no copies, how many were): a copy gives way to one that is none."""
        ranked = _ratios(carry[SAMPLE_NEAR]).sort()[0]
        known = ranked.isfinite().sum()
        place = ((known - 1).clamp(min=0) * self.quantile).long()
        # The one-in-a-hundredth of a handful of rows would be their least, which may be anything.
        enough = known * self.quantile >= 1
        limit = torch.where(enough, ranked.gather(0, place[None])[0], self.rule)
        # Nearer than bytes can tell is a copy, however many rows there are of the kind.
        step = (self.high - self.low) / 255
        near = carry[IMAGE_NEAR][:, 0] <= carry["images"][0].numel() * step**2
        good = (_ratios(carry[IMAGE_NEAR]) >= limit) & ~near
        kept = good.sum()
        order = (~good).long().sort(stable=True)[1]
        context = torch.arange(len(order), device=order.device) % kept.clamp(min=1)
        picked = order.gather(0, context)
        images = carry["images"]
        flat = images.flatten(1).gather(0, picked[:, None].expand(-1, images[0].numel()))
        return flat.reshape(images.shape), kept, len(order) - kept


def _ratios(near: Tensor) -> Tensor:
    """Nearest over second nearest; infinite where there are no two to compare."""
    both = near[:, 1].isfinite() & (near[:, 0] >= 0)
    ratio = near[:, 0] / near[:, 1].clamp(min=1e-300)
    return torch.where(both, torch.where(near[:, 1] > 0, ratio, 1.0), float("inf"))


def squared_distances(points: Tensor, rows: Tensor) -> Tensor:
    """|p - r|^2 for points [n, d] and rows [m, d]: [n, m].

    >>> squared_distances(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0]]))
    tensor([[25.]])
    """
    squares = points.square().sum(1)[:, None] + rows.square().sum(1)[None, :]
    return (squares - 2 * points @ rows.T).clamp(min=0)
