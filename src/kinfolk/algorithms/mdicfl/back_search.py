"""Rows made out of a model alone: inputs that it takes for members of a class, found by searching backwards.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
Its MD-ICFL-1: for each class c, rows x from N(0, I) are moved by Adam down

    CE(h(model; x), c) + (prior_weight / 2) |x - prior_mean|

Models are used in scoring mode and are not changed. On a CUDA device all models and classes are one
optimisation, whose step is recorded once and replayed; large networks take turns in it. On a CPU rows are
searched for in blocks, which are spread over the cores; how they are cut does not depend on how many there
are.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from queue import SimpleQueue
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import vmap

from kinfolk.algorithms.mdicfl.input_gradient import rows_innermost, rows_last
from kinfolk.learning.batchable import count
from kinfolk.learning.learner import Learner
from kinfolk.learning.recording import recorded
from kinfolk.streams import RoundContext
from kinfolk.types import Tree

# Under the root of a norm, whose slope at zero would be no number.
TINY = 1e-12
# What inputs are held to where they are held to a range: pixels as the papers normalise them.
RANGE = (-1.0, 1.0)
# Numbers of one layer's output that a GPU holds at a time while many models look at the same rows, and how
# many of them there are for each number of an input.
_HELD, _WIDER = 1 << 29, 16
# Rows that one core of a CPU works on at a time: fewer leave most of the time to Python, and tracing the step
# gains nothing at this size.
_BLOCK = 300
_WARM_UP = 2

Job = Callable[[Learner], Tensor]


@dataclass(frozen=True)
class Prior:
    """What keeps pseudo rows near the data: a pull towards a mean.

    >>> Prior(mean=1.0, weight=2.0).value(torch.tensor([[1.0, 5.0]])), Prior(norm="squared").weight
    (tensor([4.]), 0.1)
    """

    mean: float = 0.0  # mu; the paper's 0.5 is taken for that of pixels, which is 0 once they are normalised
    weight: float = 0.1  # lambda
    norm: Literal["l2", "squared"] = "l2"

    def value(self, x: Tensor) -> Tensor:
        """(lambda / 2) |x - mu| or its square for each row of x [rows, ...]."""
        squares = (x - self.mean).flatten(1).square().sum(1)
        return self.weight / 2 * (squares if self.norm == "squared" else (squares + TINY).sqrt())


@dataclass(frozen=True)
class BackSearch:
    """Rows searched for one by one, each its own problem."""

    samples: int = 30  # M: rows for each class
    iterations: int = 100
    lr: float = 0.1
    prior: Prior = field(default_factory=Prior)
    clip_to_range: bool = False  # back into [-1, 1] after every step
    warm_steps: int = 0  # above 0: go on from the rows of the round before, with so many steps

    def draw(
        self, learner: Learner, models: Tree, shape: tuple[int, ...], turn: RoundContext, kept: Tree
    ) -> tuple[Tensor, Tree]:
        """Rows [K, classes * samples, *shape] of K models (every leaf [K, ...]), class after class.

        Fresh ones, or those of `kept` moved on for the models as they are now; and what to keep of them.
        """
        y = labels(learner.outputs, self.samples)
        k, device = _count(models), next(iter(models.values())).device
        streams = [turn.seed.torch("pseudo", turn.round, j) for j in range(k)]
        x = torch.stack([torch.randn((len(y), *shape), generator=g) for g in streams]).to(device)
        how = self
        if self.warm_steps and "x" in kept:
            # Rows that a model of no numbers has spoilt begin anew.
            whole = kept["x"].flatten(1).isfinite().all(1)
            x = torch.where(whole.reshape(-1, *[1] * (x.dim() - 1)), kept["x"], x)
            how = replace(self, iterations=self.warm_steps)
        x = how.search(learner, models, x, y.to(device))
        return x, {"x": x} if self.warm_steps else {}

    def search(self, learner: Learner, models: Tree, x: Tensor, y: Tensor) -> Tensor:
        """Where rows x [K, rows, ...] end that are to look like y [rows] to their model."""
        if not x.is_cuda:
            blocks = [(k, rows) for k in range(len(x)) for rows in torch.split(torch.arange(len(y)), _BLOCK)]
            jobs = [partial(self._block, _one(models, k), x[k, rows], y[rows]) for k, rows in blocks]
            return torch.cat(on_cores(learner, jobs)).reshape(x.shape)
        x, together = x.clone(), batchable(learner, models, x)

        def total(leaf: Tensor) -> Tensor:
            # The sum, not the mean: how far a row moves does not depend on how many there are.
            return losses(learner, models, leaf, y.expand(x.shape[:2]), self.prior, together).sum()

        self._descend(x, total)
        return x

    def _block(self, model: Tree, x: Tensor, y: Tensor, learner: Learner) -> Tensor:
        """The same for some rows x [rows, ...] of one model, on one core."""
        x = rows_last(x).clone()
        with rows_innermost():
            self._descend(x, lambda leaf: _costs(learner, model, leaf, y, self.prior).sum())
        return x

    def _descend(self, x: Tensor, total: Callable[[Tensor], Tensor]) -> None:
        """Move rows down their total cost, in place."""
        adam = Adam([x], self.lr)

        def step() -> None:
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                cost = total(leaf)
            adam.step(torch.autograd.grad(cost, [leaf]))
            if self.clip_to_range:
                x.clamp_(*RANGE)

        repeat(step, self.iterations, [x, *adam.tensors])


class Adam:
    """Adam as `torch.optim.Adam`, written into fixed tensors so that a step can be recorded.

    >>> w = torch.ones(1)
    >>> Adam([w], lr=0.1).step([torch.ones(1)])
    >>> w
    tensor([0.9000])
    """

    def __init__(self, params: Sequence[Tensor], lr: float) -> None:
        self.params, self.lr = list(params), lr
        self.first, self.second = ([torch.zeros_like(p) for p in params] for _ in range(2))
        self.steps = [torch.zeros((), device=p.device) for p in params]

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that a step changes besides the parameters."""
        return [*self.first, *self.second, *self.steps]

    def step(self, grads: Sequence[Tensor]) -> None:
        """One step downhill."""
        torch._foreach_add_(self.steps, 1)
        grads = [_laid_out(g, p) for g, p in zip(grads, self.params, strict=True)]
        torch._fused_adam_(
            self.params, grads, self.first, self.second, [], self.steps,
            lr=self.lr, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


def repeat(step: Callable[[], None], times: int, changed: Sequence[Tensor]) -> None:
    """Do a step many times; on a CUDA device, record it and replay the recording.

    `changed` is all that the step writes to: trying it out before it is recorded must leave no trace.

    >>> n = torch.zeros(1)
    >>> repeat(lambda: n.add_(2), 3, [n])
    >>> n
    tensor([6.])
    """
    if not changed[0].is_cuda or times <= _WARM_UP:
        for _ in range(times):
            step()
        return
    before = [t.clone() for t in changed]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = recorded(step)
    for tensor, old in zip(changed, before, strict=True):
        tensor.copy_(old)
    for _ in range(times):
        graph.replay()


def losses(learner: Learner, models: Tree, x: Tensor, y: Tensor, prior: Prior, together: bool) -> Tensor:
    """What pseudo rows x [K, rows, ...] that are to be y [K, rows] cost, [K, rows]; row k for model k.

    `together`: in one call for all models, which only a GPU gains by.
    """

    def one(model: Tree, x: Tensor, y: Tensor) -> Tensor:
        return _costs(learner, model, x, y, prior)

    if together:
        found: Tensor = vmap(one)(models, x, y)
        return found
    # Not x[k]: each such piece would come back as a gradient of the size of the whole.
    pieces = zip(x.unbind(), y.unbind(), strict=True)
    return torch.stack([one(_one(models, k), *piece) for k, piece in enumerate(pieces)])


def _costs(learner: Learner, model: Tree, x: Tensor, y: Tensor, prior: Prior) -> Tensor:
    return learner.loss.row_loss(learner.apply(model, x), y) + prior.value(x)


def on_cores(learner: Learner, jobs: Sequence[Job]) -> list[Tensor]:
    """What each job makes of the learner, in order; they are spread over the cores, each is done on one.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> on_cores(learner, [lambda own: torch.ones(own.outputs), lambda own: torch.zeros(1)])
    [tensor([1., 1., 1.]), tensor([0.])]
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, busy = torch.get_num_threads(), max(min(cores, len(jobs)), 1)
    # A network holds the weights it is called with while it runs: two calls at once need two networks.
    spare: SimpleQueue[Learner] = SimpleQueue()
    for own in [learner, *(replace(learner) for _ in range(busy - 1))]:
        spare.put(own)

    def do(job: Job) -> Tensor:
        own = spare.get()
        try:
            return job(own)
        finally:
            spare.put(own)

    try:
        # PyTorch's own threads would split sums otherwise on another machine.
        with ThreadPoolExecutor(busy, initializer=partial(torch.set_num_threads, 1)) as pool:
            return list(pool.map(do, jobs))
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def probabilities(learner: Learner, models: Tree, x: Tensor) -> Tensor:
    """The softmax outputs of n models (every leaf [n, ...]) on the same rows: [n, rows, outputs].

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> two = {n: torch.zeros(2, *t.shape) for n, t in learner.first.items()}
    >>> probabilities(learner, two, torch.ones(4, 2)).shape
    torch.Size([2, 4, 3])
    """
    n = _count(models)
    together = batchable(learner, models, x.expand(n, *x.shape))
    if x.is_cuda:
        width = _HELD // ((n if together else 1) * x[0].numel() * _WIDER)
        parts = torch.split(x, max(width, 1))
        if together:
            said = [vmap(learner.apply, in_dims=(0, None))(models, p) for p in parts]
            return torch.cat(said, 1).softmax(-1)
        each = [torch.cat([learner.apply(_one(models, i), p) for p in parts]) for i in range(n)]
        return torch.stack(each).softmax(-1)

    def look(model: Tree, rows: Tensor, own: Learner) -> Tensor:
        with torch.no_grad(), rows_innermost():
            return own.apply(model, rows).softmax(-1)

    blocks = [rows_last(block) for block in torch.split(x, _BLOCK)]
    found = on_cores(learner, [partial(look, _one(models, i), b) for i in range(n) for b in blocks])
    return torch.cat(found).reshape(n, len(x), -1)


@torch.no_grad()
def batchable(learner: Learner, models: Tree, x: Tensor) -> bool:
    """Whether all models can look at their rows x [models, rows, ...] in one call, and should: on a GPU."""
    if not x.is_cuda or _fills(learner.module, tuple(x.shape[1:])):
        return False
    try:
        vmap(learner.apply)(models, x[:, :1])
    except (RuntimeError, ValueError):  # a layer that can not be batched; one after another it can
        return False
    return True


@lru_cache(maxsize=8)
def _fills(module: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether one network with rows of this shape [rows, ...] fills a GPU: others beside it gain nothing."""
    return count(module, torch.zeros((1, *shape[1:]))).large(shape[0])


def labels(classes: int, samples: int) -> Tensor:
    """What the rows of one model are to be, class after class.

    >>> labels(2, 3)
    tensor([0, 0, 0, 1, 1, 1])
    """
    return torch.arange(classes).repeat_interleave(samples)


def _laid_out(g: Tensor, like: Tensor) -> Tensor:
    """A gradient in the same order in memory as what it is to change."""
    return g if g.stride() == like.stride() else torch.empty_like(like).copy_(g)


def _one(models: Tree, k: int) -> Tree:
    return {name: t[k] for name, t in models.items()}


def _count(models: Tree) -> int:
    return len(next(iter(models.values())))
