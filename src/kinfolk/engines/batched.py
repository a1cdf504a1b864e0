"""Engine `batched`: many clients in one vmapped call, chunk by chunk, on a CPU or a CUDA device.

Clients of unequal size share a call: their plans are padded, a padded row has weight 0 and a padded
step leaves the client as it was. Clients with plans of similar length are put into one chunk, so that
little is padded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from kinfolk.engines.memory import Memories, swap_in_process
from kinfolk.engines.one import first_steps, on_device, optimiser_parts, owned, train_rows
from kinfolk.federation.federation import Federation
from kinfolk.learning.optim import clip
from kinfolk.learning.plan import batches
from kinfolk.script import Ask
from kinfolk.streams import Turn
from kinfolk.task import Batch, Carry, Descent, Facts, Fit, Swap, Sweep, Table, Task
from kinfolk.types import Client, Message, Stack, Tree, map_leaves, stack_messages


@dataclass(frozen=True)
class Padded:
    """The plans of a chunk of clients for one pass, padded to one shape; the flags live on the host."""

    data: Federation
    pool: Tensor  # [steps, clients, batch] rows of the pool
    row: Tensor  # [steps, clients, batch] positions among the client's rows
    weight: Tensor  # [steps, clients, batch] 1 for real rows, 0 for padding
    active: Tensor  # [steps, clients] whether the client takes this step
    whole: list[bool]  # per step: no padding at all
    everyone: list[bool]  # per step: every client takes it

    def __len__(self) -> int:
        return len(self.whole)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """(x, y, row, weight) of one step, every leaf [clients, batch, ...]."""
        return *self.data.take(self.pool[step]), self.row[step], self.weight[step]


class Batched:
    """Performs a task for a chunk of clients at a time."""

    name = "batched"

    def __init__(
        self,
        federation: Federation,
        table: Table,
        memories: Memories,
        chunk: int = 64,
        device: torch.device | str = "cpu",
    ) -> None:
        self.device = torch.device(device)
        self.federation = on_device(federation, self.device)
        self.table, self.memories, self.chunk = table, memories, max(1, chunk)
        self.note = f"batched: {self.chunk} clients a call on {self.device}"

    def replies(self, request: Ask[Any], turn: Turn) -> Iterator[Stack]:
        """The replies to a request, in chunks; within a chunk sorted by client."""
        task = self.table[request.task]
        assert isinstance(task, Task)
        by_length = sorted(request.to, key=lambda c: (first_steps(task, self.federation, c), c))
        for i in range(0, len(by_length), self.chunk):
            yield self._chunk(task, request, tuple(sorted(by_length[i : i + self.chunk])), turn)

    def swap(self, swap: Swap, among: tuple[Client, ...], turn: Turn) -> dict[tuple[Client, Client], int]:
        """Let clients send to one another; the bytes of every letter."""
        return swap_in_process(swap, among, turn, self.memories)

    def close(self) -> None:
        """Nothing to give back."""

    def _chunk(self, task: Task, request: Ask[Any], who: tuple[Client, ...], turn: Turn) -> Stack:
        data = self.federation.among(who)
        if data is not self.federation:
            data = on_device(data, self.device)
        to_device: Callable[[Tensor], Tensor] = lambda t: t.to(self.device)  # noqa: E731
        shared = map_leaves(to_device, request.shared)
        own = map_leaves(to_device, request.each.at(who).body) if request.each else {}
        # Moved before they are stacked: a client that was never asked still has its memory on the host.
        memory = stack_messages([map_leaves(to_device, self.memories[c]) for c in who])
        rows = torch.tensor([train_rows(self.federation, c) for c in who])
        steps = torch.tensor([first_steps(task, self.federation, c) for c in who])

        def start(own: Message, memory: Message, rows: Tensor, steps: Tensor) -> Carry:
            return task.start({**shared, **own}, memory, Facts(rows, steps, turn.round))

        with torch.no_grad():
            carry: Carry = vmap(start)(own, memory, rows.to(self.device), steps.to(self.device))
        for number, one in enumerate(task.passes):
            plan = self._padded(one, number, task.stream, data, who, turn)
            carry = (
                self._fit(one, carry, plan, turn) if isinstance(one, Fit) else self._sweep(one, carry, plan)
            )
        reply, kept = _finish(task, carry)
        if kept is not None:
            for i, c in enumerate(who):
                self.memories[c] = map_leaves(lambda t, i=i: t[i].clone(), kept)  # type: ignore[misc]
        return Stack(who, rows, reply)

    def _padded(
        self, one: Fit | Sweep, number: int, stream: str, data: Federation, who: Sequence[Client], turn: Turn
    ) -> Padded:
        split = data.splits[one.plan.split]
        mine = [split.rows(data.place(c)).numpy() for c in who]
        plans = [
            batches(one.plan, len(m), turn.seed.numpy(stream, turn.round, c, number))
            for c, m in zip(who, mine, strict=True)
        ]
        steps = max(map(len, plans), default=0)
        width = max((len(b) for p in plans for b in p), default=1)
        row = np.zeros((steps, len(who), width), dtype=np.int64)
        pool = np.zeros_like(row)
        weight = np.zeros(row.shape, dtype=np.float32)
        for i, (plan, m) in enumerate(zip(plans, mine, strict=True)):
            # Padding repeats a row of the same batch. Any other, say of a client whose rows overflow,
            # might have a loss that is not finite, and 0 times that is not 0.
            for t, b in enumerate(plan):
                row[t, i], pool[t, i], weight[t, i, : len(b)] = b[0], m[b[0]], 1
                row[t, i, : len(b)], pool[t, i, : len(b)] = b, m[b]
            pool[len(plan) :, i] = m[0] if len(m) else 0
        active: np.ndarray[Any, Any] = np.asarray(weight.any(axis=2))
        whole = [bool(w.all()) for w in weight]
        everyone = [bool(a.all()) for a in active]
        put = [torch.from_numpy(array).to(self.device) for array in (pool, row, weight, active)]
        return Padded(data, put[0], put[1], put[2], put[3], whole, everyone)

    def _fit(self, fit: Fit, carry: Carry, plan: Padded, turn: Turn) -> Carry:
        carry = dict(carry)
        for part in {d.part for d in fit.descents}:
            carry[part] = owned(carry[part])
        states = [d.optimiser.init({n: carry[d.part][n] for n in d.names}) for d in fit.descents]
        for step in range(len(plan)):
            rows = plan.batch(step)
            for i, descent in enumerate(fit.descents):
                old_model, old_state = carry[descent.part], states[i]
                buffers = owned({n: t for n, t in old_model.items() if n not in descent.names})
                params, grads = _gradients(descent, carry, buffers, rows, plan.whole[step])
                new, state = descent.optimiser.update(
                    params, grads, old_state, step, descent.rate(turn.round), plan.weight[step].sum(1)
                )
                model = {n: new[n] if n in new else buffers[n] for n in old_model}
                if not plan.everyone[step]:
                    model = _keep_idle(plan.active[step], model, old_model)
                    state = {k: _keep_idle(plan.active[step], v, old_state[k]) for k, v in state.items()}
                carry[descent.part], states[i] = model, state
        return {**carry, **optimiser_parts(states)}

    def _sweep(self, sweep: Sweep, carry: Carry, plan: Padded) -> Carry:
        for step in range(len(plan)):
            whole = plan.whole[step]

            def one(
                carry: Carry, x: Tensor, y: Tensor, row: Tensor, weight: Tensor, whole: bool = whole
            ) -> Carry:
                return sweep.step(carry, Batch(x, y, row, None if whole else weight))

            with torch.no_grad():
                new = vmap(one)(carry, *plan.batch(step))
            carry = new if plan.everyone[step] else _keep_idle_parts(plan.active[step], new, carry)
        return carry


def _gradients(
    descent: Descent, carry: Carry, buffers: Tree, rows: tuple[Tensor, Tensor, Tensor, Tensor], whole: bool
) -> tuple[Tree, Tree]:
    """(parameters, gradients) of all clients; they do not mix, so the sum's gradient is each one's own."""
    params = {n: carry[descent.part][n] for n in descent.names}
    leaves = {n: p.detach().requires_grad_() for n, p in params.items()}

    def one(
        leaves: Tree, buffers: Tree, carry: Carry, x: Tensor, y: Tensor, row: Tensor, weight: Tensor
    ) -> Tensor:
        return descent.objective({**leaves, **buffers}, Batch(x, y, row, None if whole else weight), carry)

    with torch.enable_grad():  # the caller may have switched gradients off
        total = vmap(one)(leaves, buffers, carry, *rows).sum()
    grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    named = dict(zip(leaves, grads, strict=True))
    if descent.clip:
        named = vmap(lambda g: clip(g, descent.clip))(named)
    return params, named


def _finish(task: Task, carry: Carry) -> tuple[Message, Message | None]:
    kept: list[bool] = []

    def one(carry: Carry) -> tuple[Message, Message]:
        reply, memory = task.finish(carry)
        kept.append(memory is not None)
        return reply, memory or {}

    with torch.no_grad():
        reply, memory = vmap(one)(carry)
    return reply, memory if kept[0] else None


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
