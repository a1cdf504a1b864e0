"""A loss minimised by Adam; on a CUDA device the step is recorded once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from kinfolk.learning.recording import recorded, warm_up

# Steps that are tried out before one is recorded.
_WARM_UP = 2


def minimise(
    loss: Callable[[list[Tensor]], Tensor],
    params: Sequence[Tensor],
    lr: float,
    steps: int,
    after: Callable[[], object] = lambda: None,
    changed: Sequence[Tensor] = (),
) -> None:
    """Move params down a loss of them, in place, by so many steps of Adam.

    `after` is called after every step; `changed` lists whatever it and the loss write to.

    >>> x = torch.tensor([3.0])
    >>> minimise(lambda leaves: leaves[0].square().sum(), [x], lr=0.5, steps=2)
    >>> x
    tensor([2.0044])
    """
    adam = Adam(params, lr)

    def step() -> None:
        leaves = [p.detach().requires_grad_() for p in params]
        with torch.enable_grad():
            total = loss(leaves)
        adam.step(torch.autograd.grad(total, leaves))
        after()

    _repeat(step, steps, [*params, *adam.tensors, *changed])


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
        grads = [_same_layout(g, p) for g, p in zip(grads, self.params, strict=True)]
        torch._fused_adam_(
            self.params, grads, self.first, self.second, [], self.steps,
            lr=self.lr, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
        )  # fmt: skip


def _same_layout(g: Tensor, like: Tensor) -> Tensor:
    """A gradient in the same order in memory as the tensor it changes."""
    return g if g.stride() == like.stride() else torch.empty_like(like).copy_(g)


def _repeat(step: Callable[[], None], times: int, changed: Sequence[Tensor]) -> None:
    """Do a step many times; `changed` is all it writes to, as a trial before a recording leaves no trace."""
    if not changed[0].is_cuda or times <= _WARM_UP:
        for _ in range(times):
            step()
        return
    before = [t.clone() for t in changed]
    warm_up(step, _WARM_UP)
    graph = recorded(step)
    for tensor, old in zip(changed, before, strict=True):
        tensor.copy_(old)
    for _ in range(times):
        graph.replay()
