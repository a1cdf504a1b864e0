"""What MD-ICFL's server takes of a round on this machine's cores: back-searching, distances, means.

python benchmarks/server_step.py [--clients 48] [--rows 1000] [--epochs 2] [--rounds 3]    about two minutes
python benchmarks/server_step.py --clients 8 --rows 200 --search 20                       a quick look
python benchmarks/server_step.py --samples 30 --warm 0                                    the paper's rows

LeNet on rows of noise, K = 4, C = 10, batch 50; two epochs are the paper's for Rotated MNIST. Clients
train on engine `workers`, one process for each core. Their replies are held back until all have come, so that
the two parts of a round do not share the cores and can be told apart: `server` is the whole round without the
time of the training. The first round draws the clusters, in the second rows are made that later ones go on
from: they are not counted. On a busy machine seconds tell of the others too; processor time tells less of
them, and with all cores in use its share is the same.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch

from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.options import options_of, with_options
from kinfolk.engines.choose import arithmetic, choose, make
from kinfolk.engines.coordinator import Coordinator, Engine
from kinfolk.engines.fast import prepare
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.learning.batchable import cost
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.script import Ask, client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import Stack
from measure import CLASSES, toy

BAR = 0.15
# Rounds that are not like others.
FIRST = 2


class Gathering:
    """An engine that answers only once every client has, and knows how long that took."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.seconds = engine, 0.0
        self.name, self.note, self.device = engine.name, engine.note, engine.device
        self.table, self.memories = engine.table, engine.memories
        self.swap, self.close = engine.swap, engine.close

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """All replies, after the last of them."""
        began = time.perf_counter()
        held = list(self.engine.replies(request, context))
        self.seconds += time.perf_counter() - began
        return iter(held)


Pair = tuple[float, float]


def measure(
    clients: int, rows: int, epochs: int, rounds: int, options: dict[str, int]
) -> tuple[list[Pair], Pair]:
    """Seconds (training, server) of every round but the first two; and the processor time of a round."""
    federation = toy("lenet", clients, rows)
    with Seed(0).borrowed("init"):
        module = build_model("lenet", federation.shape, CLASSES, {})
    learner = Learner(
        module, find_loss("cross_entropy"), CLASSES, SGD(), Plan(50, epochs), lr=0.1, prepare=prepare
    )
    method = with_options(MDICFL, learner, {"k": 4, "start.name": "random_partition", **options})
    size = cost(learner, federation.x[:1])
    choice = choose(EngineSpec("workers"), size, 50, clients, "")
    engine = Gathering(make(choice.engine, federation, client_tasks(method), Memories(lambda who: {})))
    coordinator, found = Coordinator(engine), []
    state = method.init(learner.first, federation.clients, Seed(0))
    spent, others = 0.0, _processes()
    try:
        for number in range(rounds + FIRST):
            spent = time.process_time() if number == FIRST else spent
            context, engine.seconds = RoundContext(Seed(0), number, federation.clients), 0.0
            began = time.perf_counter()
            script = method.round(state, federation.clients, context)
            state, _ = play(script, lambda request, context=context: coordinator.perform(request, context))
            found.append((engine.seconds, time.perf_counter() - began - engine.seconds))
        spent = time.process_time() - spent
    finally:
        engine.close()
    return found[FIRST:], ((_processes() - others) / (rounds + FIRST), spent / rounds)


def _processes() -> float:
    """Processor time of all processes that this one started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    usual = {"search": "search.iterations", "samples": "pseudo.samples", "warm": "search.warm_steps"}
    numbers = {"clients": 48, "rows": 1000, "epochs": 2, "rounds": 3}
    numbers |= {name: options_of(MDICFL)[option] for name, option in usual.items()}
    for name, number in numbers.items():
        given.add_argument(f"--{name}", type=int, default=number)
    asked = given.parse_args()
    options = {option: getattr(asked, name) for name, option in usual.items()}
    with arithmetic(torch.device("cpu"), "float32"):
        found, (train, server) = measure(asked.clients, asked.rows, asked.epochs, asked.rounds, options)
    print(f"{'training, s':>28} {'server, s':>12} {'share':>8}")
    for label, *row in [*(("a round", *pair) for pair in found), ("processor time", train, server)]:
        print(f"{label:15} {row[0]:12.2f} {row[1]:12.2f} {row[1] / sum(row):8.1%}")
    share = statistics.median(server / (train + server) for train, server in found)
    print(f"median share {share:.1%}, wanted at most {BAR:.0%}: {'ok' if share <= BAR else 'MISSED'}")
    return 0 if share <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
