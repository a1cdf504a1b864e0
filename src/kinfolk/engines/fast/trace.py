"""Gradients on a CPU as a straight list of operations: traced once, then run without vmap or autograd.

For a small network most of a step goes into Python: vmap, the module tree, the autograd tape. Traced,
the same operations run in the same order on the same numbers, so the result has the same bits.

For a larger one most of a step goes into memory: a gradient as large as the model is written, read again
and subtracted. Where the optimiser allows it, products go straight into the weights instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from kinfolk.engines.fast.graph_passes import (
    by_methods,
    clone_as_laid_out,
    copied,
    keep_constants,
    remove_noops,
    shown,
)
from kinfolk.engines.fast.steps import gradients
from kinfolk.engines.padded import Rows
from kinfolk.task import Carry, TrainStep
from kinfolk.types import Tree, leaves, map_rows, named_leaves

# Steps without a trace before one is made. It saves as much as it costs after 27 to 50 steps of a small dense
# network and 100 to 180 of a convolution (docs/performance.md). Its bits are the same: nothing hangs on when.
WORTH_TRACING = 64
MOST_TRACES = 32
# Numbers of one client's model from which on it pays to move weights by products. Those moves differ from
# others in the last bit, so whether they are made must depend on sizes alone, not on how often or by which
# process a step was asked for: such a step is traced at once.
WORTH_MOVING = 1 << 14

_aten = torch.ops.aten


@dataclass(frozen=True)
class Traced:
    """A list of operations on inputs laid out flat."""

    run: Callable[..., list[Tensor]]
    moved: tuple[str, ...]  # parameters that it moves: it gives them, and then
    left: tuple[str, ...]  # the gradients of these


class Traces:
    """Traced gradients by descent and shapes. What cannot be traced is computed as it always was."""

    def __init__(self) -> None:
        self._asked: dict[Any, int] = {}
        self._made: dict[Any, GraphModule | None] = {}
        self._known: dict[Any, Traced | None] = {}

    def gradients(
        self,
        descent: TrainStep,
        carry: Carry,
        buffers: Tree,
        rows: Rows,
        whole: bool,
        rate: float | None = None,
        over: bool = False,
    ) -> tuple[Tree, Tree, Tree]:
        """As `steps.gradients`; with a rate, some parameters are moved, and the first two tell of the rest.

        A gradient that is a product of two matrices is added to its parameter while it is made, and is never
        written down; `over`: into the parameter itself.
        """
        model = carry[descent.part]
        if rate is not None and sum(model[n].numel() // len(model[n]) for n in descent.names) < WORTH_MOVING:
            rate = None
        # Of what is consulted the strides too: a view that one layout allows another may not.
        held = list(leaves(carry))
        parts = ((k, n, t.shape, None if k == descent.part else t.stride()) for k, n, t in held)
        given = row_tensors(rows)
        key = (id(descent), whole, *parts, *((name, t.shape, t.dtype) for name, t in given.items()))
        self._asked[key] = self._asked.get(key, 0) + 1
        if rate is None and self._asked[key] < WORTH_TRACING:
            return gradients(descent, carry, buffers, rows, whole)
        how = None if rate is None else over
        inputs = [*buffers.values(), *(t for _, _, t in held), *given.values()]
        way = (key, how, *(t.stride() for t in carry[descent.part].values()))
        if way not in self._known:
            graph = self._trace(key, descent, carry, buffers, rows, whole)
            self._known[way] = _fitted(graph, descent, carry, inputs, len(buffers), how)
        traced = self._known[way]
        if traced is None:
            return gradients(descent, carry, buffers, rows, whole)
        with torch.no_grad():
            made = traced.run(*inputs) if rate is None else traced.run(*inputs, -rate)
        count = len(traced.moved)
        grads = dict(zip(traced.left, made[count:], strict=True))
        return {n: model[n] for n in grads}, grads, dict(zip(traced.moved, made[:count], strict=True))

    def _trace(self, key: Any, *given: Any) -> GraphModule | None:
        """The trace of a key, made if it is new; the oldest gives way where there are many."""
        if key not in self._made:
            while len(self._made) >= MOST_TRACES:
                oldest = next(iter(self._made))
                self._made.pop(oldest)
                self._known = {known: way for known, way in self._known.items() if known[0] != oldest}
            self._made[key] = _trace(*given)
        return self._made[key]


def row_tensors(rows: Rows) -> dict[str, Tensor]:
    """The tensors of a step's rows, flat and by name.

    >>> sorted(row_tensors((torch.ones(1), {"a": torch.ones(1)}, torch.ones(1), torch.ones(1))))
    ['row', 'weight', 'x', 'y.a']
    """
    x, y, row, weight, *key = rows
    named = {**named_leaves("x", x), **named_leaves("y", y), "row": row, "weight": weight}
    return {**named, **({"key": key[0]} if key else {})}


def _rows_like(rows: Rows, given: Sequence[Tensor]) -> Rows:
    """Tensors laid out flat as `row_tensors` gives them, put together again."""
    flat = iter(given)
    x, y = (map_rows(lambda _: next(flat), part) for part in rows[:2])
    return x, y, next(flat), next(flat), *flat


def _trace(descent: TrainStep, carry: Carry, buffers: Tree, rows: Rows, whole: bool) -> GraphModule | None:
    """The operations of one step on inputs laid out flat; None if the objective cannot be traced."""
    shape = [(key, name) for key, name, _ in leaves(carry)]

    def flat(*given: Tensor) -> list[Tensor]:
        mine = dict(zip(buffers, given, strict=False))
        held: Carry = {}
        for (key, name), t in zip(shape, given[len(buffers) :], strict=False):
            if name is None:
                held[key] = t
            else:
                held.setdefault(key, {})[name] = t
        last = _rows_like(rows, given[-len(row_tensors(rows)) :])
        return list(gradients(descent, held, mine, last, whole)[1].values())

    # On copies: buffers are written to on the way, and that must not count twice. What is trained is in order
    # after its first step, however it came.
    held = [
        t.clone(memory_format=torch.contiguous_format) if key == descent.part else clone_as_laid_out(t)
        for key, _, t in leaves(carry)
    ]
    given = [*(t.clone() for t in buffers.values()), *held, *row_tensors(rows).values()]
    try:
        made = make_fx(flat)(*given)
    except Exception:  # whatever a user's objective does that cannot be traced
        return None
    remove_noops(made.graph)
    keep_constants(made, given)
    made.recompile()
    return made


def _fitted(
    made: GraphModule | None,
    descent: TrainStep,
    carry: Carry,
    inputs: Sequence[Tensor],
    before: int,
    over: bool | None,
) -> Traced | None:
    """The traced operations with or without moves; None if they do not run on inputs of this layout.

    `before` inputs stand ahead of the carry.
    """
    if made is None:
        return None
    fitted, names, moved = copied(made), descent.names, list[int]()
    if over is not None:
        shape = [(key, name) for key, name, _ in leaves(carry)]
        places = [before + shape.index((descent.part, name)) for name in names]
        moved = move_by_products(fitted.graph, places, over)
        fitted.recompile()
    left = tuple(name for i, name in enumerate(names) if i not in moved)
    try:
        by_methods(fitted, [*inputs, *([] if over is None else [0.0])])
    except RuntimeError:
        return None
    return Traced(fitted.forward, tuple(names[i] for i in moved), left)


def move_by_products(graph: Graph, places: Sequence[int], over: bool) -> list[int]:
    """Let each gradient that is a product go straight into its parameter; the numbers of those parameters.

    `places` says which inputs the parameters are; the graph gives a gradient of each. Afterwards it takes,
    as its last input, what gradients are multiplied by, and gives the moved parameters, then the gradients
    that are left.
    """
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    params, grads = [inputs[i] for i in places], list(output.args[0])
    with graph.inserting_after(inputs[-1]):
        factor = graph.placeholder("factor")
    move = _aten.baddbmm_.default if over else _aten.baddbmm.default
    moved = {}
    for i, (param, grad) in enumerate(zip(params, grads, strict=True)):
        # One side of the product may be a parameter itself, which would have moved by then.
        if _only_product(grad, output) and not any(shown(side) in params for side in grad.args):
            # At the very end: whatever else reads the parameter has read it.
            with graph.inserting_before(output):
                moved[i] = graph.call_function(move, (param, *grad.args), {"alpha": factor})
    output.args = ([*moved.values(), *(grad for i, grad in enumerate(grads) if i not in moved)],)
    graph.eliminate_dead_code()
    return list(moved)


def _only_product(grad: Any, output: Node) -> bool:
    return isinstance(grad, Node) and grad.target == _aten.bmm.default and list(grad.users) == [output]


def warm() -> None:
    """Load what tracing needs, so that processes forked from this one have it."""
    make_fx(lambda t: t + 1)(torch.zeros(1))
