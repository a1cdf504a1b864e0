"""No secret at all: every member hands the requester its scaled model. What the other schemes must equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context, check_split
from kinfolk.shares.scheme import Note, Response, Share, unheard
from kinfolk.types import Client


@dataclass(frozen=True)
class Plain:
    """Each member keeps sigma * model as its only share and responds with it.

    >>> ctx = Context("ann", 0, ("bob", "cyd"), (0.5, 0.5), (("w", 1),))
    >>> plain, w = Plain(), torch.tensor([2.0])
    >>> replies = {m: plain.respond(plain.split(w, 0.5, m, ctx.members, ctx), m, ctx) for m in ctx.members}
    >>> plain.reconstruct(replies, ctx)
    tensor([2.], dtype=torch.float64)
    """

    hides: ClassVar[bool] = False
    min_members: int = 1  # there is nobody to hide
    max_share: float = 1.0

    def split(
        self, vec: Tensor, sigma: float, me: Client, members: Sequence[Client], ctx: Context
    ) -> dict[Client, Share]:
        """Only the member's own share: nothing goes to the others."""
        check_split(vec, sigma, me, members, ctx)
        return {me: {"part": (vec.detach().double() * sigma).to(vec.dtype)}}

    def respond(self, shares: Mapping[Client, Share], me: Client, ctx: Context) -> Response:
        """The member's own share as it is."""
        return {"sum": parts_of(shares, (me,), "part", ctx)[0]}

    def reconstruct(self, responses: Mapping[Client, Response], ctx: Context, note: Note = unheard) -> Tensor:
        """The sum of the responses, in the order of names."""
        return total(parts_of(responses, ctx.members, "sum", ctx))

    def needs(self, n: int) -> int:
        """All of n responses."""
        return n

    def traffic(self, n: int, size: int, item: int = 4) -> int:
        """One model per member.

        >>> Plain().traffic(25, 10)
        1000
        """
        return n * size * item


def parts_of(
    messages: Mapping[Client, Share], senders: Sequence[Client], key: str, ctx: Context
) -> list[Tensor]:
    """One finite vector from each sender; a missing or a malformed message is refused by name.

    Messages of anybody else are let be: a stranger must not be able to spoil a sum.

    >>> parts_of({}, ["bob"], "sum", Context("ann", 0, ("bob",), (1.0,), (("w", 1),)))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: message of 'bob': is missing; abort and ask again
    """
    check_senders(messages, senders)
    found: list[Tensor] = []
    for sender in senders:
        part: Any = messages[sender].get(key)
        fits = isinstance(part, Tensor) and part.is_floating_point() and tuple(part.shape) == (ctx.size,)
        if not fits or not bool(part.isfinite().all()):
            raise KinfolkError(f"message of {sender!r}", key, f"must be {ctx.size} finite numbers")
        found.append(part)
    return found


def check_senders(messages: Mapping[Client, Share], needed: Sequence[Client]) -> None:
    """Refuse to go on where a message is missing.

    >>> check_senders({"eve": {}}, ["bob"])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: message of 'bob': is missing; abort and ask again
    """
    for sender in sorted(set(needed) - set(messages)):
        raise KinfolkError(f"message of {sender!r}", None, "is missing; abort and ask again")


def total(parts: Sequence[Tensor]) -> Tensor:
    """The sum of vectors in float64.

    >>> total([torch.tensor([1.0]), torch.tensor([2.0])])
    tensor([3.], dtype=torch.float64)
    """
    whole = torch.zeros_like(parts[0], dtype=torch.float64)
    for part in parts:
        whole += part.to(whole)
    return whole
