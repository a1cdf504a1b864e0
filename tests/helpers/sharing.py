"""Exchanges of shares among members m00, m01, ... whom ann asks."""

import torch

from kinfolk.shares.additive import Additive64
from kinfolk.shares.commitments import make_response
from kinfolk.shares.context import Context
from kinfolk.shares.fixed_point import to_words
from kinfolk.shares.shamir import Shamir61
from kinfolk.streams import Seed

SECURE = [Additive64, Shamir61]
LAYERS = (("conv.weight", 5), ("conv.bias", 2), ("head.weight", 4))


def context(n, layers=LAYERS, sigma=0.4, round=2):
    return Context("ann", round, tuple(f"m{i:02}" for i in range(n)), (sigma,) * n, layers)


def models(ctx, scale=3.0, dtype=torch.float64):
    draw = Seed(5).numpy("models", len(ctx.members))
    return {m: torch.from_numpy(draw.normal(scale=scale, size=ctx.size)).to(dtype) for m in ctx.members}


def exchange(scheme, ctx, vectors, sigma=0.4):
    """Everybody splits: {sender: {receiver: share}}."""
    return {m: scheme.split(vectors[m], sigma, m, ctx.members, ctx) for m in ctx.members}


def inbox(sent, me):
    return {sender: shares[me] for sender, shares in sent.items() if me in shares}


def answers(scheme, ctx, sent):
    return {m: scheme.respond(inbox(sent, m), m, ctx) for m in ctx.members}


def forged(response, me, ctx, shares, change):
    """A response by a member who lies, hashes and all."""
    return make_response(to_words(change(response["sum"].clone())), shares, me, ctx)
