"""One step of a pass for a whole chunk of clients: every tensor has the clients in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import vmap

from kinfolk.engines.padded import Rows
from kinfolk.learning.optim import SGD, clip
from kinfolk.task import Batch, Carry, Fit, Optimiser, Scan, TrainStep
from kinfolk.types import Message, Tree

# (descent, carry, buffers, rows, whole) -> (parameters, gradients): `gradients`, or a faster way to the same.
Gradients = Callable[[TrainStep, Carry, Tree, Rows, bool], tuple[Tree, Tree]]
# The same, a rate, and whether to write over parameters: some may be moved at once and come third.
Moves = Callable[[TrainStep, Carry, Tree, Rows, bool, float, bool], tuple[Tree, Tree, Tree]]


def first_states(fit: Fit, carry: Carry) -> list[Message]:
    """The optimisers' states before the first step."""
    return [d.optimiser.init({n: carry[d.part][n] for n in d.names}) for d in fit.descents]


def fit_step(
    fit: Fit,
    carry: Carry,
    states: Sequence[Message],
    rows: Rows,
    active: Tensor | None,
    whole: bool,
    step: int | Tensor,
    rates: Sequence[float | Tensor],
    by: Gradients,
    moves: Moves | None = None,
) -> tuple[Carry, list[Message]]:
    """Each descent in turn. `active`: who takes the step (None: everyone); `whole`: no row is padding.

    Nothing given is written to, so whoever is idle can be kept as it was.
    """
    carry, states = dict(carry), list(states)
    for i, descent in enumerate(fit.descents):
        old_model, old_state = carry[descent.part], states[i]
        buffers = {n: t.clone() for n, t in old_model.items() if n not in descent.names}
        given = (descent, carry, buffers, rows, whole)
        params, grads, moved = _towards(*given, rates[i], False, by, moves)
        new, state = moved, old_state
        if params:
            new, state = descent.optimiser.update(params, grads, old_state, step, rates[i], rows[3].sum(1))
        new = {**buffers, **new, **moved}
        model = {n: new[n] for n in old_model}
        if active is not None:
            model = _keep_idle(active, model, old_model)
            state = {k: _keep_idle(active, v, old_state[k]) for k, v in state.items()}
        carry[descent.part], states[i] = model, state
    return carry, states


def fit_in_place(
    fit: Fit,
    carry: Carry,
    states: Sequence[Message],
    rows: Rows,
    whole: bool,
    step: int | Tensor,
    rates: Sequence[float | Tensor],
    by: Gradients,
    moves: Moves | None = None,
) -> None:
    """The same where everyone takes the step: nobody's old values are needed, so models are written over."""
    for descent, state, rate in zip(fit.descents, states, rates, strict=True):
        model = carry[descent.part]
        buffers = {n: t for n, t in model.items() if n not in descent.names}
        params, grads, _ = _towards(descent, carry, buffers, rows, whole, rate, True, by, moves)
        if params:
            with torch.no_grad():
                IN_PLACE[type(descent.optimiser)](descent.optimiser, params, grads, state, rate)


def writes_over(fit: Fit) -> bool:
    """Whether all optimisers of a loop can work in place."""
    return all(type(d.optimiser) in IN_PLACE for d in fit.descents)


def _sgd_in_place(sgd: SGD, params: Tree, grads: Tree, state: Message, rate: float | Tensor) -> None:
    """A step of SGD, written into the parameters and the state."""
    p = list(params.values())
    g = [
        new if new.stride() == old.stride() else new.contiguous()
        for old, new in zip(p, grads.values(), strict=True)
    ]
    velocity = list(state["velocity"].values()) if sgd.momentum else []
    torch._fused_sgd_(
        p, g, velocity, weight_decay=sgd.weight_decay, momentum=sgd.momentum, lr=rate,
        dampening=0.0, nesterov=False, maximize=False, is_first_step=False,
    )  # fmt: skip


# Optimisers whose steps can be written over what they change. Others need nothing here.
IN_PLACE: dict[type, Callable[[Any, Tree, Tree, Message, float | Tensor], None]] = {SGD: _sgd_in_place}


def _only_subtracts(optimiser: Optimiser) -> bool:
    """Whether a step takes the gradient times the rate off the parameters and does nothing else."""
    return type(optimiser) is SGD and not (optimiser.momentum or optimiser.weight_decay)


def _towards(
    descent: TrainStep,
    carry: Carry,
    buffers: Tree,
    rows: Rows,
    whole: bool,
    rate: float | Tensor,
    over: bool,
    by: Gradients,
    moves: Moves | None,
) -> tuple[Tree, Tree, Tree]:
    """(parameters, gradients, parameters that are moved already, if a step is so plain that they can be)."""
    if moves is None or isinstance(rate, Tensor) or descent.clip or not _only_subtracts(descent.optimiser):
        return *by(descent, carry, buffers, rows, whole), {}
    return moves(descent, carry, buffers, rows, whole, rate, over)


