"""Commitments, by which a wrong or altered share ends an exchange instead of spoiling its sum.

Each sender commits (SHA-256, salted) to the share of every receiver, and every
share carries all of them. A receiver checks its share against them, and its response names the hash of each
sender's commitments as it saw them, and of its own sum; where members saw different ones of one sender, that
is a dispute.

Caught: a share altered, swapped, cut, or of another exchange; a sender who gives some members other
commitments; members who were told another list, round or weights; a missing share or response; a response
damaged on its way. Wrong masks make a sum of random size, which the range check in `decode`
almost surely refuses. Messages of strangers are let be.

Not decided: who is wrong in a dispute. The sender may have sent two versions, or a member may lie about what
it saw; both are named, and nobody is blamed.

Not caught: a member who shares another model than its own, within the range, or adds to its response
what such a model would; somebody who forges a whole response, hash and all, where channels are not
authenticated; a requester who lies to all members in the same way.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.shares.fixed_point import SEED, Words, commitment, fresh_seeds, to_tensor, to_words
from kinfolk.shares.messages import row
from kinfolk.shares.plain import check_senders
from kinfolk.shares.scheme import Note, Response, Share
from kinfolk.types import Client

# A share is a seed, or the words themselves.
Payload = bytes | Words


def commit(
    payloads: Mapping[Client, Payload], me: Client, ctx: Context, entropy: Callable[[int], bytes]
) -> dict[Client, Share]:
    """A share for each receiver, with its salt and all commitments.

    >>> ctx = Context("ann", 0, ("bob",), (1.0,), ())
    >>> {key: len(value) for key, value in commit({"bob": bytes(32)}, "bob", ctx, bytes)["bob"].items()}
    {'exchange': 32, 'salt': 32, 'seed': 32, 'commitments': 1}
    """
    salts = dict(zip(ctx.members, fresh_seeds(len(ctx.members), entropy, me), strict=True))
    lines = [row(commitment(ctx, me, to, salts[to], payloads[to])) for to in ctx.members]
    commitments = torch.stack(lines)
    shares: dict[Client, Share] = {}
    for to in ctx.members:
        payload = payloads[to]
        held = {"seed": row(payload)} if isinstance(payload, bytes) else {"part": to_tensor(payload)}
        shares[to] = {"exchange": row(ctx.id), "salt": row(salts[to]), **held, "commitments": commitments}
    return shares


def open_shares(
    shares: Mapping[Client, Share], me: Client, ctx: Context, as_words: Callable[[Client], bool]
) -> dict[Client, Payload]:
    """The payload of every sender's share, checked; `as_words` tells whose come in full, not as seeds.

    >>> open_shares({}, "bob", Context("ann", 0, ("bob",), (1.0,), ()), lambda sender: True)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: message of 'bob': is missing; abort and ask again
    """
    check_senders(shares, ctx.members)
    place = ctx.place(me)
    found: dict[Client, Payload] = {}
    first: dict[bytes, Client] = {}
    for sender in ctx.members:
        share, full = shares[sender], as_words(sender)
        keys = ("exchange", "salt", "commitments", "part" if full else "seed")
        _check_form(share, f"share of {sender!r}", keys, ctx)
        payload: Payload = to_words(share["part"]) if full else _bytes(share["seed"])
        made = commitment(ctx, sender, me, _bytes(share["salt"]), payload)
        if made != _bytes(share["commitments"][place]):
            remedy = "is not what its sender committed to; abort"
            raise KinfolkError(f"share of {sender!r} for {me!r}", None, remedy)
        if isinstance(payload, bytes):
            other = first.setdefault(payload, sender)
            if other != sender:
                raise KinfolkError(f"share of {sender!r}", None, f"has the seed of {other!r}; abort")
        found[sender] = payload
    return found


def make_response(total: Words, shares: Mapping[Client, Share], me: Client, ctx: Context) -> Response:
    """The response: the sum, the hash of each sender's commitments, and a hash over all of it.

    >>> ctx = Context("ann", 0, ("bob",), (1.0,), ())
    >>> share = commit({"bob": bytes(32)}, "bob", ctx, bytes)["bob"]
    >>> list(make_response(to_words(torch.zeros(0, dtype=torch.int64)), {"bob": share}, "bob", ctx))
    ['exchange', 'sum', 'seen', 'digest']
    """
    seen = torch.stack([row(hashlib.sha256(_bytes(shares[m]["commitments"])).digest()) for m in ctx.members])
    made = commitment(ctx, me, ctx.requester, _bytes(seen), total)
    return {"exchange": row(ctx.id), "sum": to_tensor(total), "seen": seen, "digest": row(made)}


def checked_sums(
    responses: Mapping[Client, Response], ctx: Context, need: int, note: Note
) -> tuple[dict[Client, Words], list[KinfolkError]]:
    """The sum in each member's response that is whole, by sender, at least `need`; and the disputes.

    >>> checked_sums({}, Context("ann", 0, ("bob",), (1.0,), ()), 1, print)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: message of 'bob': is missing; abort and ask again
    """
    heard = {who: responses[who] for who in ctx.members if who in responses}
    check_senders(heard, ctx.members if len(heard) < need else ())
    found: dict[Client, Words] = {}
    wrong: list[KinfolkError] = []
    for sender, response in heard.items():
        try:
            found[sender] = _checked(response, sender, ctx)
        except KinfolkError as fault:
            wrong.append(fault)
    if len(found) < need:
        raise wrong[0]
    for error in wrong:
        note(error)
    return found, _disputes({who: heard[who]["seen"].cpu() for who in found}, ctx)


def _checked(response: Response, sender: Client, ctx: Context) -> Words:
    _check_form(response, f"response of {sender!r}", ("exchange", "sum", "seen", "digest"), ctx)
    found = to_words(response["sum"])
    if commitment(ctx, sender, ctx.requester, _bytes(response["seen"]), found) != _bytes(response["digest"]):
        raise KinfolkError(f"response of {sender!r}", None, "was damaged on its way; ask for it again")
    return found


def _disputes(reports: Mapping[Client, Tensor], ctx: Context) -> list[KinfolkError]:
    """One for each sender whose commitments members saw differently; the smaller side is named beside it."""
    found = []
    for i, sender in enumerate(ctx.members):
        sides: dict[bytes, list[Client]] = {}
        for who, seen in reports.items():
            sides.setdefault(_bytes(seen[i]), []).append(who)
        # The sender's own word is among the largest side if all others agree with it.
        fewest = sorted(sides.values(), key=lambda side: (len(side), sender in side))[:-1]
        parties = sorted({sender, *(who for side in fewest for who in side)})
        if fewest:
            named = " and ".join(map(repr, parties)) if len(parties) > 1 else f"{sender!r} and all others"
            remedy = (
                "saw different commitments of one sender; who is wrong cannot be decided, nobody is blamed"
            )
            found.append(KinfolkError(f"dispute of {named} over {sender!r}", None, remedy))
    return found


def _check_form(message: Share, field: str, keys: tuple[str, ...], ctx: Context) -> None:
    """Refuse a message that has other entries, or entries of another type or shape, than were agreed."""
    if set(message) != set(keys):
        raise KinfolkError(field, sorted(message), f"must hold {sorted(keys)}")
    words, hashes = (torch.int64, (ctx.size,)), (torch.uint8, (len(ctx.members), SEED))
    forms = {"part": words, "sum": words, "seen": hashes, "commitments": hashes}
    for key in keys:
        got, (dtype, shape) = message[key], forms.get(key, (torch.uint8, (SEED,)))
        if not isinstance(got, Tensor) or got.dtype != dtype or tuple(got.shape) != shape:
            raise KinfolkError(field, key, f"must be {dtype} of shape {shape}")
    if _bytes(message["exchange"]) != ctx.id:
        raise KinfolkError(field, None, "belongs to another exchange; it is not used")


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()
