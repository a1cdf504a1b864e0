"""A client's part in the sum of its group: shares of its model, and an answer, once.

Everything here is looked at by the client itself, which trusts no server: the list, its weights and number,
that its model is part of one sum only, and the shares of the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.secure_sums.holding import (
    ANSWER,
    FINE,
    HELD,
    LIST,
    LOG,
    LOST,
    RESPONSE,
    UNFIT,
    UNWILLING,
    WHY,
    cleared,
)
from kinfolk.secure_sums.spec import SecureSumsSpec
from kinfolk.shares.answer_log import check_unanswered, model_digest, noted_answer
from kinfolk.shares.context import Context, check_secrecy
from kinfolk.shares.messages import trees
from kinfolk.shares.rejections import Rejections, no_rejections
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.vector import layers_of, to_vector
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, Message, Tree

# Sums of one round at most: the number of a sum is that of its round times this, and one for each request.
MOST = 1 << 16


def list_of(
    number: int, group: int, members: dict[Client, float], layers: tuple[tuple[str, int], ...]
) -> Context:
    """What all members of a sum and the server must agree upon; weights are shares of their total.

    >>> list_of(7, 0, {Client("bob"): 3.0, Client("ann"): 1.0}, (("w", 2),)).sigma
    (0.25, 0.75)
    """
    who, total = tuple(sorted(members)), sum(members.values())
    sigma = tuple(members[one] / total for one in who)
    return Context(_server(number, group), number, who, sigma, layers)


def _server(number: int, group: int) -> Client:
    return Client(f"server for group {group} of sum {number}")


def exchanges(spec: SecureSumsSpec) -> dict[str, PeerTask]:
    """What members do on their own or write to one another, in this order.

    >>> list(exchanges(SecureSumsSpec("additive64")))
    ['sums.open', 'sums.share', 'sums.note', 'sums.end']
    """
    scheme = spec.make()

    def alone(what: Callable[[Scheme, Message, Peer], Message]) -> PeerTask:
        return PeerTask(lambda memory, me: {}, lambda inbox, memory, me: what(scheme, memory, me))

    return {
        "sums.open": alone(_opened),
        "sums.share": PeerTask(
            _shares,
            lambda inbox, memory, me: _responded(scheme, inbox, memory, me),
            gives=(HELD,),
            alike=("commitments",),
        ),
        "sums.note": alone(lambda scheme, memory, me: _noted(memory, me)),
        "sums.end": alone(lambda scheme, memory, me: cleared(memory)),
    }


def _context(memory: Message, me: Peer) -> Context:
    """The list as this client was told it."""
    told: Tree = memory[LIST]
    mask, sigma = told["mask"].cpu(), told["sigma"].cpu()
    who = tuple(me.context.clients[i] for i in mask.nonzero()[:, 0].tolist())
    number, group = int(told["number"]), int(told["group"])
    return Context(_server(number, group), number, who, tuple(sigma[mask].tolist()), layers_of(memory[HELD]))


def _opened(scheme: Scheme, memory: Message, me: Peer) -> Message:
    """Make shares, if there is something to share and the list hides it."""
    if LIST not in memory or HELD not in memory:
        return memory
    try:
        ctx = _context(memory, me)
        check_secrecy(ctx, me.name, scheme.min_members, scheme.max_share)
        if ctx.round // MOST != me.context.round:
            raise KinfolkError("number of a sum", ctx.round, "is of another round")
        check_unanswered(memory[LOG], ctx, model_digest(memory[HELD]))
    except KinfolkError:
        return {**memory, WHY: torch.tensor(UNWILLING)}
    try:
        vec, sigma = to_vector(memory[HELD])[0], ctx.sigma[ctx.place(me.name)]
        shares = scheme.split(vec, sigma, me.name, ctx.members, ctx)
    except KinfolkError:
        return {**memory, WHY: torch.tensor(UNFIT)}
    made = {f"sums.share.{me.context.clients.index(to)}": share for to, share in shares.items()}
    if scheme.needs(len(ctx.members)) < len(ctx.members):
        memory = _logged(memory, ctx)  # others can do without its answer: what it shares is part of the sum
    return {**memory, **made, WHY: torch.tensor(FINE)}


def _shares(memory: Message, me: Peer) -> dict[Client, Message]:
    """A share for each other member."""
    names = me.context.clients
    made = {
        names[int(key.rpartition(".")[2])]: v for key, v in memory.items() if key.startswith("sums.share.")
    }
    return {to: {"share": share} for to, share in made.items() if to != me.name}


def _responded(scheme: Scheme, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
    """Add up what came, or hold whose share was missing or bad. Shares are let go."""
    names = me.context.clients
    kept = memory.get(f"sums.share.{names.index(me.name)}")
    if kept is None:
        return memory
    memory = {k: v for k, v in memory.items() if not k.startswith("sums.share.")}
    ctx = _context(memory, me)
    got = trees({who: inbox[who].get("share") for who in ctx.members if who in inbox})
    with Rejections(names, no_rejections(len(names))).by(me.name, ctx.members) as offenders:
        memory = {**memory, RESPONSE: scheme.respond({**got, me.name: kept}, me.name, ctx)}
    if offenders:
        offenders += [who for who in ctx.members if who not in got and who != me.name]
    return {**memory, LOST: torch.tensor([who in offenders for who in names])}


def _noted(memory: Message, me: Peer) -> Message:
    """Note that the model is part of this sum, and only then have an answer: once."""
    if RESPONSE not in memory:
        return memory
    ctx = _context(memory, me)
    try:
        check_unanswered(memory[LOG], ctx, model_digest(memory[HELD]))
    except KinfolkError:
        return cleared(memory)
    response = memory[RESPONSE]
    seen = response["seen"]
    padded: Tensor = torch.cat([seen, seen.new_zeros(len(me.context.clients) - len(seen), seen.shape[1])])
    rest = {k: v for k, v in _logged(memory, ctx).items() if k != RESPONSE}
    return {**rest, ANSWER: {**response, "seen": padded}}


def _logged(memory: Message, ctx: Context) -> Message:
    return {**memory, LOG: noted_answer(memory[LOG], ctx, model_digest(memory[HELD]))}
