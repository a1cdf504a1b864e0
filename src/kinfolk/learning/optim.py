"""Optimisers as pairs of pure functions, element-wise so that a stack of models goes as each model does.

An optimiser is a frozen dataclass: its fields are its options, `init` gives its state, `update` takes a step.
It is added to OPTIMISERS and nowhere else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kinfolk.by_path import by_path, made_by_name
from kinfolk.errors import KinfolkError
from kinfolk.task import Count, Number, Optimiser
from kinfolk.types import Message, Tree


def _named(like: Tree, values: list[Tensor] | tuple[Tensor, ...]) -> Tree:
    return dict(zip(like, values, strict=True))


def _zeros(params: Tree) -> Tree:
    return {name: torch.zeros_like(p, memory_format=torch.contiguous_format) for name, p in params.items()}


def _decayed(params: Tree, grads: Tree, weight_decay: float) -> list[Tensor]:
    g = list(grads.values())
    if not weight_decay:
        return g
    return list(torch._foreach_add(g, list(params.values()), alpha=weight_decay))


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < 1


def _check_eps(eps: float) -> None:
    if not 0 <= eps < math.inf:
        raise KinfolkError("eps", eps, "give a small number of 0 or more")


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent with momentum (of Nesterov's kind if wanted) and weight decay.

    As `torch.optim.SGD`.

    >>> params, state = SGD().update({"w": torch.ones(1)}, {"w": torch.ones(1)}, {}, 0, 0.1, 1)
    >>> params
    {'w': tensor([0.9000])}
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    client_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.nesterov and not self.momentum:
            raise KinfolkError("nesterov", True, "needs local.momentum above 0")

    def init(self, params: Tree) -> Message:
        """A velocity of zero, if there is momentum."""
        return {"velocity": _zeros(params)} if self.momentum else {}

    def update(
        self, params: Tree, grads: Tree, state: Message, step: Count, lr: Number, rows: Number
    ) -> tuple[Tree, Message]:
        """One step downhill."""
        move = _decayed(params, grads, self.weight_decay)
        if self.momentum:
            velocity = torch._foreach_mul(list(state["velocity"].values()), self.momentum)
            torch._foreach_add_(velocity, move)
            state = {"velocity": _named(params, velocity)}
            move = list(
                torch._foreach_add(move, velocity, alpha=self.momentum) if self.nesterov else velocity
            )
        return _named(params, _moved(list(params.values()), move, lr)), state


def _moved(params: list[Tensor], move: list[Tensor], lr: float | Tensor) -> list[Tensor]:
    """params - lr * move; a rate that lies on the device is read there."""
    if isinstance(lr, Tensor):
        return [torch.addcmul(p, m, _over(lr, p), value=-1) for p, m in zip(params, move, strict=True)]
    return list(torch._foreach_add(params, move, alpha=-lr))


def _over(lr: Tensor, p: Tensor) -> Tensor:
    """A rate as it goes with a parameter: one for each client stands before the parameter's own axes."""
    return lr.reshape(-1, *[1] * (p.dim() - 1)) if lr.dim() else lr


@dataclass(frozen=True)
class Adam:
    """Adam with bias correction, as `torch.optim.Adam` (Kingma and Ba 2015)."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    client_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        right = len(self.betas) == 2 and all(_is_share(beta) for beta in self.betas)
        if not right:
            raise KinfolkError("betas", list(self.betas), "give two numbers from 0 to below 1")
        _check_eps(self.eps)

    def init(self, params: Tree) -> Message:
        """Both moments zero."""
        return {"first": _zeros(params), "second": _zeros(params)}

    def update(
        self, params: Tree, grads: Tree, state: Message, step: Count, lr: Number, rows: Number
    ) -> tuple[Tree, Message]:
        """One step downhill."""
        p, g = self._decay(params, grads, lr)
        b1, b2 = self.betas
        first = torch._foreach_lerp(list(state["first"].values()), g, 1 - b1)
        second = torch._foreach_mul(list(state["second"].values()), b2)
        torch._foreach_addcmul_(second, g, g, 1 - b2)
        root = torch._foreach_sqrt(second)
        if isinstance(step, Tensor):  # on a device, where the step counts itself
            count = step.double() + 1
            torch._foreach_mul_(root, (1 - b2**count).rsqrt().float())
            torch._foreach_add_(root, self.eps)
            rate = (lr / (1 - b1**count)).float()
            move = torch._foreach_div(first, root)
            moved = tuple(_moved(p, list(move), rate))
        else:
            torch._foreach_div_(root, math.sqrt(1 - b2 ** (step + 1)))
            torch._foreach_add_(root, self.eps)
            scaled = lr / (1 - b1 ** (step + 1))
            if isinstance(scaled, Tensor):
                moved = tuple(_moved(p, list(torch._foreach_div(first, root)), scaled))
            else:
                moved = torch._foreach_addcdiv(p, first, root, -scaled)
        return _named(params, moved), {"first": _named(params, first), "second": _named(params, second)}

    def _decay(self, params: Tree, grads: Tree, lr: Number) -> tuple[list[Tensor], list[Tensor]]:
        """(parameters, gradients) once the pull towards zero is in them: here in the gradient."""
        return list(params.values()), _decayed(params, grads, self.weight_decay)


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam whose weight decay shrinks the weights themselves, as `torch.optim.AdamW`.

    By `local.weight_decay`, which is 0 unless it is set; PyTorch has 0.01.
    """

    def _decay(self, params: Tree, grads: Tree, lr: Number) -> tuple[list[Tensor], list[Tensor]]:
        p, g = list(params.values()), list(grads.values())
        return (_moved(p, [t * self.weight_decay for t in p], lr) if self.weight_decay else p), g


