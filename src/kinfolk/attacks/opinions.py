"""What attackers say of others, where clients tell one another whom they trust."""

from __future__ import annotations

from collections.abc import Container

import torch
from torch import Tensor

from kinfolk.types import Client, Message, tensor_of

# The exchange in which clients tell one another what they think, and the entry of its messages: similarity,
# dissimilarity and uncertainty of everybody, [3, clients].
OPINIONS = "opinions"
LYING = ("slander", "ballot_stuffing")


def lie(kind: str, told: Tensor, bad: Tensor) -> Tensor:
    """Opinions [3, clients] as an attacker tells them; `bad` says who of the clients attacks.

    "slander": everybody honest is certainly unlike, of fellows what it thinks. "ballot_stuffing": fellows are
    certainly alike, of everybody else nothing is known.

    >>> lie("slander", torch.tensor([[0.5, 0.5], [0.0, 0.0], [0.5, 0.5]]), torch.tensor([True, False])).T
    tensor([[0.5000, 0.0000, 0.5000],
            [0.0000, 1.0000, 0.0000]])
    """
    none, sure = torch.zeros_like(told[0]), torch.ones_like(told[0])
    worst, best = torch.stack([none, sure, none]), torch.stack([sure, none, none])
    if kind == "slander":
        return torch.where(bad, told, worst)
    return torch.where(bad, best, torch.stack([none, none, sure]))


def lies(
    kind: str, messages: dict[Client, Message], who: Container[Client], clients: tuple[Client, ...]
) -> dict[Client, Message]:
    """The messages of an attacker, in which opinions are lies.

    >>> lies("slander", {Client("a"): {}}, (), ())
    {'a': {}}
    """
    bad = torch.tensor([c in who for c in clients], dtype=torch.bool)

    def told(what: Message) -> Message:
        if OPINIONS not in what:
            return what
        opinions = tensor_of(what, OPINIONS)
        return {**what, OPINIONS: lie(kind, opinions, bad.to(opinions.device))}

    return {to: told(what) for to, what in messages.items()}
