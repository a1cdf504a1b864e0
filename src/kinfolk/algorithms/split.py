"""Models of which one part is everybody's and the other each client's own: only the first ever travels.

Head h_i, which is the last layer, and body phi, which is all before it; or BatchNorm layers and the rest:

    method    travels           a client trains in a round                    is scored by
    fedper    body              phi and h_i together                          phi, h_i
    fedrep    body              h_i for some epochs with phi fixed, then phi  phi, h_i
    fedbabu   body              phi; h is the first one, for everybody        phi, h after fine-tuning both
    lg_fedavg head              phi_i and h together                          phi_i, h
    fedbn     all but BatchNorm everything                                    all, its own BatchNorm

FedPer   Arivazhagan, Aggarwal, Singh, Choudhary: Federated Learning with Personalization Layers. 2019.
FedRep   Collins, Hassani, Mokhtari, Shakkottai: Exploiting Shared Representations for Personalized Federated
         Learning. ICML 2021, Algorithm 1.
FedBABU  Oh, Kim, Yun: FedBABU: Toward Enhanced Representation for Federated Image Classification. ICLR 2022.
LG       Liang, Liu, Ziyin, Allen, Auerbach, Brent, Salakhutdinov, Morency: Think Locally, Act Globally:
         Federated Learning with Local and Global Representations. 2020. Its authors begin with a model that
         FedAvg has trained (`model.weights`); from a first model bodies drift apart from the beginning.
FedBN    Li, Jiang, Zhang, Kamp, Dou: FedBN: Federated Learning on Non-IID Features via Local Batch
         Normalization. ICLR 2021, Algorithm 1. Without BatchNorm layers it is FedAvg.

Whoever was never asked holds the part of the common first model. Buffers belong to their layers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.algorithms.blocks.parts import head_of, norms_of, part
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Carry, ClientInfo, Fit, Table, Task, TrainStep
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class Split:
    """What the methods of this file have in common; each says which leaves are a client's `own`."""

    learner: Learner
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)

    eval_inputs = one_model.eval_inputs

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The leaves that never leave their client."""
        raise NotImplementedError

    @cached_property
    def travels(self) -> Tree:
        """The common part as it is at first."""
        return {name: leaf for name, leaf in self.learner.first.items() if name not in self.own}

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """The common part of the initial model."""
        return State(part(first, self.travels))

    def init_client(self, who: Client) -> Message:
        """The client's own part is that of the initial model."""
        return {"own": part(self.learner.first, self.own)} if self.own else {}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """phi <- mean of phi_i."""
        return State((yield from average(state.model, cohort, self.weights, self.aggregate))), {}

    def tasks(self) -> Table:
        """The local update."""
        return {"update": self.update()}

    def update(self) -> Task:
        """Train the whole; reply the common part, keep the own one."""
        common = {"model": self.travels}
        task = self.learner.train(start=self.start, finish=self.finish, reply=common, sent=common)
        return replace(task, passes=self.passes())

    def passes(self) -> tuple[Fit, ...]:
        """Both parts together."""
        return (Fit((self.learner.descent(),), self.learner.plan),)

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """(phi, h_i), in the order of the network's leaves."""
        held = {**tree_of(message, "model"), **memory.get("own", {})}
        return {"model": {name: held[name] for name in self.order}}

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The names of all leaves."""
        return tuple(self.learner.first)

    def finish(self, carry: Carry) -> tuple[Message, Message | None]:
        """Send the common part; keep the other."""
        model = tree_of(carry, "model")
        return {"model": part(model, self.travels)}, {"own": part(model, self.own)} if self.own else None

    def only(self, names: Collection[str]) -> TrainStep:
        """Move these leaves alone, as far as they are trained."""
        descent = self.learner.descent()
        return replace(descent, names=tuple(n for n in descent.names if n in names))

    def eval_tasks(self) -> Mapping[str, Task]:
        """The common part with the client's own."""
        return {"personal": self.learner.score(self.start)}


@dataclass(frozen=True)
class ByHead(Split):
    """Split at the head, which is the client's own."""

    head_layers: int = field(default=1, kw_only=True)  # K_P: how many layers, the last ones, are the head

    def __post_init__(self) -> None:
        at_least("algorithm.head_layers", self.head_layers, 1)
        if not self.head:
            remedy = "the network trains no layer called 'head'; name its last layer so"
            raise KinfolkError("algorithm.head_layers", self.head_layers, remedy)
        if len(self.head) == len(self.learner.first):
            remedy = "the head is all that is trained; train more of the network, or give fewer head_layers"
            raise KinfolkError("network", f"{len(self.head)} leaves", remedy)

    @cached_property
    def head(self) -> tuple[str, ...]:
        """The leaves of the head."""
        return head_of(self.learner, self.head_layers)

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The head."""
        return self.head


@dataclass(frozen=True)
class FedPer(ByHead):
    """A common body under heads of the clients' own, trained together."""

    tune_space: ClassVar[TuneSpace] = {"head_layers": (1, 2)}


@dataclass(frozen=True)
class FedRep(ByHead):
    """A common body under heads of the clients' own: first the head is trained, then the body."""

    weights: Weights = "uniform"  # the paper's; or n_i / n
    head_epochs: int = 1  # tau: epochs of the head, before the local epochs, which are the body's
    tune_space: ClassVar[TuneSpace] = {"head_epochs": (1, 5)}

    def __post_init__(self) -> None:
        at_least("algorithm.head_epochs", self.head_epochs, 1)
        super().__post_init__()

    def update(self) -> Task:
        """As all; the head's epochs come on top of a round's own, and the run's budget pays for them."""
        return replace(super().update(), extra=1, spares=self.learner.plan)

    def passes(self) -> tuple[Fit, ...]:
        """h_i <- argmin_h F_i(phi, h) for tau epochs; then phi_i from phi, with that h_i."""
        tau = replace(self.learner.plan, epochs=self.head_epochs, steps=0)
        return Fit((self.only(self.own),), tau), Fit((self.only(self.travels),), self.learner.plan)


@dataclass(frozen=True)
class FedBABU(ByHead):
    """A common body, trained under a head that stays as it was drawn; both are fine-tuned for scores."""

    tune_epochs: int = 1  # epochs before the model is scored, unless local.tune_epochs says otherwise

    def __post_init__(self) -> None:
        at_least("algorithm.tune_epochs", self.tune_epochs, 1)
        super().__post_init__()

    def passes(self) -> tuple[Fit, ...]:
        """The body alone."""
        return (Fit((self.only(self.travels),), self.learner.plan),)

    def finish(self, carry: Carry) -> tuple[Message, None]:
        """Send the body; the head is as it was."""
        return {"model": part(tree_of(carry, "model"), self.travels)}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """The whole model after fine-tuning and, beside it, the common one under the first head."""
        tuned = self.learner.score(self.start, tune=self.learner.tuning(self.tune_epochs))
        return {"fine-tuned": tuned, "centre": self.learner.score(self.start)}


@dataclass(frozen=True)
class LGFedAvg(ByHead):
    """A common head on representations of the clients' own."""

    weights: Weights = "uniform"  # the authors'; or n_i / n
    tune_space: ClassVar[TuneSpace] = {"head_layers": (1, 2)}

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The body."""
        return tuple(name for name in self.order if name not in self.head)


@dataclass(frozen=True)
class FedBN(Split):
    """FedAvg whose clients keep their BatchNorm layers: scales, shifts and running statistics."""

    weights: Weights = "uniform"  # the paper's; or n_i / n

    @cached_property
    def own(self) -> tuple[str, ...]:
        """The BatchNorm layers."""
        return norms_of(self.learner)