@dataclass(frozen=True)
class Adagrad:
    """Adagrad, as `torch.optim.Adagrad` (Duchi, Hazan and Singer 2011)."""

    eps: float = 1e-10
    weight_decay: float = 0.0

    client_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_eps(self.eps)

    def init(self, params: Tree) -> Message:
        """A sum of zero."""
        return {"squares": _zeros(params)}

    def update(
        self, params: Tree, grads: Tree, state: Message, step: Count, lr: Number, rows: Number
    ) -> tuple[Tree, Message]:
        """One step downhill."""
        g = _decayed(params, grads, self.weight_decay)
        squares = torch._foreach_addcmul(list(state["squares"].values()), g, g)
        root = torch._foreach_add(torch._foreach_sqrt(squares), self.eps)
        moved = _moved(list(params.values()), list(torch._foreach_div(g, root)), lr)
        return _named(params, moved), {"squares": _named(params, squares)}


@dataclass(frozen=True)
class RMSprop:
    """RMSprop without momentum, as `torch.optim.RMSprop` has it by default."""

    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0

    client_rates: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not _is_share(self.alpha):
            raise KinfolkError("alpha", self.alpha, "give a number from 0 to below 1")
        _check_eps(self.eps)

    def init(self, params: Tree) -> Message:
        """A mean of zero."""
        return {"squares": _zeros(params)}

    def update(
        self, params: Tree, grads: Tree, state: Message, step: Count, lr: Number, rows: Number
    ) -> tuple[Tree, Message]:
        """One step downhill."""
        g = _decayed(params, grads, self.weight_decay)
        squares = torch._foreach_mul(list(state["squares"].values()), self.alpha)
        torch._foreach_addcmul_(squares, g, g, 1 - self.alpha)
        root = torch._foreach_add(torch._foreach_sqrt(squares), self.eps)
        moved = _moved(list(params.values()), list(torch._foreach_div(g, root)), lr)
        return _named(params, moved), {"squares": _named(params, squares)}


@dataclass(frozen=True)
class SumGradients:
    """Moves nothing: adds up the gradient times the rows of each batch, for a whole-data gradient."""

    client_rates: ClassVar[bool] = True

    def init(self, params: Tree) -> Message:
        """A sum of zero."""
        return {"sum": _zeros(params)}

    def update(
        self, params: Tree, grads: Tree, state: Message, step: Count, lr: Number, rows: Number
    ) -> tuple[Tree, Message]:
        """Add one batch."""

        def weighted(g: Tensor) -> Tensor:
            return g * (rows.reshape(-1, *[1] * (g.dim() - 1)) if isinstance(rows, Tensor) else rows)

        return params, {"sum": {name: state["sum"][name] + weighted(g) for name, g in grads.items()}}


@dataclass(frozen=True)
class WithinUnit:
    """Plain descent of numbers that are shares: after each step they are put back into 0 to 1."""

    client_rates: ClassVar[bool] = True

    def init(self, params: Tree) -> Message:
        """Nothing to keep."""
        return {}

    def update(
        self, params: Tree, grads: Tree, state: Message, step: Count, lr: Number, rows: Number
    ) -> tuple[Tree, Message]:
        """One step downhill, and back."""
        moved = _moved(list(params.values()), list(grads.values()), lr)
        return _named(params, [t.clamp(0, 1) for t in moved]), {}


# By the name that `local.optimiser` gives. Options that the [local] table has too are taken from there.
OPTIMISERS: dict[str, type[Any]] = {
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "adagrad": Adagrad,
    "rmsprop": RMSprop,
}


def build_optimiser(
    name: str, settings: Mapping[str, Any], options: Mapping[str, Any] | None = None
) -> Optimiser:
    """The optimiser of this name or import path, with those of the settings that are its options.

    >>> build_optimiser("sgd", {"momentum": 0.9, "batch": 20})
    SGD(momentum=0.9, weight_decay=0.0, nesterov=False)
    """
    if ":" in name:
        given = by_path("local.optimiser", name, lambda kind: kind in OPTIMISERS.values())
        if isinstance(given, type) and issubclass(given, torch.optim.Optimizer):
            known = ", ".join(OPTIMISERS)
            remedy = f"holds the weights of one network; use {known}, or see `An optimiser` in the recipes"
            raise KinfolkError("local.optimiser", name, remedy)
    found: Optimiser = made_by_name("local.optimiser", name, OPTIMISERS, options or {}, settings)
    for part in ("init", "update"):
        if not callable(getattr(found, part, None)):
            raise KinfolkError("local.optimiser", name, f"has no {part}; see `An optimiser` in the recipes")
    return found


def clip(grads: Tree, limit: float) -> Tree:
    """Scale a gradient down to norm `limit` if it is longer.

    >>> clip({"w": torch.tensor([3.0, 4.0])}, 1.0)["w"]
    tensor([0.6000, 0.8000])
    """
    squares = torch.stack([(g * g).sum() for g in grads.values()]).sum()
    scale = (limit / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
    return {name: g * scale for name, g in grads.items()}
