"""What a member keeps of requests, so that nobody gets two sums out of one round."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.types import Client, Tree

STATES = ("", "open", "answered", "aborted")


@dataclass(frozen=True)
class SumRequest:
    """The last request of one requester: which exchange, how far it came, which attempt of its round."""

    round: int
    id: bytes
    state: str = "open"  # open, answered, aborted
    attempt: int = 0


@dataclass(frozen=True)
class RequestLog:
    """The last request of each requester.

    Two finished sums over lists that differ in one member give that member away. A round that was
    aborted before this member answered may be asked once more, with another list.

    >>> ctx = Context("ann", 3, ("bob", "cyd", "dan"), (0.4, 0.4, 0.4), ())
    >>> log = RequestLog().admit(ctx, "bob", {"ann", "bob", "cyd", "dan"}).answer(ctx)
    >>> log.admit(ctx, "bob", {"ann", "bob", "cyd", "dan"})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: request of 'ann' = 3: was answered in this round already
    """

    retries: int = 1
    last: Mapping[Client, SumRequest] = field(default_factory=dict)

    def admit(self, ctx: Context, me: Client, known: Collection[Client]) -> RequestLog:
        """Take up a request, or refuse it: strangers, an old round, a second request in one round."""
        strangers = sorted({ctx.requester, *ctx.members} - set(known))
        if strangers:
            raise KinfolkError(f"request of {ctx.requester!r}", strangers, "names peers that nobody knows")
        ctx.place(me)
        before, attempt = self.last.get(ctx.requester), 0
        asked = f"request of {ctx.requester!r}"
        if before is not None and before.round > ctx.round:
            raise KinfolkError(asked, ctx.round, f"is old; round {before.round} was seen")
        if before is not None and before.round == ctx.round:
            attempt = before.attempt + 1
            if before.state == "answered":
                raise KinfolkError(asked, ctx.round, "was answered in this round already")
            if before.state == "open":
                raise KinfolkError(asked, ctx.round, "is the second in this round; abort the first")
            if before.id == ctx.id or attempt > self.retries:
                raise KinfolkError(asked, ctx.round, f"was aborted; {self.retries} new list(s) may follow")
        return self._with(ctx, SumRequest(ctx.round, ctx.id, attempt=attempt))

    def answer(self, ctx: Context) -> RequestLog:
        """Note that a response leaves; refused unless the exchange is the open one."""
        return self._with(ctx, replace(self._open(ctx), state="answered"))

    def abort(self, ctx: Context) -> RequestLog:
        """Note that the exchange is void: it will never be answered."""
        return self._with(ctx, replace(self._open(ctx), state="aborted"))

    def _open(self, ctx: Context) -> SumRequest:
        request = self.last.get(ctx.requester)
        if request is None or request.id != ctx.id or request.state != "open":
            raise KinfolkError(f"request of {ctx.requester!r}", ctx.round, "is not open; it is not answered")
        return request

    def _with(self, ctx: Context, request: SumRequest) -> RequestLog:
        return replace(self, last={**self.last, ctx.requester: request})


def empty_request_log(peers: int) -> Tree:
    """The log of a member as tensors [peers]: nobody has asked yet.

    >>> read_log(empty_request_log(2), ("ann", "bob"), "bob").last
    {}
    """
    numbers = {key: torch.zeros(peers, dtype=torch.int64) for key in ("round", "state", "attempt")}
    return {**numbers, "id": torch.zeros(peers, 32, dtype=torch.uint8)}


def read_log(tree: Tree, names: tuple[Client, ...], who: Client, retries: int = 1) -> RequestLog:
    """What a log says of one peer: all that a request of that peer is about."""
    i = names.index(who)
    round, state, attempt = (int(tree[key][i]) for key in ("round", "state", "attempt"))
    request = SumRequest(round, bytes(tree["id"][i].tolist()), STATES[state], attempt)
    return RequestLog(retries, {who: request} if state else {})


def write_log(tree: Tree, names: tuple[Client, ...], who: Client, log: RequestLog) -> Tree:
    """The tensors with what a log says of one peer; the rest stays as it was.

    >>> log, names = RequestLog(1, {"bob": SumRequest(3, bytes(32), "answered", 1)}), ("ann", "bob")
    >>> tree = write_log(empty_request_log(2), names, "bob", log)
    >>> tree["round"], read_log(tree, names, "bob") == log
    (tensor([0, 3]), True)
    """
    i, request = names.index(who), log.last[who]
    out = {key: leaf.clone() for key, leaf in tree.items()}
    out["round"][i], out["attempt"][i] = request.round, request.attempt
    out["state"][i] = STATES.index(request.state)
    out["id"][i] = torch.frombuffer(bytearray(request.id), dtype=torch.uint8)
    return out
