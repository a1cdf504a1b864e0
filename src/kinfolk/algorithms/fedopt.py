"""FedOpt: the mean of what clients have moved is a gradient, by which the server's own optimiser steps.

Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan: Adaptive Federated Optimization. ICLR 2021,
Algorithm 2. FedAvgM: Hsu, Qi, Brown: Measuring the Effects of Non-Identical Data Distribution for Federated
Visual Classification. 2019.

    Delta <- sum_i (n_i / n) (x_i - x)
    m <- beta1 m + (1 - beta1) Delta
    v <- v + Delta^2                                          FedAdagrad
    v <- beta2 v + (1 - beta2) Delta^2                        FedAdam
    v <- v - (1 - beta2) Delta^2 sign(v - Delta^2)            FedYogi
    x <- x + eta m / (sqrt(v) + tau)

There is no correction of m and v for their start, unlike in Adam; v starts at tau^2, the least that the paper
allows. Both are about what is trained; buffers are averaged plainly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import average
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Tree

RATES = (0.001, 0.01, 0.1, 1.0)


@dataclass(frozen=True)
class Moving:
    """The common model and its velocity."""

    model: Tree  # x
    m: Tree  # what was moved so far, old moves weighing less


@dataclass(frozen=True)
class FedAvgM:
    """FedAvg whose server keeps some of the last rounds' momentum."""

    learner: Learner
    server_lr: float = 1.0  # eta: rate of the server; with no momentum, 1 gives FedAvg
    momentum: float = 0.9  # beta: what is left of m after a round
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)
    tune_space: ClassVar[TuneSpace] = {"server_lr": (0.1, 0.3, 1.0), "momentum": (0.5, 0.9)}

    def __post_init__(self) -> None:
        at_least("algorithm.server_lr", self.server_lr, 0)
        below_one("momentum", self.momentum)

    tasks, eval_inputs, eval_tasks = one_model.tasks, one_model.eval_inputs, one_model.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> Moving:
        """The common initial model, at rest."""
        return Moving(first, filled(self.learner.params(first), 0.0))

    def round(self, state: Moving, cohort: tuple[Client, ...], context: RoundContext) -> Script[Moving]:
        """m <- beta m + Delta;  x <- x + eta m."""
        x = state.model
        mean = yield from average(x, cohort, self.weights, self.aggregate)
        if mean is x:  # nobody answered: no step, which momentum would take all the same
            return state, {}
        m = {n: self.momentum * old + (mean[n] - x[n]) for n, old in state.m.items()}
        return Moving({**mean, **{n: x[n] + self.server_lr * t for n, t in m.items()}}, m), {}


@dataclass(frozen=True)
class State:
    """The common model, and what the server's optimiser keeps from round to round."""

    model: Tree  # x
    m: Tree  # the mean of Delta, old ones weighing less
    v: Tree  # of its squares


@dataclass(frozen=True)
class FedAdagrad:
    """FedAvg whose server steps by Adagrad: what has moved much by now moves less."""

    learner: Learner
    server_lr: float = 0.1  # eta: rate of the server
    beta1: float = 0.0  # what is left of m after a round
    tau: float = 0.001  # how much steps adapt: less for a small one
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)
    tune_space: ClassVar[TuneSpace] = {"server_lr": RATES, "tau": (0.001, 0.01)}

    def __post_init__(self) -> None:
        at_least("algorithm.server_lr", self.server_lr, 0)
        below_one("beta1", self.beta1)
        if not self.tau > 0:
            raise KinfolkError("algorithm.tau", self.tau, "give a number above 0")

    tasks, eval_inputs, eval_tasks = one_model.tasks, one_model.eval_inputs, one_model.eval_tasks

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """The common initial model, m = 0, v = tau^2."""
        trained = self.learner.params(first)
        return State(first, filled(trained, 0.0), filled(trained, self.tau**2))

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """x <- x + eta m / (sqrt(v) + tau), with m and v of this round's Delta."""
        x = state.model
        mean = yield from average(x, cohort, self.weights, self.aggregate)
        if mean is x:  # nobody answered: no step, which m would take all the same
            return state, {}
        delta = {n: mean[n] - x[n] for n in state.m}
        m = {n: self.beta1 * old + (1 - self.beta1) * delta[n] for n, old in state.m.items()}
        v = {n: self.second(old, delta[n] ** 2) for n, old in state.v.items()}
        moved = {n: x[n] + self.server_lr * m[n] / (v[n].sqrt() + self.tau) for n in m}
        return State({**mean, **moved}, m, v), {}

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v + Delta^2."""
        return v + square


@dataclass(frozen=True)
class FedAdam(FedAdagrad):
    """FedAvg whose server steps by Adam: by the means of what was moved and of its squares."""

    beta1: float = 0.9
    beta2: float = 0.99  # what is left of v after a round

    def __post_init__(self) -> None:
        super().__post_init__()
        below_one("beta2", self.beta2)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """beta2 v + (1 - beta2) Delta^2."""
        return self.beta2 * v + (1 - self.beta2) * square


@dataclass(frozen=True)
class FedYogi(FedAdam):
    """FedAdam whose v moves by no more than the new square: it forgets large ones slowly."""

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """v - (1 - beta2) Delta^2 sign(v - Delta^2)."""
        return v - (1 - self.beta2) * square * torch.sign(v - square)


def filled(tree: Tree, value: float) -> Tree:
    """A tree of one number.

    >>> filled({"w": torch.zeros(2)}, 0.5)
    {'w': tensor([0.5000, 0.5000])}
    """
    return {n: torch.full_like(t, value) for n, t in tree.items()}


def below_one(name: str, value: float) -> None:
    """Refuse what never fades.

    >>> below_one("beta1", 1.0)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.beta1 = 1.0: give a number from 0 to below 1
    """
    if not 0 <= value < 1:
        raise KinfolkError(f"algorithm.{name}", value, "give a number from 0 to below 1")
