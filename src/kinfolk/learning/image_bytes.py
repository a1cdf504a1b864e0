"""Rows that are images as bytes, small enough to be looked at in a page."""

from __future__ import annotations

import torch
from torch import Tensor

# The longest side of an image that is kept to look at; larger ones are averaged down.
LONGEST = 48


def are_images(x: Tensor) -> bool:
    """Whether rows x [rows, ...] are images: one or three colours, height, width.

    >>> are_images(torch.zeros(5, 3, 8, 8)), are_images(torch.zeros(5, 3, 128)), are_images(torch.zeros(5, 9))
    (True, False, False)
    """
    return x.dim() == 4 and x.shape[1] in (1, 3) and x.is_floating_point()


def image_bytes(x: Tensor, low: float, high: float, longest: int = LONGEST) -> Tensor:
    """Images x [rows, colours, height, width] as bytes [rows, height, width] or [..., 3], no side longer.

    0 and 255 are the ends of the range; what is not a number is 0.

    >>> image_bytes(torch.tensor([[[[-9.0, 1.0]]]]), -1.0, 1.0)
    tensor([[[  0, 255]]], dtype=torch.uint8)
    """
    shrink = max(1.0, max(x.shape[2:]) / longest)
    if shrink > 1:
        size = max(1, int(x.shape[2] / shrink)), max(1, int(x.shape[3] / shrink))
        x = torch.nn.functional.adaptive_avg_pool2d(x, size)
    shown = ((x - low) / max(high - low, 1e-12)).nan_to_num(0.0).clamp(0, 1) * 255
    shown = shown[:, 0] if x.shape[1] == 1 else shown.movedim(1, -1)
    return shown.round().to(torch.uint8).cpu()
