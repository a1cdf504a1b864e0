"""A number that a client has worked out by itself, as its reply tells it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.scores import Floats

# How a number that a client has worked out by itself is named in its reply.
TOLD = "metric."
_NOT_FINITE = (math.nan, math.inf, -math.inf)


def told(value: float) -> Tensor:
    """A number as a reply tells it: replies are finite, so what is not has a sign of its own.

    >>> told(0.5), told(float("inf"))
    (tensor([0.5000, 0.0000], dtype=torch.float64), tensor([0., 2.], dtype=torch.float64))
    """
    if math.isfinite(value):
        return torch.tensor([value, 0.0], dtype=torch.float64)
    sign = 1 if math.isnan(value) else 2 if value > 0 else 3
    return torch.tensor([0.0, sign], dtype=torch.float64)


def untold(values: NDArray[Any]) -> Floats:
    """The numbers behind `told`, [clients, 2] -> [clients].

    >>> untold(np.array([[0.5, 0.0], [0.0, 3.0]]))
    array([ 0.5, -inf])
    """
    found: Floats = np.array(values[..., 0], dtype=np.float64)
    for sign, value in enumerate(_NOT_FINITE, start=1):
        found[values[..., 1] == sign] = value
    return found
