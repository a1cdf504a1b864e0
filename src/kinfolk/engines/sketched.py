"""Sketches of the models that reach the server: some sixty numbers for each client, to draw who is near whom.

A model is multiplied by random signs and folded into WIDTH sums. That is linear, so distances between
sketches stand for distances between models: the square of one is unbiased, with a relative variance of about
2 / WIDTH where differences are spread over many parameters. Nobody computes with sketches: they are for
people, and a run has the same bits without them.

Only the trained parameters count. Where several processes fold their own clients' replies, each sketches them
and the sketches come with its total.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kinfolk.fold import Mergeable, from_spec
from kinfolk.streams import Few, Seed
from kinfolk.types import Client, Message, Stack, Tree

# Numbers of a sketch. A prime: neighbours in a row or a column of a layer never share a sum for long.
WIDTH = 61
# Clients of one request that are sketched: the same ones in every round, as far as they are asked.
MOST_CLIENTS = 500
# Numbers that are multiplied at once.
_BLOCK = 1 << 22
# Where a total has them: which of the clients they are of, and the sketches.
_WHO, _ROWS = "sketched.who", "sketched.rows"


@dataclass(frozen=True)
class Projection:
    """A fixed random linear map from the named leaves of a model to WIDTH numbers.

    >>> Projection(Seed(0), ("w",)).of({"w": torch.ones(5, 2, 3)}).shape
    torch.Size([5, 61])
    """

    seed: Seed
    names: tuple[str, ...]
    _signs: dict[tuple[str, torch.device], Tensor] = field(default_factory=dict, repr=False, compare=False)

    def fits(self, model: object) -> bool:
        """Whether this is a model with all the leaves that a sketch is made of."""
        return isinstance(model, Mapping) and bool(self.names) and all(name in model for name in self.names)

    def of(self, models: Tree) -> Tensor:
        """The sketches [n, WIDTH] of a stack of models (every leaf [n, ...]), float32 on the host."""
        count = len(models[self.names[0]])
        total = torch.zeros(count, WIDTH, dtype=torch.float64)
        for name in self.names:
            leaf = models[name].detach().reshape(count, -1)
            total += torch.cat([self._sums(name, some) for some in torch.split(leaf, _rows(leaf))]).cpu()
        return total.float()

    def _sums(self, name: str, leaf: Tensor) -> Tensor:
        size = leaf.shape[1]
        if (name, leaf.device) not in self._signs:
            drawn = self.seed.numpy("sketched", name).integers(0, 2, size, dtype="int8") * 2 - 1
            self._signs[name, leaf.device] = torch.from_numpy(drawn).to(leaf.device)
        signed = torch.nn.functional.pad(leaf * self._signs[name, leaf.device], (0, -size % WIDTH))
        return signed.reshape(len(leaf), -1, WIDTH).sum(1, dtype=torch.float64)


def _rows(leaf: Tensor) -> int:
    return max(1, _BLOCK // max(1, leaf.shape[1]))


class Sketches:
    """Sketches the replies to requests: the last model of each client, of some where there are very many."""

    def __init__(self, seed: Seed, names: Sequence[str], few: Few) -> None:
        self.projection, self.few = Projection(seed, tuple(names)), few
        self.found: dict[Client, Tensor] = {}
        self.seconds = 0.0

    def around(self, fold: Any, asked: Sequence[Client]) -> Any:
        """The fold for processes that fold a part of the replies: their totals have the sketches as well."""
        return Sketched(fold, self.projection, self._some(asked)) if isinstance(fold, Mergeable) else fold

    def seen(self, replies: Iterator[Any], asked: Sequence[Client]) -> Iterator[Any]:
        """The same replies or totals, sketched on their way; sketches are taken out of totals."""
        some = self._some(asked)
        for more in replies:
            began = time.perf_counter()
            if isinstance(more, Stack):
                self.found |= sketched(self.projection, more, set(some))
            elif _WHO in more:
                places, rows = more[_WHO].tolist(), more[_ROWS].cpu()
                self.found |= {some[i]: row for i, row in zip(places, rows, strict=True)}
                more = {key: value for key, value in more.items() if key not in (_WHO, _ROWS)}
            self.seconds += time.perf_counter() - began
            yield more

    def take_seconds(self) -> float:
        """What sketching took here since the last call."""
        spent, self.seconds = self.seconds, 0.0
        return spent

    def _some(self, asked: Sequence[Client]) -> tuple[Client, ...]:
        return self.few.of(asked, MOST_CLIENTS)


def sketched(projection: Projection, replies: Stack, some: set[Client]) -> dict[Client, Tensor]:
    """The sketches of those replies that are models of `some`.

    >>> replies = Stack.of({Client("a"): (1, {"model": {"w": torch.ones(2)}})})
    >>> list(sketched(Projection(Seed(0), ("w",)), replies, {Client("a"), Client("b")}))
    ['a']
    """
    here = [c for c in replies.clients if c in some]
    if not here or not projection.fits(replies.body.get("model")):
        return {}
    models = replies.at(here).tree("model")
    return dict(zip(here, projection.of(models), strict=True))


@dataclass(frozen=True)
class Sketched:
    """A fold whose total also holds the sketches of the replies in it."""

    inner: Mergeable
    projection: Projection
    some: tuple[Client, ...]  # sorted; totals name them by their place

    def spec(self) -> dict[str, str]:
        """What another process must know to begin and add."""
        told = {"seed": self.projection.seed.run, "names": self.projection.names, "some": self.some}
        return {"fold": "sketched", "inner": json.dumps(self.inner.spec()), "told": json.dumps(told)}

    def begin(self) -> Message:
        """The inner total, and no sketches."""
        none = {_WHO: torch.zeros(0, dtype=torch.int64), _ROWS: torch.zeros(0, WIDTH)}
        return {**self.inner.begin(), **none}

    def add(self, total: Message, chunk: Stack) -> Message:
        """The inner total with a chunk, and the chunk's sketches."""
        new = sketched(self.projection, chunk, set(self.some))
        place = {c: i for i, c in enumerate(self.some)}
        who = torch.tensor([place[c] for c in new], dtype=torch.int64)
        rows = torch.stack(list(new.values())) if new else torch.zeros(0, WIDTH)
        return self._with(self.inner.add(total, chunk), [total, {_WHO: who, _ROWS: rows}])

    def merge(self, total: Message, other: Message) -> Message:
        """Both totals' sketches."""
        return self._with(self.inner.merge(total, other), [total, other])

    def end(self, total: Message) -> Any:
        """What the inner fold makes of it."""
        return self.inner.end(total)

    def _with(self, total: Message, parts: Sequence[Message]) -> Message:
        return {**total, **{key: torch.cat([part[key] for part in parts]) for key in (_WHO, _ROWS)}}


def fold_from(words: dict[str, str]) -> Mergeable:
    """The fold behind `spec`, with or without sketches.

    >>> from kinfolk.fold import Mean
    >>> fold_from(Sketched(Mean("model", {}), Projection(Seed(3), ("w",)), (Client("a"),)).spec()).some
    ('a',)
    """
    if words["fold"] != "sketched":
        return from_spec(words)
    told = json.loads(words["told"])
    projection = Projection(Seed(told["seed"]), tuple(told["names"]))
    return Sketched(from_spec(json.loads(words["inner"])), projection, tuple(map(Client, told["some"])))
