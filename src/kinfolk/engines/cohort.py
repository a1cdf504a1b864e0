"""Replies beside those of others: what is finite and of the right form, and absurd all the same.

The length of an update is that of what a tree of a reply adds to what its client was sent under the same key;
of one of several models that were sent, the nearest; of a tree that begins nowhere (a gradient), its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from kinfolk.engines.conduct import look, sketch
from kinfolk.engines.guard import LARGEST_COUNT, TOO_LONG
from kinfolk.script import Ask
from kinfolk.task import Expected
from kinfolk.types import Client, IndexedMessages, Message, Stack, Tree, leaves

# Before anything is known of a task's updates: longer than this many times what was sent, a reply waits.
FIRST = 10.0
# An update shorter than this part of what was sent does no harm, however short those of others are.
SHORT = 1e-3
# An update of no more than this part of what was sent is none: what comes back through float32 differs by as
# much, and half a cohort of free riders would make every honest update look long.
STILL = 1e-6
# Of fewer replies than this, those before count as well: a client alone would be its own median.
FEW = 8
# However few clients there are, one counts for so many medians of rows: honest ones differ as much.
LEAST_CAP = 10.0
# A model's norm beyond this many times what was sent is noted with its client, for the watch on training.
GROWN = 10.0


@dataclass(frozen=True)
class GuardSpec:
    """The `[guard]` table: what replies are held to, beside those of others.

    >>> GuardSpec().rows
    50.0
    """

    # Rows that a client counts for, in medians of what all clients have; who claims more counts as this many.
    # 0: no limit at all.
    rows: float = 50.0
    # The same as a part of what all clients would have with the median each, of no fewer than 10 medians; the
    # lower of the two holds. 0: `rows` alone.
    share: float = 0.5
    # Length of an update, in medians of the cohort's, beyond which a reply is refused; 0: no limit.
    norm: float = 100.0

    def cap(self, clients: int) -> float:
        """The medians of rows that one of so many clients counts for; 0: no limit.

        >>> [GuardSpec().cap(clients) for clients in (4, 24, 1000)]
        [10.0, 12.0, 50.0]
        """
        if not self.rows or not self.share:
            return self.rows
        return min(self.rows, max(LEAST_CAP, self.share * clients))


@dataclass(frozen=True)
class Limits:
    """What the replies to one request are held to: known before any is there, so the same in every process.

    >>> Limits.read(Limits(30, 100.0, {"model": 0.5}).text())
    Limits(rows=30, norm=100.0, usual={'model': 0.5})
    """

    rows: int = LARGEST_COUNT  # that a client counts for
    norm: float = GuardSpec.norm  # of an update, in medians; 0: no limit
    usual: Mapping[str, float] = field(default_factory=dict)  # median of the updates before, by tree

    def text(self) -> str:
        """As text, for another process."""
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> Limits:
        """The limits behind `text`."""
        return Limits(**json.loads(text))


class Usual:
    """How long updates were lately, by task and tree.

    >>> usual = Usual()
    >>> usual.note("update", {"model": torch.tensor([3.0, 0.0, 1.0])})
    >>> usual.of("update"), usual.of("warm")
    ({'model': 1.0}, {})
    """

    def __init__(self, lately: Mapping[str, Mapping[str, Sequence[float]]] | None = None) -> None:
        self.lately = {task: {key: list(v) for key, v in by.items()} for task, by in (lately or {}).items()}

    def of(self, task: str) -> dict[str, float]:
        """The medians of a task's trees; nothing of one that is not known."""
        return {key: float(torch.tensor(v).median()) for key, v in self.lately.get(task, {}).items()}

    def beside(self, task: str, key: str, now: Tensor) -> float:
        """The median by which updates of now are judged.

        Who has not moved, having too few rows for a step or riding free, does not say how far others may,
        unless most have not and nothing is known.
        """
        moved, before = now[now > 0], self.lately.get(task, {}).get(key, [])
        if not before and 2 * len(moved) <= len(now):
            return 0.0
        pool = [moved, torch.tensor(before, dtype=moved.dtype)] if len(moved) < FEW else [moved]
        return float(torch.cat(pool).median())

    def note(self, task: str, now: Mapping[str, Tensor]) -> None:
        """Remember a request's updates, refused ones too: where all have grown, so may the next.

        As many of the last ones as there may be few; in the order of their length, which no engine changes.
        """
        held = self.lately.setdefault(task, {})
        for key, lengths in now.items():
            moved = lengths[lengths > 0].sort().values
            moved = moved.median().expand(FEW) if len(moved) >= FEW else moved
            held[key] = [*moved.tolist(), *held.get(key, [])][:FEW]
        self.lately[task] = {key: v for key, v in held.items() if v}


