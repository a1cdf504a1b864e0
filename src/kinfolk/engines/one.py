"""One client does one task, step after step: the reference that every engine must agree with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from kinfolk.federation.federation import Federation
from kinfolk.learning.optim import clip
from kinfolk.learning.plan import Rows, batches, step_count
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Plan, Scan, Task, TrainStep
from kinfolk.types import Client, Message, Tree, map_rows, plain_rows


def on_device(federation: Federation, device: torch.device) -> Federation:
    """The rows on a device; who owns which row stays on the host, where plans are drawn."""
    x, y = (map_rows(lambda t: t.to(device), rows) for rows in (federation.x, federation.y))
    return replace(federation, x=x, y=y)


def train_rows(federation: Federation, who: Client) -> int:
    """How many training rows a client has."""
    return federation.splits["train"].count(federation.place(who))


def row_counts(federation: Federation, who: Sequence[Client]) -> dict[Client, int]:
    """How many training rows each of these clients has: what they say before they are asked anything."""
    return {c: train_rows(federation, c) for c in who}


def first_steps(task: Task, federation: Federation, who: Client) -> int:
    """How many steps the first pass of a task takes on a client."""
    if not task.passes:
        return 0
    plan = task.passes[0].plan
    return step_count(plan, federation.splits[plan.split].count(federation.place(who)))


def perform(
    task: Task, message: Message, memory: Message, federation: Federation, who: Client, context: RoundContext
) -> tuple[Message, Message | None]:
    """Run a task on one client's rows: (reply, memory or None if it stays as it was)."""
    held = federation.among([who])
    device = federation.device
    federation = held if held is federation else on_device(held, device)
    # Dropout and its like draw from torch's global generator: lend them one that belongs to this client.
    with context.seed.borrowed("inside", task.stream, context.round, who, device=device):
        carry = _begun(task, message, memory, federation, who, context)
        for number, one in enumerate(task.passes):
            rows = client_batches(one, number, task.stream, federation, who, context)
            if isinstance(one, Fit):
                steps = step_count(one.plan, federation.splits[one.plan.split].count(federation.place(who)))
                carry = _fit(one, carry, rows, [d.rates(context.round, steps) for d in one.descents])
            else:
                carry = _scan(one, carry, rows)
        with torch.no_grad():
            reply, kept = task.finish(carry)
            return (task.conclude(reply) if task.conclude else reply), kept


def _begun(
    task: Task, message: Message, memory: Message, federation: Federation, who: Client, context: RoundContext
) -> Carry:
    counts = train_rows(federation, who), first_steps(task, federation, who)
    rows, steps = (torch.tensor(count, device=federation.device) for count in counts)
    with torch.no_grad():
        return task.start(message, memory, ClientInfo(rows, steps, context.round))


def client_batches(
    one: Fit | Scan, number: int, stream: str, federation: Federation, who: Client, context: RoundContext
) -> Iterator[Batch]:
    """The batches of pass number `number`, in the order that the client's own stream gives."""
    mine = federation.splits[one.plan.split].rows(federation.place(who))
    visits = batches(one.plan, len(mine), context.seed.numpy(stream, context.round, who, number))
    changed = changes(one.plan, sum(map(len, visits)), stream, number, who, context)
    keys = step_keys(one.plan, len(visits), stream, number, who, context)
    done = 0
    for step, drawn in enumerate(visits):
        row = torch.from_numpy(drawn)
        pool = mine[row].to(federation.device)
        x, y = federation.take(pool)
        if one.plan.augment and changed is not None:
            way = torch.from_numpy(changed[done : done + len(row)]).to(pool.device)
            x = one.plan.augment(plain_rows(x), way)
            done += len(row)
        key = None if keys is None else torch.tensor(keys[step], device=pool.device)
        yield Batch(x, y, row.to(pool.device), None, key)


