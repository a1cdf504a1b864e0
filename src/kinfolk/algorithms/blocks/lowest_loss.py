"""What methods share whose clients choose among K models: the one of lowest loss on their training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.many_models import State
from kinfolk.errors import KinfolkError
from kinfolk.learning.learner import Learner, received_model
from kinfolk.script import Script, ask
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Fit, FloatSpec, IntSpec, Plan, Scan, Task
from kinfolk.types import Message, Stack, Tree, tree_of

WORST = 1e17
# How many medians a told loss may lie from the cohort's median and still count in full.
FARTHEST_LOSS = 10.0
S = TypeVar("S", bound=State)


def enough_clients(k: int, clients: Sequence[str]) -> None:
    """Refuse more groups than there are clients.

    >>> enough_clients(3, ["ann", "bob"])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.k = 3: give at most 2, the number of clients
    """
    if k > len(clients):
        raise KinfolkError("algorithm.k", k, f"give at most {len(clients)}, the number of clients")


def pick(models: Tree, which: Tensor) -> Tree:
    """One of K models (every leaf [K, ...]) by a number that may differ from client to client.

    >>> pick({"w": torch.tensor([[1.0], [2.0]])}, torch.tensor(1))
    {'w': tensor([2.])}
    """
    return {name: t.index_select(0, which.reshape(1)).squeeze(0) for name, t in models.items()}


def summed_loss(learner: Learner, model: Tree, batch: Batch) -> Tensor:
    """The sum of a batch's losses in scoring mode, so that BatchNorm judges all models alike."""
    return batch.sum(learner.loss.row_loss(learner.apply(model, batch), batch.y))


def choose_task(learner: Learner, k: int) -> Task:
    """A task: j = argmin over K models of F_i(c_j), the mean loss on the client's training rows; reply j."""
    task = choose_and_train(learner, k)

    def finish(carry: Carry) -> tuple[Message, None]:
        return {"choice": carry["choice"]}, None

    return replace(task, finish=finish, passes=task.passes[:1], reply={"choice": IntSpec(0, k)})


def lowest_loss_task(learner: Learner, k: int) -> Task:
    """A task: min over K models of F_i(c_j)."""
    task = choose_and_train(learner, k)

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        return {**task.start(message, memory, facts), "rows": facts.rows}

    def compare(carry: Carry, batch: Batch) -> Carry:
        return {**task.passes[0].step(carry, batch), "rows": carry["rows"]}  # type: ignore[union-attr]

    def finish(carry: Carry) -> tuple[Message, None]:
        lowest = carry["losses"].nan_to_num(nan=torch.inf).min() / carry["rows"]
        return {"loss": lowest.clamp(max=WORST)}, None

    return Task(start, finish, (Scan(compare, _once(learner)),), {"loss": FloatSpec()}, sent=task.sent)


def choose_anew(state: S, context: RoundContext) -> Script[S]:
    """Everyone chooses among the models as they are now; who does not answer stays where it was."""
    got = yield from ask("choose", context.clients, shared={"models": state.centres})
    return replace(state, member=state.moved(got.clients, choices(got).cpu())), {}


def choose_and_train(learner: Learner, k: int) -> Task:
    """A task: j = argmin over K models of F_i(c_j), train c_j, reply it and j."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        # Zeros made of the client's own number of rows: each client has its own from the beginning.
        none = facts.rows * 0
        losses = torch.zeros(k, device=none.device) * none
        return {
            "models": tree_of(message, "models"),
            "model": pick(tree_of(message, "models"), none),
            "losses": losses,
            "choice": none,
        }

    def compare(carry: Carry, batch: Batch) -> Carry:
        models = carry["models"]
        new = [summed_loss(learner, {n: t[j] for n, t in models.items()}, batch) for j in range(k)]
        losses = carry["losses"] + torch.stack(new)
        # The best so far; after the last batch, the best. A loss that is no number is never the lowest.
        choice = losses.nan_to_num(nan=torch.inf).argmin()
        return {"models": models, "model": pick(models, choice), "losses": losses, "choice": choice}

    def finish(carry: Carry) -> tuple[Message, None]:
        return {"model": carry["model"], "choice": carry["choice"]}, None

    passes = (Scan(compare, _once(learner)), Fit((learner.descent(),), learner.plan))
    models = {"models": {n: t.expand(k, *t.shape) for n, t in learner.first.items()}}
    return Task(start, finish, passes, {"model": learner.first, "choice": IntSpec(0, k)}, sent=models)


def training_loss(learner: Learner) -> Task:
    """A task: the mean loss of the received model on the client's training rows."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        received = received_model(message, memory, facts)
        return {**received, "loss": facts.rows * 0.0, "rows": facts.rows}

    def add(carry: Carry, batch: Batch) -> Carry:
        return {**carry, "loss": carry["loss"] + summed_loss(learner, carry["model"], batch)}

    def finish(carry: Carry) -> tuple[Message, None]:
        # A reply is finite, and who has no loss at all is served worst of all: it must not count as missing.
        loss = (carry["loss"] / carry["rows"]).nan_to_num(nan=WORST, posinf=WORST)
        return {"loss": loss.clamp(max=WORST)}, None

    sent = {"model": learner.first}
    return Task(start, finish, (Scan(add, _once(learner)),), {"loss": FloatSpec()}, sent=sent)


def mean_told_loss(got: Stack) -> float:
    """sum_i (n_i / n) loss_i of what clients told, each held within ten medians of the cohort's median.

    A loss is told and not seen: without the bound one client that tells -1e30 decides for all.

    >>> from kinfolk.types import Client
    >>> told = {name: (1, {"loss": torch.tensor(loss)}) for name, loss in zip("abc", (1.0, 2.0, -1e30))}
    >>> mean_told_loss(Stack.of({Client(name): reply for name, reply in told.items()}))
    -2.0
    """
    losses, rows = got.tensor("loss").double().cpu(), got.size.double()
    middle = losses.quantile(0.5)
    held = losses.clamp(middle - FARTHEST_LOSS * middle.abs(), middle + FARTHEST_LOSS * middle.abs())
    return float((rows / rows.sum() * held).sum())


def choices(chunk: Stack) -> Tensor:
    """Which model each client chose: how replies are put into groups."""
    return chunk.tensor("choice")


def where(member: dict[Any, int]) -> Tensor:
    """The groups of those who replied, in the order of the mapping.

    >>> where({"ann": 1, "bob": 0})
    tensor([1, 0])
    """
    return torch.tensor(list(member.values()), dtype=torch.int64)


def _once(learner: Learner) -> Plan:
    """Every training row once, in order."""
    return Plan(learner.score_batch, shuffle=False)
