"""Pictures out of JPEG and PNG bytes, brought to one size."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from kinfolk.federation.datasets.files import reading
from kinfolk.federation.datasets.rows import Array

if TYPE_CHECKING:
    from PIL.Image import Image


def picture(data: bytes, name: Path | str) -> Image:
    """A picture in RGB, decoded whole.

    >>> from PIL import Image
    >>> file = io.BytesIO()
    >>> Image.new("L", (2, 3), 7).save(file, "PNG")
    >>> picture(file.getvalue(), "a.png").size
    (2, 3)
    """
    from PIL import Image  # other data sets should not wait for it

    with reading(name), Image.open(io.BytesIO(data)) as image:
        return image.convert("RGB")


def planes(image: Image) -> Array:
    """A picture as bytes [channels, height, width].

    >>> from PIL import Image
    >>> planes(Image.new("RGB", (2, 1), (1, 2, 3))).tolist()
    [[[1, 1]], [[2, 2]], [[3, 3]]]
    """
    pixels = np.asarray(image, dtype=np.uint8)
    return pixels[None] if pixels.ndim == 2 else np.ascontiguousarray(pixels.transpose(2, 0, 1))
