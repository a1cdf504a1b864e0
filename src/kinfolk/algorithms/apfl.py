"""APFL: each client serves a mixture of a model of its own and of the common one.

Deng, Kamani, Mahdavi: Adaptive Personalized Federated Learning. 2020, arXiv:2003.13461, Algorithm 1.

    mixture   vbar_i = alpha_i v_i + (1 - alpha_i) w_i
    local     v_i <- v_i - eta grad_v F_i(vbar_i), where grad_v is alpha_i times the gradient
              w_i <- w_i - eta grad F_i(w_i)
    server    w <- sum_i (n_i / n) w_i
    adaptive  alpha_i <- alpha_i - eta <v_i - w, grad F_i(vbar_i)>, kept within 0 and 1

Both steps take the same batch, and vbar_i is that before it. As in the paper alpha_i is adapted once a round,
on one batch before the others (in scoring mode, so that BatchNorm's statistics are not touched). What is
scored is alpha_i v_i + (1 - alpha_i) w with the common w, the mixture that the paper's bounds are about. v_i
and alpha_i stay with the client. v_i keeps BatchNorm's statistics of the mixture.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.errors import KinfolkError
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.learning.optim import SGD
from kinfolk.script import Script, TuneSpace
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Table, Task
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class APFL:
    """A model for each client: its own and the common one, mixed in a share that it may learn."""

    learner: Learner
    alpha: float = 0.5  # alpha_i at first: the share of the client's own model
    adaptive: bool = True  # whether clients learn it
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)
    tune_space: ClassVar[TuneSpace] = {"alpha": (0.25, 0.5, 0.75)}

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise KinfolkError("algorithm.alpha", self.alpha, "give a number from 0 to 1")

    init, eval_inputs = one_model.init, one_model.eval_inputs

    def init_client(self, who: Client) -> Message:
        """v_i starts as the common initial model."""
        return {"own": self.learner.first, "alpha": torch.tensor(self.alpha)}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i; v_i and alpha_i are none of the server's business."""
        return State((yield from average(state.model, cohort, self.weights, self.aggregate))), {}

    def tasks(self) -> Table:
        """Adapt alpha_i; then for each batch a step of v_i and one of w_i."""
        own = replace(self.learner.descent(self.mixed_loss), part="own")
        share = replace(
            self.learner.descent(self.share_loss), optimiser=SGD(), names=("alpha",), part="share", clip=0.0
        )
        # v_i first: its mixture is of w_i before the batch.
        train = Fit((own, self.learner.descent()), self.learner.plan)
        adapt = Fit((share,), replace(self.learner.plan, epochs=1, steps=1))
        model = {"model": self.learner.first}
        passes = (adapt, train) if self.adaptive else (train,)
        return {"update": Task(self.start, self.finish, passes, model, sent=model)}

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """w_i starts at w; v_i and alpha_i as they were."""
        w, own = tree_of(message, "model"), tree_of(memory, "own")
        return {"model": w, "own": own, "share": {"alpha": memory["alpha"]}}

    def mixture(self, v: Tree, w: Tree, alpha: Tensor) -> Tree:
        """alpha v + (1 - alpha) w over the trainable parameters, with v's buffers."""
        return {**v, **{n: alpha * v[n] + (1 - alpha) * w[n] for n in self.learner.names}}

    def mixed_loss(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(vbar_i) as a function of v_i."""
        mixed = self.mixture(model, carry["model"], within(carry["share"]["alpha"]))
        return self.learner.objective(mixed, batch, carry)

    def share_loss(self, share: Tree, batch: Batch, carry: Carry) -> Tensor:
        """F_i(vbar_i) as a function of alpha_i, in scoring mode."""
        out = self.learner.apply(self.mixture(carry["own"], carry["model"], share["alpha"]), batch)
        return batch.mean(self.learner.loss.row_loss(out, batch.y))

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """Send w_i, keep v_i and alpha_i."""
        kept = {"own": carry["own"], "alpha": within(carry["share"]["alpha"])}
        return {"model": carry["model"]}, kept

    def begin(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """The mixture with the common model."""
        own, w = tree_of(memory, "own"), tree_of(message, "model")
        return {"model": self.mixture(own, w, memory["alpha"])}

    def eval_tasks(self) -> Mapping[str, Task]:
        """Each client's mixture and, beside it, the common model."""
        return {"personal": self.learner.score(start=self.begin), "centre": self.learner.score()}


def within(alpha: Tensor) -> Tensor:
    """A share is from 0 to 1.

    >>> within(torch.tensor([-0.5, 0.5, 1.5]))
    tensor([0.0000, 0.5000, 1.0000])
    """
    return alpha.clamp(0, 1)
