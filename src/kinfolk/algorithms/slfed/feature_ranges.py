"""The range that the bytes of a made row are spread over: one for everything, or one for each feature.

Pixels lie between two numbers that everybody knows. Features of a table do not: of standardised ones a fifth
may lie outside [-1, 1]. There each client takes the least power of two, feature by feature, that 99 of 100 of
its own values lie within, up or down. The exponents travel with its made rows, a byte for each feature: they
tell a partner the order of magnitude of a feature's 99th percentile, and no value of any row.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.task import Batch, Carry, Fit, Plan, Scan, TrainStep
from kinfolk.types import Message, plain_rows

Ranges = Literal["auto", "fixed", "own"]
REACH, ROWS, WITHIN = "reach", "work.rows", "work.within"
LEAST, MOST = -10, 20  # exponents
SPARE = 100  # one value in so many may lie outside
_ONCE, _ALL = Plan(1, steps=1, shuffle=False), Plan(256, shuffle=False)


def find_reach(ranges: Ranges) -> tuple[Scan, ...]:
    """Passes after which the carry has the exponents of the client's features; with "auto", not of images.

    The carry must say how many rows there are under `ROWS`. Values are only counted, so that the order in
    which an engine goes over them makes no difference.

    >>> len(find_reach("own")), find_reach("fixed")
    (3, ())
    """

    def measured(batch: Batch) -> bool:
        return ranges == "own" or plain_rows(batch.x).dim() != 4

    def room(carry: Carry, batch: Batch) -> Carry:
        if not measured(batch):
            return carry
        count = MOST - LEAST + 1
        return {
            **carry,
            WITHIN: torch.zeros(
                count, *plain_rows(batch.x).shape[1:], device=plain_rows(batch.x).device
            ).long(),
        }

    def count(carry: Carry, batch: Batch) -> Carry:
        if not measured(batch):
            return carry
        size = plain_rows(batch.x).abs()
        real = torch.ones_like(size) if batch.weight is None else _like(batch.weight, size)
        found = [((size <= 2.0**k) & (real > 0)).sum(0) for k in range(LEAST, MOST + 1)]
        return {**carry, WITHIN: carry[WITHIN] + torch.stack(found)}

    def settle(carry: Carry, batch: Batch) -> Carry:
        if not measured(batch):
            return carry
        enough = carry[WITHIN] >= carry[ROWS] - carry[ROWS] // SPARE
        reach = ((~enough).sum(0) + LEAST).clamp(max=MOST).to(torch.int8)
        return {**{key: carry[key] for key in carry if key != WITHIN}, REACH: reach}

    return () if ranges == "fixed" else (Scan(room, _ONCE), Scan(count, _ALL), Scan(settle, _ONCE))


def _like(weight: Tensor, x: Tensor) -> Tensor:
    return weight.reshape(-1, *[1] * (x.dim() - 1)).expand_as(x)


def half_width(reach: Tensor) -> Tensor:
    """2 ** reach in float32, exactly on every device.

    >>> half_width(torch.tensor([-1, 3], dtype=torch.int8))
    tensor([0.5000, 8.0000])
    """
    width = torch.zeros(reach.shape, device=reach.device)
    for k in range(LEAST, MOST + 1):
        width = torch.where(reach == k, 2.0**k, width)
    return width


def bounds(held: Message, low: float, high: float) -> tuple[float | Tensor, float | Tensor]:
    """The range of made rows: of each feature where exponents are held or came in a message, else the given.

    >>> bounds({}, 0.0, 1.0), bounds({"reach": torch.tensor([2], dtype=torch.int8)}, 0.0, 1.0)
    ((0.0, 1.0), (tensor([-4.]), tensor([4.])))
    """
    if REACH not in held:
        return low, high
    width = half_width(held[REACH])
    return -width, width


def inward(x: Tensor, held: Message, low: float, high: float) -> Tensor:
    """Rows of a client whose features have ranges of their own, as if all had [low, high].

    >>> inward(torch.tensor([[4.0, -1.0]]), {"reach": torch.tensor([2, 0], dtype=torch.int8)}, 0.0, 1.0)
    tensor([[1., 0.]])
    """
    if REACH not in held:
        return x
    return x / half_width(held[REACH]) * ((high - low) / 2) + (high + low) / 2


def outward(x: Tensor, held: Message, low: float, high: float) -> Tensor:
    """The other way round: rows of [low, high] as a network is given them.

    >>> outward(torch.tensor([[1.0, 0.0]]), {"reach": torch.tensor([2, 0], dtype=torch.int8)}, 0.0, 1.0)
    tensor([[ 4., -1.]])
    """
    if REACH not in held:
        return x
    return (x - (high + low) / 2) * (2 / (high - low)) * half_width(held[REACH])


def looking_inward(one: Fit | Scan, low: float, high: float) -> Fit | Scan:
    """The same pass, shown its rows by `inward`."""

    def shown(carry: Carry, batch: Batch) -> Batch:
        return batch._replace(x=inward(plain_rows(batch.x), carry, low, high))

    if isinstance(one, Scan):
        return replace(one, step=lambda carry, batch: one.step(carry, shown(carry, batch)))

    def seeing(descent: TrainStep) -> TrainStep:
        objective = descent.objective
        return replace(
            descent, objective=lambda model, batch, carry: objective(model, shown(carry, batch), carry)
        )

    return replace(one, descents=tuple(map(seeing, one.descents)))


def checked_reach(message: Message, like: Message, sender: str) -> Message:
    """A peer's exponents as `bounds` takes them, or an error that names it; nothing where none are agreed.

    >>> checked_reach({}, {"reach": torch.zeros(2, dtype=torch.int8)}, "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: ranges of 'bob': must be int8 of shape (2,)
    """
    if REACH not in like:
        return {}
    reach, mine = message.get(REACH), like[REACH]
    assert isinstance(mine, Tensor)
    if not isinstance(reach, Tensor) or reach.dtype != torch.int8 or reach.shape != mine.shape:
        raise KinfolkError(f"ranges of {sender!r}", None, f"must be int8 of shape {tuple(mine.shape)}")
    if bool(((reach < LEAST) | (reach > MOST)).any()):
        raise KinfolkError(f"ranges of {sender!r}", reach.tolist(), f"must lie in {LEAST} ... {MOST}")
    return {REACH: reach}
