"""One step of a pass for a whole chunk of clients: every tensor has the clients in front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from kinfolk import types
from kinfolk.engines.padded import Rows
from kinfolk.learning.optim import SGD, clip
from kinfolk.task import Batch, Carry, Fit, Number, Optimiser, Scan, TrainStep
from kinfolk.types import Message, Tree

# (descent, carry, buffers, rows, whole, rate or None, whether to write over parameters) -> (parameters,
# gradients, moved): `gradients`, or a faster way to the same. Where a rate is given, some parameters may be
# moved at once: they come third, and the first two tell of the rest.
Gradients = Callable[[TrainStep, Carry, Tree, Rows, bool, float | None, bool], tuple[Tree, Tree, Tree]]


class Step(NamedTuple):
    """What all clients of a chunk do at once."""

    rows: Rows
    active: Tensor | None  # who takes the step; None: everyone
    whole: bool  # no row is padding
    number: int | Tensor
    rates: Sequence[Number]  # of each descent; [clients] where each client has its own


def fit_step(
    fit: Fit, carry: Carry, states: Sequence[Message], step: Step, by: Gradients, over: bool
) -> tuple[Carry, list[Message]]:
    """Each descent in turn.

    Nothing given is written to, so whoever is idle can be kept as it was. With `over`, models and states are
    written over where everyone takes the step, since nobody's old values are needed, and all optimisers can.
    """
    own_rates = any(isinstance(rate, Tensor) and rate.dim() > 0 for rate in step.rates)
    over = over and step.active is None and not own_rates
    over = over and all(type(d.optimiser) in IN_PLACE for d in fit.descents)
    carry, states = dict(carry), list(states)
    for i, descent in enumerate(fit.descents):
        rate, old_model, old_state = step.rates[i], carry[descent.part], states[i]
        buffers = {n: t if over else t.clone() for n, t in old_model.items() if n not in descent.names}
        at_once = None if isinstance(rate, Tensor) or not _only_subtracts(descent) else rate
        params, grads, moved = by(descent, carry, buffers, step.rows, step.whole, at_once, over)
        if over:
            if params:
                with torch.no_grad():
                    IN_PLACE[type(descent.optimiser)](descent.optimiser, params, grads, old_state, rate)
            continue
        new, state = moved, old_state
        if params:
            count = step.rows[3].sum(1)
            new, state = _updated(descent.optimiser, params, grads, old_state, step.number, rate, count)
        new = {**buffers, **new, **moved}
        model = {n: new[n] for n in old_model}
        if step.active is not None:
            model = _keep_idle(step.active, model, old_model)
            state = _keep_idle(step.active, state, old_state)
        carry[descent.part], states[i] = model, state
    return carry, states


def _updated(
    how: Optimiser,
    params: Tree,
    grads: Tree,
    state: Message,
    number: int | Tensor,
    rate: Number,
    rows: Tensor,
) -> tuple[Tree, Message]:
    """What an optimiser makes of all clients; one that knows no rates by client is mapped over them."""
    if not isinstance(rate, Tensor) or not rate.dim() or getattr(how, "client_rates", False):
        return how.update(params, grads, state, number, rate, rows)
    mapped: tuple[Tree, Message] = vmap(lambda p, g, s, lr, n: how.update(p, g, s, number, lr, n))(
        params, grads, state, rate, rows
    )
    return mapped


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
        dampening=0.0, nesterov=sgd.nesterov, maximize=False, is_first_step=False,
    )  # fmt: skip


# Optimisers whose steps can be written over what they change. Others need nothing here.
IN_PLACE: dict[type, Callable[[Any, Tree, Tree, Message, float | Tensor], None]] = {SGD: _sgd_in_place}


def _only_subtracts(descent: TrainStep) -> bool:
    """Whether a step takes the gradient times the rate off the parameters and does nothing else."""
    how = descent.optimiser
    return type(how) is SGD and not (how.momentum or how.weight_decay or descent.clip)


def gradients(
    descent: TrainStep,
    carry: Carry,
    buffers: Tree,
    rows: Rows,
    whole: bool,
    rate: float | None = None,
    over: bool = False,
) -> tuple[Tree, Tree, Tree]:
    """(parameters, gradients, nothing) of all clients; nothing is moved here, whatever the rate.

    Clients do not mix, so the sum's gradient is each one's own. `buffers` are updated on the way.
    """
    params = {n: carry[descent.part][n] for n in descent.names}
    leaves = {n: p.detach().requires_grad_() for n, p in params.items()}

    def one(
        leaves: Tree,
        buffers: Tree,
        carry: Carry,
        x: types.Rows,
        y: types.Rows,
        row: Tensor,
        weight: Tensor,
        *key: Tensor,
    ) -> Tensor:
        batch = Batch(x, y, row, None if whole else weight, *key)
        return descent.objective({**leaves, **buffers}, batch, carry)

    with torch.enable_grad():  # the caller may have switched gradients off
        total = _for_all(one, rows)(leaves, buffers, carry, *rows).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    named = dict(zip(leaves, grads, strict=True))
    if descent.clip:
        named = vmap(lambda g: clip(g, descent.clip))(named)
    return params, named, {}


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
    return rows[2].is_cuda and len(rows[2]) == 1


def _each(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """A tensor changed, or all those in a carry."""
    if isinstance(value, dict):
        return {key: _each(change, inner) for key, inner in value.items()}
    return change(value)


def scan_step(scan: Scan, carry: Carry, rows: Rows, active: Tensor | None, whole: bool) -> Carry:
    """One step without gradients."""

    def one(carry: Carry, x: types.Rows, y: types.Rows, row: Tensor, weight: Tensor, *key: Tensor) -> Carry:
        return scan.step(carry, Batch(x, y, row, None if whole else weight, *key))

    shared = {key: _shared(value) for key, value in carry.items()}
    given = {key: _each(lambda t: t[0], value) if shared[key] else value for key, value in carry.items()}
    dims = {key: None if shared[key] else 0 for key in carry}
    with torch.no_grad():
        new: Carry = _for_all(one, rows, (dims, *[0] * len(rows)))(given, *rows)
    # What was the same for all clients and came back untouched stays one tensor.
    new = {
        key: carry[key] if shared.get(key) and _same(value, given[key]) else value
        for key, value in new.items()
    }
    return new if active is None else _keep_idle(active, new, carry)


def _leaves(value: Tree | Tensor) -> list[Tensor]:
    return list(value.values()) if isinstance(value, dict) else [value]


def _shared(value: Tree | Tensor) -> bool:
    """Whether one tensor stands for all clients: then one product serves them all together."""
    leaves = _leaves(value)
    return bool(leaves) and all(t.dim() > 0 and t.shape[0] > 1 and t.stride(0) == 0 for t in leaves)


def _same(new: Tree | Tensor, old: Tree | Tensor) -> bool:
    a, b = _leaves(new), _leaves(old)
    return len(a) == len(b) and all(x.data_ptr() == y.data_ptr() for x, y in zip(a, b, strict=True))


def _keep_idle(active: Tensor, new: Any, old: Any) -> Any:
    """The new values where a client took the step, the old ones where it had finished."""
    if isinstance(new, dict):  # of a part that this step added idle clients have no older one
        return {n: _keep_idle(active, t, old[n]) if n in old else t for n, t in new.items()}
    return new if new is old else torch.where(active.reshape(-1, *[1] * (new.dim() - 1)), new, old)
