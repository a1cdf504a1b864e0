"""What algorithms with one model for each of K groups have in common: state, who gets which model, scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.learns import Learns
from kinfolk.fold import Weights, client_weights, weighted_sum
from kinfolk.streams import Seed
from kinfolk.task import Table, Task
from kinfolk.types import Client, IndexedMessages, Message, PerClient, Stack, Tree

# In place of a margin, which lies in [-1, 1]: what a state holds is finite.
UNKNOWN = -2.0
# (chunk of replies) -> the group of each, [replies] int64
GroupOf = Callable[[Stack], Tensor]


@dataclass(frozen=True)
class State:
    """The models of all groups, and who belongs to which."""

    centres: Tree  # c_k: every leaf [K, ...]
    member: Tensor  # s_i: [clients] int64, in sorted order of names
    clients: tuple[str, ...]  # the names, sorted
    # [clients]: how clearly each belongs to its group (`clustering.margin`), or UNKNOWN; empty in methods
    # whose server does not see it.
    margin: Tensor = field(default_factory=lambda: torch.zeros(0), kw_only=True)

    @property
    def k(self) -> int:
        """How many groups there are."""
        return len(next(iter(self.centres.values())))

    def of(self, who: Sequence[Client]) -> Tensor:
        """The groups of some clients, in the order they are named."""
        return self.member.cpu()[self.places(who)]

    def group_of(self, chunk: Stack) -> Tensor:
        """The groups of those who replied: how replies are put into the groups that stand."""
        return self.of(chunk.clients)

    def moved(self, who: Sequence[Client], groups: Tensor) -> Tensor:
        """Memberships with those of `who` changed."""
        member = self.member.cpu()
        return member.index_copy(0, self.places(who), groups.to(member))

    def places(self, who: Sequence[Client]) -> Tensor:
        """The positions of some clients among all."""
        place = {c: i for i, c in enumerate(self.clients)}
        return torch.tensor([place[c] for c in who], dtype=torch.int64)

    def margins(self, new: Mapping[Client, float]) -> Tensor:
        """Margins with some changed."""
        held = self.margin.tolist() or [UNKNOWN] * len(self.clients)
        both = [new.get(Client(c), old) for c, old in zip(self.clients, held, strict=True)]
        return torch.tensor(both).nan_to_num(nan=UNKNOWN)


def in_use(saved: Message) -> tuple[Tree, tuple[int, ...]]:
    """Of a saved state the models of the groups that have members, and their numbers; nothing without groups.

    A place that nobody is in holds an old model, a copy of another's or the first one.

    >>> in_use({"centres": {"w": torch.tensor([[1.0], [2.0]])}, "member": torch.tensor([1, 1])})
    ({'w': tensor([[2.]])}, (1,))
    """
    centres, member = saved.get("centres"), saved.get("member")
    if not isinstance(centres, dict) or not isinstance(member, Tensor):
        return {}, ()
    groups = tuple(sorted(set(member.tolist())))
    return {name: t[list(groups)] for name, t in centres.items()}, groups


def copies(model: Tree, k: int) -> Tree:
    """K times the same model.

    >>> copies({"w": torch.tensor([1.0])}, 2)
    {'w': tensor([[1.],
            [1.]])}
    """
    # A plain clone of one copy would keep the stride of 0, which cannot be written to disk.
    return {
        name: t.expand(k, *t.shape).clone(memory_format=torch.contiguous_format) for name, t in model.items()
    }


def distinct(centres: Tree, names: Sequence[str], seed: Seed) -> Tree:
    """Different starts: the weights of all but the first model drawn again, as large as they were.

    Every matrix is shuffled, which keeps the distribution its entries were drawn from.

    >>> start = copies({"w": torch.arange(6.0).reshape(2, 3)}, 2)
    >>> other = distinct(start, ["w"], Seed(0))["w"]
    >>> torch.equal(other[0], start["w"][0]), torch.equal(other[1], start["w"][1]), float(other[1].sum())
    (True, False, 15.0)
    """
    out = dict(centres)
    for name in names:
        t = centres[name].clone()
        for k in range(1, len(t)) if t.dim() > 2 else ():
            order = torch.from_numpy(seed.numpy("cluster", "distinct", name, k).permutation(t[k].numel()))
            t[k] = t[k].flatten()[order.to(t.device)].reshape(t[k].shape)
        out[name] = t
    return out


def model_of_group(state: State, who: Sequence[Client]) -> IndexedMessages:
    """A message for each client: the model of its group."""
    names = tuple(sorted(who))
    return IndexedMessages(names, state.of(names), {"model": state.centres})


def tasks(self: Learns) -> Table:
    """Train the received model on the client's own rows."""
    return {"update": self.learner.train()}


