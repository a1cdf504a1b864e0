"""SLFed: no server; clients trust one another by how alike their models see made images, and average.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.

A round of client A: every few rounds train a weak GAN and make images; show them to a few direct partners;
compare the histograms of both models' predictions; turn that into opinions, hear the partners' opinions
of everybody; ask those of whom A is least uncertain for their models, each scaled by its similarity, as
shares of which A learns the sum; train what comes out, the personal aggregated model (PAM).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.book import (
    Hearsay,
    Memory,
    Weight,
    at_first_hand,
    blank_book,
    checked_told,
    note_hearsay,
    note_meetings,
    opinions,
)
from kinfolk.algorithms.slfed.copies import CopyGuard
from kinfolk.algorithms.slfed.gan import Gan
from kinfolk.algorithms.slfed.peers import due, finite_or, holding, is_finite, on_host, partners
from kinfolk.algorithms.slfed.probe_images import Kind, StandIns, checked_images, keep_all, predicted
from kinfolk.algorithms.slfed.ranges import REACH, Ranges, checked_reach
from kinfolk.algorithms.slfed.similar_peers import Rank, listed
from kinfolk.algorithms.slfed.similarity import MEASURES, Compare, Measure
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner, own_model
from kinfolk.script import Script, ask, exchange
from kinfolk.shares import HIDING, make_scheme
from kinfolk.shares.desk import Desk, Inbox, Letters
from kinfolk.shares.letters import blank_diary, field, no_request
from kinfolk.shares.refusals import Refusals, no_refusals, reasons, without_reasons
from kinfolk.shares.request_log import empty_log
from kinfolk.shares.scheme import Scheme
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Carry, ClientInfo, Fit, Peer, PeerTask, Table, Task
from kinfolk.types import Client, Message, PerClient, Tree

# What lives longer than a round; all else in a memory is one round's.
KEPT = (
    "answered", "book", "copies", "diary", "images", "key", "made", "model", "pam", REACH, "reasons",
    "refused",
)  # fmt: skip

# What is worked on where the engine works.
LARGE = ("images", "model", "pam")


@dataclass(frozen=True)
class State:
    """There is no server: all that is known is who has joined."""

    joined: Tensor  # [clients] int64: 1 for those who have trained and made images


@dataclass(frozen=True)
class SLFed:
    """No server: subjective-logic trust, personal aggregated models, sums by secret shares.

    All defaults are as published, or the nearest to it where the paper is silent; options of ours say so.
    As published the lists do not find groups; `slfed_similar` has lists that do (docs/papers/slfed.md).
    """

    lasting = ("answered",)  # what a member has answered stays answered, whatever becomes of the round

    learner: Learner
    direct: int = 2  # DS: partners each client chooses in a round
    gan_every: int = 4  # g: rounds from one set of images to the next
    gan_growth: float = 1.0  # above 1 that gap grows by this factor each time, so that images get rarer
    # "gan" is the paper's; "means" of rows of a class is ours, the others are controls.
    images: Kind = "gan"
    images_count: int = 1000  # G
    gan_epochs: int = 10
    gan_rows: int = 2000  # the most rows a GAN is shown; 0: all
    gan_steps: int = 0  # > 0: that many steps instead of epochs (2000 rows, 10 epochs: 313)
    gan_width: float = 1.0  # factor on the GAN's hidden layers
    gan_batch: int = 64
    gan_lr: float = 2e-4
    search_steps: int = 100  # of back search
    means_of: int = 8  # rows that an image of "means" is the mean of
    low: float = -1.0  # the range of the numbers in a row, which bytes are spread over
    high: float = 1.0
    ranges: Ranges = (
        "auto"  # "fixed": that; "own": each feature's, by a client's rows; "auto": own for tables
    )
    guard_copies: bool = True  # images that are copies of training rows do not leave
    memory: Memory = "recompute"  # what becomes of earlier hearsay
    # Ours, "capped": lists by own contacts alone, and in sigma hearsay weighs at most as much as one contact.
    hearsay: Hearsay = "published"
    teller_weight: Weight = "all"  # what a teller is believed by: hearsay too, or contacts
    tell: Literal["all", "direct"] = (
        "all"  # opinions that are passed on: hearsay too, or of own contacts only
    )
    # M_A and the M_i of a sum: the PAM of the last round after local training, or (read literally) as it was.
    mixes: Literal["trained", "pam"] = "trained"
    rank: Rank = "uncertainty"  # whom to ask; "similarity" is ours: those who stand out by it
    # Ours: rounds before anybody is asked for a model; in their second half clients meet and compare.
    local_rounds: int = 0
    compare: Compare = "counts"  # of predictions: how many of each class; "images" is ours: the class of each
    conflict_aware: bool = False  # the variance of similarities is added to the uncertainty
    # "plain" and "layerwise" serve every request, as published; else a model is part of one sum in a round.
    shares: Literal["additive64", "plain", "layerwise", "shamir61"] = "additive64"
    layers: Literal["tensor", "module"] = "tensor"  # what "layerwise" cuts: tensors, or modules
    share_bits: int = 0  # fractional bits of shares; 0: the scheme's own, 32 for additive64, 24 for shamir61
    share_limit: float = 2.0**14  # the largest number that is shared
    # Of masks: the operating system's; those of the run's seed, "stream", are public and for tests only.
    entropy: Literal["system", "stream"] = "system"
    # The least members of a sum, also by their weights; 0: 3, and of plain sums, which hide nothing, 1.
    min_members: int = 0
    max_share: float = 0.0  # the largest part of all sigma that a member agrees to; 0: 0.5, of plain sums 1
    retries: int = (
        1  # how often a sum is tried anew, with a shorter list and fresh seeds, if a member vanishes
    )
    waves: int = 1  # requesters are served in so many turns, each of which needs less memory at a time

    def __post_init__(self) -> None:
        for name in ("direct", "gan_every", "waves"):
            at_least(f"algorithm.{name}", getattr(self, name), 1)
        at_least("algorithm.min_members", self.min_members, 0)
        at_least("algorithm.gan_growth", self.gan_growth, 1)
        at_least("algorithm.gan_rows", self.gan_rows, 0)
        at_least("algorithm.local_rounds", self.local_rounds, 0)
        at_least("algorithm.retries", self.retries, 0)
        at_least("algorithm.share_bits", self.share_bits, 0)
        if not self.learner.loss.classification:
            raise KinfolkError(
                "algorithm.name", "slfed", "compares predicted classes; use a classification loss"
            )
        self._stand_ins()

    def public_secrets(self) -> str:
        """Masks that follow from the seed hide nothing from anybody who knows it."""
        return "algorithm.entropy=stream" if self.entropy == "stream" and self._hides() else ""

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Nobody has joined."""
        return State(torch.zeros(len(clients), dtype=torch.int64))

    def init_client(self, who: Client) -> Message:
        """Each client starts from the common initial model."""
        first = self.learner.first
        return {"model": first, "pam": first}

    def round(self, state: State, cohort: tuple[Client, ...], turn: RoundContext) -> Script[State]:
        """One round; every answer is empty, and all that matters goes from client to client."""
        if turn.round < self.local_rounds // 2:
            yield from ask("practise", cohort)
            return state, {}
        place = {who: i for i, who in enumerate(turn.clients)}
        new = [who for who in cohort if not state.joined[place[who]]]
        if new:
            yield from ask("practise", new)
        yield from exchange("begin", cohort)
        anew = due(turn.round - self.local_rounds // 2, self.gan_every, self.gan_growth)
        dreamers = cohort if anew else new
        joined = state.joined.clone()
        if dreamers:
            got = yield from ask("dream", dreamers)
            joined[[place[who] for who in got.clients]] = 1
        for step in ("images", "counts", "opinions", "requests", "accepts", "confirm"):
            yield from exchange(step, cohort)
        for _ in range(self.waves):
            last = ("responses", "results") if self._hides() else ("responses",)
            for step in (*("shares", "ready", "verdict") * self.retries, "again", *last):
                yield from exchange(step, cohort)
        yield from ask("train", cohort)
        return State(joined), {}

    def tasks(self) -> Table:
        """What clients can be asked, and what they tell one another."""
        more = self.waves > 1
        return {
            "practise": self._training("model", "practise"),
            "begin": PeerTask(lambda memory, me: {}, self._begin),
            "dream": self._stand_ins().task(),
            "images": holding("now", self._show, self._look),
            "counts": holding("seen", self._report, self._compare),
            "opinions": holding("lately", self._tell, self._hear),
            "requests": self._at_desk("asked", Desk.ask, Desk.accept),
            "accepts": self._at_desk("open", Desk.agree, Desk.settle),
            "confirm": self._at_desk("open", Desk.confirm, Desk.take_up, gives=True),
            "shares": self._at_desk("wave", Desk.deal, Desk.respond),
            "ready": self._at_desk("wave", Desk.ready, Desk.judge),
            "verdict": self._at_desk("wave", Desk.judged, Desk.take_back, gives=True),
            "again": self._at_desk("wave", Desk.deal, Desk.respond_at_last),
            # Models leave where shares are made, and the last step of a wave makes those of the next.
            "responses": self._at_desk("wave", Desk.answer, Desk.sum_up, gives=more and not self._hides()),
            "results": self._at_desk("wave", Desk.pass_on, Desk.take_over, gives=more),
            "train": self._training("pam", "batch"),
        }

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Clients need nothing."""
        return {}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """The PAM as it was put together ("centre"), and the model after training on top of it."""
        return {"centre": self.learner.score(start=_pam), "personal": self.learner.score(start=own_model)}

    def complaints(self, memory: Message, clients: Sequence[Client]) -> dict[Client, str]:
        """Whose letters a client could not use in this round, and why, out of its memory."""
        return reasons(memory, clients) if "reasons" in memory else {}

    def _training(self, of: str, stream: str) -> Task:
        """Train the own model or the PAM, and go on from there."""

        def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
            # Training that diverged, or a sum with somebody's NaN in it, must not stay for ever.
            other = memory["model" if of == "pam" else "pam"]
            model = finite_or(memory[of], other)
            return {**memory, "model": model, "pam": model}

        return Task(start, keep_all, (Fit((self.learner.descent(),), self.learner.plan),), {}, stream)

    def _stand_ins(self) -> StandIns:
        gan = Gan(
            self.gan_width,
            epochs=self.gan_epochs,
            steps=self.gan_steps,
            rows=self.gan_rows,
            batch=self.gan_batch,
            lr=self.gan_lr,
            low=self.low,
            high=self.high,
        )
        guard = CopyGuard(low=self.low, high=self.high) if self.guard_copies else None
        made = StandIns(self.learner, self.images, self.images_count, gan, guard, self.search_steps)
        return replace(made, means_of=self.means_of, ranges=self.ranges)

    def _begin(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """Nothing of an earlier round is left over; until there is a better one, the own model is the PAM."""
        n = len(me.turn.clients)
        first: Message = {"answered": empty_log(), "book": blank_book(n), "diary": blank_diary(n)}
        first |= no_refusals(n)
        held = {**first, **{key: memory[key] for key in KEPT if key in memory}}
        held |= without_reasons(held)
        # Before the first round there was no PAM, and after a round alone the model is what was trained.
        if self.mixes == "pam" and "diary" in memory and me.turn.round > self.local_rounds:
            held["model"] = memory["pam"]
        if not bool(is_finite(held["model"])):
            refusals = _refusals(held, me)
            refusals.add(me.name, f"model of {me.name!r}: is not finite; it goes on from its last that was")
            held |= {**refusals.noted(), "model": self._last_finite(memory)}
        key = torch.tensor(me.turn.seed.number("gan", me.turn.round, me.name))
        held |= {"key": key, "pam": held["model"]}
        held["now"] = torch.tensor(me.turn.round)
        return on_host(LARGE, {name: held[name] for name in sorted(held)})

    def _last_finite(self, memory: Message) -> Tree:
        """What the client began its last training from; if that is spoilt as well, the common first model."""
        first = {name: leaf.to(memory["model"][name].device) for name, leaf in self.learner.first.items()}
        return finite_or(memory["model"], memory["pam"], first)

    def _show(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """The images, to this round's partners."""
        if not int(memory.get("made", 0)):
            return {}
        shown = {key: memory[key] for key in ("images", REACH) if key in memory}
        return {who: dict(shown) for who in partners(me, self.direct)}

    def _look(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """What the own model predicts on the own images and on the partners'."""
        memory = on_host(LARGE, memory)
        seen, refusals = {}, _refusals(memory, me)
        for sender in refusals.expected(inbox, partners(me, self.direct)):
            if not int(memory.get("made", 0)):
                break  # nothing of one's own to compare with, which is nobody's fault
            with refusals.by(sender):
                theirs = checked_images(inbox[sender].get("images"), memory["images"], sender)
                reach = checked_reach(inbox[sender], memory, sender)
                seen[sender] = self._seen(memory["model"], theirs, reach)
        if seen:
            seen[me.name] = self._seen(memory["model"], memory["images"], memory)
        return {**memory, **refusals.noted(), "seen": seen}

    def _seen(self, model: Tree, images: Tensor, letter: Message) -> Tensor:
        reach = {key: letter[key] for key in (REACH,) if key in letter}
        labels = predicted(self.learner, model, images, self.low, self.high, reach)
        return self._measure().note(labels).cpu()

    def _measure(self) -> Measure:
        return MEASURES[self.compare](self.learner.outputs, self.images_count)

    def _report(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """To each partner: what the own model made of its images, and of the own."""
        seen = memory["seen"]
        return {c: {"yours": seen[c], "mine": seen[me.name]} for c in seen if c != me.name}

    def _compare(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """lambda with each partner, as evidence."""
        seen, measure, refusals = memory["seen"], self._measure(), _refusals(memory, me)
        met: dict[int, Tensor] = {}
        for sender in refusals.expected(inbox, seen):
            with refusals.by(sender):
                theirs = [field(inbox[sender], key, *measure.form, sender).cpu() for key in ("yours", "mine")]
                pairs = (seen[me.name], theirs[0]), (seen[sender], theirs[1])
                met[me.turn.clients.index(sender)] = measure.similarity(*pairs, sender)
        lately = torch.zeros(len(me.turn.clients), dtype=torch.bool)
        lately[list(met)] = True
        kept = {key: value for key, value in memory.items() if key != "seen"}
        book = note_meetings(memory["book"], met)
        return {**kept, **refusals.noted(), "book": book, "lately": lately}

    def _tell(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """The opinions of everybody to those met in this round."""
        book = memory["book"] if self.tell == "all" else at_first_hand(memory["book"])
        told = torch.stack(opinions(book, self.conflict_aware))
        return {
            c: {"opinions": told} for c, met in zip(me.turn.clients, memory["lately"], strict=True) if met
        }

    def _hear(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """Weigh what was told, join it with what was known; then choose whom to ask, and for how much."""
        names, told, refusals = me.turn.clients, {}, _refusals(memory, me)
        met = [c for c, lately in zip(names, memory["lately"], strict=True) if lately]
        for sender in refusals.expected(inbox, met):
            with refusals.by(sender):
                told[names.index(sender)] = checked_told(inbox[sender].get("opinions"), len(names), sender)
        ways = (names.index(me.name), self.memory, self.conflict_aware, self.teller_weight, self.hearsay)
        book = note_hearsay(memory["book"], told, *ways)
        whom = self.would_ask(book, me)
        asked = {**no_request(len(names)), "sigma": opinions(book, self.conflict_aware).s}
        asked["mask"][[names.index(c) for c in whom]] = True
        kept = {key: value for key, value in memory.items() if key != "lately"}
        return {**kept, **refusals.noted(), "book": book, "asked": asked}

    def would_ask(self, book: Tree, me: Peer) -> tuple[Client, ...]:
        """Whom a client with this book asks in this round; nobody while it is alone, or if they are few."""
        if me.turn.round < self.local_rounds:
            return ()
        draws = None
        if self.hearsay == "capped":
            draw = me.turn.seed.numpy("equals", me.turn.round, me.name)
            draws = torch.from_numpy(draw.random(len(me.turn.clients)))
        whom = listed(book, me.turn.clients, self.rank, self.conflict_aware, draws)
        return whom if len(whom) >= self.secrecy()[0] else ()

    def secrecy(self) -> tuple[int, float]:
        """(fewest members of a sum, largest part of all sigma), as given or by the scheme."""
        usual = (1, 1.0) if self.shares == "plain" else (3, 0.5)  # plain sums hide nobody
        return self.min_members or usual[0], self.max_share or usual[1]

    def _at_desk(
        self,
        needs: str,
        send: Callable[[Desk, Message], Letters],
        receive: Callable[[Desk, Inbox, Message], Message],
        gives: bool = False,
    ) -> PeerTask:
        def write(memory: Message, me: Peer) -> dict[Client, Message]:
            return send(self._desk(me, _refusals(memory, me)), memory)

        def read(inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
            refusals = _refusals(memory, me)
            memory = {**receive(self._desk(me, refusals), inbox, memory), **refusals.noted()}
            done = int(memory.get("wave", 0)) == self.waves
            return {key: memory[key] for key in KEPT if key in memory} if done else memory

        return holding(needs, write, read, ("model",) if gives else ())

    def _desk(self, me: Peer, refusals: Refusals) -> Desk:
        def scheme(requester: Client, attempt: int) -> Scheme:
            draw = me.turn.seed.numpy("share", me.turn.round, requester, me.name, attempt)
            # What "layerwise" cuts with hides nothing, and its sums of floats would differ from run to run.
            entropy = os.urandom if self.entropy == "system" and self._hides() else draw.bytes
            fixed = (self.share_bits, self.share_limit)
            return make_scheme(self.shares, entropy, *self.secrecy(), self.layers, *fixed)

        # Known to all, and another in every round, so that nobody is always answered last.
        order = lambda n: me.turn.seed.numpy("order", me.turn.round).permutation(n).tolist()  # noqa: E731
        how = (*self.secrecy(), self.waves, self.retries, self._hides(), order)
        return Desk(me.name, me.turn.clients, me.turn.round, scheme, refusals, *how)

    def _hides(self) -> bool:
        return self.shares in HIDING


def _refusals(memory: Message, me: Peer) -> Refusals:
    return Refusals(me.turn.clients, memory)


def _pam(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    return {"model": memory["pam"]}
