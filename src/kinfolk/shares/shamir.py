"""Shamir's shares over GF(2**61 - 1): as `additive64`, and members may vanish after they have shared.

Shamir: How to Share a Secret. 1979.

Each coordinate is shared by a polynomial of degree t - 1 with t = floor(2n/3) + 1; sums of shares are
shares of sums, so any t responses give the sum over all who shared, and t - 1 members learn nothing.
A polynomial is free in t - 1 points: these shares are random and travel as seeds, and only the n - t
others that are not the member's own travel as vectors: n(n - t) + n vectors instead of n**2.

Why coordinates, and not the seeds of masks: with shared seeds, survivors must be asked a second time, for
the seeds of whoever vanished, and a requester who lies about that unmasks a member unless every vector is
masked twice. Here a member answers once, and answers beyond t show a wrong response.

A response is a vector, one point of as many polynomials as there are coordinates. A random combination of the
coordinates, drawn after the responses are in, makes one number of each: wrong responses stay wrong but for
one chance in 2**61, and the search is over numbers. Of m responses on polynomials of degree t - 1, a set of
at least (m + t) / 2 that fit together is the right one whenever at most (m - t) / 2 are wrong: t of the set
are right then, and t points determine a polynomial.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.commitments import Payload, checked_sums, commit, make_response, open_shares
from kinfolk.shares.context import Context
from kinfolk.shares.fixed_point import SEED, Hiding, decode, expand, fresh_seeds
from kinfolk.shares.prime_field import PRIME, Words, add_times, reduced, signed, unsigned, value_at, weights
from kinfolk.shares.scheme import Note, Response, Share, unheard
from kinfolk.types import Client

# Sets of responses that are tried. 25 responses of which 4 are wrong take 15,276.
_MOST = 20_000


def threshold_of(n: int) -> int:
    """How many responses are needed: floor(2n/3) + 1.

    >>> [threshold_of(n) for n in (2, 3, 4, 25)]
    [2, 3, 3, 17]
    """
    return 2 * n // 3 + 1


@dataclass(frozen=True)
class Shamir61(Hiding):
    """sum_i sigma_i * vec_i from any t of n responses; error at most n * 2**-(bits + 1).

    >>> import torch
    >>> ctx = Context("ann", 0, ("bob", "cyd", "dan", "eve"), (0.5,) * 4, (("w", 1),))
    >>> scheme, w = Shamir61(), torch.tensor([-2.0])
    >>> sent = {m: scheme.split(w, 0.5, m, ctx.members, ctx) for m in ctx.members}
    >>> got = {m: scheme.respond({s: sent[s][m] for s in sent}, m, ctx) for m in ctx.members[1:]}
    >>> scheme.reconstruct(got, ctx)  # bob vanished after sharing; his model is in the sum
    tensor([-4.], dtype=torch.float64)
    """

    room: ClassVar[int] = 60
    bits: int = 24

    def split(
        self, vec: Tensor, sigma: float, me: Client, members: Sequence[Client], ctx: Context
    ) -> dict[Client, Share]:
        """Seeds for t - 1 members; for the rest, oneself included, the values that follow from them."""
        secret = unsigned(self.encoded(vec, sigma, me, members, ctx))
        full = [to for to in ctx.members if _in_full(me, to, ctx)]
        short = [to for to in ctx.members if to not in full]
        points = [0, *(ctx.place(to) + 1 for to in short)]
        factors = {to: weights(points, ctx.place(to) + 1) for to in full}
        parts = {to: np.zeros(ctx.size, dtype=np.uint64) for to in full}
        payloads: dict[Client, Payload] = dict(
            zip(short, fresh_seeds(len(short), self.entropy, me), strict=True)
        )
        for k, to in enumerate([me, *short]):  # the point 0 holds the secret
            value = secret if k == 0 else _value(payloads[to], ctx, me, to)
            for other, part in parts.items():
                add_times(part, value, factors[other][k])
        return commit({**payloads, **parts}, me, ctx, self.entropy)

    def respond(self, shares: Mapping[Client, Share], me: Client, ctx: Context) -> Response:
        """The sum of all shares received and of the one kept, modulo the prime."""
        whole = np.zeros(ctx.size, dtype=np.uint64)
        for sender, payload in open_shares(shares, me, ctx, lambda sender: _in_full(sender, me, ctx)).items():
            whole = reduced(whole + _value(payload, ctx, sender, me))
        return make_response(whole, shares, me, ctx)

    def reconstruct(self, responses: Mapping[Client, Response], ctx: Context, note: Note = unheard) -> Tensor:
        """The sum from any t responses that fit together; wrong ones are found, told, and left out.

        Of m responses up to (m - t) / 2 wrong ones are found surely. Where more are wrong, the largest set
        that fits together is believed if no other gives a sum within the range; else the sum is void.
        """
        n = len(ctx.members)
        t = threshold_of(n)
        good, disputes = checked_sums(responses, ctx, t, note)
        got = {who: reduced(part) for who, part in good.items()}
        points = {who: ctx.place(who) + 1 for who in got}
        found: list[tuple[Tensor, tuple[Client, ...]]] = []
        for fit in fitting(got, points, t):
            try:
                found.append((self._value_of(got, points, fit[:t], n), fit))
            except KinfolkError:  # no sum of n honest models; a right set is within the range
                continue
        if not found or any(not torch.equal(found[0][0], other) for other, _ in found[1:]):
            remedy = f"do not fit together; {len(got)} responses do not show which are wrong; abort"
            raise KinfolkError("responses", sorted(got), remedy)
        whole, fit = found[0]
        for who in sorted(set(got) - set(fit)):
            note(KinfolkError(f"response of {who!r}", None, "does not fit the others; it is left out"))
        for dispute in disputes:
            note(dispute)
        return whole

    def _value_of(
        self, got: Mapping[Client, Words], points: Mapping[Client, int], used: Sequence[Client], n: int
    ) -> Tensor:
        whole = value_at([got[who] for who in used], [points[who] for who in used], 0)
        return decode(signed(whole), n, self.bits, self.limit)

    def needs(self, n: int) -> int:
        """Of n responses any t."""
        return threshold_of(n)

    def traffic(self, n: int, size: int, item: int = 8) -> int:
        """t - 1 seeds, n - t vectors and one response of each member.

        >>> round(Shamir61().traffic(25, 11_173_962 + 9_600) / 1e9, 2)
        20.13
        """
        t, vector, hashes = threshold_of(n), 8 * size, n * SEED
        short, full, response = 3 * SEED + hashes, 2 * SEED + vector + hashes, 2 * SEED + vector + hashes
        return n * ((t - 1) * short + (n - t) * full + response)


def _in_full(sender: Client, receiver: Client, ctx: Context) -> bool:
    """Whether a share travels in full: the sender's own (which stays) and those of the n - t after it."""
    n = len(ctx.members)
    return (ctx.place(receiver) - ctx.place(sender)) % n <= n - threshold_of(n)