def eval_inputs(self: Any, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
    """Everyone is served the model of its group."""
    return {}, model_of_group(state, who)


def eval_tasks(self: Learns) -> Mapping[str, Task]:
    """The model of the client's group, as it is."""
    return {"centre": self.learner.score()}


def groups(self: Any, state: State) -> Tensor:
    """The group of every client."""
    return state.member


def margins(self: Any, state: State) -> Tensor:
    """How clearly every client belongs to its group."""
    known = state.margins({})
    return known.masked_fill(known == UNKNOWN, torch.nan)


@dataclass(frozen=True)
class GroupMeans:
    """A fold: the weighted mean of the models that came, in every group; an empty group keeps its model.

    `group` says of a chunk of replies which group each belongs to, so that a method can decide it from
    the replies themselves. What the script receives: (means, every leaf [K, ...]; group of each client
    that replied; total weight of each group).

    >>> fold = GroupMeans({"w": torch.zeros(2, 1)}, "uniform", lambda chunk: torch.tensor([1, 1]))
    >>> reply = lambda v: {"model": {"w": torch.tensor([v])}}
    >>> chunk = Stack.of({Client("a"): (1, reply(2.0)), Client("b"): (3, reply(4.0))})
    >>> fold.end(fold.add(fold.begin(), chunk))[0]
    {'w': tensor([[0.],
            [3.]])}
    """

    keep: Tree  # the models of the groups as they are, [K, ...]
    weights: Weights
    group: GroupOf
    key: ClassVar[str] = "model"

    def groups_of(self, chunk: Stack) -> Tensor:
        """The group of each reply, where that does not take its model."""
        return self.group(chunk).cpu()

    def of_means(
        self, means: Mapping[int, Tree], mass: Mapping[int, float], member: dict[Client, int]
    ) -> tuple[Tree, dict[Client, int], Tensor]:
        """What `end` gives, from the means of some groups: all others keep their model."""
        models = {
            name: torch.stack([means[g][name].to(t) if g in means else t for g, t in enumerate(old)])
            for name, old in self.keep.items()
        }
        k = len(next(iter(self.keep.values())))
        return models, member, torch.tensor([mass.get(g, 0.0) for g in range(k)], dtype=torch.float64)

    def begin(self) -> tuple[Tree, Tensor, dict[Client, int]]:
        """Nothing summed yet."""
        k = len(next(iter(self.keep.values())))
        return {}, torch.zeros(k, dtype=torch.float64), {}

    def add(self, total: Any, chunk: Stack) -> Any:
        """Add a chunk, each reply to the sum of its group."""
        sums, mass, member = total
        group = self.group(chunk).cpu()
        weights = client_weights(chunk, self.weights)
        share = torch.zeros(len(mass), len(chunk), dtype=torch.float64)
        share[group, torch.arange(len(chunk))] = weights
        joined = {}
        for name, leaf in chunk.tree("model").items():
            if leaf.is_floating_point():
                new = weighted_sum(share, leaf)
                joined[name] = sums[name] + new if name in sums else new
            else:
                new = _largest(group, leaf, len(mass))
                joined[name] = sums[name].maximum(new) if name in sums else new
        return joined, mass + share.sum(1), member | dict(zip(chunk.clients, group.tolist(), strict=True))

    def end(self, total: Any) -> tuple[Tree, dict[Client, int], Tensor]:
        """Sums over weights; where nobody is, what was there."""
        sums, mass, member = total
        if not sums:
            return self.keep, member, mass
        means = {}
        for name, old in self.keep.items():
            shape = (-1, *[1] * (old.dim() - 1))
            some = (mass > 0).to(old.device).reshape(shape)
            new = sums[name]
            if new.is_floating_point():
                new = new / mass.to(new.device).clamp(min=1e-300).reshape(shape)
            means[name] = torch.where(some, new.to(old.dtype), old)
        return means, member, mass


def _largest(group: Tensor, leaf: Tensor, k: int) -> Tensor:
    """Counters are not averaged: the largest of each group, 0 where nobody is."""
    mine = [leaf[(group == g).to(leaf.device)] for g in range(k)]
    return torch.stack([m.amax(0) if len(m) else torch.zeros_like(leaf[0]) for m in mine])
