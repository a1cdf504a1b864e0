"""Small federations, tasks and swaps that the tests of all engines share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from kinfolk.engines.fast import prepare
from kinfolk.engines.memory import Memories
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Peer, PeerTask, Plan, Scan, Task
from kinfolk.types import Client, Message, Stack, leaves

# Steps this small gain nothing from threads and lose much where cores are busy.
torch.set_num_threads(1)

SIZES = {"ann": 1, "bob": 7, "cat": 20, "dan": 41}


def federation(sizes: Mapping[str, int] = SIZES, features: int = 4) -> Federation:
    draw = np.random.default_rng(7)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.normal(size=(n, features)).astype(np.float32), draw.integers(0, 3, n)

    return from_arrays({w: rows(n) for w, n in sizes.items()}, test={w: rows(3) for w in sizes}, classes=3)


def learner(*inside: nn.Module, plan: Plan = Plan(8, 2), **settings: Any) -> Learner:  # noqa: B008
    with Seed(1).borrowed("init"):
        network = nn.Sequential(nn.Linear(4, 5), *inside, nn.Tanh(), nn.Linear(5, 3))
    return Learner(network, find_loss("cross_entropy"), 3, SGD(0.9), plan, prepare=prepare, **settings)


def context(data: Federation, round: int = 0, run: int = 3) -> RoundContext:
    return RoundContext(Seed(run), round, data.clients)


def empty() -> Memories:
    return Memories(lambda who: {})


def together(engine: Any, request: Ask[Any], at: RoundContext) -> Stack:
    return Stack.join(list(engine.replies(request, at)))


# Parameters near 1 in float32 after a few steps: some hundred units in the last place, far less than a step.
ROUNDING = 1e-5


def largest_difference(a: Stack, b: Stack) -> float:
    assert a.clients == b.clients
    assert torch.equal(a.size, b.size)
    pairs = list(zip(leaves(a.body), leaves(b.body), strict=True))
    assert all(x[:2] == y[:2] and x[2].dtype == y[2].dtype for x, y in pairs)
    return max((float((x[2].double() - y[2].double()).abs().max()) for x, y in pairs), default=0.0)


def counted() -> Task:
    """Adds up the rows of a client and remembers how often it was asked; the message says by how much."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        return {"sum": message["by"] * 0.0, "times": memory["times"] + 1, "by": message["by"]}

    def step(carry: Carry, batch: Batch) -> Carry:
        return {**carry, "sum": carry["sum"] + batch.sum(batch.x).sum() * carry["by"]}

    def finish(carry: Carry) -> tuple[Message, Message]:
        return {"sum": carry["sum"], "times": carry["times"]}, {"times": carry["times"]}

    return Task(
        start,
        finish,
        (Scan(step, Plan(3, shuffle=False)),),
        reply={"sum": torch.zeros(()), "times": torch.zeros((), dtype=torch.int64)},
    )


def remembering() -> Memories:
    return Memories(lambda who: {"times": torch.tensor(0)})


def ring() -> PeerTask:
    """Everyone writes its number to the next in the alphabet and adds up what arrives."""

    def send(memory: Message, me: Peer) -> dict[Client, Message]:
        clients = me.context.clients
        after = clients[(clients.index(me.name) + 1) % len(clients)]
        return {after: {"note": memory["note"]}}

    def receive(inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        return {"note": memory["note"] + sum(letter["note"] for letter in inbox.values())}

    return PeerTask(send, receive)
