"""An attack: who looks at what was released and guesses whether a client took part, many times over.

From how often it is right follows an epsilon that the mechanism has at the least (Jagielski, Ullman, Oprea:
Auditing differentially private machine learning. NeurIPS 2020). It must not be above what is claimed; and
with half of the noise it must be, or the attack would prove nothing.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats
from toys import learner

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.ifca import IFCA
from kinfolk.privacy.local import noisy
from kinfolk.privacy.mechanism import Mechanism
from kinfolk.privacy.spec import PrivacySpec
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Task
from kinfolk.types import Client, Stack, Tree

DELTA, TRIALS, Z, CLIP = 0.01, 3000, 1.0, 0.5
ONE = learner()
CLIENTS = tuple(Client(c) for c in "abcd")
# Sure but for one time in ten thousand, for all thresholds together.
SURE = 1e-5


def least_epsilon(with_it: list[float], without: list[float]) -> float:
    """The epsilon that guesses by a threshold prove, by Clopper and Pearson's bounds of their rates."""
    middle, found = sum(without) / len(without), 0.0
    spread = torch.tensor(without).std().item()
    for steps in (1.0, 1.5, 2.0, 2.5, 3.0):
        line = middle + steps * spread
        right, wrong = (sum(value > line for value in seen) for seen in (with_it, without))
        low = stats.beta.ppf(SURE, right, len(with_it) - right + 1) if right else 0.0
        high = stats.beta.ppf(1 - SURE, wrong + 1, len(without) - wrong)
        if low > DELTA:
            found = max(found, math.log((low - DELTA) / high))
    return found


def played(algorithm, noise: float, canary: bool) -> list[float]:
    """How far a round has moved the one number that the canary pushes, again and again."""
    mechanism = Mechanism(PrivacySpec("server", clip=CLIP, delta=DELTA), noise, len(CLIENTS))
    noisy_one = mechanism.protected(algorithm)
    state = noisy_one.init(ONE.first, CLIENTS, Seed(0))
    first: Tree = ONE.first
    pushed = {**first, "0.bias": first["0.bias"] + torch.eye(5)[0] * 1e4}
    models = dict.fromkeys(CLIENTS[1:], first) | ({CLIENTS[0]: pushed} if canary else {})
    replies = Stack.of({c: (9, {"model": m, "choice": torch.tensor(0)}) for c, m in models.items()})

    context, seen = RoundContext(Seed(0), 0, CLIENTS), []

    def answer(request):
        fold = request.fold
        made = fold.end(fold.add(fold.begin(), replies))
        if isinstance(algorithm, FedAvg):
            seen.append(float(made["0.bias"][0] - first["0.bias"][0]))
        else:  # what only the server sees, the count, is known to the attacker as well
            seen.append(float(made[0]["0.bias"][0, 0] - first["0.bias"][0]) * float(made[2][0]))
        return made

    for _ in range(TRIALS):
        play(noisy_one.round(state, CLIENTS, context), answer)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [FedAvg(ONE, "uniform"), IFCA(ONE, k=2)], ids=["fedavg", "ifca"])
def test_a_canary_is_found_no_more_often_than_epsilon_allows(algorithm):
    claimed = Mechanism(PrivacySpec(delta=DELTA), Z, 4).epsilon(1 / Z**2)
    assert least_epsilon(played(algorithm, Z, True), played(algorithm, Z, False)) <= claimed
    halved = least_epsilon(played(algorithm, Z / 2, True), played(algorithm, Z / 2, False))
    assert halved > claimed


def test_two_data_sets_of_a_client_are_told_apart_no_more_often_than_epsilon_allows():
    claimed = Mechanism(PrivacySpec(delta=DELTA), Z, 4).epsilon(1 / Z**2)
    assert told_apart(Z) <= claimed < told_apart(Z / 2)


def told_apart(noise: float) -> float:
    first = {"w": torch.zeros(4)}
    seen: dict[float, list[float]] = {}
    for sign in (1.0, -1.0):
        end = {"model": {"w": torch.eye(4)[0] * sign * 1e4}}
        task = Task(lambda m, _, facts: {}, lambda carry, end=end: (dict(end), None), reply={"model": first})
        mine = Mechanism(PrivacySpec("local", clip=CLIP), noise, 4).armed({"update": task})["update"]
        seen[sign] = [reply(mine, first) for _ in range(TRIALS)]
    return least_epsilon(seen[1.0], seen[-1.0])


def reply(task, first: Tree) -> float:
    made, _ = task.finish(task.start({"model": first}, {}, None))
    return float(task.conclude(made)["model"]["w"][0])


def test_the_audit_finds_a_client_that_adds_no_noise():
    task = replace(ONE.train(), conclude=None)
    assert noisy(task, 1.0, 0.0).conclude is not None
    assert least_epsilon([1.0] * TRIALS, [0.0] * TRIALS) > 5
