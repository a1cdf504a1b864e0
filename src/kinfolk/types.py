"""The few shapes everything else is made of: identities, trees of tensors, stacks of messages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NewType

import torch
from torch import Tensor

# An identity, never a position: rows of a stack are found by name, so a missing or reordered
# client cannot be mistaken for its neighbour.
Client = NewType("Client", str)

# One model: parameters and buffers under the names `state_dict` gives them.
Tree = dict[str, Tensor]

# Rows of a federation: one tensor, or several by name, every one [rows, ...]. Names are those of the
# network's inputs, or "0", "1", ... where inputs have places. A padded sequence has its lengths beside it.
Rows = Tensor | dict[str, Tensor]
LENGTHS = ".lengths"

# The label of a position that has none: PyTorch's `ignore_index`. Class sequences are padded with it.
IGNORED = -100

# What travels: named tensors and trees, two levels and no more, so that every message maps onto
# a flat safetensors file and onto the records of any transport. A leaf is a Tensor or a Tree.
Message = dict[str, Any]


def map_rows(f: Callable[[Tensor], Tensor], rows: Rows) -> Rows:
    """Apply `f` to every tensor of some rows.

    >>> map_rows(lambda t: t[:1], {"age": torch.tensor([3, 4]), "size": torch.tensor([5, 6])})
    {'age': tensor([3]), 'size': tensor([5])}
    """
    return {name: f(leaf) for name, leaf in rows.items()} if isinstance(rows, dict) else f(rows)


def row_leaves(rows: Rows) -> list[Tensor]:
    """Every tensor of some rows, in stored order.

    >>> row_leaves({"age": torch.tensor([3]), "size": torch.tensor([5])})
    [tensor([3]), tensor([5])]
    """
    return list(rows.values()) if isinstance(rows, dict) else [rows]


def row_count(rows: Rows) -> int:
    """How many rows there are: `len` would count the names.

    >>> row_count({"age": torch.tensor([3, 4, 5])}), row_count(torch.zeros(2, 9))
    (3, 2)
    """
    return len(row_leaves(rows)[0])


def named_leaves(field: str, rows: Rows) -> dict[str, Tensor]:
    """Every tensor of some rows under a flat name.

    >>> sorted(named_leaves("x", {"age": torch.zeros(1)})), sorted(named_leaves("x", torch.zeros(1)))
    (['x.age'], ['x'])
    """
    return {f"{field}.{name}": t for name, t in rows.items()} if isinstance(rows, dict) else {field: rows}


def cat_rows(parts: Sequence[Rows]) -> Rows:
    """Rows one after another, all of the same names.

    >>> cat_rows([{"age": torch.tensor([3])}, {"age": torch.tensor([4])}])
    {'age': tensor([3, 4])}
    """
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([plain_rows(part) for part in parts])
    return {name: torch.cat([part[name] for part in parts if isinstance(part, dict)]) for name in first}


def plain_rows(rows: Rows) -> Tensor:
    """The one tensor that rows are, for whoever works with their numbers.

    >>> plain_rows(torch.zeros(1))
    tensor([0.])
    """
    assert isinstance(rows, Tensor), f"rows are {', '.join(rows)}, not one tensor"
    return rows


def tree_of(message: Message, key: str) -> Tree:
    """The tree under a key of a message.

    >>> tree_of({"model": {"w": torch.ones(1)}}, "model")
    {'w': tensor([1.])}
    """
    value = message[key]
    assert isinstance(value, dict), f"{key} is a tensor, not a tree"
    return value


def tensor_of(message: Message, key: str) -> Tensor:
    """The tensor under a key of a message.

    >>> tensor_of({"rows": torch.tensor(3)}, "rows")
    tensor(3)
    """
    value = message[key]
    assert isinstance(value, Tensor), f"{key} is a tree, not a tensor"
    return value


def map_leaves(f: Callable[[Tensor], Tensor], message: Message) -> Message:
    """Apply `f` to every tensor of a message.

    >>> map_leaves(lambda t: t + 1, {"a": torch.zeros(1), "m": {"w": torch.ones(1)}})
    {'a': tensor([1.]), 'm': {'w': tensor([2.])}}
    """
    return {
        key: {name: f(leaf) for name, leaf in value.items()} if isinstance(value, dict) else f(value)
        for key, value in message.items()
    }


def leaves(message: Message) -> Iterable[tuple[str, str | None, Tensor]]:
    """Every tensor of a message as (key, name inside a tree or None, tensor), in stored order."""
    for key, value in message.items():
        if isinstance(value, dict):
            for name, leaf in value.items():
                yield key, name, leaf
        else:
            yield key, None, value


def stack_messages(messages: Sequence[Message]) -> Message:
    """Put equal-shaped messages on a leading axis.

    >>> stack_messages([{"a": torch.tensor(1)}, {"a": torch.tensor(2)}])
    {'a': tensor([1, 2])}
    """
    first = messages[0]
    return {
        key: {name: torch.stack([m[key][name] for m in messages]) for name in value}
        if isinstance(value, dict)
        else torch.stack([m[key] for m in messages])
        for key, value in first.items()
    }


def nbytes(message: Message) -> int:
    """Bytes of all tensors in a message: what the ledger counts.

    >>> nbytes({"m": {"w": torch.zeros(3), "n": torch.zeros((), dtype=torch.int64)}})
    20
    """
    return sum(leaf.numel() * leaf.element_size() for _, _, leaf in leaves(message))


@dataclass(frozen=True)
class Stack:
    """One message per client on a leading axis; row i belongs to `clients[i]`, sorted by name.

    >>> s = Stack.of({Client("b"): (2, {"v": torch.tensor(2.)}), Client("a"): (1, {"v": torch.tensor(1.)})})
    >>> s.clients, s.tensor("v"), s.at(["b"]).size
    (('a', 'b'), tensor([1., 2.]), tensor([2]))
    """

    clients: tuple[Client, ...]
    size: Tensor  # [clients] training rows behind each row
    body: Message  # every leaf [clients, ...]

    @staticmethod
    def of(replies: dict[Client, tuple[int, Message]]) -> Stack:
        """Stack `{client: (rows, message)}`; the order of the mapping does not matter."""
        clients = tuple(sorted(replies))
        size = torch.tensor([replies[c][0] for c in clients], dtype=torch.int64)
        body = stack_messages([replies[c][1] for c in clients]) if clients else {}
        return Stack(clients, size, body)

    @staticmethod
    def join(parts: Sequence[Stack]) -> Stack:
        """One stack out of several with disjoint clients, sorted by client."""
        parts = [p for p in parts if p.clients]
        if not parts:
            return Stack((), torch.zeros(0, dtype=torch.int64), {})
        clients = [c for p in parts for c in p.clients]
        body = {
            key: {n: torch.cat([p.body[key][n] for p in parts]) for n in value}
            if isinstance(value, dict)
            else torch.cat([p.body[key] for p in parts])
            for key, value in parts[0].body.items()
        }
        joined = Stack(tuple(clients), torch.cat([p.size for p in parts]), body)
        return joined.at(sorted(clients))

    def __len__(self) -> int:
        return len(self.clients)

    @cached_property
    def _place(self) -> dict[Client, int]:
        return {c: i for i, c in enumerate(self.clients)}

    def at(self, who: Sequence[str]) -> Stack:
        """The rows of `who`, sorted by name; a name that is not here is an error."""
        place = self._place
        names = sorted(Client(c) for c in who)
        if tuple(names) == self.clients:
            return self
        rows = torch.tensor([place[c] for c in names], dtype=torch.int64)
        body = map_leaves(lambda t: t[rows.to(t.device)], self.body)
        return Stack(tuple(names), self.size[rows.to(self.size.device)], body)

    def row(self, who: str) -> Message:
        """The message of one client."""
        i = self._place[Client(who)]
        return map_leaves(lambda t: t[i], self.body)

    def nbytes(self, who: Sequence[str]) -> int:
        """Bytes of the messages of `who`."""
        return nbytes(self.at(who).body)

    def tree(self, key: str) -> Tree:
        """The stacked tree under `key`, every leaf [clients, ...]."""
        return tree_of(self.body, key)

    def tensor(self, key: str) -> Tensor:
        """The stacked tensor under `key`, [clients, ...]."""
        return tensor_of(self.body, key)


@dataclass(frozen=True)
class IndexedMessages:
    """One of a few messages for every client: client i gets row `which[i]` of the table.

    What a stack would hold once for each client is held once for each kind, and copied only for those
    who are asked together.

    >>> p = IndexedMessages((Client("a"), Client("b")), torch.tensor([1, 0]), {"v": torch.tensor([5.0, 7.0])})
    >>> p.at(["a", "b"]).tensor("v"), p.row("a"), p.nbytes(["a", "b"])
    (tensor([7., 5.]), {'v': tensor(7.)}, 8)
    """

    clients: tuple[Client, ...]  # sorted by name
    which: Tensor  # [clients] int64
    table: Message  # every leaf [kinds, ...]

    @cached_property
    def _kind(self) -> dict[Client, int]:
        return dict(zip(self.clients, self.which.tolist(), strict=True))

    def at(self, who: Sequence[str]) -> Stack:
        """The messages of `who`, sorted by name, each in full."""
        names = tuple(sorted(Client(c) for c in who))
        rows = self.kinds(names)
        body = map_leaves(lambda t: t[rows.to(t.device)], self.table)
        return Stack(names, torch.zeros(len(names), dtype=torch.int64), body)

    def kinds(self, who: Sequence[Client]) -> Tensor:
        """Which row of the table each of `who` gets, in the order they are named."""
        return torch.tensor([self._kind[c] for c in who], dtype=torch.int64)

    def row(self, who: str) -> Message:
        """The message of one client."""
        i = self._kind[Client(who)]
        return map_leaves(lambda t: t[i], self.table)

    def nbytes(self, who: Sequence[str]) -> int:
        """Bytes of the messages of `who`, counted without making them."""
        one = sum(t[0].numel() * t.element_size() for _, _, t in leaves(self.table))
        return one * len(who)


# A message of their own for clients.
PerClient = Stack | IndexedMessages