def gradients(descent: TrainStep, carry: Carry, buffers: Tree, rows: Rows, whole: bool) -> tuple[Tree, Tree]:
    """(parameters, gradients) of all clients; they do not mix, so the sum's gradient is each one's own.

    `buffers` are updated on the way.
    """
    params = {n: carry[descent.part][n] for n in descent.names}
    leaves = {n: p.detach().requires_grad_() for n, p in params.items()}

    def one(
        leaves: Tree, buffers: Tree, carry: Carry, x: Tensor, y: Tensor, row: Tensor, weight: Tensor
    ) -> Tensor:
        return descent.objective({**leaves, **buffers}, Batch(x, y, row, None if whole else weight), carry)

    with torch.enable_grad():  # the caller may have switched gradients off
        total = _for_all(one, rows)(leaves, buffers, carry, *rows).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    named = dict(zip(leaves, grads, strict=True))
    if descent.clip:
        named = vmap(lambda g: clip(g, descent.clip))(named)
    return params, named


def _for_all(one: Callable[..., Any], rows: Rows, in_dims: Any = 0) -> Callable[..., Any]:
    """`one` for all clients: by vmap, but for one client on a GPU as it is.

    Libraries have more ways to do the layers of one network than those of many.
    """
    if not single(rows):
        return vmap(one, in_dims=in_dims)
    # Views, whose gradients are views too, and through which buffers are written.
    return lambda *given: _each(lambda t: t[None], one(*(_each(lambda t: t.squeeze(0), v) for v in given)))


def single(rows: Rows) -> bool:
    """Whether these are the rows of one client on a GPU."""
    return rows[0].is_cuda and len(rows[0]) == 1


def _each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor changed, or all those in a carry."""
    if isinstance(value, dict):
        return {key: _each(change, inner) for key, inner in value.items()}
    return change(value)


def scan_step(scan: Scan, carry: Carry, rows: Rows, active: Tensor | None, whole: bool) -> Carry:
    """One step without gradients."""

    def one(carry: Carry, x: Tensor, y: Tensor, row: Tensor, weight: Tensor) -> Carry:
        return scan.step(carry, Batch(x, y, row, None if whole else weight))

    shared = {key: _shared(value) for key, value in carry.items()}
    given = {key: _one(value, shared[key]) for key, value in carry.items()}
    dims = {key: _dims(value, shared[key]) for key, value in carry.items()}
    with torch.no_grad():
        new: Carry = _for_all(one, rows, (dims, 0, 0, 0, 0))(given, *rows)
    # What was the same for all clients and came back untouched stays one tensor.
    new = {
        key: carry[key] if shared.get(key) and _same(value, given[key]) else value
        for key, value in new.items()
    }
    return new if active is None else _keep_idle_parts(active, new, carry)


def _leaves(value: Tree | Tensor) -> list[Tensor]:
    return list(value.values()) if isinstance(value, dict) else [value]


def _shared(value: Tree | Tensor) -> bool:
    """Whether one tensor stands for all clients: then one product serves them all together."""
    leaves = _leaves(value)
    return bool(leaves) and all(t.dim() > 0 and t.shape[0] > 1 and t.stride(0) == 0 for t in leaves)


def _one(value: Tree | Tensor, shared: bool) -> Any:
    if not shared:
        return value
    return {n: t[0] for n, t in value.items()} if isinstance(value, dict) else value[0]


def _dims(value: Tree | Tensor, shared: bool) -> Any:
    dim = None if shared else 0
    return dict.fromkeys(value, dim) if isinstance(value, dict) else dim


def _same(new: Tree | Tensor, old: Tree | Tensor) -> bool:
    a, b = _leaves(new), _leaves(old)
    return len(a) == len(b) and all(x.data_ptr() == y.data_ptr() for x, y in zip(a, b, strict=True))


def _keep_idle(active: Tensor, new: Tree, old: Tree) -> Tree:
    """The new values where a client took the step, the old ones where it had finished."""
    return {
        n: torch.where(active.reshape(-1, *[1] * (t.dim() - 1)), t, old[n]) if t is not old[n] else t
        for n, t in new.items()
    }


def _keep_idle_parts(active: Tensor, new: Carry, old: Carry) -> Carry:
    return {
        key: value  # a part that this step added: idle clients have no older one
        if key not in old
        else _keep_idle(active, value, old[key])
        if isinstance(value, dict)
        else _keep_idle(active, {key: value}, {key: old[key]})[key]
        for key, value in new.items()
    }
