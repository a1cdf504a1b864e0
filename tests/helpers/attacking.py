"""Clients that attack, asked for one reply by any engine."""

from __future__ import annotations

from contextlib import contextmanager

from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.ifca import IFCA
from kinfolk.attacks.attack import Attack
from kinfolk.contract import toy
from kinfolk.engines.choose import arithmetic, make
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.script import Ask, client_tasks
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Stack

FEDERATION = toy.ragged()
BAD = frozenset(map(Client, ("cleo", "eve", "hal")))


@contextmanager
def engine(method, kind, name="loop", who=BAD, federation=FEDERATION, trigger=None):
    """An engine whose clients attack; of the kind "" nothing is put around the tasks at all."""
    attack = Attack(kind, who, federation.classes, Seed(3), trigger)
    table, remember = client_tasks(method), lambda who: {}
    if kind:
        remember, table = attack.with_flag(remember, table), attack.arm(table)
    spec = EngineSpec(name, "cpu", chunk=3, lanes=1, processes=2)
    with arithmetic(toy.CPU, "float32"):
        made = make(spec, federation, table, Memories(remember))
        try:
            yield made
        finally:
            made.close()


def asked(made, task, message, round) -> Stack:
    """Everybody's replies."""
    context = RoundContext(Seed(0), round, FEDERATION.clients)
    return Stack.join(list(made.replies(Ask(task, FEDERATION.clients, message), context)))


def replies(method, kind, task, message, name="loop", round=4, **more) -> Stack:
    with engine(method, kind, name, **more) as made:
        return asked(made, task, message, round)


def fedavg():
    """With BatchNorm, whose buffers are floats and whole numbers."""
    learner = toy.learner("tiny_cnn", FEDERATION)
    return FedAvg(learner), "update", {"model": learner.first}


def ifca():
    learner = toy.learner("mlp", FEDERATION)
    method = IFCA(learner, k=3)
    return method, "update", {"models": method.init(learner.first, FEDERATION.clients, Seed(1)).centres}
