"""Gradients on a CPU as a straight list of operations: traced once, then run without vmap or autograd.

For a small network most of a step goes into Python: vmap, the module tree, the autograd tape. Traced,
the same operations run in the same order on the same numbers, so the result has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from kinfolk.engines.steps import Rows, gradients
from kinfolk.task import Carry, Descent
from kinfolk.types import Tree, leaves

# A trace costs about as much as this many steps; a network that trains less is not worth one.
WORTH_TRACING = 8
MOST_TRACES = 32

_aten = torch.ops.aten


class Traces:
    """Traced gradients by descent and shapes. What can not be traced is computed as it always was."""

    def __init__(self) -> None:
        self._asked: dict[Any, int] = {}
        self._known: dict[Any, Callable[..., list[Tensor]] | None] = {}

    def gradients(
        self, descent: Descent, carry: Carry, buffers: Tree, rows: Rows, whole: bool
    ) -> tuple[Tree, Tree]:
        """As `steps.gradients`."""
        # Strides too: a view that one layout allows another may not.
        parts = ((k, n, t.shape, t.stride()) for k, n, t in leaves(carry))
        key = (id(descent), whole, *parts, *(t.shape for t in rows))
        self._asked[key] = self._asked.get(key, 0) + 1
        if self._asked[key] < WORTH_TRACING:
            return gradients(descent, carry, buffers, rows, whole)
        inputs = [*buffers.values(), *(t for _, _, t in leaves(carry)), *rows]
        if key not in self._known:
            while len(self._known) >= MOST_TRACES:
                self._known.pop(next(iter(self._known)))
            self._known[key] = _trace(descent, carry, buffers, inputs, whole)
        run = self._known[key]
        if run is None:
            return gradients(descent, carry, buffers, rows, whole)
        with torch.no_grad():
            grads = run(*inputs)
        model = carry[descent.part]
        return {n: model[n] for n in descent.names}, dict(zip(descent.names, grads, strict=True))


def _trace(
    descent: Descent, carry: Carry, buffers: Tree, inputs: Sequence[Tensor], whole: bool
) -> Callable[..., list[Tensor]] | None:
    """A function of the inputs, laid out flat; None if the objective can not be traced."""
    shape = [(key, name) for key, name, _ in leaves(carry)]

    def flat(*given: Tensor) -> list[Tensor]:
        mine = dict(zip(buffers, given, strict=False))
        held: Carry = {}
        for (key, name), t in zip(shape, given[len(buffers) :], strict=False):
            if name is None:
                held[key] = t
            else:
                held.setdefault(key, {})[name] = t
        x, y, row, weight = given[-4:]
        _, grads = gradients(descent, held, mine, (x, y, row, weight), whole)
        return list(grads.values())

    try:
        # On copies: buffers are written to on the way, and that must not count twice.
        graph = make_fx(flat)(*(_alike(t) for t in inputs))
    except Exception:  # whatever a user's objective does that can not be traced
        return None
    return _without_idling(graph)


def _alike(t: Tensor) -> Tensor:
    """A copy of the same layout: one tensor that stands for all clients still does."""
    return t[:1].clone().expand_as(t) if t.dim() and len(t) > 1 and t.stride(0) == 0 else t.clone()


def _without_idling(graph: GraphModule) -> Callable[..., list[Tensor]]:
    """Leave out operations that give back what they were given."""
    for node in list(graph.graph.nodes):
        same = node.target == _aten.detach.default or (
            node.target == _aten.permute.default and list(node.args[1]) == list(range(len(node.args[1])))
        )
        if same:
            node.replace_all_uses_with(node.args[0])
            graph.graph.erase_node(node)
    graph.graph.eliminate_dead_code()
    graph.recompile()
    forward: Callable[..., list[Tensor]] = graph.forward
    return forward


def warm() -> None:
    """Load what tracing needs, so that processes forked from this one have it."""
    make_fx(lambda t: t + 1)(torch.zeros(1))
