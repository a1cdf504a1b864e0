"""Small federations and learners, and a few rounds on them: what the contract's checks are run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.algorithms.options import option_values
from kinfolk.by_path import path_of
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.choose import make as make_engine
from kinfolk.engines.cohort import GuardSpec
from kinfolk.engines.coordinator import Coordinator, Engine
from kinfolk.engines.fast import prepare
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.experiment.budget import head_start
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.run import Result, run
from kinfolk.experiment.sections import AlgorithmSpec, Experiment, LocalSpec, RunSpec
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.script import Algorithm, Ask, Groups, NeverForgets, Remembers, client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import Client, Message, Stack, Tree

CPU = torch.device("cpu")
DATA = Seed(20)  # of the toy rows and first weights; runs have seeds of their own
NAMES = tuple(map(Client, ("ada", "ben", "cleo", "dan", "eve", "finn", "gus", "hal")))
# Neither sorted nor reversed, so that no order of clients is also the order of their sizes.
ROWS = (5, 1, 22, 3, 30, 13, 2, 9)
CLASSES = 4
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "mlp": ("mlp", {"hidden": [16]}),
    "tiny_cnn": ("tiny_cnn", {"norm": "bn", "width": 4}),
    "lenet": ("lenet", {}),
}

Absent = Callable[[RoundContext, Client], bool]
Make = Callable[[Learner], Algorithm[Any]]
Scores = dict[str, dict[Client, tuple[int, float]]]  # kind -> client -> (correct, mean loss)


def grouped(
    rows: Sequence[int],
    side: int,
    noise: float,
    names: Sequence[Client] = NAMES,
    turned: Sequence[int] = (),
    backwards: bool = False,
) -> Federation:
    """Images of four prototypes in noise; client i has `rows[i]` to train on and 4 to 7 to test.

    `turned[i]` is added to the labels of client i, which makes groups that no one model can serve.
    With `backwards` the clients are handed over in the opposite order.

    >>> grouped([2, 4], side=3, noise=0.1).splits["train"].counts()
    tensor([2, 4])
    """
    prototypes = DATA.numpy("prototypes").normal(size=(CLASSES, 1, side, side))
    train, test = {}, {}
    order = range(len(rows))
    for i in reversed(order) if backwards else order:
        draw = DATA.numpy("rows", i)
        held = 4 + i % 4
        y = draw.permutation(np.arange(rows[i] + held) % CLASSES)
        x = prototypes[y] + noise * draw.normal(size=(len(y), 1, side, side))
        y = (y + turned[i]) % CLASSES if turned else y
        train[names[i]], test[names[i]] = (x[held:], y[held:]), (x[:held], y[:held])
    return from_arrays(train, test=test, classes=CLASSES)


def ragged(names: Sequence[Client] = NAMES, backwards: bool = False) -> Federation:
    """Eight clients with 1 to 30 rows of 8x8.

    >>> int(ragged().splits["train"].counts().min()), ragged().shape
    (1, (1, 8, 8))
    """
    return grouped(ROWS, side=8, noise=1.0, names=names, backwards=backwards)


def images28() -> Federation:
    """Five clients with 1 to 30 rows of 28x28, large enough for LeNet.

    >>> images28().shape, len(images28().clients)
    ((1, 28, 28), 5)
    """
    return grouped((12, 1, 30, 2, 7), side=28, noise=1.0)


def alike() -> Federation:
    """Four clients who hold the same easy task: anything that learns learns this.

    >>> alike().splits["train"].counts()
    tensor([24, 24, 24, 24])
    """
    return grouped((24,) * 4, side=8, noise=0.3)


def learner(network: str, federation: Federation, **local: Any) -> Learner:
    """A learner with one of NETWORKS; `local` changes how it trains (momentum and weight decay are on).

    >>> learner("mlp", ragged(), lr=0.2).lr
    0.2
    """
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 1e-3, "batch": 8, "epochs": 1, **local}
    name, options = NETWORKS[network]
    with DATA.borrowed("init", network):
        module = build_model(name, federation.shape, federation.classes, options)
    return Learner(
        module,
        find_loss("cross_entropy"),
        federation.classes,
        optimiser=SGD(settings["momentum"], settings["weight_decay"]),
        plan=Plan(settings["batch"], settings["epochs"]),
        lr=settings["lr"],
        score_batch=4,  # so that clients differ in how many batches they are scored on
        prepare=prepare,
    )


@dataclass(frozen=True)
class Outcome:
    """Everything that a few rounds left behind."""

    state: Any
    memories: dict[Client, Message]
    scores: Scores
    ledger: dict[str, dict[str, int]]  # bytes of the rounds by kind of message and way
    groups: tuple[int, ...]  # empty where the algorithm has none
    log: tuple[tuple[str, dict[str, Any]], ...]  # what the audit trail would say
    lasting: tuple[str, ...] = ()  # entries of memories that clients never forget

    def named(self, event: str) -> set[Client]:
        """The clients that the log names for an event."""
        return {facts["client"] for kind, facts in self.log if kind == event}


@contextmanager
def coordinated(
    algorithm: Algorithm[Any],
    federation: Federation,
    engine_name: str = "loop",
    absent: Absent | None = None,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
    log: Callable[..., None] = lambda event, **facts: None,
    device: torch.device = CPU,
    guard: GuardSpec | None = None,
) -> Iterator[Coordinator]:
    """A stage; the batched engine takes three clients a call, so that there are several calls.

    `wrap` may put something between the engine and the stage.
    """
    lasting = algorithm.lasting if isinstance(algorithm, NeverForgets) else ()
    memories = Memories(
        algorithm.init_client if isinstance(algorithm, Remembers) else lambda who: {}, lasting
    )
    with arithmetic(device, "float32"):
        spec = EngineSpec(engine_name, str(device), chunk=3, lanes=1, processes=2)
        engine = make_engine(spec, federation, client_tasks(algorithm), memories)
        try:
            yield Coordinator(wrap(engine), log, absent, federation, guard=guard)
        finally:
            engine.close()


def play_rounds(
    algorithm: Algorithm[Any],
    federation: Federation,
    engine_name: str = "loop",
    rounds: int = 2,
    seed: int = 0,
    participation: float = 1.0,
    absent: Absent | None = None,
    *,
    cohort: Callable[[int], Sequence[Client]] | None = None,
    wrap: Callable[[Engine], Engine] = lambda engine: engine,
    score: bool = True,
    device: torch.device = CPU,
    guard: GuardSpec | None = None,
) -> Outcome:
    """A few rounds as a run would play them; then, with `score`, everybody scored, the absent as well.

    `cohort` says who is asked in a round instead of a draw.

    >>> from kinfolk.algorithms.fedavg import FedAvg
    >>> easy = alike()
    >>> method = FedAvg(learner("mlp", easy))
    >>> sorted(play_rounds(method, easy, rounds=1).scores["centre"])
    ['ada', 'ben', 'cleo', 'dan']
    """
    clients, run = federation.clients, Seed(seed)
    log: list[tuple[str, dict[str, Any]]] = []

    def note(event: str, **facts: Any) -> None:
        log.append((event, facts))

    with coordinated(algorithm, federation, engine_name, absent, wrap, note, device, guard) as coordinator:
        first = {name: t.to(device) for name, t in first_model(algorithm).items()}
        state = algorithm.init(first, clients, run)
        for number in range(rounds):
            context = RoundContext(run, number, clients, participation)
            asked = cohort(number) if cohort else context.cohort
            state = play_one(algorithm, state, tuple(asked), coordinator, context)
        spent = coordinator.ledger.take()[0]
        last = RoundContext(run, rounds, clients)
        scores = scores_of(algorithm, state, coordinator, last, clients) if score else {}
        held = {c: coordinator.engine.memories[c] for c in clients}
    groups = tuple(algorithm.groups(state).tolist()) if isinstance(algorithm, Groups) else ()
    lasting = coordinator.engine.memories.lasting
    return Outcome(state, held, scores, spent, groups, tuple(log), lasting)


def first_model(algorithm: Algorithm[Any]) -> Tree:
    """The common initial model of an algorithm's learner."""
    found: Learner = algorithm.learner  # type: ignore[attr-defined]
    return found.first


