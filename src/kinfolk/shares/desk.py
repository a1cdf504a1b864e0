"""One client's part in everybody's sums of a round: it asks, accepts, shares and answers, letter by letter.

A round goes: `ask` / `accept`, `agree` / `settle`, `confirm` / `take_up`; then in each wave of requesters,
once for each retry, `deal` / `respond`, `ready` / `judge`, `judged` / `take_back`, and at last `deal` /
`respond_at_last`, `answer` / `sum_up`; with a scheme that hides also `pass_on` / `take_over`. Of each pair
the first writes letters out of a memory, the second reads those that came.

With a scheme that hides, every state of a model is part of one sum and of no other: a member accepts one
request of a round, the first in its order, and notes for ever what it is part of (`.request_log`). A sum is
passed on to its members, who take it if they have none of their own.

Whoever does not accept (absent, not free, or it refuses) is left out; the shorter list is confirmed. Whoever
accepts and then shares nothing of use makes the exchange void; if it needed all answers, a shorter list is
tried with fresh seeds (`.disputes`). Once answers have left nothing is tried again.

In the memory: "asked" (the own request), "open" (those of others, by requester), "diary", "answered" (the
log), "digest" (of the model); for one wave "share.<requester>.<member>", "answer.<requester>" and "sum".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.average import average, part_in
from kinfolk.shares.context import Context, Diary, Visit, check_list, check_secrecy
from kinfolk.shares.disputes import find, note
from kinfolk.shares.effective import enough
from kinfolk.shares.letters import (
    ABORT,
    AGAIN,
    GO,
    field,
    level_weights,
    noted,
    nothing_open,
    one_visit,
    read_request,
    request_letter,
    row,
    trees,
)
from kinfolk.shares.refusals import Refusals
from kinfolk.shares.request_log import check_unanswered, model_digest, noted_answer, part_of
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.vector import layers_of, to_vector
from kinfolk.types import Client, Message, Tree

Letters = dict[Client, Message]
Inbox = Mapping[Client, Message]


@dataclass(frozen=True)
class Desk:
    """Where one client handles requests in one round."""

    me: Client
    names: tuple[Client, ...]  # of all peers, sorted
    round: int
    scheme: Callable[[Client, int], Scheme]  # for a requester and an attempt
    refusals: Refusals  # whose letters could not be used
    min_members: int = 3
    max_share: float = 0.5
    waves: int = 1
    retries: int = 1  # how often an exchange that failed before any answer left is tried with a shorter list
    hides: bool = True  # whether the scheme hides models: then each is part of one sum only
    order: Callable[[int], Sequence[int]] = range  # places of n peers, first whose request comes first

    def ask(self, memory: Message) -> Letters:
        """A request to everybody on the own list, if it is long enough."""
        mask = memory["asked"]["mask"]
        if int(mask.sum()) < self.min_members:
            return {}
        letter = request_letter(mask, self._weights(mask, memory["asked"]["sigma"]))
        return {who: dict(letter) for _, who in self._at(mask)}

    def accept(self, inbox: Inbox, memory: Message) -> Message:
        """Take up what may be answered; if models are to be hidden, the first request alone."""
        memory = {"open": nothing_open(len(self.names)), **memory}
        if self.hides and inbox:
            memory = {**memory, "digest": row(model_digest(memory["model"]))}
            before = part_of(memory["answered"], bytes(memory["digest"].tolist()), self.round)
            if before is not None:
                why = f"has not changed since it became part of a sum in round {before}; it is not shared"
                self.refusals.tell(self.me, f"model of {self.me!r}: {why}")
                return memory
        turns = {self.names[place]: i for i, place in enumerate(self.order(len(self.names)))}
        for sender, letter in sorted(self._each(inbox), key=lambda one: turns[one[0]]):
            if self.hides and memory["open"]["mask"].any():
                break
            with self.refusals.by(sender):
                memory = self._admit(memory, sender, letter)
        return memory

    def agree(self, memory: Message) -> Letters:
        """To each requester whose request was taken up: which exchange that is."""
        return {ctx.requester: {"id": row(ctx.id)} for _, ctx in self._open(memory)}

    def settle(self, inbox: Inbox, memory: Message) -> Message:
        """Those who accepted are the list; if it is shorter now, they must hear of it."""
        asked, wanted = memory["asked"], int(memory["asked"]["mask"].sum())
        yes = torch.zeros_like(asked["mask"])
        if wanted >= self.min_members:
            yes[list(self._signed(inbox, memory))] = True
            if int(yes.sum()) < self.min_members:
                why = f"{int(yes.sum())} of {wanted} members were free, {self.min_members} are needed"
                self.refusals.tell(self.me, f"sum of {self.me!r}: {why}")
        word = AGAIN if int(yes.sum()) >= self.min_members else ABORT
        word = GO if word == AGAIN and torch.equal(yes, asked["mask"]) else word
        verdict = ABORT if self.retries else word
        told = {"word": torch.tensor(word), "verdict": torch.tensor(verdict)}
        return {**memory, "asked": {**asked, **told, **self._list(yes, asked["sigma"])}}

    def confirm(self, memory: Message) -> Letters:
        """To all who accepted: go, not at all, or the shorter list."""
        return self._word(memory, "word")

    def take_up(self, inbox: Inbox, memory: Message) -> Message:
        """Drop what is not confirmed, exchange what has a shorter list, and make the shares of wave 0."""
        memory = self._told(inbox, memory, None, go=not self.retries)
        return self._dealt({**memory, "wave": torch.tensor(0)})

    def deal(self, memory: Message) -> Letters:
        """The shares of this wave, to each fellow member all of them in one letter."""
        letters: Letters = {}
        for key, share in memory.items():
            word, _, place = key.partition(".")
            if word == "share":
                requester, _, to = place.partition(".")
                if self.names[int(to)] != self.me:
                    letters.setdefault(self.names[int(to)], {})[requester] = share
        return letters

    def respond(self, inbox: Inbox, memory: Message) -> Message:
        """Add up what came for each requester of this wave, or note whose share was missing or bad."""
        mine, opened = self.names.index(self.me), {key: t.clone() for key, t in memory["open"].items()}
        here = list(self._open(memory, int(memory["wave"])))
        self.refusals.strangers(inbox, {who for _, ctx in here for who in ctx.members})
        for i, ctx in here:
            if f"answer.{i}" in memory:
                continue
            sent = {who: inbox[who][str(i)] for who in ctx.members if str(i) in inbox.get(who, {})}
            got, kept = trees(sent), memory.get(f"share.{i}.{mine}")
            with self.refusals.by(self.me, ctx.members) as guilty:
                if kept is None:
                    raise KinfolkError(f"model of {self.me!r}", None, "was not shared; there is no answer")
                answer = self._scheme(memory, ctx).respond({**got, self.me: kept}, self.me, ctx)
                memory = {**memory, f"answer.{i}": answer}
            if guilty and kept is not None:
                guilty += [who for who in ctx.members if who not in got and who != self.me]
            opened["lost"][i] = torch.tensor([who in guilty for who in self.names])
        return {**{k: v for k, v in memory.items() if not k.startswith("share.")}, "open": opened}

    def ready(self, memory: Message) -> Letters:
        """To each requester of this wave: of which exchange shares came, and whose are missing or bad."""
        letters: Letters = {}
        for i, ctx in self._open(memory, int(memory["wave"])):
            lost = memory["open"]["lost"][i].clone()
            lost[self.names.index(self.me)] |= f"answer.{i}" not in memory and not lost.any()
            letters[ctx.requester] = {"id": row(ctx.id), "lost": lost}
        return letters

    def judge(self, inbox: Inbox, memory: Message) -> Message:
        """Where enough can answer: go. Else the list is tried without those who are left out."""
        asked = memory["asked"]
        if not self._awaits(memory, "word"):
            return memory
        wrote = self._signed(inbox, memory, also="lost")
        for i, who in self._at(asked["mask"]):
            if i not in wrote:
                self.refusals.add(who, f"letter of {who!r}: is missing, though it had accepted")
        reports = {i: letter["lost"].cpu() for i, letter in wrote.items()}
        able, n = sum(not bool(report.any()) for report in reports.values()), int(asked["mask"].sum())
        needs = self.scheme(self.me, 0).needs(n)
        if able >= needs:
            return {**memory, "asked": {**asked, "verdict": torch.tensor(GO)}}
        left = asked["mask"].clone()
        found = find(reports, left.nonzero()[:, 0].tolist())
        note(found, self.names, self.refusals)
        left[list(found.out)] = False
        if needs < n or not self.min_members <= int(left.sum()) < n:
            return {**memory, "asked": {**asked, "verdict": torch.tensor(ABORT)}}
        told = {"verdict": torch.tensor(AGAIN), **self._list(left, asked["sigma"])}
        return {**memory, "asked": {**asked, **told}}

    def judged(self, memory: Message) -> Letters:
        """To all who are on the list now: answer, or share once more among a shorter list."""
        return self._word(memory, "verdict") if self._awaits(memory, "verdict") else {}

    def take_back(self, inbox: Inbox, memory: Message) -> Message:
        """Drop what is void, and share anew where a shorter list is tried."""
        return self._dealt(self._told(inbox, memory, int(memory["wave"]), go=True))

    def respond_at_last(self, inbox: Inbox, memory: Message) -> Message:
        """As `respond`; what can be answered now is noted as answered, all else is void for ever."""
        memory = self.respond(inbox, memory)
        for i, ctx in list(self._open(memory, int(memory["wave"]))):
            with self.refusals.by(ctx.requester):
                if f"answer.{i}" in memory and memory["open"]["go"][i]:
                    memory = self._logged(memory, ctx)
                    diary = self._diary(memory, ctx.requester).answer(ctx)
                    memory = self._noted(memory, ctx.requester, diary)
                    continue
            memory = self._closed(memory, i, ctx)
        return memory

    def answer(self, memory: Message) -> Letters:
        """The sums of this wave, each to its requester."""
        return {
            ctx.requester: memory[f"answer.{i}"]
            for i, ctx in self._open(memory, int(memory["wave"]))
            if f"answer.{i}" in memory and self._visit(memory, ctx).state == "answered"
        }

    def sum_up(self, inbox: Inbox, memory: Message) -> Message:
        """In the own wave "pam" <- (M + sum_i sigma_i M_i) / (1 + sum_i sigma_i)."""
        if self._awaits(memory, "verdict"):
            ctx = self._own(memory)
            self.refusals.strangers(inbox, ctx.members)
            with self.refusals.by(None, ctx.members):
                scheme = self.scheme(self.me, 0)  # only members draw
                whole = scheme.reconstruct(
                    trees(inbox), ctx, lambda error: self.refusals.accuse(error, ctx.members)
                )
                memory = {**memory, "pam": average(memory["model"], whole, ctx.total), "sum": whole}
        return memory if self.hides else self._next_wave(memory)

    def pass_on(self, memory: Message) -> Letters:
        """The own sum to its members, if it counts for one more than is needed: each knows one of them."""
        if "sum" not in memory or not enough(self._own(memory).sigma, self.min_members + 1):
            return {}
        letter = {"id": row(self._own(memory).id), "sum": memory["sum"]}
        return {who: dict(letter) for _, who in self._at(memory["asked"]["mask"])}

    def take_over(self, inbox: Inbox, memory: Message) -> Message:
        """Without a sum of one's own, the one that the own model is part of, less that model."""
        here = [ctx for i, ctx in self._open(memory, int(memory["wave"])) if f"answer.{i}" in memory]
        self.refusals.strangers(inbox, [ctx.requester for ctx in here])
        for ctx in here:
            if ctx.requester not in inbox or "sum" in memory:
                continue
            with self.refusals.by(ctx.requester):
                pam = part_in(inbox[ctx.requester], memory["model"], self.me, ctx)
                memory = {**memory, "pam": pam}
        return self._next_wave(memory)

    def _next_wave(self, memory: Message) -> Message:
        kept = {k: v for k, v in memory.items() if not k.startswith("answer.") and k != "sum"}
        return self._dealt({**kept, "wave": memory["wave"] + 1})

    def _logged(self, memory: Message, ctx: Context) -> Message:
        """With the note that the model is part of this sum, before that can come true."""
        if not self.hides:
            return memory
        digest = bytes(memory["digest"].tolist())
        check_unanswered(memory["answered"], ctx, digest)
        return {**memory, "answered": noted_answer(memory["answered"], ctx, digest)}

    def _awaits(self, memory: Message, word: str) -> bool:
        """Whether the own request is of this wave and not given up."""
        mine = self.names.index(self.me) % self.waves == int(memory["wave"])
        return mine and int(memory["asked"][word]) != ABORT

    def _word(self, memory: Message, word: str) -> Letters:
        asked = memory["asked"]
        return {
            who: {"word": asked[word].clone(), **request_letter(asked["mask"], asked["sigma"])}
            for _, who in self._at(asked["mask"])
        }

    def _signed(self, inbox: Inbox, memory: Message, also: str = "") -> dict[int, Message]:
        """Letters about the own exchange, by the place of a sender on the list; all others are refused."""
        found, wanted = {}, row(self._own(memory).id)
        for sender, letter in self._each(inbox):
            i = self.names.index(sender)
            with self.refusals.by(sender):
                same = torch.equal(field(letter, "id", torch.uint8, (32,), sender).cpu(), wanted)
                if not same or not memory["asked"]["mask"][i]:
                    raise KinfolkError(f"acceptance of {sender!r}", None, "is of another exchange")
                if also:
                    said = field(letter, also, torch.bool, (len(self.names),), sender).cpu()
                    if bool((said & ~memory["asked"]["mask"]).any()):
                        raise KinfolkError(f"report of {sender!r}", None, "names peers off the list")
                found[i] = letter
        return found

    def _told(self, inbox: Inbox, memory: Message, wave: int | None, go: bool) -> Message:
        """Open requests after their requesters' word; with `go`, what is confirmed may be answered."""
        for sender, _ in self._each(inbox):
            if not memory["open"]["mask"][self.names.index(sender)].any():
                self.refusals.add(sender, f"letter of {sender!r}: is about a request that is not open")
        for i, ctx in list(self._open(memory, wave)):
            letter = inbox.get(ctx.requester)
            word = ABORT
            with self.refusals.by(ctx.requester):
                word = ABORT if letter is None else int(field(letter, "word", torch.int64, (), ctx.requester))
                if word == GO and letter is not None and (wave is None or f"answer.{i}" in memory):
                    self._same(memory, ctx, letter)
                    memory = self._may_go(memory, i, go)
                    continue
            memory = self._closed(memory, i, ctx)
            with self.refusals.by(ctx.requester):
                if word == AGAIN and letter is not None:
                    memory = self._may_go(self._admit(memory, ctx.requester, letter, within=ctx), i, go)
        return memory

    def _may_go(self, memory: Message, i: int, go: bool) -> Message:
        allowed = memory["open"]["go"].clone()
        allowed[i] = go
        return {**memory, "open": {**memory["open"], "go": allowed}}

    def _admit(
        self, memory: Message, sender: Client, letter: object, within: Context | None = None
    ) -> Message:
        mask, sigma = read_request(letter, len(self.names), sender)
        ctx = self._context(memory, sender, mask, sigma)
        (check_secrecy if self.hides else check_list)(ctx, self.me, self.min_members, self.max_share)
        if within is not None and not set(ctx.members) < set(within.members):
            raise KinfolkError(f"request of {sender!r}", ctx.members, "must be a shorter list")
        diary = self._diary(memory, sender).admit(ctx, self.me, self.names)
        i, opened = self.names.index(sender), {key: t.clone() for key, t in memory["open"].items()}
        opened["mask"][i], opened["sigma"][i] = mask, sigma
        return {**self._noted(memory, sender, diary), "open": opened}

    def _same(self, memory: Message, ctx: Context, letter: object) -> None:
        asked = read_request(letter, len(self.names), ctx.requester)
        if self._context(memory, ctx.requester, *asked).id != ctx.id:
            raise KinfolkError(f"request of {ctx.requester!r}", None, "is not the one that was accepted")

    def _closed(self, memory: Message, i: int, ctx: Context) -> Message:
        opened = {key: t.clone() for key, t in memory["open"].items()}
        opened["mask"][i], opened["lost"][i], opened["go"][i] = False, False, False
        diary, visit = self._diary(memory, ctx.requester), self._visit(memory, ctx)
        if visit.id == ctx.id and visit.state == "open":  # what was answered can not be taken back
            diary = diary.abort(ctx)
        kept = {key: value for key, value in memory.items() if key != f"answer.{i}"}
        return {**self._noted(kept, ctx.requester, diary), "open": opened}

    def _dealt(self, memory: Message) -> Message:
        """With the shares of the wave that begins."""
        vec = None
        for i, ctx in self._open(memory, int(memory["wave"])):
            if f"answer.{i}" in memory:
                continue
            vec = to_vector(memory["model"])[0] if vec is None else vec
            scheme, sigma = self._scheme(memory, ctx), ctx.sigma[ctx.place(self.me)]
            with self.refusals.by(self.me):
                shares = scheme.split(vec, sigma, self.me, ctx.members, ctx)
                # Where others can do without its answer, what it shares is part of the sum already.
                if scheme.needs(len(ctx.members)) < len(ctx.members):
                    memory = self._logged(memory, ctx)
                held = {f"share.{i}.{self.names.index(to)}": share for to, share in shares.items()}
                memory = {**memory, **held}
        return memory

    def _scheme(self, memory: Message, ctx: Context) -> Scheme:
        return self.scheme(ctx.requester, self._visit(memory, ctx).attempt)

    def _visit(self, memory: Message, ctx: Context) -> Visit:
        return self._diary(memory, ctx.requester).last[ctx.requester]

    def _diary(self, memory: Message, of: Client) -> Diary:
        # A list that is shorter since somebody did not accept is one more than those that are tried again.
        return one_visit(memory["diary"], self.names, of, self.retries + 1)

    def _noted(self, memory: Message, of: Client, diary: Diary) -> Message:
        return {**memory, "diary": noted(memory["diary"], self.names, of, diary)}

    def _weights(self, mask: Tensor, sigma: Tensor) -> Tensor:
        """The weights of a list, level enough to be accepted, and if it is long enough to be passed on."""
        return level_weights(mask, sigma, self.min_members + 1) if self.hides else sigma

    def _list(self, mask: Tensor, sigma: Tensor) -> Tree:
        return {"mask": mask, "sigma": self._weights(mask, sigma)}

    def _context(self, memory: Message, requester: Client, mask: Tensor, sigma: Tensor) -> Context:
        members, weights = tuple(who for _, who in self._at(mask)), tuple(sigma[mask].tolist())
        return Context(requester, self.round, members, weights, layers_of(memory["model"]))

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

    def _at(self, mask: Tensor) -> list[tuple[int, Client]]:
        return [(i, self.names[i]) for i in mask.nonzero()[:, 0].tolist()]

    def _each(self, inbox: Inbox) -> list[tuple[Client, Message]]:
        return [(sender, inbox[sender]) for sender in sorted(inbox) if sender in self.names]
