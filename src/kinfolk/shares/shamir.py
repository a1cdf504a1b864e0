"""Shamir's shares over GF(2**61 - 1): as `additive64`, and members may vanish after they have shared.

Shamir: How to Share a Secret. 1979.

Each coordinate is shared by a polynomial of degree t - 1 with t = floor(2n/3) + 1; sums of shares are
shares of sums, so any t responses give the sum over all who shared, and t - 1 members learn nothing.
A polynomial is free in t - 1 points: these shares are random and travel as seeds, and only the n - t
others that are not the member's own travel as vectors: n(n - t) + n vectors instead of n**2.

Why coordinates, and not the seeds of masks: with shared seeds, survivors must be asked a second time, for
the seeds of whoever vanished, and a requester who lies about that unmasks a member unless every vector is
masked twice. Here a member answers once, and answers beyond t show a wrong response (`.decoding`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.commitments import Payload, checked_sums, commit, make_response, open_shares
from kinfolk.shares.context import Context
from kinfolk.shares.decoding import fitting
from kinfolk.shares.fixed_point import SEED, Hiding, decode, expand, fresh_seeds
from kinfolk.shares.prime_field import Words, add_times, reduced, signed, unsigned, value_at, weights
from kinfolk.shares.scheme import Note, Response, Share, unheard
from kinfolk.types import Client


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
