"""Many models and rows on one machine: outputs, and rows moved down a cost.

Models are used in evaluation mode and do not change. On a CUDA device all models share one call, unless one
of them fills the device alone. On a CPU rows come in blocks that are spread over the cores; how they are cut
does not depend on the number of cores, so that bits do not either.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache, partial
from queue import SimpleQueue

import torch
from torch import Tensor, nn
from torch.func import vmap

from kinfolk.learning.batchable import cost as cost_of
from kinfolk.learning.inputs.layout import rows_innermost, rows_last
from kinfolk.learning.inputs.minimise import minimise
from kinfolk.learning.learner import Learner
from kinfolk.types import Tree

# Numbers of one layer's output that a GPU holds at a time while many models see the same rows, and how
# many of them there are for each number of an input.
_HELD, _WIDER = 1 << 29, 16
# A token counts for so many numbers: it becomes a vector.
_TOKEN = 64
# Rows that one core of a CPU works on at a time: with fewer, most of the time goes to Python, and tracing the
# step gains nothing at this size.
_BLOCK = 300

# (outputs of a model [rows, C], rows [rows, ...], labels [rows]) -> [rows]
RowCost = Callable[[Tensor, Tensor, Tensor], Tensor]


@torch.no_grad()
def probabilities(learner: Learner, models: Tree, x: Tensor) -> Tensor:
    """The softmax outputs of n models (every leaf [n, ...]) on the same rows: [n, rows, outputs].

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> two = {n: torch.zeros(2, *t.shape) for n, t in learner.first.items()}
    >>> probabilities(learner, two, torch.ones(4, 2)).shape
    torch.Size([2, 4, 3])
    """
    n = len(next(iter(models.values())))
    if x.is_cuda:
        together = _batchable(learner, models, x.expand(n, *x.shape))
        wider = _WIDER if x.is_floating_point() else _WIDER * _TOKEN
        width = _HELD // ((n if together else 1) * x[0].numel() * wider)
        parts = torch.split(x, max(width, 1))
        if together:
            said = [vmap(learner.apply, in_dims=(0, None))(models, p) for p in parts]
            return torch.cat(said, 1).softmax(-1)
        each = [torch.cat([learner.apply(_one(models, i), p) for p in parts]) for i in range(n)]
        return torch.stack(each).softmax(-1)

    def ask(model: Tree, rows: Tensor, own: Learner) -> Tensor:
        with torch.no_grad(), rows_innermost():
            return own.apply(model, rows).softmax(-1)

    blocks = [rows_last(block) for block in torch.split(x, _BLOCK)]
    found = _on_cores(learner, [partial(ask, _one(models, i), b) for i in range(n) for b in blocks])
    return torch.cat(found).reshape(n, len(x), -1)


def descend_rows(
    learner: Learner,
    models: Tree,
    x: Tensor,
    y: Tensor,
    cost: RowCost,
    lr: float,
    steps: int,
    bounds: tuple[float, float] | None = None,
) -> Tensor:
    """Where rows x [K, rows, ...] with labels y [rows] end after steps down their costs; row k by model k.

    Each row is a problem of its own. With `bounds`, rows are clipped to them after every step.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> one = {n: torch.zeros(1, *t.shape) for n, t in learner.first.items()}
    >>> y, square = torch.tensor([0]), lambda out, x, y: x.square().sum(1)
    >>> descend_rows(learner, one, torch.tensor([[[0.5, -2.0]]]), y, square, lr=0.1, steps=1)
    tensor([[[ 0.4000, -1.9000]]])
    """
    if not x.is_cuda:

        def block(model: Tree, rows: Tensor, labels: Tensor, own: Learner) -> Tensor:
            rows = rows_last(rows).clone()
            _descend(rows, lambda leaf: _cost(own, model, leaf, labels, cost).sum(), lr, steps, bounds)
            return rows

        cuts = [(k, rows) for k in range(len(x)) for rows in torch.split(torch.arange(len(y)), _BLOCK)]
        jobs = [partial(block, _one(models, k), x[k, rows], y[rows]) for k, rows in cuts]
        return torch.cat(_on_cores(learner, jobs)).reshape(x.shape)
    x, costs, wanted = x.clone(), costs_of(learner, models, cost, x), y.expand(x.shape[:2])
    _descend(x, lambda leaf: costs(leaf, wanted).sum(), lr, steps, bounds)
    return x


def _descend(
    x: Tensor,
    total: Callable[[Tensor], Tensor],
    lr: float,
    steps: int,
    bounds: tuple[float, float] | None,
) -> None:
    """Move rows in place. By the sum, not the mean: a step does not depend on how many rows there are."""
    after = (lambda: x.clamp_(*bounds)) if bounds else (lambda: x)
    minimise(lambda leaves: total(leaves[0]), [x], lr, steps, after)


def costs_of(
    learner: Learner, models: Tree, cost: RowCost, like: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """A function of rows [K, rows, ...], such as `like`, and labels [K, rows]: their costs by K models.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> two = {n: torch.zeros(2, *t.shape) for n, t in learner.first.items()}
    >>> x = torch.ones(2, 4, 2)
    >>> costs_of(learner, two, lambda out, x, y: out.sum(1) + y, x)(x, torch.arange(4).expand(2, 4))[1]
    tensor([0., 1., 2., 3.])
    """
    if _batchable(learner, models, like):
        return lambda x, y: in_one_call(learner, models, cost, x, y)
    return lambda x, y: one_by_one(learner, models, cost, x, y)


def in_one_call(learner: Learner, models: Tree, cost: RowCost, x: Tensor, y: Tensor) -> Tensor:
    """The costs of rows by K models, all at once: what a GPU gains by."""
    found: Tensor = vmap(lambda model, x, y: cost(learner.apply(model, x), x, y))(models, x, y)
    return found


def one_by_one(learner: Learner, models: Tree, cost: RowCost, x: Tensor, y: Tensor) -> Tensor:
    """The costs of rows by K models, one model after another."""
    # Not x[k]: each such piece would come back as a gradient of the size of the whole.
    pieces = zip(x.unbind(), y.unbind(), strict=True)
    return torch.stack([_cost(learner, _one(models, k), *piece, cost) for k, piece in enumerate(pieces)])


def _cost(learner: Learner, model: Tree, x: Tensor, y: Tensor, cost: RowCost) -> Tensor:
    if x.is_cuda:
        return cost(learner.apply(model, x), x, y)
    with rows_innermost():
        return cost(learner.apply(model, x), x, y)


@torch.no_grad()
def _batchable(learner: Learner, models: Tree, x: Tensor) -> bool:
    """Whether all models can see their rows x [models, rows, ...] in one call, and should: on a GPU."""
    if not x.is_cuda or _fills(learner.module, tuple(x.shape[1:]), x.dtype):
        return False
    try:
        vmap(learner.apply)(models, x[:, :1])
    except (RuntimeError, ValueError):  # a layer that cannot be batched
        return False
    return True


@lru_cache(maxsize=8)
def _fills(module: nn.Module, shape: tuple[int, ...], kind: torch.dtype) -> bool:
    """Whether one network with rows of this shape [rows, ...] fills a GPU: others beside it gain nothing."""
    return cost_of(module, torch.zeros((1, *shape[1:]), dtype=kind)).large(shape[0])


def _on_cores(learner: Learner, jobs: Sequence[Callable[[Learner], Tensor]]) -> list[Tensor]:
    """The results of all jobs, in order; they are spread over the cores, and each runs on one of them."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads, busy = torch.get_num_threads(), max(min(cores, len(jobs)), 1)
    # A network holds the weights it is called with while it runs: two calls at once need two networks.
    spare: SimpleQueue[Learner] = SimpleQueue()
    for own in [learner, *(replace(learner) for _ in range(busy - 1))]:
        spare.put(own)

    def do(job: Callable[[Learner], Tensor]) -> Tensor:
        own = spare.get()
        try:
            return job(own)
        finally:
            spare.put(own)

    try:
        # PyTorch's own threads would split sums in another way on another machine.
        with ThreadPoolExecutor(busy, initializer=partial(torch.set_num_threads, 1)) as pool:
            return list(pool.map(do, jobs))
    finally:
        torch.set_num_threads(threads)


def _one(models: Tree, k: int) -> Tree:
    return {name: t[k] for name, t in models.items()}
