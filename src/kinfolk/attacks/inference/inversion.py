"""Gradient inversion: rows made again from one update of a client.

`analytic`: in a first layer y = W x + b the gradients of one unit are dL/dW_j = g_j x and dL/db_j = g_j, so
that their quotient is the row, of several rows a mixture (Phong, Aono, Hayashi, Wang, Moriai:
Privacy-preserving deep learning via additively homomorphic encryption. TIFS 2018). `optimised`: rows whose
gradient points where the update points, with little total variation where rows are images (Geiping,
Bauermeister, Dröge, Moeller: Inverting gradients. NeurIPS 2020). Both are told the labels, as an attacker who
is better than these.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from kinfolk.learning.learner import Learner
from kinfolk.types import Tree

# Of the optimised attack: rounds of Adam, their rate, and the weight of total variation.
ROUNDS, RATE, VARIATION = 400, 0.1, 1e-3
# Candidates for a row of which no two are nearer than this part of their length.
SAME = 1e-3


def gradient_of(before: Tree, after: Tree, names: tuple[str, ...], rate: float, steps: int) -> Tree:
    """The mean gradient of plain steps, by the model before and after them.

    >>> one = gradient_of({"w": torch.ones(1)}, {"w": torch.zeros(1)}, ("w",), rate=0.5, steps=2)
    >>> one["w"]
    tensor([1.], dtype=torch.float64)
    """
    return {n: (before[n].double() - after[n].double()) / (rate * steps) for n in names}


def analytic(learner: Learner, gradient: Tree, shape: tuple[int, ...], rows: int) -> Tensor | None:
    """At most `rows` rows by the first layer's gradients; None if it is no such layer.

    Of the candidates, one for each unit with a gradient, those with the largest gradient, each kept once.
    """
    first = _first_layer(gradient, shape)
    if first is None:
        return None
    weight, bias = first
    order = bias.abs().argsort(descending=True)
    order = order[bias.abs()[order] > 1e-6 * bias.abs().max()]
    found: list[Tensor] = []
    for j in order.tolist():
        one = weight[j] / bias[j]
        if all(float((one - known).norm()) > SAME * float(one.norm()) for known in found):
            found.append(one)
        if len(found) == rows:
            break
    return torch.stack(found).reshape(-1, *shape).float() if found else None


def _first_layer(gradient: Tree, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """The gradients of the weight and bias of a linear layer that takes whole rows."""
    name = next(iter(gradient))
    bias = f"{name.removesuffix('weight')}bias"
    fits = name.endswith("weight") and bias in gradient and gradient[name].dim() == 2
    if not fits or gradient[name].shape[1] != torch.Size(shape).numel():
        return None
    return gradient[name], gradient[bias]


def optimised(
    learner: Learner,
    model: Tree,
    gradient: Tree,
    labels: Tensor,
    shape: tuple[int, ...],
    span: tuple[float, float],
    draw: torch.Generator,
    rounds: int = ROUNDS,
) -> Tensor:
    """Rows with these labels, within `span`, whose gradient at `model` points where `gradient` does."""
    low, high = span
    x = (torch.rand(len(labels), *shape, generator=draw) * (high - low) + low).requires_grad_()
    wanted = torch.cat([gradient[n].flatten() for n in learner.names]).float()
    weights = {n: t.detach().clone().requires_grad_(n in learner.names) for n, t in model.items()}
    adam = torch.optim.Adam([x], lr=RATE * (high - low))
    for _ in range(rounds):
        loss = learner.loss.row_loss(learner.apply(weights, x), labels).mean()
        made = torch.autograd.grad(loss, [weights[n] for n in learner.names], create_graph=True)
        flat = torch.cat([g.flatten() for g in made])
        away = 1 - torch.nn.functional.cosine_similarity(flat, wanted, dim=0)
        (x.grad,) = torch.autograd.grad(away + VARIATION * _variation(x) / (high - low), [x])
        x.grad.sign_()  # as published: only the direction of each pixel
        adam.step()
        with torch.no_grad():
            x.clamp_(low, high)
    return x.detach()


def _variation(x: Tensor) -> Tensor:
    """The mean difference of neighbours, of rows that are images."""
    if x.dim() < 3:
        return x.new_zeros(())
    return x.diff(dim=-1).abs().mean() + x.diff(dim=-2).abs().mean()


@dataclass(frozen=True)
class Recovery:
    """How near reconstructions are to the rows they are matched with."""

    psnr: float  # mean over rows, in dB
    found: float  # share of rows whose reconstruction is nearer to them than to any row that was not used
    rows: Tensor  # the reconstructions in the order of the rows; where there is none, the nearest other


def recovery(true: Tensor, made: Tensor, unused: Tensor, span: tuple[float, float]) -> Recovery:
    """Match reconstructions with rows so that errors are least, and judge them.

    >>> rows = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> found = recovery(rows, rows.flip(0) + 0.1, torch.tensor([[1.0, 1.0]]), (0.0, 1.0))
    >>> round(found.psnr, 3), found.found, found.rows.tolist() == (rows + 0.1).tolist()
    (20.0, 1.0, True)
    """
    flat, tries, apart = (t.flatten(1).double() for t in (true, made, unused))
    error = torch.cdist(flat, tries) ** 2 / flat.shape[1]
    mine, its = linear_sum_assignment(error.numpy())
    place = error.argmin(1)
    place[torch.as_tensor(mine)] = torch.as_tensor(its)
    own = error[torch.arange(len(true)), place]
    high = (span[1] - span[0]) ** 2
    psnr = 10 * torch.log10(high / own.clamp(min=1e-12 * high))
    nearest = (torch.cdist(tries[place], apart) ** 2 / flat.shape[1]).amin(1)
    return Recovery(float(psnr.mean()), float((own < nearest).double().mean()), made[place])