def play_one(
    algorithm: Algorithm[Any],
    state: Any,
    cohort: tuple[Client, ...],
    coordinator: Coordinator,
    context: RoundContext,
) -> Any:
    """The state after one round."""
    return play(
        algorithm.round(state, cohort, context), lambda request: coordinator.perform(request, context)
    )[0]


def scores_of(
    algorithm: Algorithm[Any],
    state: Any,
    coordinator: Coordinator,
    context: RoundContext,
    who: tuple[Client, ...],
) -> Scores:
    """(correct, mean loss) of `who` by kind of model."""
    shared, each = algorithm.eval_inputs(state, who)
    found: Scores = {}
    for kind in algorithm.eval_tasks():
        got: Stack = coordinator.perform(Ask(f"score.{kind}", who, shared, each), context, rehearse=False)
        if not got.clients:
            continue
        loss = (got.tensor("loss") / got.tensor("rows")).tolist()
        pairs = zip(got.tensor("correct").tolist(), loss, strict=True)
        found[kind] = dict(zip(got.clients, pairs, strict=True))
    return found


def spec_of(algorithm: Algorithm[Any], settings: Mapping[str, Any]) -> Experiment:
    """An experiment with this algorithm, found by its import path, and these settings of the run.

    >>> from kinfolk.algorithms.majority_label import MajorityLabel
    >>> spec_of(MajorityLabel(learner("mlp", alike())), {"rounds": 3}).algorithm
    AlgorithmSpec(name='kinfolk.algorithms.majority_label:MajorityLabel', options={})
    """
    kind: type[Any] = type(algorithm)
    return Experiment(
        local=LocalSpec(batch=8, lr=0.05, momentum=0.9, weight_decay=1e-3),  # as `learner` has it
        algorithm=AlgorithmSpec(path_of(kind), option_values(algorithm)),
        engine=EngineSpec("loop", "cpu"),
        run=RunSpec(**settings),
    )


def run_toy(make: Make, folder: Path, settings: Mapping[str, Any], resume: bool = False) -> Result:
    """A whole run into a folder, on the ragged federation; a start comes on top of the rounds."""
    federation = ragged()
    own = learner("mlp", federation)
    spec = spec_of(make(own), settings)
    start = head_start(build_parts(spec, federation, own.module))
    spec = replace(spec, run=replace(spec.run, rounds=spec.run.rounds + start))
    return run(spec, folder, federation=federation, network=own.module, resume=resume)
