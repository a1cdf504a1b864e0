"""What methods without a server share: who is linked with whom, and models that clients send one another."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from kinfolk.learning.learner import Learner, own_model
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Carry, ClientInfo, Task
from kinfolk.types import Client, Message, PerClient, Tree, tree_of


@dataclass(frozen=True)
class State:
    """There is no server, and nothing that it would know."""


def init(self: Any, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
    """Nothing to hold."""
    return State()


def eval_inputs(self: Any, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
    """Clients need nothing."""
    return {}, None


def eval_tasks(self: Any) -> Mapping[str, Task]:
    """What was mixed last, from which training goes on ("centre"); what the last training made."""
    return {"centre": self.learner.score(mixture), "personal": self.learner.score(own_model)}


def train_mixture(learner: Learner) -> Task:
    """A task: train the last mixture, and keep what comes of it; nothing is sent to anybody but peers."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        return {**memory, **mixture(message, memory, facts)}

    def finish(carry: Carry) -> tuple[Message, Message]:
        kept = {key: value for key, value in carry.items() if not key.startswith("optimiser.")}
        return {}, {**kept, "mixed": carry["model"]}  # until there is a mixture with others

    return learner.train(start=start, finish=finish, reply={})


def mixture(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    """Start from the last mixture."""
    return {"model": tree_of(memory, "mixed")}


def first_memory(learner: Learner) -> Message:
    """The common initial model, mixed with nobody's."""
    return {"model": learner.first, "mixed": learner.first, "refused": NOBODY}


# Places among all clients of those whose last message was refused.
NOBODY = torch.zeros(0, dtype=torch.int64)
REFUSED = "message of {!r}: its model is not of this network, or not finite"


@lru_cache(maxsize=8)
def links(context: RoundContext, chosen: int, ring: bool = False) -> dict[Client, tuple[Client, ...]]:
    """The partners of everybody in the cohort, sorted; a link goes both ways, and anybody can work it out.

    Each chooses so many others, drawn anew in every round, or on a `ring` the next ones by name.

    >>> context = RoundContext(Seed(1), 0, tuple(map(Client, "abcdef")))
    >>> links(context, 1)["a"], links(context, 1, ring=True)["a"]
    (('b', 'c', 'e'), ('b', 'f'))
    """
    cohort = context.cohort
    found: dict[Client, set[Client]] = {who: set() for who in cohort}
    for i, who in enumerate(cohort):
        others = cohort[i + 1 :] + cohort[:i] if ring else cohort[:i] + cohort[i + 1 :]
        order: Sequence[int] = range(len(others))
        if not ring:
            order = context.seed.numpy("link", context.round, who).permutation(len(others)).tolist()
        for j in order[:chosen]:
            found[who].add(others[j])
            found[others[j]].add(who)
    return {who: tuple(sorted(linked)) for who, linked in found.items()}


def sound_models(
    inbox: Mapping[Client, Message], wanted: Collection[Client], memory: Message, clients: Sequence[Client]
) -> tuple[dict[Client, Tree], Tensor]:
    """The models of those who were to write, by name; and the places of those whose message is no such model.

    >>> own, who = {"w": torch.zeros(1)}, (Client("a"), Client("b"), Client("c"))
    >>> inbox = {"b": {"model": {"w": torch.ones(1)}}, "c": {"model": {"w": torch.ones(2)}}}
    >>> sound_models(inbox, ["b", "c"], {"model": own}, who)
    ({'b': {'w': tensor([1.])}}, tensor([2]))
    """
    like = tree_of(memory, "model")
    models, bad = {}, []
    for sender in sorted(set(inbox) & set(clients)):
        told = inbox[sender].get("model") if isinstance(inbox[sender], dict) else None
        if sender in wanted and isinstance(told, dict) and is_such(told, like):
            models[sender] = {name: told[name].to(leaf.device) for name, leaf in like.items()}
        else:
            bad.append(clients.index(sender))
    return models, torch.tensor(bad, dtype=torch.int64)


def is_such(model: Mapping[str, Any], like: Tree) -> bool:
    """Whether a tree has the names, shapes and types of another, and finite numbers alone.

    >>> is_such({"w": torch.tensor([float("nan")])}, {"w": torch.zeros(1)})
    False
    """
    return set(model) == set(like) and all(
        isinstance(model[name], Tensor)
        and (model[name].shape, model[name].dtype) == (leaf.shape, leaf.dtype)
        and bool(model[name].isfinite().all())
        for name, leaf in like.items()
    )


def mixed(models: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """sum_j W_j w_j in float64; of integers (counters of batches) the largest.

    >>> mixed([{"w": torch.tensor([1.0])}, {"w": torch.tensor([5.0])}], [0.75, 0.25])
    {'w': tensor([2.])}
    """

    def leaf(name: str, like: Tensor) -> Tensor:
        if not like.is_floating_point():
            return torch.stack([model[name] for model in models]).amax(0)
        whole = sum(w * model[name].double() for w, model in zip(weights, models, strict=True))
        assert isinstance(whole, Tensor)
        return whole.to(like.dtype)

    return {name: leaf(name, like) for name, like in models[0].items()}


def complaints(self: Any, memory: Message, clients: Sequence[Client]) -> dict[Client, str]:
    """Whose model a client could not use in its last exchange."""
    return {clients[i]: REFUSED.format(clients[i]) for i in memory.get("refused", NOBODY).tolist()}
