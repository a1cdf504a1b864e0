"""Pictures that are mirrored and shifted at random while a network is trained, never while it is scored."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError

NAMES = ("none", "flip", "crop", "flip_crop")


@dataclass(frozen=True)
class FlipCrop:
    """Half of the pictures are mirrored left to right; each is cut out of itself with a border of zeros.

    All (2 pad + 1)^2 places to cut at are equally likely. Pixels are zero in the middle of their range once
    they are normalised, so the border is grey.

    >>> FlipCrop(pad=1)(torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), torch.tensor([1 + 2 * (1 + 3 * 2)]))
    tensor([[[[1., 0.],
              [3., 0.]]]])
    """

    pad: int = 4
    flip: bool = True

    @property
    def ways(self) -> int:
        """Mirrored or not, times the places to cut at."""
        return (1 + self.flip) * (2 * self.pad + 1) ** 2

    def __call__(self, x: Tensor, way: Tensor) -> Tensor:
        """Pictures x [..., channels, height, width], each changed by its way [...]."""
        height, width = x.shape[-2:]
        sides, places = 1 + self.flip, 2 * self.pad + 1
        down = way // sides % places - self.pad
        right = way // sides // places - self.pad
        across = torch.arange(width, device=x.device)
        # The picture is mirrored first: then its border is cut.
        column = across + right[..., None]
        column = torch.where((way % sides == 1)[..., None], width - 1 - column, column)
        row = torch.arange(height, device=x.device) + down[..., None]
        inside = ((row >= 0) & (row < height))[..., :, None] & ((column >= 0) & (column < width))[
            ..., None, :
        ]
        place = row.clamp(0, height - 1)[..., :, None] * width + column.clamp(0, width - 1)[..., None, :]
        place = place.flatten(-2)[..., None, :].expand(*x.shape[:-2], -1)
        found = x.flatten(-2).gather(-1, place).reshape(x.shape)
        return torch.where(inside[..., None, :, :], found, torch.zeros((), dtype=x.dtype, device=x.device))


def find_augment(name: str, pad: int, shape: tuple[int, ...]) -> FlipCrop | None:
    """What an experiment's `local.augment` stands for, on rows of this shape.

    >>> find_augment("flip", 4, (3, 32, 32)), find_augment("none", 4, (7,))
    (FlipCrop(pad=0, flip=True), None)
    >>> find_augment("crop", 4, (7,))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: local.augment = 'crop': rows of shape (7,) are no pictures \
[channels, height, width]; use 'none'
    """
    if name == "none":
        return None
    if len(shape) != 3:
        remedy = f"rows of shape {shape} are no pictures [channels, height, width]; use 'none'"
        raise KinfolkError("local.augment", name, remedy)
    if name == "flip":
        return FlipCrop(0)
    if not pad < min(shape[1:]):
        raise KinfolkError("local.augment_pad", pad, f"must be below the {min(shape[1:])} pixels of a side")
    return FlipCrop(pad, flip=name == "flip_crop")
