"""Fixed-point numbers: reals as whole numbers, so that sums of secrets are exact; and masks from seeds."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context, check_secrecy, check_split
from kinfolk.types import Client

Words = NDArray[np.uint64]
SEED = 32  # bytes
# Bytes of a mask that are made at a time; they stay near the core.
_BLOCK = 1 << 20


def check_room(n: int, bits: int, limit: float, room: int) -> None:
    """Refuse settings under which a sum of n numbers up to `limit` could leave 2**room.

    >>> check_room(25, 32, 2.0**14, 63)
    >>> check_room(2**17, 32, 2.0**14, 63)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: limit = 16384.0: 131072 members overflow 2**63 at 32 bits; lower one
    """
    if not n * limit * 2.0**bits < 2.0**room:
        remedy = f"{n} members overflow 2**{room} at {bits} bits; lower one"
        raise KinfolkError("limit", limit, remedy)


def encode(vec: Tensor, sigma: float, bits: int, limit: float, me: Client) -> NDArray[np.int64]:
    """round(sigma * v * 2**bits), ties to even; a value beyond the limit is refused, never cut.

    >>> encode(torch.tensor([0.5, -1.0]), 0.5, 2, 4.0, "bob")
    array([ 1, -2])
    """
    scaled = vec.detach().double().cpu().numpy() * sigma
    largest = float(np.abs(scaled).max(initial=0.0))
    if not largest <= limit:
        remedy = f"is beyond the range of {limit:g} that shares hold; it is not shared"
        raise KinfolkError(f"model of {me!r}", largest, remedy)
    return np.rint(np.ldexp(scaled, bits)).astype(np.int64)


def decode(whole: NDArray[np.int64], n: int, bits: int, limit: float) -> Tensor:
    """The reals behind a sum of n encoded vectors; a sum that no n honest vectors give is refused.

    >>> decode(np.array([1, -2]), 2, 2, 4.0)
    tensor([ 0.2500, -0.5000], dtype=torch.float64)
    """
    values = np.ldexp(whole.astype(np.float64), -bits)
    largest = float(np.abs(values).max(initial=0.0))
    if largest > n * (limit + 2.0**-bits):
        remedy = f"{n} models cannot sum to this: a share was wrong; abort and ask again"
        raise KinfolkError("sum", largest, remedy)
    return torch.from_numpy(values)


def fresh_seeds(number: int, entropy: Callable[[int], bytes], me: Client) -> list[bytes]:
    """Seeds of 256 bits; a source that repeats itself or falls short is refused.

    >>> len(fresh_seeds(3, __import__("os").urandom, "bob"))
    3
    """
    seeds = [entropy(SEED) for _ in range(number)]
    if len(set(seeds)) < number or any(len(seed) != SEED for seed in seeds):
        raise KinfolkError(f"entropy of {me!r}", None, "repeats itself or falls short; seeds must be fresh")
    return seeds


def expand(seed: bytes, ctx: Context, sender: Client, receiver: Client) -> Words:
    """P words of 64 bits out of a seed (ChaCha20), for this exchange, sender and receiver only.

    >>> ctx = Context("ann", 0, ("bob", "cyd"), (0.5, 0.5), (("w", 2),))
    >>> mask = expand(bytes(32), ctx, "bob", "cyd")
    >>> mask.dtype, mask.shape, bool((mask == expand(bytes(32), ctx, "cyd", "bob")).any())
    (dtype('uint64'), (2,), False)
    """
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    # The key depends on everything the mask is for, so even a repeated seed gives another mask elsewhere.
    key = hashlib.sha256(b"kinfolk mask" + ctx.id + _route(sender, receiver) + seed).digest()
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    words = np.empty(ctx.size, dtype="<u8")
    # Block by block into its place: a model's worth of zeros and two copies take five times as long.
    place, zeros = words.data.cast("B"), bytes(_BLOCK)
    for start in range(0, len(place), _BLOCK):
        part = place[start : start + _BLOCK]
        stream.update_into(zeros[: len(part)], part)
    return words.astype(np.uint64, copy=False)


def to_tensor(words: Words) -> Tensor:
    """64-bit words as an int64 tensor of the same bits, since torch adds no uint64.

    >>> to_tensor(np.array([2**64 - 1], dtype=np.uint64))
    tensor([-1])
    """
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int64))


def to_words(tensor: Tensor) -> Words:
    """The 64-bit words of an int64 tensor; shares its memory where it lies on the CPU.

    >>> to_words(torch.tensor([-1])) == np.uint64(2**64 - 1)
    array([ True])
    """
    return tensor.detach().cpu().contiguous().numpy().view(np.uint64)


def commitment(ctx: Context, sender: Client, receiver: Client, salt: bytes, payload: bytes | Words) -> bytes:
    """SHA-256 that ties a share to its exchange, sender and receiver, and tells nothing without the salt.

    >>> len(commitment(Context("ann", 0, ("bob",), (1.0,), ()), "bob", "bob", bytes(32), b"seed"))
    32
    """
    made = hashlib.sha256(b"kinfolk share" + ctx.id + _route(sender, receiver) + salt)
    made.update(payload if isinstance(payload, bytes) else np.ascontiguousarray(payload).data)
    return made.digest()


def _route(sender: Client, receiver: Client) -> bytes:
    named = json.dumps([sender, receiver]).encode()
    return len(named).to_bytes(8, "little") + named


@dataclass(frozen=True)
class Hiding:
    """What the schemes that hide have in common: fixed-point numbers, and when a member refuses to share."""

    hides: ClassVar[bool] = True
    room: ClassVar[int]  # sums lie within 2**room
    bits: int = 32  # f
    limit: float = 2.0**14  # V_max: largest |sigma * v|
    min_members: int = 3
    max_share: float = 0.5  # of the sum of sigma
    # For simulations: a named stream's `bytes`, one stream for each (round, requester, member).
    entropy: Callable[[int], bytes] = os.urandom

    def encoded(
        self, vec: Tensor, sigma: float, me: Client, members: Sequence[Client], ctx: Context
    ) -> NDArray[np.int64]:
        """sigma * vec as whole numbers, once everything was checked that a member agrees to."""
        check_split(vec, sigma, me, members, ctx)
        check_secrecy(ctx, me, self.min_members, self.max_share)
        check_room(len(ctx.members), self.bits, self.limit, self.room)
        return encode(vec, sigma, self.bits, self.limit, me)
