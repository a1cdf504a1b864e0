"""Rows made out of a model alone: inputs that it takes for members of a class, found by searching backwards.

Zhang et al.: Communication-efficient clustered federated learning via model distance. Machine Learning, 2024.
Its MD-ICFL-1: for each class c, rows x from N(0, I) are moved by Adam down

    CE(h(model; x), c) + (prior_weight / 2) |x - prior_mean|

Models are used in scoring mode and are not changed. All models and classes are one optimisation; on a
CUDA device its step is recorded once and replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.func import vmap

from kinfolk.learning.input_gradient import cheap_input_gradients
from kinfolk.learning.learner import Learner
from kinfolk.streams import Turn
from kinfolk.types import Tree

# Under the root of a norm, whose slope at zero would be no number.
TINY = 1e-12
# What inputs are held to where they are held to a range: pixels as the papers normalise them.
RANGE = (-1.0, 1.0)
# Numbers of one layer's output that are held at a time while many models look at the same rows, and how
# many of them there are for each number of an input.
_HELD = {"cpu": 1 << 26, "cuda": 1 << 29}
_WIDER = 16
_WARM_UP = 2


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

    def draw(
        self, learner: Learner, models: Tree, shape: tuple[int, ...], turn: Turn, kept: Tree
    ) -> tuple[Tensor, Tree]:
        """Rows [K, classes * samples, *shape] of K models (every leaf [K, ...]), class after class.

        `kept` is for samplers that go on from what they had; this one has nothing to keep.
        """
        y = labels(learner.outputs, self.samples)
        k, device = _count(models), next(iter(models.values())).device
        normal = [
            torch.randn((len(y), *shape), generator=turn.seed.torch("pseudo", turn.round, j))
            for j in range(k)
        ]
        x = torch.stack(normal).to(device)
        return self.search(learner, models, x, y.to(device)), {}

    def search(self, learner: Learner, models: Tree, x: Tensor, y: Tensor) -> Tensor:
        """Where rows x [K, rows, ...] end that are to look like y [rows] to their model."""
        x, together = x.clone(), batchable(learner, models, x)
        adam = Adam([x], self.lr)

        def step() -> None:
            leaf = x.detach().requires_grad_()
            with torch.enable_grad():
                # The sum, not the mean: how far a row moves does not depend on how many there are.
                total = losses(learner, models, leaf, y.expand(x.shape[:2]), self.prior, together).sum()
            adam.step(torch.autograd.grad(total, [leaf]))
            if self.clip_to_range:
                x.clamp_(*RANGE)

        with nullcontext() if x.is_cuda else cheap_input_gradients():
            repeat(step, self.iterations, [x, *adam.tensors])
        return x


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
        torch._fused_adam_(
            self.params, [g.contiguous() for g in grads], self.first, self.second, [], self.steps,
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
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for tensor, old in zip(changed, before, strict=True):
        tensor.copy_(old)
    for _ in range(times):
        graph.replay()


def losses(learner: Learner, models: Tree, x: Tensor, y: Tensor, prior: Prior, together: bool) -> Tensor:
    """What pseudo rows x [K, rows, ...] that are to be y [K, rows] cost, [K, rows]; row k for model k.

    `together`: in one call for all models, which only a GPU gains by.
    """

    def one(model: Tree, x: Tensor, y: Tensor) -> Tensor:
        return learner.loss.row_loss(learner.apply(model, x), y) + prior.value(x)

    if together:
        found: Tensor = vmap(one)(models, x, y)
        return found
    # Not x[k]: each such piece would come back as a gradient of the size of the whole.
    pieces = zip(x.unbind(), y.unbind(), strict=True)
    return torch.stack([one(_one(models, k), *piece) for k, piece in enumerate(pieces)])


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
    if batchable(learner, models, x.expand(n, *x.shape)):
        width = _HELD["cuda"] // (n * x[0].numel() * _WIDER)
        parts = [vmap(learner.apply, in_dims=(0, None))(models, p) for p in torch.split(x, max(width, 1))]
        return torch.cat(parts, 1).softmax(-1)
    width = max(_HELD["cpu"] // (x[0].numel() * _WIDER), 1)
    each = [torch.cat([learner.apply(_one(models, i), p) for p in torch.split(x, width)]) for i in range(n)]
    return torch.stack(each).softmax(-1)


@torch.no_grad()
def batchable(learner: Learner, models: Tree, x: Tensor) -> bool:
    """Whether all models can look at their rows x [models, rows, ...] in one call, and should: on a GPU."""
    if not x.is_cuda:
        return False
    try:
        vmap(learner.apply)(models, x[:, :1])
    except (RuntimeError, ValueError):  # a layer that can not be batched; one after another it can
        return False
    return True


def labels(classes: int, samples: int) -> Tensor:
    """What the rows of one model are to be, class after class.

    >>> labels(2, 3)
    tensor([0, 0, 0, 1, 1, 1])
    """
    return torch.arange(classes).repeat_interleave(samples)


def _one(models: Tree, k: int) -> Tree:
    return {name: t[k] for name, t in models.items()}


def _count(models: Tree) -> int:
    return len(next(iter(models.values())))
