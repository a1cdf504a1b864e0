"""Digits of four origins as one federation: each group reads digits of another kind, all 32 by 32."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from kinfolk.federation.assemble import from_groups
from kinfolk.federation.datasets.rows import Rows
from kinfolk.federation.federation import Federation
from kinfolk.federation.pool import pool_of
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed

# In order of group.
DIGIT_SOURCES = ("mnist", "usps", "svhn", "sign_digits")
SIDE = 32
_LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
_CHUNK = 4096


def pictures(x: Tensor, channels: int = 1, side: int = SIDE) -> Tensor:
    """Images of bytes [rows, 1 or 3, height, width] made `side` by `side`, still bytes, with `channels`.

    >>> pictures(torch.tensor([255, 0, 0], dtype=torch.uint8).reshape(1, 3, 1, 1), side=1)
    tensor([[[[76]]]], dtype=torch.uint8)
    """
    out = torch.empty((len(x), channels, side, side), dtype=torch.uint8)
    for start in range(0, len(x), _CHUNK):
        part = x[start : start + _CHUNK].float()
        if part.shape[1] > channels:
            part = (part * torch.tensor(_LUMA).reshape(1, 3, 1, 1)).sum(1, keepdim=True)
        if part.shape[-2:] != (side, side):
            part = torch.nn.functional.interpolate(part, (side, side), mode="bilinear", antialias=True)
        out[start : start + _CHUNK] = part.round().clamp(0, 255)
    return out


def multi_source(spec: DataSpec, seed: Seed, find: Callable[[str], Rows]) -> Federation:
    """The first `groups` of the four origins, one to each group; `find` loads an origin by name.

    >>> import numpy as np
    >>> def zeros(name):
    ...     return Rows(np.zeros((40, 1, 16, 16), np.uint8), np.arange(40) % 10, 10, (1 / 127.5, -1.0))
    >>> spec = DataSpec("multi_source", clients=4, rows=5, groups=2, shift="source")
    >>> multi_source(spec, Seed(0), zeros).shape
    (1, 32, 32)
    """
    pools = [pool_of(find(name), spec, seed) for name in DIGIT_SOURCES[: spec.groups]]
    return from_groups([replace(pool, x=pictures(pool.x, spec.channels)) for pool in pools], spec, seed)
