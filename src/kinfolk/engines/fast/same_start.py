"""Clients whose memories have one shape: only those can share a call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kinfolk.types import Client, Message, leaves


def alike(who: Iterable[Client], memories: Mapping[Client, Message]) -> list[list[Client]]:
    """The clients in groups: in each, memories have the same names, shapes and types.

    Where clients only talk to one another, whoever was never there does not hold yet what others hold.

    >>> import torch
    >>> alike(["a", "b", "c"], {"a": {}, "b": {"v": torch.zeros(2)}, "c": {}})
    [['a', 'c'], ['b']]
    """
    groups: dict[Any, list[Client]] = {}
    for client in who:
        form = tuple((key, name, leaf.shape, leaf.dtype) for key, name, leaf in leaves(memories[client]))
        groups.setdefault(form, []).append(client)
    return list(groups.values())
