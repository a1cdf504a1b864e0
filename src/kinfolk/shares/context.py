"""One exchange of shares: who asks whom in which round, for what; and when a member refuses."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from kinfolk.errors import KinfolkError, at_least
from kinfolk.shares.effective_members import effective_members, enough
from kinfolk.types import Client


@dataclass(frozen=True)
class Context:
    """What requester and members know of an exchange, and must agree upon.

    >>> layers = (("conv.weight", 18), ("conv.bias", 2))
    >>> ctx = Context("ann", 3, ("bob", "cyd", "dan"), (0.5, 0.25, 0.5), layers)
    >>> ctx.size, len(ctx.id), ctx.total
    (20, 32, 1.25)
    >>> Context("ann", 3, ("ann", "bob"), (0.5, 0.5), ())
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: members of 'ann' = ('ann', 'bob'): must not name the requester
    """

    requester: Client
    round: int
    members: tuple[Client, ...]  # sorted
    sigma: tuple[float, ...]  # every member's weight, in the order of members: all of them see all of it
    layers: tuple[tuple[str, int], ...]  # name and length of each tensor in the vector, in order

    def __post_init__(self) -> None:
        whose = f"members of {self.requester!r}"
        if self.requester in self.members:
            raise KinfolkError(whose, self.members, "must not name the requester")
        if not self.members or list(self.members) != sorted(set(self.members)):
            raise KinfolkError(whose, self.members, "must be sorted, without repetition, and not empty")
        fit = len(self.sigma) == len(self.members)
        if not (fit and all(math.isfinite(one) and one >= 0 for one in self.sigma)):
            remedy = "give one finite number of 0 or more for each member"
            raise KinfolkError(f"sigma of {self.requester!r}", self.sigma, remedy)
        at_least(f"round of {self.requester!r}", self.round, 0)

    @cached_property
    def id(self) -> bytes:
        """32 bytes that differ as soon as anything differs that the members must agree upon."""
        sigma = [float(one).hex() for one in self.sigma]
        named = json.dumps([self.requester, int(self.round), self.members, sigma, self.layers])
        return hashlib.sha256(named.encode()).digest()

    @property
    def total(self) -> float:
        """The sum of all weights: computed by everybody, told by nobody."""
        return math.fsum(self.sigma)

    @property
    def size(self) -> int:
        """The length P of the vector."""
        return sum(length for _, length in self.layers)

    def place(self, who: Client) -> int:
        """The position of a member in the sorted list; a stranger is refused.

        >>> Context("ann", 0, ("bob", "cyd"), (0.5, 0.5), ()).place("eve")
        Traceback (most recent call last):
        kinfolk.errors.KinfolkError: member = 'eve': is not in the list of 'ann'
        """
        if who not in self.members:
            raise KinfolkError("member", who, f"is not in the list of {self.requester!r}")
        return self.members.index(who)


def check_split(vec: Tensor, sigma: float, me: Client, members: Sequence[Client], ctx: Context) -> None:
    """Refuse to share what does not fit the exchange, or is not finite.

    >>> import torch
    >>> ctx = Context("ann", 0, ("bob", "cyd"), (0.5, 0.5), (("w", 2),))
    >>> check_split(torch.tensor([1.0, float("nan")]), 0.5, "bob", ["bob", "cyd"], ctx)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: model of 'bob': holds values that are not finite; it is not shared
    """
    ctx.place(me)
    if sorted(members) != list(ctx.members):
        raise KinfolkError(f"members at {me!r}", list(members), f"differ from the list {ctx.members}")
    if sigma != ctx.sigma[ctx.place(me)]:
        raise KinfolkError(
            f"sigma of {me!r}", sigma, f"differs from {ctx.sigma[ctx.place(me)]:g} in the list"
        )
    if tuple(vec.shape) != (ctx.size,) or not vec.is_floating_point():
        remedy = f"must be {ctx.size} floating-point numbers"
        raise KinfolkError(f"model of {me!r}", (tuple(vec.shape), vec.dtype), remedy)
    if not bool(vec.isfinite().all()):
        raise KinfolkError(f"model of {me!r}", None, "holds values that are not finite; it is not shared")


def check_list(ctx: Context, me: Client, min_members: int, max_share: float) -> None:
    """Refuse a list that is too short, and one in which the own weight is too large a part of all.

    >>> check_list(Context("ann", 0, ("bob", "cyd", "dan"), (0.9, 0.05, 0.05), ()), "bob", 3, 0.5)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: sigma of 'bob' = 0.9: exceeds 0.5 of the sum 1 that 'ann' asks for
    """
    if len(ctx.members) < min_members:
        remedy = f"a sum over fewer than {min_members} members hides nobody; ask more"
        raise KinfolkError(f"members of {ctx.requester!r}", ctx.members, remedy)
    sigma = ctx.sigma[ctx.place(me)]
    if sigma > max_share * ctx.total * (1 + 1e-12):
        remedy = f"exceeds {max_share:g} of the sum {ctx.total:g} that {ctx.requester!r} asks for"
        raise KinfolkError(f"sigma of {me!r}", sigma, remedy)


def check_secrecy(ctx: Context, me: Client, min_members: int, max_share: float) -> None:
    """Refuse an exchange whose sum would show too much of one member, whoever that is.

    >>> check_secrecy(Context("ann", 0, ("bob", "cyd", "dan"), (1.0, 1.0, 1e-12), ()), "bob", 3, 0.5)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: sigma of 'ann' = (1.0, 1.0, 1e-12): counts as 2.00 members, 3 are needed
    """
    check_list(ctx, me, min_members, max_share)
    if not enough(ctx.sigma, min_members):
        remedy = f"counts as {effective_members(ctx.sigma):.2f} members, {min_members} are needed"
        raise KinfolkError(f"sigma of {ctx.requester!r}", ctx.sigma, remedy)
