"""Attackers in a run: some clients whose replies, or whose labels, are not what they should be.

An attack is put around the tasks that a client has installed, so it happens where the client is, in every
engine alike, and neither the algorithm nor the engine knows of it. Whether a client attacks stands in its
memory; an honest client in the same call is left as it is, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import RunSpec
from kinfolk.federation.federation import Federation
from kinfolk.learning.noise import bits, normal
from kinfolk.streams import Seed
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Peer, PeerTask, Scan, Table, Task, TrainStep
from kinfolk.types import Client, Message, Tree, plain_rows

SCALE = 10.0  # how many times its update a "scaled" attacker sends
NOISE = 3.0  # standard deviation of "noise", in those of the update

# What an attack adds to memories and carries begins with this; no algorithm gets to see it.
PREFIX = "attack."
FLAG, KEY, DRAW = "attack.flag", "attack.key", "attack.draw"
BEFORE = "attack.before."  # and a key of the reply or memory: that part of the carry before training
BENDING = ("sign_flip", "scaled", "noise")


@dataclass(frozen=True)
class Attack:
    """Who attacks in a run, and how."""

    kind: str
    who: frozenset[Client]
    classes: int
    seed: Seed

    def with_flag(
        self, remember: Callable[[Client], Message], gives: Sequence[str] = ()
    ) -> Callable[[Client], Message]:
        """What clients hold at first, with a word on whether they attack.

        Of models that they give one another (`gives`) they also hold what these were before training.

        >>> attack = Attack("noise", frozenset({Client("eve")}), 2, Seed(0))
        >>> attack.with_flag(lambda who: {})(Client("eve"))["attack.flag"]
        tensor(True)
        """

        def marked(who: Client) -> Message:
            key, first = self.seed.number("attack", "noise", who), remember(who)
            word = {FLAG: torch.tensor(who in self.who), KEY: torch.tensor(key)}
            return {**first, **word, **_before(first, self._kept(gives))}

        return marked

    def _kept(self, gives: Sequence[str]) -> Sequence[str]:
        return gives if self.kind in BENDING else ()

    def arm(self, table: Table) -> Table:
        """The same table, in which attackers do what they do; scores are told as they are.

        >>> attack = Attack("noise", frozenset(), 2, Seed(0))
        >>> list(attack.arm({"update": Task(lambda message, memory, facts: {}, lambda carry: ({}, None))}))
        ['update']
        """
        kept = self._kept(given(table))
        self._check(table)
        armed: dict[str, Task | PeerTask] = {}
        for name, entry in table.items():
            if isinstance(entry, PeerTask):
                armed[name] = _swap(entry, self.kind)
            else:
                kind = "none" if name.startswith("score.") else self.kind
                armed[name] = _task(entry, kind, self.classes, kept)
        return armed

    def _check(self, table: Table) -> None:
        """An attack that would change nothing, though clients write to one another, is refused."""
        replies = any(_trees(entry) for entry in table.values() if isinstance(entry, Task))
        letters = any(isinstance(entry, PeerTask) for entry in table.values())
        if self.kind in BENDING and letters and not replies and not given(table):
            remedy = (
                "no exchange of this algorithm says which model leaves in it (PeerTask.gives); use label_flip"
            )
            raise KinfolkError("run.attack", self.kind, remedy)


def given(table: Table) -> tuple[str, ...]:
    """The models that clients give one another in any exchange.

    >>> given({"swap": PeerTask(lambda memory, me: {}, lambda inbox, memory, me: memory, ("model",))})
    ('model',)
    """
    found = {key for entry in table.values() if isinstance(entry, PeerTask) for key in entry.gives}
    return tuple(sorted(found))


def planned(spec: RunSpec, federation: Federation, seed: Seed) -> Attack | None:
    """The attack that a spec asks for, if any."""
    if spec.attack == "none" or spec.attackers == 0:
        return None
    if spec.attack == "label_flip" and not federation.classes:
        remedy = "the data have numbers to predict and no classes; choose another attack"
        raise KinfolkError("run.attack", spec.attack, remedy)
    who = attackers(federation.clients, spec.attackers, seed)
    return Attack(spec.attack, who, federation.classes, seed)


def attackers(clients: Sequence[Client], share: float, seed: Seed) -> frozenset[Client]:
    """A share of the clients, one at least: those whose own draw is lowest, so that more include fewer.

    >>> few, more = (attackers([Client(c) for c in "abcdefgh"], share, Seed(0)) for share in (0.25, 0.5))
    >>> len(few), len(more), few < more
    (2, 4, True)
    """
    count = max(1, int(share * len(clients) + 0.5))
    if count >= len(clients):
        remedy = f"leaves none of the {len(clients)} clients honest; give less"
        raise KinfolkError("run.attackers", share, remedy)
    drawn = sorted((seed.numpy("attack", who).random(), who) for who in clients)
    return frozenset(who for _, who in drawn[:count])


def altered(kind: str, sent: Tree, before: Tree, draw: Tensor) -> Tree:
    """What an attacker sends instead of a tree; integer entries stay, a leaf not in `before` began at 0.

    >>> altered("sign_flip", {"w": torch.tensor([3.0])}, {"w": torch.tensor([1.0])}, torch.tensor(0))
    {'w': tensor([-1.])}
    """
    moved = {n: t - before[n] if n in before else t for n, t in sent.items() if t.is_floating_point()}
    if not moved:
        return sent
    if kind == "sign_flip":
        return {n: t - 2 * moved[n] if n in moved else t for n, t in sent.items()}
    if kind == "scaled":
        return {n: t + (SCALE - 1) * moved[n] if n in moved else t for n, t in sent.items()}
    flat = torch.cat([t.flatten().double() for t in moved.values()])
    noise = NOISE * flat.std(correction=0) * normal(draw, (len(flat),))
    parts = dict(zip(moved, torch.split(noise, [t.numel() for t in moved.values()]), strict=True))
    return {n: t + parts[n].reshape(t.shape).to(t.dtype) if n in parts else t for n, t in sent.items()}


def _split_off(held: Message) -> tuple[Message, Message]:
    """(what is the algorithm's, what is the attack's)."""
    ours = {k: v for k, v in held.items() if k.startswith(PREFIX)}
    return {k: v for k, v in held.items() if k not in ours}, ours


def _swap(swap: PeerTask, kind: str) -> PeerTask:
    """An exchange as it is, but that attackers give away other models; the word on who attacks is kept."""
    gives = swap.gives if kind in BENDING else ()

    def played(memory: Message, me: Peer) -> tuple[Message, Message]:
        own, ours = _split_off(memory)
        if not gives or not bool(ours[FLAG]):
            return own, ours
        draw = bits(ours[KEY], (), me.context.round)
        bad = {k: altered(kind, own[k], ours.get(BEFORE + k, {}), draw) for k in gives if k in own}
        return {**own, **bad}, ours

    def receive(inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        shown, ours = played(memory, me)
        after = swap.receive(inbox, shown, me)
        # What it gave away is not what it goes on with.
        own = {k: memory[k] for k in gives if k in after and after[k] is shown[k]}
        return {**after, **own, **ours}

    return PeerTask(lambda memory, me: swap.send(played(memory, me)[0], me), receive, swap.gives)


def _trees(task: Task) -> list[str]:
    return [key for key, value in task.reply.items() if isinstance(value, dict)]


def _task(task: Task, kind: str, classes: int, kept: Sequence[str] = ()) -> Task:
    """A task as it is, but for attackers; `kept` are the models that clients later give one another."""
    keys = _trees(task) if kind in BENDING else []
    trained = {descent.part for one in task.passes if isinstance(one, Fit) for descent in one.descents}

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        own, ours = _split_off(memory)
        carry = task.start(message, own, facts)
        began = _before(carry, [*keys, *(key for key in kept if key in trained)])
        return {**carry, **ours, **began, DRAW: bits(ours[KEY], (), facts.round)}

    def finish(carry: Carry) -> tuple[Message, Message | None]:
        own, ours = _split_off(carry)
        reply, memory = task.finish(own)
        for key in keys:
            bad = altered(kind, reply[key], ours.get(BEFORE + key, {}), ours[DRAW])
            chosen = {n: torch.where(ours[FLAG], bad[n], t) for n, t in reply[key].items()}
            reply = {**reply, key: chosen}
        word = {key: ours[key] for key in (FLAG, KEY, *(BEFORE + k for k in kept)) if key in ours}
        return reply, None if memory is None else {**memory, **word}

    flips = classes if kind == "label_flip" else 0
    trains = [isinstance(one, Fit) for one in task.passes]
    passes: list[Fit | Scan] = []
    for i, one in enumerate(task.passes):
        # A client may choose among several models before it trains one: there its update begins.
        choosing = any(trains) and not any(trains[:i])
        passes.append(
            _fit(one, flips) if isinstance(one, Fit) else _sweep(one, flips, keys if choosing else [])
        )
    return replace(task, start=start, finish=finish, passes=tuple(passes))


def _before(carry: Carry, keys: Sequence[str]) -> Carry:
    return {BEFORE + key: carry[key] for key in keys if isinstance(carry.get(key), dict)}


def _flipped(batch: Batch, flag: Tensor, classes: int) -> Batch:
    """The rows as an attacker labels them: class y becomes class C - 1 - y."""
    y = plain_rows(batch.y)
    return batch._replace(y=torch.where(flag & (y >= 0), classes - 1 - y, y))


def _fit(fit: Fit, classes: int) -> Fit:
    if not classes or fit.plan.split != "train":
        return fit

    def flipping(descent: TrainStep) -> TrainStep:
        return replace(
            descent,
            objective=lambda model, batch, carry: descent.objective(
                model, _flipped(batch, carry[FLAG], classes), _split_off(carry)[0]
            ),
        )

    return replace(fit, descents=tuple(map(flipping, fit.descents)))


def _sweep(sweep: Scan, classes: int, keys: Sequence[str]) -> Scan:
    def step(carry: Carry, batch: Batch) -> Carry:
        own, ours = _split_off(carry)
        if classes and sweep.plan.split == "train":
            batch = _flipped(batch, ours[FLAG], classes)
        new = sweep.step(own, batch)
        return {**new, **ours, **_before(new, keys)}

    return replace(sweep, step=step)
