"""One client's part in everybody's sums of a round: it asks, accepts, shares and answers, letter by letter.

A round goes: `ask` / `accept`, `agree` / `settle`, `confirm` / `take_up`; then in each wave of requesters,
once for each retry, `deal` / `respond`, `ready` / `judge`, `judged` / `take_back`, and at last `deal` /
`respond_at_last`, `answer` / `sum_up`. Of each pair the first writes letters out of a memory, the second
reads those that came.

Whoever is on a list and does not accept (absent, or it refuses) is left out; the shorter list is confirmed.
Whoever accepts and then shares nothing, or nothing that can be used, makes the exchange void; as no answer
has left yet, the shorter list is tried with fresh seeds. Whoever vanishes later leaves the requester with its
own model, unless the scheme can do without: two sums over lists that differ in one member would tell that
member's model, so nothing is tried again once answers have left.

What is open lies in the memory: "asked" (the own request), "open" (those of others, by requester),
"diary"; and for one wave "share.<requester>.<member>" and "answer.<requester>".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.shares.context import Context, Diary, Visit, check_secrecy
from kinfolk.shares.letters import field, noted, one_visit, read_request, request_letter
from kinfolk.shares.refusals import Refusals
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.vector import to_tree, to_vector
from kinfolk.types import Client, Message, Tree

Letters = dict[Client, Message]
Inbox = Mapping[Client, Message]
ABORT, GO, AGAIN = range(3)


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

    def ask(self, memory: Message) -> Letters:
        """A request to everybody on the own list, if it is long enough."""
        asked = memory["asked"]
        if int(asked["mask"].sum()) < self.min_members:
            return {}
        return {who: request_letter(asked["mask"], asked["sigma"], i) for i, who in self._at(asked["mask"])}

    def accept(self, inbox: Inbox, memory: Message) -> Message:
        """Take up what may be answered."""
        memory = {"open": _nothing_open(len(self.names)), **memory}
        for sender, letter in self._each(inbox):
            with self.refusals.by(sender):
                memory = self._admit(memory, sender, letter)
        return memory

    def agree(self, memory: Message) -> Letters:
        """To each requester whose request was taken up: which exchange that is."""
        return {ctx.requester: {"id": _row(ctx.id)} for _, ctx, _ in self._open(memory)}

    def settle(self, inbox: Inbox, memory: Message) -> Message:
        """Those who accepted are the list; if it is shorter now, they must hear of it."""
        asked = memory["asked"]
        yes = torch.zeros_like(asked["mask"])
        if int(asked["mask"].sum()) >= self.min_members:
            yes[list(self._signed(inbox, memory))] = True
        word = AGAIN if int(yes.sum()) >= self.min_members else ABORT
        word = GO if word == AGAIN and torch.equal(yes, asked["mask"]) else word
        verdict = ABORT if self.retries else word
        told = {"mask": yes, "word": torch.tensor(word), "verdict": torch.tensor(verdict)}
        return {**memory, "asked": {**asked, **told}}

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
        for i, ctx, _ in list(self._open(memory, int(memory["wave"]))):
            if f"answer.{i}" in memory:
                continue
            sent = {who: inbox[who][str(i)] for who in ctx.members if str(i) in inbox.get(who, {})}
            got, kept = _trees(sent), memory.get(f"share.{i}.{mine}")
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
        for i, ctx, _ in self._open(memory, int(memory["wave"])):
            lost = memory["open"]["lost"][i].clone()
            lost[self.names.index(self.me)] |= f"answer.{i}" not in memory and not lost.any()
            letters[ctx.requester] = {"id": _row(ctx.id), "lost": lost}
        return letters

    def judge(self, inbox: Inbox, memory: Message) -> Message:
        """Where enough can answer: go. Else those who wrote and whom nobody misses are the list."""
        asked = memory["asked"]
        if not self._awaits(memory, "word"):
            return memory
        wrote = self._signed(inbox, memory, also="lost")
        for i, who in self._at(asked["mask"]):
            if i not in wrote:
                self.refusals.add(who, f"letter of {who!r}: is missing, though it had accepted")
        able, missed = 0, torch.zeros_like(asked["mask"])
        for letter in wrote.values():
            able += not bool(letter["lost"].any())
            missed |= letter["lost"].cpu()
        if able >= self.scheme(self.me, 0).needs(int(asked["mask"].sum())):
            return {**memory, "asked": {**asked, "verdict": torch.tensor(GO)}}
        left = torch.zeros_like(missed)
        left[list(wrote)] = True
        left &= ~missed
        shorter = self.min_members <= int(left.sum()) < int(asked["mask"].sum())
        told = {"mask": left, "verdict": torch.tensor(AGAIN)} if shorter else {"verdict": torch.tensor(ABORT)}
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
        for i, ctx, _ in list(self._open(memory, int(memory["wave"]))):
            with self.refusals.by(ctx.requester):
                if f"answer.{i}" in memory and memory["open"]["go"][i]:
                    diary = self._diary(memory, ctx.requester).answer(ctx)
                    memory = self._noted(memory, ctx.requester, diary)
                    continue
            memory = self._closed(memory, i, ctx)
        return memory

    def answer(self, memory: Message) -> Letters:
        """The sums of this wave, each to its requester."""
        return {
            ctx.requester: memory[f"answer.{i}"]
            for i, ctx, _ in self._open(memory, int(memory["wave"]))
            if f"answer.{i}" in memory and self._visit(memory, ctx).state == "answered"
        }

    def sum_up(self, inbox: Inbox, memory: Message) -> Message:
        """In the own wave "pam" <- (M + sum_i sigma_i M_i) / (1 + sum_i sigma_i); then the next begins."""
        wave = int(memory["wave"])
        if self._awaits(memory, "verdict"):
            ctx = self._own(memory)
            with self.refusals.by(self.me, ctx.members):
                scheme = self.scheme(self.me, 0)  # only members draw
                own = to_vector(memory["model"])[0].detach().double()
                whole = scheme.reconstruct(_trees(inbox), ctx).to(own.device)
                memory = {**memory, "pam": to_tree((own + whole) / (1 + ctx.total), memory["model"])}
        memory = {key: value for key, value in memory.items() if not key.startswith("answer.")}
        return self._dealt({**memory, "wave": torch.tensor(wave + 1)})

    def _awaits(self, memory: Message, word: str) -> bool:
        """Whether the own request is of this wave and not given up."""
        mine = self.names.index(self.me) % self.waves == int(memory["wave"])
        return mine and int(memory["asked"][word]) != ABORT

    def _word(self, memory: Message, word: str) -> Letters:
        asked = memory["asked"]
        return {
            who: {"word": asked[word].clone(), **request_letter(asked["mask"], asked["sigma"], i)}
            for i, who in self._at(asked["mask"])
        }

    def _signed(self, inbox: Inbox, memory: Message, also: str = "") -> dict[int, Message]:
        """Letters about the own exchange, by the place of a sender on the list; all others are refused."""
        found, wanted = {}, _row(self._own(memory).id)
        for sender, letter in self._each(inbox):
            i = self.names.index(sender)
            with self.refusals.by(sender):
                same = torch.equal(field(letter, "id", torch.uint8, (32,), sender).cpu(), wanted)
                if not same or not memory["asked"]["mask"][i]:
                    raise KinfolkError(f"acceptance of {sender!r}", None, "is of another exchange")
                if also:
                    field(letter, also, torch.bool, (len(self.names),), sender)
                found[i] = letter
        return found

    def _told(self, inbox: Inbox, memory: Message, wave: int | None, go: bool) -> Message:
        """Open requests after their requesters' word; with `go`, what is confirmed may be answered."""
        for sender, _ in self._each(inbox):
            if not memory["open"]["mask"][self.names.index(sender)].any():
                self.refusals.add(sender, f"letter of {sender!r}: is about a request that is not open")
        for i, ctx, _ in list(self._open(memory, wave)):
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
        mask, sigma, total = read_request(letter, len(self.names), sender)
        ctx = self._context(memory, sender, mask, total)
        check_secrecy(sigma, self.me, ctx, self.min_members, self.max_share)
        if within is not None and not set(ctx.members) < set(within.members):
            raise KinfolkError(f"request of {sender!r}", ctx.members, "must be a shorter list")
        diary = self._diary(memory, sender).admit(ctx, self.me, self.names)
        i, opened = self.names.index(sender), {key: t.clone() for key, t in memory["open"].items()}
        opened["mask"][i], opened["sigma"][i], opened["total"][i] = mask, sigma, total
        return {**self._noted(memory, sender, diary), "open": opened}

    def _same(self, memory: Message, ctx: Context, letter: object) -> None:
        mask, _, total = read_request(letter, len(self.names), ctx.requester)
        if self._context(memory, ctx.requester, mask, total).id != ctx.id:
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
        for i, ctx, sigma in self._open(memory, int(memory["wave"])):
            if f"answer.{i}" in memory:
                continue
            vec = to_vector(memory["model"])[0] if vec is None else vec
            with self.refusals.by(self.me):
                shares = self._scheme(memory, ctx).split(vec, sigma, self.me, ctx.members, ctx)
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

    def _context(self, memory: Message, requester: Client, mask: Tensor, total: float) -> Context:
        members = tuple(who for _, who in self._at(mask))
        return Context(requester, self.round, members, total, _layers(memory["model"]))

    def _own(self, memory: Message) -> Context:
        asked = memory["asked"]
        return self._context(memory, self.me, asked["mask"], float(asked["sigma"][asked["mask"]].sum()))

    def _open(self, memory: Message, wave: int | None = None) -> Iterator[tuple[int, Context, float]]:
        """(place, context, own sigma) of every request that is open; of one wave or of all."""
        opened = memory["open"]
        asking = opened["mask"].any(1).tolist()
        for i, who in enumerate(self.names):
            if asking[i] and (wave is None or i % self.waves == wave):
                ctx = self._context(memory, who, opened["mask"][i], float(opened["total"][i]))
                yield i, ctx, float(opened["sigma"][i])

    def _at(self, mask: Tensor) -> list[tuple[int, Client]]:
        return [(i, self.names[i]) for i in mask.nonzero()[:, 0].tolist()]

    def _each(self, inbox: Inbox) -> list[tuple[Client, Message]]:
        return [(sender, inbox[sender]) for sender in sorted(inbox) if sender in self.names]


def no_request(peers: int) -> Tree:
    """What "asked" holds while nobody is asked.

    >>> no_request(2)["mask"]
    tensor([False, False])
    """
    mask, sigma = torch.zeros(peers, dtype=torch.bool), torch.zeros(peers, dtype=torch.float64)
    return {"mask": mask, "sigma": sigma, "word": torch.tensor(ABORT), "verdict": torch.tensor(ABORT)}


def _nothing_open(peers: int) -> Tree:
    numbers = {key: torch.zeros(peers, dtype=torch.float64) for key in ("sigma", "total")}
    lists = {key: torch.zeros(peers, peers, dtype=torch.bool) for key in ("mask", "lost")}
    return {**lists, "go": torch.zeros(peers, dtype=torch.bool), **numbers}


def _layers(model: Tree) -> tuple[tuple[str, int], ...]:
    return tuple((name, leaf.numel()) for name, leaf in model.items() if leaf.is_floating_point())


def _trees(messages: Mapping[Client, object]) -> Letters:
    """Only what has the form of a message at all."""
    return {who: message for who, message in messages.items() if isinstance(message, dict)}


def _row(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