@dataclass
class Cohort:
    """The replies to one request beside each other, and those that are judged when all are there.

    A reply whose updates are as long as usual passes at once, so that a fold holds one chunk at a time. One
    that is over `limits.norm` times as long, or FIRST times what was sent where nothing is known yet, waits:
    where most of the cohort are like it it passes in the end; otherwise it is refused. The rule does not
    depend on how an engine cuts its chunks.
    """

    request: Ask[object]
    expected: Expected
    limits: Limits = field(default_factory=Limits)
    usual: Usual = field(default_factory=Usual)
    seen: list[Tensor] = field(default_factory=list)  # norms of models of this round so far, chunk by chunk
    lengths: dict[str, list[Tensor]] = field(default_factory=dict)  # of this request's updates, by tree
    waiting: list[Stack] = field(default_factory=list)
    refused: set[Client] = field(default_factory=set)
    grown: dict[Client, tuple[float, float]] = field(default_factory=dict)  # (norm, norm of what was sent)
    looks: list[Stack] = field(default_factory=list)  # what updates look like, chunk by chunk: see `conduct`

    def __post_init__(self) -> None:
        self.silent = set(self.request.to)  # those without a usable reply so far
        declared = {key: value for key, value in self.expected.items() if isinstance(value, dict)}
        self._common = max(_norm(declared), _norm(self.request.shared))
        each = self.request.each
        self._kinds = norms(each.table, _rows(each.table)) if isinstance(each, IndexedMessages) else None
        self._origins = {key: _origin(key, tree, self.request) for key, tree in declared.items()}
        # One update is looked at of each reply: the first that began somewhere.
        self._main = next((key for key, origin in self._origins.items() if origin), next(iter(declared), ""))

    def pass_on(self, chunk: Stack) -> Stack:
        """The replies that may pass now; the others wait."""
        if not any(isinstance(value, dict) for value in chunk.body.values()):
            return chunk  # no model, nothing that belongs to a median of models
        model, sent = norms(chunk.body, len(chunk)), self._sent(chunk.clients)
        self.seen.append(model)
        for i in (model > GROWN * sent).nonzero().flatten().tolist():
            self.grown[chunk.clients[i]] = float(model[i]), float(sent[i])
        far = torch.zeros(len(chunk), dtype=torch.bool)
        for key, length in self._updates(chunk, sent).items():
            self.lengths.setdefault(key, []).append(torch.where(length > STILL * sent, length, 0.0))
            far |= length > self._limit(key, self.limits.usual.get(key, 0.0), sent)
        if not self.limits.norm or not bool(far.any()):
            return chunk
        names = dict(zip(chunk.clients, far.tolist(), strict=True))
        self.waiting.append(chunk.at([c for c, out in names.items() if out]))
        return chunk.at([c for c, out in names.items() if not out])

    def judge(self) -> tuple[Stack, dict[Client, str]]:
        """Of those that wait: who may pass, and why the others may not. It ends the request."""
        now = {key: torch.cat(found) for key, found in self.lengths.items()}
        held, bad = Stack.join(self.waiting), dict[Client, str]()
        for key, length in self._updates(held).items() if held.clients else ():
            median = self.usual.beside(self.request.task, key, now[key])
            over = length > self._limit(key, median, self._sent(held.clients))
            for client, long, out in zip(held.clients, length.tolist(), over.tolist(), strict=True):
                if out:
                    told = f"update of {key} of norm {long:.3g} is over {self.limits.norm:g} {TOO_LONG}"
                    bad.setdefault(client, f"{told} median, {median:.3g}")
        if now:
            self.usual.note(self.request.task, now)
        return held.at([c for c in held.clients if c not in bad]), bad

    def _limit(self, key: str, median: float, sent: Tensor) -> Tensor:
        """How long an update may be beside a median, and whatever that is, by what was sent."""
        always = SHORT if key in self.limits.usual else FIRST
        return (always * sent).clamp(min=self.limits.norm * median)

    def _updates(self, chunk: Stack, sent: Tensor | None = None) -> dict[str, Tensor]:
        """How long the update in every tree of every reply is, [replies] in float64 on the host.

        If it is told what was `sent`, the main update is looked at for the report on conduct as well.
        """
        found, who = {}, chunk.clients
        for key, tree in chunk.body.items():
            if not isinstance(tree, dict):
                continue
            origin = self._origins[key]
            began = origin.of(who, self.request) if origin else {}
            several = origin.several if origin else 0
            found[key], nearest = _lengths(tree, began, several, len(who))
            if sent is not None and key == self._main:
                self._look(chunk, began, nearest, found[key], sent)
        return found

    def _look(self, chunk: Stack, began: Tree, nearest: Tensor | None, length: Tensor, sent: Tensor) -> None:
        """Keep what the main update of each reply looks like."""
        declared, tree = self.expected[self._main], chunk.tree(self._main)
        assert isinstance(declared, dict)
        like = {n: t for n, t in declared.items() if t.is_floating_point() and (n in began or not began)}
        if not like:
            return
        reply = sketch(tree, like)
        start = sketch(began, like) if began else torch.zeros(1, dtype=torch.float64)
        if nearest is not None:
            start = start.expand(len(chunk), -1, -1)[torch.arange(len(chunk)), nearest]
        self.looks.append(look(chunk, reply - start, reply, length, sent))

    def _sent(self, who: tuple[Client, ...]) -> Tensor:
        """The norm of what each client was sent; of a model that starts at zero, of no less than one."""
        each, least = self.request.each, max(self._common, 1.0)
        if each is None:
            return torch.full((len(who),), least, dtype=torch.float64)
        if isinstance(each, IndexedMessages):
            assert self._kinds is not None
            own = self._kinds[each.kinds(who)]
        else:
            own = norms(each.at(who).body, len(who))
        return own.clamp(min=least)


