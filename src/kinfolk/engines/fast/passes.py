"""A pass over rows for a chunk of clients, the fastest way there is: recorded, traced, or step by step."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.engines.fast.capture import Recorded
from kinfolk.engines.fast.lanes import CudaLane
from kinfolk.engines.fast.steps import Gradients, Step, fit_step, gradients, scan_step
from kinfolk.engines.fast.trace import Traces
from kinfolk.engines.one import first_states, optimiser_parts
from kinfolk.engines.padded import Padded
from kinfolk.task import Carry, Fit, Scan
from kinfolk.types import Tree, leaves

# A pass of fewer steps is not worth a recording, which costs about as much as four of them.
WORTH_RECORDING = 4
MOST_RECORDINGS = 16


class Passes:
    """Runs passes on a device. On a CUDA device they are recorded unless `record` is False."""

    def __init__(self, device: torch.device, record: bool = True) -> None:
        self.records = record and device.type == "cuda"
        self._gradients: Gradients = Traces().gradients if device.type == "cpu" else gradients

    def run(
        self, one: Fit | Scan, carry: Carry, plan: Padded, round: int, lane: CudaLane, made: bool
    ) -> Carry:
        """The carry of all clients, in front of every leaf, after a pass over their rows.

        `made`: the rows of the plan were made for this chunk and lie elsewhere the next time.
        """
        rates = [d.rate(round) for d in one.descents] if isinstance(one, Fit) else []
        if self.records and len(plan) >= WORTH_RECORDING:
            carry, states = _recorded(one, carry, plan, lane, made).run(carry, plan, rates)
            return {**carry, **optimiser_parts(states)}
        return self._step_by_step(one, dict(carry), plan, rates)

    def _step_by_step(self, one: Fit | Scan, carry: Carry, plan: Padded, rates: list[float]) -> Carry:
        states = first_states(one, carry) if isinstance(one, Fit) else []
        for number in range(len(plan)):
            rows, whole = plan.batch(number), plan.whole[number]
            active = None if plan.everyone[number] else plan.active[number]
            if isinstance(one, Scan):
                carry = scan_step(one, carry, rows, active, whole)
                continue
            # The first step makes the clients' own models out of one that they may all have been given.
            step = Step(rows, active, whole, number, rates)
            carry, states = fit_step(one, carry, states, step, self._gradients, over=number > 0)
            if not number:  # a sum of two layouts may have either
                carry |= {d.part: _contiguous(carry[d.part]) for d in one.descents}
        return {**carry, **optimiser_parts(states)}


def _recorded(one: Fit | Scan, carry: Carry, plan: Padded, lane: CudaLane, made: bool) -> Recorded:
    """The lane's recording for chunks of this shape, kept for the rounds to come."""
    key = (id(one), plan.pool.shape[1:], _form(carry))
    known = lane.recordings.get(key)
    if known is None or not known.fits(plan):
        if known is None and len(lane.recordings) >= MOST_RECORDINGS:
            lane.recordings.pop(next(iter(lane.recordings)))
        known = lane.recordings[key] = Recorded(one, carry, plan, lane, made, known)
    return known


def _contiguous(model: Tree) -> Tree:
    return {name: t.contiguous() for name, t in model.items()}


def _form(carry: Carry) -> tuple[Any, ...]:
    """What must be the same for a recording to serve: names, shapes, types, and what all clients share."""
    return tuple(
        (key, name, t.shape, t.dtype, t.dim() > 0 and t.stride(0) == 0) for key, name, t in leaves(carry)
    )
