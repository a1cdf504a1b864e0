"""Updates no longer than a bound, and normal noise that nobody can draw again.

Noise comes from the operating system's generator and never from a seed: whoever could draw it again could
take it off. Normal numbers in doubles have gaps that tell something of what was added (Mironov: On
significance of the least significant bits for differential privacy. CCS 2012). Models are released as floats
of 32 bits, each of which stands for some 2^29 doubles; that closes most gaps and proves nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

Name = TypeVar("Name")


def normal(count: int) -> Tensor:
    """So many standard normal numbers in float64, by Box and Muller's method.

    >>> normal(3).shape, bool((normal(3) == normal(3)).any())
    (torch.Size([3]), False)
    """
    half = -(-count // 2)
    bits = np.frombuffer(os.urandom(16 * half), dtype=np.uint64)
    # Of (0, 1): zero has no logarithm.
    uniform = ((bits >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * math.pi * uniform[half:]
    return torch.from_numpy(np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count])


def noised(tree: Mapping[Name, Tensor], std: float) -> dict[Name, Tensor]:
    """A tree with normal noise on every number, in float64.

    >>> noised({"w": torch.ones(2)}, 0.0)
    {'w': tensor([1., 1.], dtype=torch.float64)}
    """
    return {n: t.double() + std * normal(t.numel()).reshape(t.shape).to(t.device) for n, t in tree.items()}


def clipped(updates: Mapping[Name, Tensor], clip: float) -> dict[Name, Tensor]:
    """Updates [clients, ...] in float64, each of norm `clip` at most over all its leaves together.

    One that is not finite is nothing: its client counts as one that has not moved.

    >>> clipped({"w": torch.tensor([[3.0], [0.3]]), "b": torch.tensor([[4.0], [0.4]])}, 1.0)["w"].flatten()
    tensor([0.6000, 0.3000], dtype=torch.float64)
    """
    doubles = {n: t.double() for n, t in updates.items()}
    norm = torch.stack([torch.linalg.vector_norm(t.flatten(1), dim=1) for t in doubles.values()]).norm(dim=0)
    share = (clip / norm).clamp(max=1)
    finite = norm.isfinite()

    def short(t: Tensor) -> Tensor:
        shape = (-1, *[1] * (t.dim() - 1))
        return torch.where(finite.reshape(shape), t * share.reshape(shape), torch.zeros_like(t))

    return {n: short(t) for n, t in doubles.items()}