def changes(
    plan: Plan, visits: int, stream: str, number: int, who: Client, context: RoundContext
) -> Rows | None:
    """How each row is changed that pass number `number` visits, in order; None if rows stay as they are."""
    if plan.augment is None:
        return None
    draw = context.seed.numpy("augment", stream, context.round, who, number)
    return draw.integers(plan.augment.ways, size=visits)


def step_keys(
    plan: Plan, steps: int, stream: str, number: int, who: Client, context: RoundContext
) -> Rows | None:
    """The key of each step of pass number `number`; None if no step draws."""
    if not plan.draws:
        return None
    draw = context.seed.numpy("inside", stream, context.round, who, number)
    return draw.integers(2**62, size=steps)


def _fit(fit: Fit, carry: Carry, rows: Iterator[Batch], rates: Sequence[Sequence[float]]) -> Carry:
    # Every model in the carry, not only those that are trained: one that an objective merely consults in
    # training mode updates its buffers too, and they may be the server's own.
    carry = {key: owned(value) if isinstance(value, dict) else value for key, value in carry.items()}
    states = first_states(fit, carry)
    for step, batch in enumerate(rows):
        for i, descent in enumerate(fit.descents):
            params, grads = gradient(descent, carry, batch)
            if descent.clip:
                grads = clip(grads, descent.clip)
            params, states[i] = descent.optimiser.update(
                params, grads, states[i], step, rates[i][step], len(batch.row)
            )
            carry[descent.part] = {**carry[descent.part], **params}
    return {**carry, **optimiser_parts(states)}


def first_states(fit: Fit, carry: Carry) -> list[Message]:
    """The optimisers' states before the first step."""
    return [d.optimiser.init({n: carry[d.part][n] for n in d.names}) for d in fit.descents]


def optimiser_parts(states: list[Message]) -> Carry:
    """The optimisers' states under the names a task finds them by: `optimiser.<descent>.<part>`."""
    return {f"optimiser.{i}.{key}": value for i, state in enumerate(states) for key, value in state.items()}


def owned(model: Tree) -> Tree:
    """A model whose buffers may be written to: BatchNorm updates its statistics in place."""
    return {name: t.clone(memory_format=torch.contiguous_format) for name, t in model.items()}


def gradient(descent: TrainStep, carry: Carry, batch: Batch) -> tuple[Tree, Tree]:
    """(parameters, gradient of the objective); buffers of the model are updated on the way."""
    model: Tree = carry[descent.part]
    leaves: dict[str, Tensor] = {n: model[n].detach().requires_grad_() for n in descent.names}
    with torch.enable_grad():  # the caller may have switched gradients off
        loss = descent.objective({**model, **leaves}, batch, carry)
    grads = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return {n: model[n] for n in descent.names}, dict(zip(leaves, grads, strict=True))


def _scan(scan: Scan, carry: Carry, rows: Iterator[Batch]) -> Carry:
    with torch.no_grad():
        for batch in rows:
            carry = scan.step(carry, batch)
    return carry


def opens_models(
    task: Task, message: Message, memory: Message, federation: Federation, who: Client, context: RoundContext
) -> bool:
    """Whether the passes of a task look into a model that the client was given or kept.

    Tried out without the models, on one batch of a client's rows for each pass; nothing is changed. Where a
    pass finds no rows they are taken to.
    """
    begun = _begun(task, message, memory, federation, who, context)
    carry: Carry = {key: value for key, value in begun.items() if not isinstance(value, dict)}
    for number, one in enumerate(task.passes):
        batch = next(client_batches(one, number, task.stream, federation, who, context), None)
        if batch is None:
            return True
        try:
            carry = _tried(one, carry, batch)
        except KeyError:
            return True
    return False


def _tried(one: Fit | Scan, carry: Carry, batch: Batch) -> Carry:
    """A carry after one batch, in which what is trained has not moved."""
    if isinstance(one, Scan):
        with torch.no_grad():
            return one.step(carry, batch)
    for descent in one.descents:
        gradient(descent, {**carry, descent.part: owned(carry[descent.part])}, batch)
    return {**carry, **optimiser_parts(first_states(one, carry))}
