"""One client's part in everybody's sums of a round: it asks, accepts, shares and answers, step by step.

A round goes: `ask` / `accept`, `agree` / `settle`, `confirm` / `take_up`; then in each wave of requesters,
once for each retry, `deal` / `respond`, `ready` / `judge`, `judged` / `take_back`, and at last `deal` /
`respond_at_last`, `answer` / `sum_up`; with a scheme that hides also `pass_on` / `take_over`. Of each pair
the first writes messages out of a memory, the second reads those that came.

With a scheme that hides, every state of a model is part of one sum and of no other: a member accepts one
request of a round, the first in its order, and notes forever what it is part of (`.answer_log`). A sum is
passed on to its members, who take it if they have none of their own.

Whoever does not accept (absent, not free, or it refuses) is left out; the shorter list is confirmed. Whoever
accepts and then shares nothing of use makes the exchange void; if it needed all answers, a shorter list is
tried with fresh seeds (`.rejections`). Once answers have left nothing is tried again.
"""

from __future__ import annotations

import torch

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context
from kinfolk.shares.effective_members import enough
from kinfolk.shares.messages import ABORT, AGAIN, GO, row, trees
from kinfolk.shares.negotiation import Inbox, Negotiation, Outbox
from kinfolk.shares.rejections import find_disputes, note_disputes
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.vector import average, part_in, to_vector
from kinfolk.types import Message, tree_of

# What a memory holds for the session alone.
WORK = ("asked", "digest", "open", "served", "sum", "wave")


