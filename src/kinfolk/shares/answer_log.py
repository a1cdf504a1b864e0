"""What a member has answered, forever: each state of its model is part of one sum and of no other.

Two sums over lists that differ in one member give that member away, whoever asks for them: one requester
twice, two that work together, or one whose round was undone after the answer had left. So a member notes
before it answers (or shares, if others can do without its answer), and neither a void round nor a resumed run
takes the note back. The same exchange may be
answered again: its sum is the same and tells nothing new.

The log is a tensor of bytes [answers, 72], which travels and is stored like everything else in a memory.
"""

from __future__ import annotations

import hashlib
import json

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.shares.vector import to_vector
from kinfolk.types import Tree

# Bytes: round (8, little-endian), hash of the model (32), exchange (32).
ROW = 72


def empty_log() -> Tensor:
    """Nothing was answered yet.

    >>> empty_log().shape
    torch.Size([0, 72])
    """
    return torch.zeros(0, ROW, dtype=torch.uint8)


def model_digest(model: Tree) -> bytes:
    """SHA-256 of what is shared of a model: names, lengths and bits of its floating-point tensors.

    >>> one, other = ({"w": torch.tensor([w])} for w in (1.0, 2.0))
    >>> model_digest(one) == model_digest(dict(one)), model_digest(one) == model_digest(other)
    (True, False)
    """
    vec, layers = to_vector(model)
    made = hashlib.sha256(json.dumps([str(vec.dtype), layers]).encode())
    made.update(vec.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return made.digest()


def part_of(log: Tensor, digest: bytes, round: int) -> int | None:
    """The round of the sum that this model is part of, if that is another round; else None.

    A sum of this round is not told: in a resumed run the same requests come again.

    >>> ctx = Context("ann", 3, ("bob", "cyd", "dan"), (0.4, 0.4, 0.4), ())
    >>> log = noted_answer(empty_log(), ctx, bytes(32))
    >>> part_of(log, bytes(32), 4), part_of(log, bytes(32), 3), part_of(log, bytes(range(32)), 4)
    (3, None, None)
    """
    return next((at for at, model, _ in _rows(log) if model == digest and at != round), None)


def check_unanswered(log: Tensor, ctx: Context, digest: bytes) -> None:
    """Refuse to answer if the model is part of another sum, or if this round has another one.

    >>> ctx = Context("ann", 3, ("bob", "cyd", "dan"), (0.4, 0.4, 0.4), ())
    >>> log = noted_answer(empty_log(), ctx, bytes(32))
    >>> check_unanswered(log, ctx, bytes(32))  # the same again
    >>> check_unanswered(log, Context("ann", 3, ("bob", "cyd"), (0.4, 0.4), ()), bytes(range(32)))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: request of 'ann' = 3: another sum was answered in this round
    """
    for round, model, exchange in _rows(log):
        if exchange != ctx.id and (model == digest or round == ctx.round):
            what = "in this round" if round == ctx.round else f"in round {round} with this model"
            raise KinfolkError(f"request of {ctx.requester!r}", ctx.round, f"another sum was answered {what}")


def noted_answer(log: Tensor, ctx: Context, digest: bytes) -> Tensor:
    """The log with one more answer; one that it holds already is not noted twice.

    >>> ctx = Context("ann", 3, ("bob", "cyd", "dan"), (0.4, 0.4, 0.4), ())
    >>> once = noted_answer(empty_log(), ctx, bytes(32))
    >>> len(once), len(noted_answer(once, ctx, bytes(32)))
    (1, 1)
    """
    row = ctx.round.to_bytes(8, "little") + digest + ctx.id
    new = torch.frombuffer(bytearray(row), dtype=torch.uint8)
    held = log.cpu()
    return held if bool((held == new).all(1).any()) else torch.cat([held, new[None]])


def _rows(log: Tensor) -> list[tuple[int, bytes, bytes]]:
    rows = [bytes(row) for row in log.cpu().numpy()]
    return [(int.from_bytes(row[:8], "little"), row[8:40], row[40:]) for row in rows]
