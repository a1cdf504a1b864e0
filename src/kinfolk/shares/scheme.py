"""What every way of sharing offers: split at each member, respond at each member, sum up at the requester."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.types import Client, Message

# Flat dictionaries of tensors, ready to travel: 64-bit words as int64, seeds and hashes as uint8.
Share = Message
Response = Message

# What is told of a message that could not be used, where the sum does without it.
Note = Callable[[KinfolkError], object]


def unheard(error: KinfolkError) -> None:
    """For those who do not want to know."""


class Scheme(Protocol):
    """sum_i sigma_i * vec_i over the members of a list, in three steps.

    A scheme is a frozen dataclass. Those of its fields that `ShareOptions` has too (bits, limit, layers,
    min_members, max_share) are set from there, and `entropy` is where it draws from; defaults are its own.
    """

    hides: ClassVar[bool]  # whether it hides a model that is part of one sum only

    @property
    def min_members(self) -> int:
        """The fewest members of a sum, also by their weights."""
        ...

    @property
    def max_share(self) -> float:
        """The largest part of the sum of sigma that a member agrees to."""
        ...

    def split(
        self, vec: Tensor, sigma: float, me: Client, members: Sequence[Client], ctx: Context
    ) -> dict[Client, Share]:
        """A member's shares, by receiver. The one under its own name is kept and never sent."""
        ...

    def respond(self, shares: Mapping[Client, Share], me: Client, ctx: Context) -> Response:
        """The sum of what a member got (by sender), the share it kept included; for the requester."""
        ...

    def reconstruct(self, responses: Mapping[Client, Response], ctx: Context, note: Note = unheard) -> Tensor:
        """The requester's result, float64 [P], from the responses by sender; of no others.

        What is wrong with a response that the sum can do without is told to `note`.
        """
        ...

    def needs(self, n: int) -> int:
        """How many of n members must respond for there to be a sum."""
        ...

    def traffic(self, n: int, size: int, item: int = 4) -> int:
        """Bytes of tensors that n members send for one requester and round; `item` bytes per number."""
        ...
