"""Gossip averaging: no server at all, each client averages its model with those its neighbours send."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from kinfolk.learning.learner import Learner, keep_model, own_model
from kinfolk.script import Script, ask, exchange
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer, PeerTask, Table, Task
from kinfolk.types import Client, Message, Stack, Tree


@dataclass(frozen=True)
class State:
    """There is no server."""


@dataclass(frozen=True)
class Gossip:
    """Each client trains its own model, then takes the plain mean with what reaches it."""

    learner: Learner
    neighbours: Literal["ring", "random"] = "ring"  # both sides of a ring, or two drawn anew each round
    train: bool = True  # whether clients practise before they write to one another

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        return State()

    def init_client(self, who: Client) -> Message:
        return {"model": self.learner.first}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        if self.train:
            yield from ask("practise", cohort)
        yield from exchange("gossip", cohort)
        return state, {}

    def tasks(self) -> Table:
        return {
            "practise": self.learner.train(start=own_model, finish=keep_model, reply={}),
            "gossip": PeerTask(self.send, self.receive),
        }

    def send(self, memory: Message, me: Peer) -> dict[Client, Message]:
        others = [c for c in me.context.clients if c != me.name]
        if self.neighbours == "random":
            draw = me.context.seed.numpy("gossip", me.context.round, me.name)
            chosen = draw.permutation(len(others))[:2]
            return {others[i]: {"model": memory["model"]} for i in sorted(chosen)}
        place, count = me.context.clients.index(me.name), len(me.context.clients)
        sides = {me.context.clients[(place + step) % count] for step in (-1, 1)} - {me.name}
        return {c: {"model": memory["model"]} for c in sorted(sides)}

    def receive(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        heard = [inbox[c]["model"] for c in sorted(inbox)]
        return {"model": {n: _mean([t, *(m[n] for m in heard)]) for n, t in memory["model"].items()}}

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, Stack | None]:
        return {}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        return {"personal": self.learner.score(start=own_model)}


def _mean(values: list[torch.Tensor]) -> torch.Tensor:
    stacked = torch.stack(values)
    if not stacked.is_floating_point():
        return stacked.amax(0)
    return stacked.double().mean(0).to(stacked.dtype)
