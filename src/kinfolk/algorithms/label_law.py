"""Labels as clients tell them or use them: counts, the law p_i of own rows, a choice of clusters by it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kinfolk.clustering.output_distance import nearest_cluster
from kinfolk.task import Batch, Carry, Facts, Peer, Plan, Real, Sweep, Task, Whole
from kinfolk.types import Message

# A coin that was never thrown, or has served: whoever holds it has no answer to give.
SPENT = -1.0


def count_labels(classes: int, batch: int) -> Task:
    """A task: how many training rows of each class there are; as floats, whose range the guard checks."""
    sweep = Sweep(_count_labels, Plan(batch, shuffle=False))
    expected = {"labels": Real((classes,), low=0)}
    return Task(_no_labels(classes), lambda carry: ({"labels": carry["counts"]}, None), (sweep,), expected)


def law_task(classes: int, batch: int) -> Task:
    """A task: the label law p_i of the client's training rows."""
    sweep = Sweep(_count_labels, Plan(batch, shuffle=False))
    start = _no_labels(classes)
    return Task(start, lambda carry: ({"law": _law(carry)}, None), (sweep,), {"law": Real((classes,), 0, 1)})


def choose_task(classes: int, k: int, batch: int, epsilon: float) -> Task:
    """A task: s_i = argmin_k p_i . d_ik, by the client's own labels, told as it is or at random."""
    none = _no_labels(classes)

    def start(message: Message, memory: Message, facts: Facts) -> Carry:
        coin = {"coin": memory["coin"]} if epsilon else {}
        return {**none(message, memory, facts), "distances": message["distances"], **coin}

    def finish(carry: Carry) -> tuple[Message, Message | None]:
        choice = nearest_cluster(carry["distances"], _law(carry))
        if not epsilon:
            return {"choice": choice}, None
        answer = respond(choice, carry["coin"], epsilon, k)
        return {"choice": answer}, {"coin": torch.full_like(carry["coin"], SPENT)}

    sweep = Sweep(_count_labels, Plan(batch, shuffle=False))
    return Task(start, finish, (sweep,), {"choice": Whole(0, k)})


def respond(choice: Tensor, coin: Tensor, epsilon: float, k: int) -> Tensor:
    """Randomised response: the choice with probability e^eps / (e^eps + K - 1), else any other, evenly.

    `coin` is two numbers in [0, 1); one that is spent gives -1, which is no answer.

    >>> respond(torch.tensor(2), torch.tensor([0.99, 0.1]), 0.5, 4), respond(
    ...     torch.tensor(2), torch.tensor([0.1, 0.1]), 0.5, 4)
    (tensor(0), tensor(2))
    """
    truly = 1 / (1 + (k - 1) * math.exp(-epsilon))
    other = (coin[1] * (k - 1)).long().clamp(max=max(k - 2, 0))
    other = other + (other >= choice).long()
    answer = torch.where(coin[0] < truly, choice, other)
    return torch.where(coin[0] == SPENT, torch.full_like(answer, -1), answer)


def throw(me: Peer) -> Message:
    """Two fresh numbers in [0, 1), which the client keeps to itself."""
    drawn = me.turn.seed.numpy("response", me.turn.round, me.name).random(2)
    return {"coin": torch.from_numpy(drawn).float()}


def _no_labels(classes: int) -> Any:
    def start(message: Message, memory: Message, facts: Facts) -> Carry:
        # Zeros made of the client's own number of rows: each client has its own from the beginning.
        none = facts.rows * 0.0
        return {"counts": torch.zeros(classes, device=none.device) + none, "rows": facts.rows}

    return start


def _count_labels(carry: Carry, batch: Batch) -> Carry:
    seen = batch.y[:, None] == torch.arange(len(carry["counts"]), device=batch.y.device)
    return {**carry, "counts": carry["counts"] + batch.sum(seen.to(carry["counts"]))}


def _law(carry: Carry) -> Tensor:
    law: Tensor = carry["counts"] / carry["rows"].clamp(min=1)
    return law
