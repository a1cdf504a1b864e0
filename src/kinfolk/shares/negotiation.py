"""Who takes part in which sum: a client asks, others accept, and the list of those who did is confirmed.

What one client knows of everybody's exchanges in a round is read out of its memory and noted there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.answer_log import check_unanswered, model_digest, noted_answer, part_of
from kinfolk.shares.context import Context, check_list, check_secrecy
from kinfolk.shares.effective_members import levelled
from kinfolk.shares.messages import ABORT, AGAIN, GO, entry, read_request, request_message, row
from kinfolk.shares.open_requests import OpenRequests, none_open
from kinfolk.shares.rejections import Rejections
from kinfolk.shares.request_log import RequestLog
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.vector import layers_of
from kinfolk.types import Client, Message, Tree, tree_of

Outbox = dict[Client, Message]
Inbox = Mapping[Client, Message]


@dataclass(frozen=True)
class Negotiation:
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
    turns: Callable[[int], Sequence[int]] = range  # of n peers by their places: whose request comes first

    @cached_property
    def rules(self) -> Scheme:
        """The scheme for what it asks of lists and answers; only members draw from theirs."""
        return self.scheme(self.me, 0)

    def ask(self, memory: Message) -> Outbox:
        """A request to everybody on the own list, if it is long enough."""
        mask = memory["asked"]["mask"]
        if int(mask.sum()) < self.rules.min_members:
            return {}
        message = request_message(**self._list(mask, memory["asked"]["sigma"]))
        return {who: dict(message) for _, who in self._at(mask)}

    def accept(self, inbox: Inbox, memory: Message) -> Message:
        """Take up what may be answered; if models are to be hidden, the first request alone."""
        memory = {"open": none_open(), **memory}
        if self.rules.hides and inbox:
            memory = {**memory, "digest": row(model_digest(tree_of(memory, "model")))}
            before = part_of(memory["answered"], bytes(memory["digest"].tolist()), self.round)
            if before is not None:
                why = f"has not changed since it became part of a sum in round {before}; it is not shared"
                self.rejections.tell(self.me, f"model of {self.me!r}: {why}")
                return memory
        turns = self.turns(len(self.names))
        for sender, message in sorted(self._each(inbox), key=lambda one: turns[self.names.index(one[0])]):
            if self.rules.hides and len(memory["open"]["of"]):
                break
            with self.rejections.by(sender):
                memory = self._admit(memory, sender, message)
        return memory

    def agree(self, memory: Message) -> Outbox:
        """To each requester whose request was taken up: which exchange that is."""
        return {ctx.requester: {"id": row(ctx.id)} for _, ctx in self._open(memory)}

    def settle(self, inbox: Inbox, memory: Message) -> Message:
        """Those who accepted are the list; if it is shorter now, they must hear of it."""
        asked, wanted = memory["asked"], int(memory["asked"]["mask"].sum())
        yes = torch.zeros_like(asked["mask"])
        if wanted >= self.rules.min_members:
            yes[list(self._signed(inbox, memory))] = True
            if int(yes.sum()) < self.rules.min_members:
                why = f"{int(yes.sum())} of {wanted} members were free, {self.rules.min_members} are needed"
                self.rejections.tell(self.me, f"sum of {self.me!r}: {why}")
        word = AGAIN if int(yes.sum()) >= self.rules.min_members else ABORT
        word = GO if word == AGAIN and torch.equal(yes, asked["mask"]) else word
        verdict = ABORT if self.retries else word
        told = {"word": torch.tensor(word), "verdict": torch.tensor(verdict)}
        return {**memory, "asked": {**asked, **told, **self._list(yes, asked["sigma"])}}

    def confirm(self, memory: Message) -> Outbox:
        """To all who accepted: go, not at all, or the shorter list."""
        return self._word(memory, "word")

    def _word(self, memory: Message, word: str) -> Outbox:
        asked = memory["asked"]
        message = {"word": asked[word].clone(), **request_message(asked["mask"], asked["sigma"])}
        return {who: dict(message) for _, who in self._at(asked["mask"])}

    def _signed(self, inbox: Inbox, memory: Message, also: str = "") -> dict[int, Message]:
        """Outbox about the own exchange, by the place of a sender on the list; all others are refused."""
        found, wanted = {}, row(self._own(memory).id)
        for sender, message in self._each(inbox):
            i = self.names.index(sender)
            with self.rejections.by(sender):
                same = torch.equal(entry(message, "id", torch.uint8, (32,), sender).cpu(), wanted)
                if not same or not memory["asked"]["mask"][i]:
                    raise KinfolkError(f"acceptance of {sender!r}", None, "is of another exchange")
                if also:
                    said = entry(message, also, torch.bool, (len(self.names),), sender).cpu()
                    if bool((said & ~memory["asked"]["mask"]).any()):
                        raise KinfolkError(f"report of {sender!r}", None, "names peers off the list")
                found[i] = message
        return found

    def _told(self, inbox: Inbox, memory: Message, wave: int | None, go: bool) -> Message:
        """Open requests after their requesters' word; with `go`, what is confirmed may be answered."""
        for sender, _ in self._each(inbox):
            if self.names.index(sender) not in self._taken(memory).requesters:
                self.rejections.add(sender, f"message of {sender!r}: is about a request that is not open")
        for i, ctx in list(self._open(memory, wave)):
            message = inbox.get(ctx.requester)
            word = ABORT
            with self.rejections.by(ctx.requester):
                if message is not None:
                    word = int(entry(message, "word", torch.int64, (), ctx.requester))
                if word == GO and message is not None and (wave is None or f"answer.{i}" in memory):
                    self._same(memory, ctx, message)
                    memory = self._may_go(memory, i, go)
                    continue
            memory = self._closed(memory, i, ctx)
            with self.rejections.by(ctx.requester):
                if word == AGAIN and message is not None:
                    memory = self._may_go(self._admit(memory, ctx.requester, message, within=ctx), i, go)
        return memory

    def _may_go(self, memory: Message, i: int, go: bool) -> Message:
        return {**memory, "open": self._taken(memory).going(i, go).tree}

    def _admit(
        self, memory: Message, sender: Client, message: object, within: Context | None = None
    ) -> Message:
        mask, sigma = read_request(message, len(self.names), sender)
        ctx = self._context(memory, sender, mask, sigma)
        (check_secrecy if self.rules.hides else check_list)(
            ctx, self.me, self.rules.min_members, self.rules.max_share
        )
        if within is not None and not set(ctx.members) < set(within.members):
            raise KinfolkError(f"request of {sender!r}", ctx.members, "must be a shorter list")
        log = self._request_log(memory).admit(ctx, self.me)
        i, places = self.names.index(sender), mask.nonzero()[:, 0].tolist()
        return {
            **memory,
            "request_log": log.tree,
            "open": self._taken(memory).admitted(i, places, ctx.sigma).tree,
        }

    def _same(self, memory: Message, ctx: Context, message: object) -> None:
        asked = read_request(message, len(self.names), ctx.requester)
        if self._context(memory, ctx.requester, *asked).id != ctx.id:
            raise KinfolkError(f"request of {ctx.requester!r}", None, "is not the one that was accepted")

    def _closed(self, memory: Message, i: int, ctx: Context) -> Message:
        log = self._request_log(memory)
        request = log.of(ctx.requester)
        if request.id == ctx.id and request.state == "open":  # what was answered cannot be taken back
            log = log.abort(ctx)
        kept = {key: value for key, value in memory.items() if key != f"answer.{i}"}
        return {**kept, "request_log": log.tree, "open": self._taken(memory).without(i).tree}

    def _awaits(self, memory: Message, word: str) -> bool:
        """Whether the own request is of this wave and not given up."""
        mine = self.names.index(self.me) % self.waves == int(memory["wave"])
        return mine and int(memory["asked"][word]) != ABORT

    def _own(self, memory: Message) -> Context:
        return self._context(memory, self.me, **self._list(memory["asked"]["mask"], memory["asked"]["sigma"]))

    def _open(self, memory: Message, wave: int | None = None) -> Iterator[tuple[int, Context]]:
        """(place, context) of every request that is open; of one wave or of all."""
        taken, layers = self._taken(memory), layers_of(tree_of(memory, "model"))
        for i in taken.requesters:
            if wave is None or i % self.waves == wave:
                places, sigma = taken.of(i)
                yield (
                    i,
                    Context(self.names[i], self.round, tuple(self.names[p] for p in places), sigma, layers),
                )

    def _taken(self, memory: Message) -> OpenRequests:
        return OpenRequests(tree_of(memory, "open"))

    def _context(self, memory: Message, requester: Client, mask: Tensor, sigma: Tensor) -> Context:
        members, weights = tuple(who for _, who in self._at(mask)), tuple(sigma[mask].tolist())
        return Context(requester, self.round, members, weights, layers_of(tree_of(memory, "model")))

    def _list(self, mask: Tensor, sigma: Tensor) -> Tree:
        """A list, its weights level enough to be accepted, and if it is long enough to be passed on."""
        if self.rules.hides:
            own, sigma = sigma[mask].tolist(), torch.zeros_like(sigma)
            members = min(len(own), self.rules.min_members + 1)
            sigma[mask] = torch.tensor(levelled(own, members), dtype=sigma.dtype)
        return {"mask": mask, "sigma": sigma}

    def _request_log(self, memory: Message) -> RequestLog:
        # A list that is shorter since somebody did not accept is one more than those that are tried again.
        return RequestLog(self.names, memory["request_log"], self.retries + 1)

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