class SecureSumSession(Negotiation):
    """Shares, answers and sums of one client in one round; and the requests before them."""

    def take_up(self, inbox: Inbox, memory: Message) -> Message:
        """Drop what is not confirmed, exchange what has a shorter list, and make the shares of wave 0."""
        memory = self._told(inbox, memory, None, go=not self.retries)
        return self._dealt({**memory, "wave": torch.tensor(0)})

    def deal(self, memory: Message) -> Outbox:
        """The shares of this wave, to each fellow member all of them in one message."""
        outbox: Outbox = {}
        for key, share in memory.items():
            word, _, place = key.partition(".")
            if word == "share":
                requester, _, to = place.partition(".")
                if self.names[int(to)] != self.me:
                    outbox.setdefault(self.names[int(to)], {})[requester] = share
        return outbox

    def respond(self, inbox: Inbox, memory: Message) -> Message:
        """Add up what came for each requester of this wave, or note whose share was missing or bad."""
        mine, opened = self.names.index(self.me), self._taken(memory)
        here = list(self._open(memory, int(memory["wave"])))
        self.rejections.strangers(inbox, {who for _, ctx in here for who in ctx.members})
        for i, ctx in here:
            if f"answer.{i}" in memory:
                continue
            sent = {who: inbox[who][str(i)] for who in ctx.members if str(i) in inbox.get(who, {})}
            got, kept = trees(sent), memory.get(f"share.{i}.{mine}")
            with self.rejections.by(self.me, ctx.members) as offenders:
                if kept is None:
                    raise KinfolkError(f"model of {self.me!r}", None, "was not shared; there is no answer")
                answer = self._scheme(memory, ctx).respond({**got, self.me: kept}, self.me, ctx)
                memory = {**memory, f"answer.{i}": answer}
            if offenders and kept is not None:
                offenders += [who for who in ctx.members if who not in got and who != self.me]
            opened = opened.losing(i, [self.names.index(who) for who in offenders])
        return {**{k: v for k, v in memory.items() if not k.startswith("share.")}, "open": opened.tree}

    def ready(self, memory: Message) -> Outbox:
        """To each requester of this wave: of which exchange shares came, and whose are missing or bad."""
        outbox: Outbox = {}
        for i, ctx in self._open(memory, int(memory["wave"])):
            lost = self._taken(memory).lost(i, len(self.names))
            lost[self.names.index(self.me)] |= f"answer.{i}" not in memory and not lost.any()
            outbox[ctx.requester] = {"id": row(ctx.id), "lost": lost}
        return outbox

    def judge(self, inbox: Inbox, memory: Message) -> Message:
        """Where enough can answer: go. Else the list is tried without those who are left out."""
        asked = memory["asked"]
        if not self._awaits(memory, "word"):
            return memory
        wrote = self._signed(inbox, memory, also="lost")
        for i, who in self._at(asked["mask"]):
            if i not in wrote:
                self.rejections.add(who, f"message of {who!r}: is missing, though it had accepted")
        reports = {i: message["lost"].cpu() for i, message in wrote.items()}
        able, n = sum(not bool(report.any()) for report in reports.values()), int(asked["mask"].sum())
        needs = self.rules.needs(n)
        if able >= needs:
            return {**memory, "asked": {**asked, "verdict": torch.tensor(GO)}}
        left = asked["mask"].clone()
        found = find_disputes(reports, left.nonzero()[:, 0].tolist())
        note_disputes(found, self.names, self.rejections)
        left[list(found.out)] = False
        if needs < n or not self.rules.min_members <= int(left.sum()) < n:
            return {**memory, "asked": {**asked, "verdict": torch.tensor(ABORT)}}
        told = {"verdict": torch.tensor(AGAIN), **self._list(left, asked["sigma"])}
        return {**memory, "asked": {**asked, **told}}

    def judged(self, memory: Message) -> Outbox:
        """To all who are on the list now: answer, or share once more among a shorter list."""
        return self._word(memory, "verdict") if self._awaits(memory, "verdict") else {}

    def take_back(self, inbox: Inbox, memory: Message) -> Message:
        """Drop what is void, and share again where a shorter list is tried."""
        return self._dealt(self._told(inbox, memory, int(memory["wave"]), go=True))

    def respond_at_last(self, inbox: Inbox, memory: Message) -> Message:
        """As `respond`; what can be answered now is noted as answered, all else is void forever."""
        memory = self.respond(inbox, memory)
        for i, ctx in list(self._open(memory, int(memory["wave"]))):
            with self.rejections.by(ctx.requester):
                if f"answer.{i}" in memory and self._taken(memory).may_go(i):
                    memory = self._logged(memory, ctx)
                    memory = {**memory, "request_log": self._request_log(memory).answer(ctx).tree}
                    continue
            memory = self._closed(memory, i, ctx)
        return memory

    def answer(self, memory: Message) -> Outbox:
        """The sums of this wave, each to its requester."""
        return {
            ctx.requester: memory[f"answer.{i}"]
            for i, ctx in self._open(memory, int(memory["wave"]))
            if f"answer.{i}" in memory and self._request_log(memory).of(ctx.requester).state == "answered"
        }

    def sum_up(self, inbox: Inbox, memory: Message) -> Message:
        """In the own wave "pam" <- (M + sum_i sigma_i M_i) / (1 + sum_i sigma_i)."""
        if self._awaits(memory, "verdict"):
            ctx = self._own(memory)
            self.rejections.strangers(inbox, ctx.members)
            with self.rejections.by(None, ctx.members):
                note_fault = lambda error: self.rejections.blame(error, None, ctx.members)  # noqa: E731
                whole = self.rules.reconstruct(trees(inbox), ctx, note_fault)
                pam = average(tree_of(memory, "model"), whole, ctx.total)
                memory = {**memory, "pam": pam, "sum": whole, "served": torch.tensor(True)}
        return memory if self.rules.hides else self._end_wave(memory)

    def pass_on(self, memory: Message) -> Outbox:
        """The own sum to its members, if it counts for one more than is needed: each knows one of them."""
        if "sum" not in memory or not enough(self._own(memory).sigma, self.rules.min_members + 1):
            return {}
        message = {"id": row(self._own(memory).id), "sum": memory["sum"]}
        return {who: dict(message) for _, who in self._at(memory["asked"]["mask"])}

    def take_over(self, inbox: Inbox, memory: Message) -> Message:
        """Without a sum of one's own, the one that the own model is part of, less that model."""
        here = [ctx for i, ctx in self._open(memory, int(memory["wave"])) if f"answer.{i}" in memory]
        self.rejections.strangers(inbox, [ctx.requester for ctx in here])
        for ctx in here:
            if ctx.requester not in inbox or "served" in memory:
                continue
            with self.rejections.by(ctx.requester):
                pam = part_in(inbox[ctx.requester], tree_of(memory, "model"), self.me, ctx)
                memory = {**memory, "pam": pam}
        return self._end_wave(memory)

    def next_wave(self, inbox: Inbox, memory: Message) -> Message:
        """Make the shares of the wave that begins; nobody writes anything."""
        return self._dealt(memory)

    def _end_wave(self, memory: Message) -> Message:
        """Without what was of this wave, and after the last without anything of the session."""
        wave = memory["wave"] + 1
        done = WORK if int(wave) == self.waves else ("sum",)
        kept = {k: v for k, v in memory.items() if not k.startswith("answer.") and k not in done}
        return kept if int(wave) == self.waves else {**kept, "wave": wave}

    def _dealt(self, memory: Message) -> Message:
        """With the shares of the wave that begins."""
        vec = None
        for i, ctx in self._open(memory, int(memory["wave"])):
            if f"answer.{i}" in memory:
                continue
            vec = to_vector(tree_of(memory, "model"))[0] if vec is None else vec
            scheme, sigma = self._scheme(memory, ctx), ctx.sigma[ctx.place(self.me)]
            with self.rejections.by(self.me):
                shares = scheme.split(vec, sigma, self.me, ctx.members, ctx)
                # Where others can do without its answer, what it shares is part of the sum already.
                if scheme.needs(len(ctx.members)) < len(ctx.members):
                    memory = self._logged(memory, ctx)
                held = {f"share.{i}.{self.names.index(to)}": share for to, share in shares.items()}
                memory = {**memory, **held}
        return memory

    def _scheme(self, memory: Message, ctx: Context) -> Scheme:
        return self.scheme(ctx.requester, self._request_log(memory).of(ctx.requester).attempt)