def _value(payload: Payload, ctx: Context, sender: Client, receiver: Client) -> Words:
    """A share's words below the prime; a seed's are uniform up to 2**-61."""
    return reduced(expand(payload, ctx, sender, receiver) if isinstance(payload, bytes) else payload)


def fitting(
    responses: Mapping[Client, Words], points: Mapping[Client, int], t: int
) -> Iterator[tuple[Client, ...]]:
    """The largest sets of responses that lie on polynomials of degree t - 1: all those of the largest size.

    >>> line = {Client(c): np.array([3 + 2 * x], dtype=np.uint64) for x, c in enumerate("abcde", 1)}
    >>> points = {c: x for x, c in enumerate(line, 1)}
    >>> list(fitting({**line, Client("b"): np.array([9], dtype=np.uint64)}, points, 2))
    [('a', 'c', 'd', 'e')]
    """
    names = sorted(responses)
    values = dict(zip(names, _numbers([responses[who] for who in names]), strict=True))
    tried = 0
    for wrong in range(len(names) - t + 1):
        tried += comb(len(names), wrong)
        if tried > _MOST:
            return
        found = [
            kept
            for kept in combinations(names, len(names) - wrong)
            if _fit([points[who] for who in kept], [values[who] for who in kept], t)
        ]
        if found:
            yield from found
            return


def _numbers(parts: Sequence[Words]) -> list[int]:
    """The same random combination of each vector's coordinates, modulo the prime."""
    if len(parts[0]) == 0:
        return [0] * len(parts)
    factors = np.frombuffer(secrets.token_bytes(8 * len(parts[0])), dtype=np.uint64) >> np.uint64(3)
    return [_dot(part, factors) for part in parts]


def _dot(words: Words, factors: Words) -> int:
    """sum(words * factors) modulo the prime, by halves of the factors, which keep products below 2**64."""
    total, half = 0, np.uint64(31)
    low = factors & np.uint64(2**31 - 1)
    for shift, factor in ((0, low), (31, factors >> half)):
        # Words of 61 bits in two halves as well: 31 by 31 bits, summed as Python's whole numbers.
        for up, part in ((0, words & np.uint64(2**31 - 1)), (31, words >> half)):
            products = part * factor
            low_sum = int((products & np.uint64(2**32 - 1)).sum(dtype=np.uint64))
            high_sum = int((products >> np.uint64(32)).sum(dtype=np.uint64))
            total += (low_sum + (high_sum << 32)) << (shift + up)
    return total % PRIME


def _fit(points: Sequence[int], values: Sequence[int], t: int) -> bool:
    """Whether the values are those of a polynomial of degree below t: its higher differences vanish."""
    weights = []
    for x in points:
        under = 1
        for other in points:
            if other != x:
                under = under * (x - other) % PRIME
        weights.append(pow(under, -1, PRIME))
    terms = [w * v % PRIME for w, v in zip(weights, values, strict=True)]
    for _ in range(len(points) - t):
        if sum(terms) % PRIME:
            return False
        terms = [term * x % PRIME for term, x in zip(terms, points, strict=True)]
    return True