def _lengths(tree: Tree, began: Tree, several: int, count: int) -> tuple[Tensor, Tensor | None]:
    """How far each of `count` trees is from where it began, of several the nearest, and which that is."""
    if not several:
        moved = {n: tree[n] - t.to(tree[n]) for n, t in began.items()} if began else tree
        return norms({"": moved}, count), None
    apart = [
        norms({"": {n: tree[n] - t[:, j].to(tree[n]) for n, t in began.items()}}, count)
        for j in range(several)
    ]
    least = torch.stack(apart).min(0)
    return least.values, least.indices


@dataclass(frozen=True)
class _Origin:
    """Where a tree of the replies began: at one that all were sent, or each; or at one of several."""

    key: str
    names: tuple[str, ...]
    shared: bool
    several: int  # 0: it is one

    def of(self, who: tuple[Client, ...], request: Ask[Any]) -> Tree:
        """The tree of each of `who`, every leaf [clients, ...], of several [clients, several, ...]."""
        if self.shared:
            return {n: t[None] for n, t in self._of(request.shared).items()}
        each = request.each
        assert each is not None
        if isinstance(each, IndexedMessages):
            return replace(each, table={"": self._of(each.table)}).at(who).tree("")
        return replace(each, body={"": self._of(each.body)}).at(who).tree("")

    def _of(self, message: Message) -> Tree:
        return {n: message[self.key][n] for n in self.names}


def _origin(key: str, declared: Tree, request: Ask[Any]) -> _Origin | None:
    """Where the tree under `key` began, as far as that can be seen from names and shapes; None: nowhere."""
    each = request.each
    own: Message = each.table if isinstance(each, IndexedMessages) else each.body if each else {}
    for several in (False, True):
        for shared, message in ((True, request.shared), (False, own)):
            lead = several + (not shared)
            for other, tree in message.items():
                if not isinstance(tree, dict) or (other != key and not several):
                    continue
                if all(n in tree and tree[n].shape[lead:] == t.shape for n, t in declared.items()):
                    leaf = next(iter(tree.values()), None)
                    count = leaf.shape[lead - 1] if several and leaf is not None else 0
                    if count or not several:
                        floats = tuple(n for n, t in declared.items() if t.is_floating_point())
                        return _Origin(other, floats, shared, count)
    return None


def norms(body: Message, count: int) -> Tensor:
    """The norm of the largest tree of every row of a stacked message, [count] in float64 on the host.

    >>> norms({"model": {"w": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}, "loss": torch.tensor([9.0, 9.0])}, 2)
    tensor([5., 1.], dtype=torch.float64)
    """
    trees = [value for value in body.values() if isinstance(value, dict)]
    none = torch.zeros(count, dtype=torch.float64)
    return torch.stack([none, *(_norms_of(tree, count) for tree in trees)]).amax(0)


def _norms_of(tree: Tree, count: int) -> Tensor:
    """The same of one tree; squares that float32 cannot hold are summed in doubles."""
    rows = [leaf.reshape(count, -1) for leaf in tree.values() if leaf.is_floating_point()]
    if not rows:
        return torch.zeros(count, dtype=torch.float64)

    def length(of: list[Tensor]) -> Tensor:
        parts = [torch.linalg.vector_norm(leaf, dim=1).double() for leaf in of]
        whole: Tensor = torch.stack(parts).norm(dim=0).cpu()
        return whole

    found = length(rows)
    return length([leaf.double() for leaf in rows]) if bool(found.isinf().any()) else found


def _norm(message: Message) -> float:
    """The norm of the largest tree of one message."""
    one = {k: {n: t[None] for n, t in v.items()} for k, v in message.items() if isinstance(v, dict)}
    return float(norms(one, 1))


def _rows(table: Message) -> int:
    return len(next(leaf for _, _, leaf in leaves(table)))
