"""What one client knows of everybody's exchanges in a round, read out of its memory and noted there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from torch import Tensor

from kinfolk.shares.answer_log import check_unanswered, noted_answer
from kinfolk.shares.context import Context
from kinfolk.shares.messages import ABORT, level_weights
from kinfolk.shares.rejections import Rejections
from kinfolk.shares.request_log import RequestLog, SumRequest, read_log, write_log
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.vector import layers_of
from kinfolk.types import Client, Message, Tree, tree_of

Outbox = dict[Client, Message]
Inbox = Mapping[Client, Message]


@dataclass(frozen=True)
class SessionBase:
    """Where one client handles requests in one round.

    In the memory: "asked" (the own request), "open" (those of others, by requester), "request_log",
    "answered" (the log of answers), "digest" (of the model); for one wave "share.<requester>.<member>",
    "answer.<requester>" and "sum"; "served" once there is a sum of one's own.
    """

    me: Client
    names: tuple[Client, ...]  # of all peers, sorted
    round: int
    scheme: Callable[[Client, int], Scheme]  # for a requester and an attempt
    rejections: Rejections  # whose messages could not be used
    retries: int = 1  # how often an exchange that failed before any answer left is tried with a shorter list
    waves: int = 1  # requesters are served in so many turns, each of which needs less memory at a time
    order: Callable[[int], Sequence[int]] = range  # places of n peers, first whose request comes first

    @cached_property
    def rules(self) -> Scheme:
        """The scheme for what it asks of lists and answers; only members draw from theirs."""
        return self.scheme(self.me, 0)

    def _awaits(self, memory: Message, word: str) -> bool:
        """Whether the own request is of this wave and not given up."""
        mine = self.names.index(self.me) % self.waves == int(memory["wave"])
        return mine and int(memory["asked"][word]) != ABORT

    def _own(self, memory: Message) -> Context:
        asked = self._list(memory["asked"]["mask"], memory["asked"]["sigma"])
        return self._context(memory, self.me, asked["mask"], asked["sigma"])

    def _open(self, memory: Message, wave: int | None = None) -> Iterator[tuple[int, Context]]:
        """(place, context) of every request that is open; of one wave or of all."""
        opened = memory["open"]
        asking = opened["mask"].any(1).tolist()
        for i, who in enumerate(self.names):
            if asking[i] and (wave is None or i % self.waves == wave):
                yield i, self._context(memory, who, opened["mask"][i], opened["sigma"][i])

    def _context(self, memory: Message, requester: Client, mask: Tensor, sigma: Tensor) -> Context:
        members, weights = tuple(who for _, who in self._at(mask)), tuple(sigma[mask].tolist())
        return Context(requester, self.round, members, weights, layers_of(tree_of(memory, "model")))

    def _list(self, mask: Tensor, sigma: Tensor) -> Tree:
        return {"mask": mask, "sigma": self._weights(mask, sigma)}

    def _weights(self, mask: Tensor, sigma: Tensor) -> Tensor:
        """The weights of a list, level enough to be accepted, and if it is long enough to be passed on."""
        return level_weights(mask, sigma, self.rules.min_members + 1) if self.rules.hides else sigma

    def _request(self, memory: Message, ctx: Context) -> SumRequest:
        return self._request_log(memory, ctx.requester).last[ctx.requester]

    def _request_log(self, memory: Message, of: Client) -> RequestLog:
        # A list that is shorter since somebody did not accept is one more than those that are tried again.
        return read_log(memory["request_log"], self.names, of, self.retries + 1)

    def _noted(self, memory: Message, of: Client, log: RequestLog) -> Message:
        return {**memory, "request_log": write_log(memory["request_log"], self.names, of, log)}

    def _logged(self, memory: Message, ctx: Context) -> Message:
        """With the note that the model is part of this sum, before that can come true."""
        if not self.rules.hides:
            return memory
        digest = bytes(memory["digest"].tolist())
        check_unanswered(memory["answered"], ctx, digest)
        return {**memory, "answered": noted_answer(memory["answered"], ctx, digest)}

    def _at(self, mask: Tensor) -> list[tuple[int, Client]]:
        return [(i, self.names[i]) for i in mask.nonzero()[:, 0].tolist()]

    def _each(self, inbox: Inbox) -> list[tuple[Client, Message]]:
        return [(sender, inbox[sender]) for sender in sorted(inbox) if sender in self.names]
