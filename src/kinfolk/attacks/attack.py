"""Attackers in a run: some clients whose replies, or whose rows, or whose words, are not what they should be.

An attack is put around the tasks that a client has installed, so it happens where the client is, in every
engine alike, and neither the algorithm nor the engine knows of it. Whether a client attacks stands in its
memory; an honest client in the same call is left as it is, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.attacks.opinions import LYING, OPINIONS, lies
from kinfolk.attacks.rows import TRIGGERED, Trigger, flipped
from kinfolk.attacks.updates import BENDING, COLLUDING, altered
from kinfolk.errors import KinfolkError
from kinfolk.learning.noise import bits
from kinfolk.streams import Seed
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Peer, PeerTask, Scan, Table, Task, TrainStep
from kinfolk.types import Client, Message, Tree, tree_of

# All that there are; "many_rows" is a claim of whoever carries a reply: see `claims`.
KINDS = ("sign_flip", "scaled", "noise", "label_flip", "backdoor", *(k for k in BENDING[2:] if k != "noise"),
         "replay", *LYING, "many_rows")  # fmt: skip
ABSURD_ROUND = 2  # the one round in which an "absurd" reply is sent

# What an attack adds to memories and carries begins with this; no algorithm gets to see it.
PREFIX = "attack."
FLAG, KEY, DRAW, NOW = "attack.flag", "attack.key", "attack.draw", "attack.now"
BEFORE = "attack.before."  # and a key of the reply or memory: that part of the carry before training
FIRST = "attack.first."  # and a task and a key of its reply: what was replied the first time
SENT = "attack.sent."  # and a task: whether there was a first time
MEMORY = "attack.memory."  # and a key of the memory, in the carry of a task that may leave it as it was

# The rows that a client trains on: (batch, whether it attacks) -> batch
Bend = Callable[[Batch, Tensor], Batch]


@dataclass(frozen=True)
class Attack:
    """Who attacks in a run, and how."""

    kind: str
    who: frozenset[Client]
    classes: int
    seed: Seed
    trigger: Trigger | None = None  # of a back door

    def with_flag(
        self, remember: Callable[[Client], Message], table: Table | None = None
    ) -> Callable[[Client], Message]:
        """What clients hold at first, with a word on whether they attack.

        Of models that they give one another in an exchange of the table they also hold what these were before
        training; for a replay, room for their first replies.

        >>> attack = Attack("noise", frozenset({Client("eve")}), 2, Seed(0))
        >>> attack.with_flag(lambda who: {})(Client("eve"))["attack.flag"]
        tensor(True)
        """
        gives = self._kept(table or {})
        room = _room(table or {}) if self.kind == "replay" else {}

        def marked(who: Client) -> Message:
            whose = "owner" if self.kind in COLLUDING else who
            key, first = self.seed.number("attack", "noise", whose), remember(who)
            word = {FLAG: torch.tensor(who in self.who), KEY: torch.tensor(key)}
            return {**first, **word, **room, **_before(first, gives)}

        return marked

    def _kept(self, table: Table) -> Sequence[str]:
        return given(table) if self.kind in BENDING else ()

    def arm(self, table: Table) -> Table:
        """The same table, in which attackers do what they do; scores are told as they are.

        >>> attack = Attack("noise", frozenset(), 2, Seed(0))
        >>> list(attack.arm({"update": Task(lambda message, memory, facts: {}, lambda carry: ({}, None))}))
        ['update']
        """
        kept = self._kept(table)
        self.check(table)
        armed: dict[str, Task | PeerTask] = {}
        for name, entry in table.items():
            if isinstance(entry, PeerTask):
                armed[name] = self._swap(entry)
            elif name.startswith("score."):
                armed[name] = _Armed(name, entry, "none", None, ()).task()
            else:
                armed[name] = _Armed(name, entry, self.kind, self._bend, kept).task()
        return armed

    def check(self, table: Table) -> None:
        """An attack that would change nothing is refused."""
        replies = any(_trees(entry) for entry in table.values() if isinstance(entry, Task))
        letters = any(isinstance(entry, PeerTask) for entry in table.values())
        remedy = ""
        if self.kind in BENDING and letters and not replies and not given(table):
            remedy = (
                "no exchange of this algorithm says which model leaves in it (PeerTask.gives); use label_flip"
            )
        elif self.kind == "replay" and not replies:
            remedy = "no reply of this algorithm holds a model; use unchanged"
        elif self.kind in LYING and OPINIONS not in table:
            remedy = "clients of this algorithm tell one another no opinions; use slfed"
        elif self.kind == "many_rows" and not replies:
            remedy = "no model of this algorithm is weighed by rows; use scaled"
        if remedy:
            raise KinfolkError("run.attack", self.kind, remedy)

    def triggered(self, scoring: Mapping[str, Task]) -> dict[str, Task]:
        """Scoring tasks, by kind of model, once more on triggered rows; none without a back door.

        >>> Attack("noise", frozenset(), 2, Seed(0)).triggered({})
        {}
        """
        if self.trigger is None:
            return {}
        return {f"score.{kind}{TRIGGERED}": self.trigger.scoring(task) for kind, task in scoring.items()}

    @property
    def _bend(self) -> Bend | None:
        if self.kind == "label_flip":
            return lambda batch, flag: flipped(batch, flag, self.classes)
        return self.trigger.poisoned if self.trigger else None

    def _swap(self, swap: PeerTask) -> PeerTask:
        """An exchange as it is, but that attackers give away other models or tell lies."""
        kind, gives = self.kind, swap.gives if self.kind in BENDING else ()

        def played(memory: Message, me: Peer) -> tuple[Message, Message]:
            own, ours = _split_off(memory)
            if not gives or not bool(ours[FLAG]) or not due(kind, me.context.round):
                return own, ours
            draw = _draw(kind, ours[KEY], me.context.round)
            bad = {k: altered(kind, own[k], ours.get(BEFORE + k, {}), draw) for k in gives if k in own}
            return {**own, **bad}, ours

        def send(memory: Message, me: Peer) -> dict[Client, Message]:
            shown, ours = played(memory, me)
            messages = swap.send(shown, me)
            if kind in LYING and bool(ours[FLAG]):
                return lies(kind, messages, self.who, me.context.clients)
            return messages

        def receive(inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
            shown, ours = played(memory, me)
            after = swap.receive(inbox, shown, me)
            # What it gave away is not what it goes on with.
            own = {k: memory[k] for k in gives if k in after and after[k] is shown[k]}
            return {**after, **own, **ours}

        return PeerTask(send, receive, swap.gives, swap.alike)


def due(kind: str, round: int) -> bool:
    """Whether attackers attack in a round.

    >>> due("noise", 0), due("absurd", 0), due("absurd", ABSURD_ROUND)
    (True, False, True)
    """
    return kind != "absurd" or round == ABSURD_ROUND


def _draw(kind: str, key: Tensor, round: int) -> Tensor:
    return key if kind in COLLUDING else bits(key, (), round)


def given(table: Table) -> tuple[str, ...]:
    """The models that clients give one another in any exchange.

    >>> given({"swap": PeerTask(lambda memory, me: {}, lambda inbox, memory, me: memory, ("model",))})
    ('model',)
    """
    found = {key for entry in table.values() if isinstance(entry, PeerTask) for key in entry.gives}
    return tuple(sorted(found))


def _split_off(held: Message) -> tuple[Message, Message]:
    """(what is the algorithm's, what is the attack's)."""
    ours = {k: v for k, v in held.items() if k.startswith(PREFIX)}
    return {k: v for k, v in held.items() if k not in ours}, ours


def _trees(task: Task) -> list[str]:
    return [key for key, value in task.reply.items() if isinstance(value, dict)]


def _before(carry: Carry, keys: Sequence[str]) -> Carry:
    return {BEFORE + key: carry[key] for key in keys if isinstance(carry.get(key), dict)}


def _room(table: Table) -> Message:
    """Room for the first reply to every task with models."""
    found: Message = {}
    for name, task in table.items():
        if isinstance(task, PeerTask) or name.startswith("score."):
            continue
        for key in _trees(task):
            found[SENT + name] = torch.tensor(False)
            tree = tree_of(dict(task.reply), key)
            found[f"{FIRST}{name}.{key}"] = {n: torch.zeros_like(t) for n, t in tree.items()}
    return found


def _either(flag: Tensor, one: Tree, other: Tree) -> Tree:
    return {n: torch.where(flag, one[n], t) for n, t in other.items()}


@dataclass(frozen=True)
class _Armed:
    """A task as it is, but for attackers; `kept` are the models that clients later give one another."""

    name: str
    inner: Task
    kind: str
    bend: Bend | None
    kept: Sequence[str]

    def task(self) -> Task:
        """The task to be asked for in place of the inner one."""
        trains = [isinstance(one, Fit) for one in self.inner.passes]
        passes: list[Fit | Scan] = []
        for i, one in enumerate(self.inner.passes):
            # A client may choose among several models before it trains one: there its update begins.
            choosing = any(trains) and not any(trains[:i])
            passes.append(
                self._fit(one) if isinstance(one, Fit) else self._sweep(one, self._keys if choosing else [])
            )
        return replace(self.inner, start=self._start, finish=self._finish, passes=tuple(passes))

    @property
    def _keys(self) -> list[str]:
        return _trees(self.inner) if self.kind in (*BENDING, "replay") else []

    def _start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        fits = [one for one in self.inner.passes if isinstance(one, Fit)]
        trained = {descent.part for one in fits for descent in one.descents}
        own, ours = _split_off(memory)
        carry = self.inner.start(message, own, facts)
        began = _before(carry, [*self._keys, *(key for key in self.kept if key in trained)])
        now = ours[FLAG] & due(self.kind, facts.round)
        held = {MEMORY + key: value for key, value in own.items()} if self.kind == "replay" else {}
        return {**carry, **ours, **began, **held, NOW: now, DRAW: _draw(self.kind, ours[KEY], facts.round)}

    def _finish(self, carry: Carry) -> tuple[Message, Message | None]:
        own, ours = _split_off(carry)
        reply, memory = self.inner.finish(own)
        word = {key: ours[key] for key in ours if not key.startswith(MEMORY) and key not in (NOW, DRAW)}
        word = {k: v for k, v in word.items() if not k.startswith(BEFORE) or k[len(BEFORE) :] in self.kept}
        if self.kind == "replay" and self._keys:
            if memory is None:
                memory = {k.removeprefix(MEMORY): v for k, v in ours.items() if k.startswith(MEMORY)}
            again = ours[SENT + self.name]
            for key in self._keys:
                place = f"{FIRST}{self.name}.{key}"
                word[place] = _either(again, ours[place], reply[key])
                reply = {**reply, key: self._replayed(ours[NOW], word[place], reply[key])}
            word[SENT + self.name] = torch.ones_like(again)
        else:
            for key in self._keys:
                bad = altered(self.kind, reply[key], ours.get(BEFORE + key, {}), ours[DRAW])
                reply = {**reply, key: _either(ours[NOW], bad, reply[key])}
        return reply, None if memory is None else {**memory, **word}

    def _replayed(self, now: Tensor, first: Tree, sent: Tree) -> Tree:
        return {n: torch.where(now, first[n], t) if t.is_floating_point() else t for n, t in sent.items()}

    def _fit(self, fit: Fit) -> Fit:
        bend = self.bend
        if bend is None or fit.plan.split != "train":
            return fit

        def bent(descent: TrainStep) -> TrainStep:
            return replace(
                descent,
                objective=lambda model, batch, carry: descent.objective(
                    model, bend(batch, carry[FLAG]), _split_off(carry)[0]
                ),
            )

        return replace(fit, descents=tuple(map(bent, fit.descents)))

    def _sweep(self, sweep: Scan, keys: Sequence[str]) -> Scan:
        bend = self.bend

        def step(carry: Carry, batch: Batch) -> Carry:
            own, ours = _split_off(carry)
            if bend is not None and sweep.plan.split == "train":
                batch = bend(batch, ours[FLAG])
            new = sweep.step(own, batch)
            return {**new, **ours, **_before(new, keys)}

        return replace(sweep, step=step)
