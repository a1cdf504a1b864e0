"""Plain PyTorch to compare with: a loop written by hand over an ordinary module, and the data for it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kinfolk.engines.batched import Batched
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.plan import batches
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan, Task
from kinfolk.types import Client, Message, Stack, Tree

# Steps this small gain nothing from threads and lose much where cores are busy.
torch.set_num_threads(1)

SIZES = {"ann": 1, "bob": 7, "cat": 20, "dan": 41}
ENGINES = [Loop, Batched]
CE = find_loss("cross_entropy")


def federation(sizes: Mapping[str, int] = SIZES, tests: Mapping[str, int] | None = None) -> Federation:
    draw = np.random.default_rng(5)

    def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
        return draw.normal(size=(n, 4)).astype(np.float32), draw.integers(0, 3, n)

    held = {who: rows((tests or {}).get(who, 5)) for who in sizes}
    return from_arrays({w: rows(n) for w, n in sizes.items()}, test=held, classes=3)


DATA = federation()


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with Seed(0).borrowed("init"):
        return make()


def mlp(*inside: nn.Module) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 6), *inside, nn.Tanh(), nn.Linear(6, 3)))


def asked(
    engine: type,
    task: Task,
    shared: Message,
    data: Federation = DATA,
    round: int = 0,
    memories: Memories | None = None,
    run: int = 3,
    to: tuple[str, ...] = (),
) -> Stack:
    memories = Memories(lambda who: {}) if memories is None else memories
    context = RoundContext(Seed(run), round, data.clients)
    request = Ask[Any]("task", tuple(map(Client, to)) or data.clients, shared)
    return Stack.join(list(engine(data, {"task": task}, memories).replies(request, context)))


def rows_of(data: Federation, who: str, split: str = "train") -> tuple[Tensor, Tensor]:
    own = data.splits[split].rows(data.place(who))
    return data.x[own], data.y[own]


def by_hand(
    learner: Learner,
    who: str,
    make: Callable[[Any], torch.optim.Optimizer],
    round: int = 0,
    clip: float = 0.0,
    stream: str = "batch",
    plan: Plan | None = None,
) -> Tree:
    """An ordinary loop over an ordinary module, fed with the rows in the client's own order."""
    module = copy.deepcopy(learner.module).train()
    optimiser = make([p for p in module.parameters() if p.requires_grad])
    x, y = rows_of(DATA, who)
    for rows in batches(plan or learner.plan, len(x), Seed(3).numpy(stream, round, who, 0)):
        optimiser.zero_grad()
        F.cross_entropy(module(x[rows]), y[rows]).backward()
        if clip:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimiser.step()
    return module.state_dict()


def assert_models(got: Stack, expected: Mapping[str, Tree], tolerance: float = 2e-6) -> None:
    assert set(got.clients) == set(expected)
    for who, tree in expected.items():
        model = got.row(who)["model"]
        for name in model:
            torch.testing.assert_close(
                model[name], tree[name], rtol=1e-5, atol=tolerance, msg=f"{who} {name}"
            )
