"""What a member keeps of requests, so that nobody gets two sums out of one round."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.types import Client, Tree

STATES = ("", "open", "answered", "aborted")


class SumRequest(NamedTuple):
    """The last request of one requester: which exchange, how far it came, which attempt of its round."""

    round: int
    id: bytes
    state: str  # one of STATES; empty if there was none
    attempt: int


@dataclass(frozen=True)
class RequestLog:
    """The last request of each requester, in tensors [peers] that are part of a member's memory.

    Two finished sums over lists that differ in one member give that member away. A round that was
    aborted before this member answered may be asked once more, with another list.

    >>> names = ("ann", "bob", "cyd", "dan")
    >>> ctx = Context("ann", 3, names[1:], (0.4, 0.4, 0.4), ())
    >>> log = RequestLog(names, empty_request_log(4)).admit(ctx, "bob").answer(ctx)
    >>> log.admit(ctx, "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: request of 'ann' = 3: was answered in this round already
    """

    names: tuple[Client, ...]  # of all peers
    tree: Tree
    retries: int = 1

    def of(self, requester: Client) -> SumRequest:
        """The last request of a peer."""
        i = self.names.index(requester)
        round, state, attempt = (int(self.tree[key][i]) for key in ("round", "state", "attempt"))
        return SumRequest(round, bytes(self.tree["id"][i].tolist()), STATES[state], attempt)

    def admit(self, ctx: Context, me: Client) -> RequestLog:
        """Take up a request, or refuse it: strangers, an old round, a second request in one round."""
        asked = f"request of {ctx.requester!r}"
        strangers = sorted({ctx.requester, *ctx.members} - set(self.names))
        if strangers:
            raise KinfolkError(asked, strangers, "names peers that nobody knows")
        ctx.place(me)
        before, attempt = self.of(ctx.requester), 0
        if before.state and before.round > ctx.round:
            raise KinfolkError(asked, ctx.round, f"is old; round {before.round} was seen")
        if before.state and before.round == ctx.round:
            attempt = before.attempt + 1
            if before.state == "answered":
                raise KinfolkError(asked, ctx.round, "was answered in this round already")
            if before.state == "open":
                raise KinfolkError(asked, ctx.round, "is the second in this round; abort the first")
            if before.id == ctx.id or attempt > self.retries:
                raise KinfolkError(asked, ctx.round, f"was aborted; {self.retries} new list(s) may follow")
        return self._with(ctx, "open", attempt)

    def answer(self, ctx: Context) -> RequestLog:
        """Note that a response leaves; refused unless the exchange is the open one."""
        return self._with(ctx, "answered", self._open(ctx).attempt)

    def abort(self, ctx: Context) -> RequestLog:
        """Note that the exchange is void: it will never be answered."""
        return self._with(ctx, "aborted", self._open(ctx).attempt)

    def _open(self, ctx: Context) -> SumRequest:
        request = self.of(ctx.requester)
        if request.id != ctx.id or request.state != "open":
            raise KinfolkError(f"request of {ctx.requester!r}", ctx.round, "is not open; it is not answered")
        return request

    def _with(self, ctx: Context, state: str, attempt: int) -> RequestLog:
        i, tree = self.names.index(ctx.requester), {key: leaf.clone() for key, leaf in self.tree.items()}
        tree["round"][i], tree["state"][i], tree["attempt"][i] = ctx.round, STATES.index(state), attempt
        tree["id"][i] = torch.frombuffer(bytearray(ctx.id), dtype=torch.uint8)
        return replace(self, tree=tree)


def empty_request_log(peers: int) -> Tree:
    """The tensors of a log while nobody has asked yet.

    >>> RequestLog(("ann", "bob"), empty_request_log(2)).of("bob").state
    ''
    """
    numbers = {key: torch.zeros(peers, dtype=torch.int64) for key in ("round", "state", "attempt")}
    return {**numbers, "id": torch.zeros(peers, 32, dtype=torch.uint8)}
