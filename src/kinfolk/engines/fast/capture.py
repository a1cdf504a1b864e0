"""A pass over rows as a CUDA graph: one step is recorded, then replayed without the host.

Everything a recorded step reads or writes lies at a fixed address: the carry of the chunk, the
optimisers' states, the plan and the number of the step, which the step itself counts up, and the rows:
those of the federation, or if a chunk's rows are made for it, a place that they are copied to. Between
steps nothing is launched, copied or waited for. A pass whose pattern of steps comes often is recorded as
a whole, and from then on replayed by one launch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from kinfolk.engines.fast.graph_passes import clone_as_laid_out
from kinfolk.engines.fast.lanes import CudaLane
from kinfolk.engines.fast.steps import Step, fit_step, gradients, scan_step
from kinfolk.engines.one import first_states
from kinfolk.engines.padded import Padded, Rows, seen
from kinfolk.federation.federation import Federation
from kinfolk.learning.recording import recorded, warm_up
from kinfolk.task import Carry, Fit, Number, Scan
from kinfolk.types import Message, leaves, map_leaves, map_rows, row_leaves

# Runs before a step is recorded: libraries choose and load their kernels in them.
_WARM_UP = 2
# Steps of a pass that may be recorded as a whole. Of five steps (pfl's network) it saves 4 %; of 25 (LeNet)
# 1 %, and 50 of an MLP took longer than one by one: the device is never without work either way.
LONGEST_WHOLE = 8
# How often a pattern of steps must have come before: so many launches take as long as the recording.
WORTH_WHOLE = 32
# Whole passes that are kept, so that their graphs take little memory. The first ones to come again stay: if
# they gave way to others, clients that are sampled in every round would have the host record forever.
MOST_WHOLE = 4
# Patterns that are counted at a time: those of a round, one for each chunk, and some more.
_COUNTED = 64

Kind = tuple[bool, bool]  # of a step: no row of it is padding, every client takes it


class Recorded:
    """One pass for chunks of one shape; a step with padding, or with idle clients, has its own recording.

    Nothing in it draws random numbers: what dropout drops follows from keys that the plan has.
    """

    def __init__(
        self,
        one: Fit | Scan,
        carry: Carry,
        plan: Padded,
        lane: CudaLane,
        made: bool = False,
        before: Recorded | None = None,
    ) -> None:
        self.one, self.made = one, made
        # Not the lane itself, which holds this: what is held in a circle may be torn down amid a recording.
        self.side, self.memory = lane.side, lane.memory
        changed, added = changing(one, carry, plan)
        self.carry = {**_fixed(carry, changed), **added}
        self.states = first_states(one, self.carry) if isinstance(one, Fit) else []
        # No less room than a recording had that this one replaces, or the two would take turns.
        steps, rows = (len(before.pool), before.data.rows) if before else (0, 0)
        self.data: Federation = _place_for(plan.data, rows) if made else plan.data
        self.augment, self.draws = plan.augment, len(plan.key)
        # And for somewhat longer plans: clients come from short to long, and a recording takes time.
        steps = max(1 << max(len(plan) - 1, 0).bit_length(), steps)
        self.plan = [t.new_zeros((steps, *t.shape[1:])) for t in plan.tensors()]
        self.pool: Tensor = self.plan[0]
        self.step = torch.zeros((), dtype=torch.int64, device=plan.pool.device)
        # A rate that changes within a round has a place for each step and client, as the plan has.
        self.rates = [
            torch.zeros((steps, plan.pool.shape[1]) if descent.by_step else (), device=plan.pool.device)
            for descent in (one.descents if isinstance(one, Fit) else ())
        ]
        self.graphs: dict[Kind, torch.cuda.CUDAGraph] = {}
        self.wholes: dict[tuple[Kind, ...], torch.cuda.CUDAGraph] = {}
        self.came: Counter[tuple[Kind, ...]] = Counter()

    def fits(self, plan: Padded) -> bool:
        """Whether there is room for a plan of this length, and for its rows if they were made for it."""
        return len(plan) <= len(self.pool) and (not self.made or plan.data.rows <= self.data.rows)

    def run(self, carry: Carry, plan: Padded, rates: Sequence[Number]) -> tuple[Carry, list[Message]]:
        """Go through the plan; the carry and the optimisers' states at its end."""
        _copy(self.carry, carry)
        if self.made:
            for places, fresh in ((self.data.x, plan.data.x), (self.data.y, plan.data.y)):
                for place, given in zip(row_leaves(places), row_leaves(fresh), strict=True):
                    place[: len(given)].copy_(given)
        for place, given in zip(self.plan, plan.tensors(), strict=True):
            place[: len(given)].copy_(given)
        for place, rate in zip(self.rates, rates, strict=True):
            if isinstance(rate, Tensor):
                place[: len(rate)].copy_(rate)
            else:
                place.fill_(rate)
        pattern = tuple(zip(plan.whole, plan.everyone, strict=True))
        whole = self._whole(pattern)
        if whole is not None:
            whole.replay()
        else:
            self._one_by_one(pattern)
        ends = [map_leaves(clone_as_laid_out, part) for part in (self.carry, *self.states)]
        return ends[0], ends[1:]

    def _whole(self, pattern: tuple[Kind, ...]) -> torch.cuda.CUDAGraph | None:
        """The recording of all steps of such a pass, if they came often and there is room for it."""
        if pattern not in self.wholes and len(self.wholes) < MOST_WHOLE and self.came[pattern] >= WORTH_WHOLE:
            # Libraries have chosen their kernels: to go step by step, each kind was warmed up and recorded.
            self.wholes[pattern] = self._record(partial(self._all, pattern))
        return self.wholes.get(pattern)

    def _one_by_one(self, pattern: tuple[Kind, ...]) -> None:
        self._begin()
        for kind in pattern:
            if kind not in self.graphs:
                body = partial(self._body, *kind)
                self._warm_up(body)
                self.graphs[kind] = self._record(body)
            self.graphs[kind].replay()
        if len(pattern) <= LONGEST_WHOLE and len(self.wholes) < MOST_WHOLE:
            if len(self.came) >= _COUNTED:
                self.came.clear()
            self.came[pattern] += 1

    def _all(self, pattern: tuple[Kind, ...]) -> None:
        self._begin()
        for kind in pattern:
            self._body(*kind)

    def _begin(self) -> None:
        """Bring the optimisers and the count of steps to where a pass starts."""
        if isinstance(self.one, Fit):
            for mine, fresh in zip(self.states, first_states(self.one, self.carry), strict=True):
                _copy(mine, fresh)
        self.step.zero_()

    def _warm_up(self, body: Callable[[], None]) -> None:
        """Run a step, then bring back what it wrote over."""
        kept = [t.clone() for t in self._fixed_tensors()]
        assert self.side is not None, "recordings are for CUDA devices"

        def first_step() -> None:
            self.step.zero_()  # a step beyond the plan would read outside it
            body()

        warm_up(first_step, _WARM_UP, self.side)
        for tensor, old in zip(self._fixed_tensors(), kept, strict=True):
            tensor.copy_(old)

    def _record(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        return recorded(body, pool=self.memory, stream=self.side)

    def _fixed_tensors(self) -> Iterator[Tensor]:
        for part in (self.carry, *self.states):
            yield from (_base(t) for _, _, t in leaves(part))
        yield self.step

    def _body(self, whole: bool, everyone: bool) -> None:
        now = self.step.reshape(1)
        pool, row, weight, active, *drawn = (t.index_select(0, now)[0] for t in self.plan)
        key, way = drawn[: self.draws], drawn[self.draws :]
        x, y = seen(self.data, self.augment, pool, *way)
        rows: Rows = (x, y, row, weight, *key)
        idle = None if everyone else active
        if isinstance(self.one, Scan):
            _copy(self.carry, scan_step(self.one, self.carry, rows, idle, whole))
        else:
            rates = [t.index_select(0, now)[0] if t.dim() else t for t in self.rates]
            step = Step(rows, idle, whole, self.step, rates)
            carry, states = fit_step(self.one, self.carry, self.states, step, gradients, over=True)
            _copy(self.carry, carry)
            for mine, new in zip(self.states, states, strict=True):
                _copy(mine, new)
        self.step.add_(1)


def _place_for(data: Federation, least: int) -> Federation:
    """A federation with room for these rows, and for somewhat more: the next chunk may have some more."""
    room = max(1 << max(data.rows - 1, 0).bit_length(), least)
    x, y = (map_rows(lambda t: t.new_zeros((room, *t.shape[1:])), rows) for rows in (data.x, data.y))
    return replace(data, x=x, y=y)


def changing(one: Fit | Scan, carry: Carry, plan: Padded) -> tuple[set[str], Carry]:
    """(the parts of a carry that a pass changes, parts that it adds); of a scan by trying one step of it.

    Clients may begin with one tensor for all, a model or a tally of zeros; whatever changes must be each
    client's own.
    """
    if isinstance(one, Fit):
        return {d.part for d in one.descents}, {}
    tried = scan_step(one, carry, plan.batch(0), None, plan.whole[0])
    added = {key: value for key, value in tried.items() if key not in carry}
    return {key for key, value in tried.items() if value is not carry.get(key)}, _fixed(added, set(added))


def _fixed(carry: Carry, changed: set[str]) -> Carry:
    """Copies at addresses that will not change.

    What one tensor holds for all clients is held once, unless it is changed and they part.
    """

    def own(t: Tensor) -> Tensor:
        return t.clone(memory_format=torch.contiguous_format)

    def once(t: Tensor) -> Tensor:
        return own(t) if _base(t) is t else clone_as_laid_out(t)

    held: Carry = {}
    for key, value in carry.items():
        held |= map_leaves(own if key in changed else once, {key: value})
    return held


def _base(t: Tensor) -> Tensor:
    return t[:1] if t.dim() and t.shape[0] > 1 and t.stride(0) == 0 else t


def _copy(to: Message, new: Message) -> None:
    """Write what differs; a part that a step adds cannot be kept at a fixed address."""
    for key, name, t in leaves(new):
        old = to[key] if name is None else to[key][name]
        if old.data_ptr() != t.data_ptr():
            _base(old).copy_(t[: len(_base(old))] if old.dim() else t)
