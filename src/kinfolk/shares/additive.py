"""Additive shares in the ring of 64-bit words: the requester learns the sum and nothing else.

A member draws a fresh 256-bit seed for every other member and keeps its encoded model minus all the masks
that grow from them; a share is the seed alone. Responses add what was kept and the masks of the seeds
received, so that in their sum every mask meets its negative. Any n - 1 of a model's n shares look random.

Trust: members and requester follow the steps, and their channels are private and authenticated. The
requester with c members learns the sum over the others, hence at least three members, by their weights too
(`.effective_members`), and nobody whose sigma is more than half of all. If a member vanishes before
responding, all is void: abort, then ask a shorter list with fresh seeds (`.request_log`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from kinfolk.shares.commitments import Payload, checked_sums, commit, make_response, open_shares
from kinfolk.shares.context import Context
from kinfolk.shares.fixed_point import SEED, Hiding, Words, decode, expand, fresh_seeds
from kinfolk.shares.scheme import Note, Response, Share, unheard
from kinfolk.types import Client


@dataclass(frozen=True)
class Additive64(Hiding):
    """sum_i sigma_i * vec_i with an error of at most n * 2**-(bits + 1) in each coordinate.

    >>> import torch
    >>> ctx = Context("ann", 0, ("bob", "cyd", "dan"), (0.5, 0.5, 0.5), (("w", 1),))
    >>> scheme, w = Additive64(), torch.tensor([2.0])
    >>> sent = {m: scheme.split(w, 0.5, m, ctx.members, ctx) for m in ctx.members}
    >>> got = {m: scheme.respond({s: sent[s][m] for s in sent}, m, ctx) for m in ctx.members}
    >>> scheme.reconstruct(got, ctx)
    tensor([3.], dtype=torch.float64)
    """

    room: ClassVar[int] = 63

    def split(
        self, vec: Tensor, sigma: float, me: Client, members: Sequence[Client], ctx: Context
    ) -> dict[Client, Share]:
        """A seed for everybody else; for oneself the encoded model minus their masks."""
        kept: Words = self.encoded(vec, sigma, me, members, ctx).view(np.uint64)
        others = [m for m in ctx.members if m != me]
        payloads: dict[Client, Payload] = {}
        for to, seed in zip(others, fresh_seeds(len(others), self.entropy, me), strict=True):
            payloads[to] = seed
            kept -= expand(seed, ctx, me, to)
        return commit({**payloads, me: kept}, me, ctx, self.entropy)

    def respond(self, shares: Mapping[Client, Share], me: Client, ctx: Context) -> Response:
        """What was kept plus the masks of all seeds received, modulo 2**64."""
        whole = np.zeros(ctx.size, dtype=np.uint64)
        for sender, payload in open_shares(shares, me, ctx, lambda sender: sender == me).items():
            whole += expand(payload, ctx, sender, me) if isinstance(payload, bytes) else payload
        return make_response(whole, shares, me, ctx)

    def reconstruct(self, responses: Mapping[Client, Response], ctx: Context, note: Note = unheard) -> Tensor:
        """The sum modulo 2**64, read with its sign; every member must have responded."""
        n = len(ctx.members)
        whole = np.zeros(ctx.size, dtype=np.uint64)
        good, disputes = checked_sums(responses, ctx, n, note)
        for dispute in disputes:  # a mask may lack its negative
            raise dispute
        for part in good.values():
            whole += part
        return decode(whole.view(np.int64), n, self.bits, self.limit)

    def needs(self, n: int) -> int:
        """All of n responses: every mask must meet its negative."""
        return n

    def traffic(self, n: int, size: int, item: int = 8) -> int:
        """n - 1 seeds and one response of each member.

        >>> Additive64().traffic(25, 11_173_962 + 9_600) / 1e9
        2.2372716
        """
        share, response = 3 * SEED + n * SEED, 8 * size + 2 * SEED + n * SEED
        return n * ((n - 1) * share + response)
