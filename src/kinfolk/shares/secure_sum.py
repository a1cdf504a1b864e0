"""Sums of models as steps of a round that any algorithm among peers can take up in its own.

The algorithm notes in each client's memory whom it asks (`request`), performs the exchanges that `steps`
names, and finds in "pam" the mean of the own model and the sum. A memory must hold "model" and "pam", what
`first_memory` gives, and "now", the number of the round.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from kinfolk.shares.answer_log import empty_log
from kinfolk.shares.messages import no_request
from kinfolk.shares.negotiation import Inbox, Outbox
from kinfolk.shares.options import ShareOptions
from kinfolk.shares.rejections import BOOKS as OF_REFUSALS
from kinfolk.shares.rejections import Rejections, no_rejections
from kinfolk.shares.request_log import empty_request_log
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.session import SecureSumSession
from kinfolk.task import Peer, PeerTask, Table, peer_step
from kinfolk.types import Client, Message

# Bytes that clients may send at once, all of which a simulation holds. More go by waves of requesters.
IN_FLIGHT = 12e9
# What a memory holds of every peer: see `.books`.
BOOKS = (*OF_REFUSALS, "request_log")


@dataclass(frozen=True)
class SecureSum:
    """The sums of one algorithm: how they are formed, and of how many numbers.

    >>> SecureSum(ShareOptions("plain", retries=0), 100).steps(5)
    ('requests', 'accepts', 'confirm', 'again', 'responses')
    """

    options: ShareOptions
    numbers: int  # in a model
    longest: Callable[[int, int], int] = lambda round, peers: 0  # in a round of so many peers: see `waves`

    def steps(self, peers: int, longest: int = 0) -> tuple[str, ...]:
        """The exchanges of a round, in order."""
        last = ("responses", "results") if self.options.limits.hides else ("responses",)
        wave = (*("shares", "ready", "verdict") * self.options.retries, "again", *last)
        return ("requests", "accepts", "confirm", *wave, *("next", *wave) * (self.waves(peers, longest) - 1))

    def waves(self, peers: int, longest: int = 0) -> int:
        """In how many turns requesters are served, so that what is sent at once stays below a limit.

        `longest` is how many members a list has at the most, as far as everybody knows; 0: half of all peers.

        >>> [SecureSum(ShareOptions("plain"), 11_183_562).waves(peers) for peers in (10, 50, 100)]
        [1, 5, 19]
        """
        members = max(1, longest or (peers - 1) // 2)
        lists = peers / members if self.options.limits.hides else peers
        sent = lists * self.options.limits.traffic(members, self.numbers)
        return min(max(1, math.ceil(sent / IN_FLIGHT)), peers)

    def tasks(self) -> Table:
        """What clients write to one another, by the names of `steps`."""
        session = SecureSumSession
        committed = ("commitments",) if self.options.limits.hides else ()
        return {
            "requests": self._step("asked", session.ask, session.accept),
            "accepts": self._step("open", session.agree, session.settle),
            # Models leave where shares are made of them.
            "confirm": self._step("open", session.confirm, session.take_up, gives=True),
            "shares": self._step("wave", session.deal, session.respond, alike=committed),
            "ready": self._step("wave", session.ready, session.judge),
            "verdict": self._step("wave", session.judged, session.take_back, gives=True),
            "again": self._step("wave", session.deal, session.respond_at_last, alike=committed),
            "responses": self._step("wave", session.answer, session.sum_up),
            "results": self._step("wave", session.pass_on, session.take_over),
            "next": self._step("wave", lambda session, memory: {}, session.next_wave, gives=True),
        }

    def _step(
        self,
        needs: str,
        send: Callable[[SecureSumSession, Message], Outbox],
        receive: Callable[[SecureSumSession, Inbox, Message], Message],
        gives: bool = False,
        alike: tuple[str, ...] = (),
    ) -> PeerTask:
        def write(memory: Message, me: Peer) -> dict[Client, Message]:
            return send(self.session(me, Rejections(me.context.clients, memory)), memory)

        def read(inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
            rejections = Rejections(me.context.clients, memory)
            return {**receive(self.session(me, rejections), inbox, memory), **rejections.noted()}

        return peer_step(needs, write, read, ("model",) if gives else (), alike)

    def session(self, me: Peer, rejections: Rejections) -> SecureSumSession:
        """One client's part in the sums of a round."""
        options, context = self.options, me.context

        def scheme(requester: Client, attempt: int) -> Scheme:
            draw = context.seed.numpy("share", context.round, requester, me.name, attempt)
            # What "layerwise" cuts with hides nothing, and its sums of floats would differ from run to run.
            system = options.entropy == "system" and options.limits.hides
            made: Scheme = options.make(os.urandom if system else draw.bytes)
            return made

        waves = self.waves(len(context.clients), self.longest(context.round, len(context.clients)))
        turns = lambda peers: _turns(context.seed, context.round, peers)  # noqa: E731
        return SecureSumSession(
            me.name, context.clients, context.round, scheme, rejections, options.retries, waves, turns
        )


@lru_cache(maxsize=4)
def _turns(seed: Any, round: int, peers: int) -> list[int]:
    """Each peer's turn: known to all, and another in every round, so that nobody is always answered last."""
    order = seed.numpy("order", round).permutation(peers)
    turns: list[int] = order.argsort().tolist()
    return turns


def first_memory(peers: int) -> Message:
    """What a client's memory holds before its first sum, and from round to round.

    >>> sorted(first_memory(2))
    ['answered', 'reasons', 'rejected', 'request_log']
    """
    return {"answered": empty_log(), "request_log": empty_request_log(peers), **no_rejections(peers)}


def request(names: tuple[Client, ...], whom: Collection[Client], sigma: Tensor) -> Message:
    """What a memory holds of the own request: the members, and every peer's weight.

    >>> import torch
    >>> request(("ann", "bob"), ["bob"], torch.ones(2).double())["asked"]["mask"]
    tensor([False,  True])
    """
    asked = {**no_request(len(names)), "sigma": sigma}
    asked["mask"][[names.index(c) for c in whom]] = True
    return {"asked": asked}
