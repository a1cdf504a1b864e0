"""What a client holds about each of its peers, of which only those are kept of whom it holds anything.

Steps of an exchange read and write books with a row for every peer. Between steps, where the books of all
clients lie side by side, a book of many peers is closed: its rows of zeros are left out. Nothing is lost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, Message, Tree

# Up to so many peers a book is always open. Closed ones have room for so many or a power of two more: there
# are few sizes, and clients can be trained in few calls. Rows wider than WIDE bytes have no room to spare.
LEAST, WIDE = 64, 1024
# In a closed book: whose rows these are (-1: nobody's), and the rows of a book that is a tensor.
_OF, _ROWS = "of", "rows"


def booked(task: PeerTask, keys: Collection[str]) -> PeerTask:
    """The same exchange for memories whose books under these keys are closed.

    Books are all zeros where there is nothing, and have a row for every peer.
    """

    def send(memory: Message, me: Peer) -> dict[Client, Message]:
        return task.send(opened(memory, keys, len(me.context.clients)), me)

    def receive(inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        peers = len(me.context.clients)
        before = opened(memory, keys, peers)
        after = task.receive(inbox, before, me)
        # Tensors of a memory are never written to: a book that came back as it was is closed already.
        same = {key: memory[key] for key in keys if key in after and after[key] is before.get(key)}
        return closed({**after, **same}, keys, peers)

    return replace(task, send=send, receive=receive)


def closed(memory: Message, keys: Collection[str], peers: int) -> Message:
    """The memory with books of rows that are not all zeros, by their bits.

    >>> held = closed({"seen": torch.arange(1000) // 999, "n": torch.tensor(3)}, ["seen"], 1000)
    >>> held["seen"]["of"][:2], held["seen"]["rows"].shape, held["n"]
    (tensor([999,  -1]), torch.Size([64]), tensor(3))
    """
    if peers <= LEAST:
        return memory
    return {key: _closed(value, peers) if key in keys else value for key, value in memory.items()}


def opened(memory: Message, keys: Collection[str], peers: int) -> Message:
    """The memory with a row for every peer in each of its books.

    >>> held = closed({"seen": torch.arange(1000) // 999}, ["seen"], 1000)
    >>> torch.equal(opened(held, ["seen"], 1000)["seen"], torch.arange(1000) // 999)
    True
    """
    return {
        key: _opened(value, peers) if key in keys and isinstance(value, dict) and _OF in value else value
        for key, value in memory.items()
    }


def _closed(book: Tree | Tensor, peers: int) -> Tree | Tensor:
    tree = book if isinstance(book, dict) else {_ROWS: book}
    if _OF in tree:  # a step has let it be
        return book
    # By bits, so that a zero with a sign is not left out.
    bits = [leaf.reshape(peers, -1).contiguous().view(torch.uint8) for leaf in tree.values()]
    (of,) = torch.stack([rows.any(1) for rows in bits]).any(0).nonzero(as_tuple=True)
    room = len(of)
    if room and max(rows.shape[1] for rows in bits) <= WIDE:
        room = max(LEAST, 1 << (room - 1).bit_length())
    if room >= peers:
        return book
    small = {name: leaf.new_zeros(room, *leaf.shape[1:]) for name, leaf in tree.items()}
    for name, leaf in tree.items():
        small[name][: len(of)] = leaf[of]
    whose = of.new_full((room,), -1)
    whose[: len(of)] = of
    return {_OF: whose, **small}


def _opened(book: Tree, peers: int) -> Tree | Tensor:
    there = (book[_OF] >= 0).nonzero()[:, 0]
    whole = {}
    for name, rows in book.items():
        if name != _OF:
            whole[name] = _blank((peers, *rows.shape[1:]), rows.dtype, rows.device)
            if len(there):
                whole[name] = whole[name].index_copy(0, book[_OF][there], rows[there])
    return whole.get(_ROWS, whole)


@lru_cache(maxsize=16)
def _blank(shape: tuple[int, ...], kind: torch.dtype, device: torch.device) -> Tensor:
    """A book of nobody, which all clients share: they are many, and each opens its own at every step."""
    return torch.zeros(shape, dtype=kind, device=device)
