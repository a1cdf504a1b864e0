"""A traced list of operations made shorter and quicker to call. Not a bit of its results changes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Graph, GraphModule, Interpreter, Node

_aten = torch.ops.aten
# Operations whose result has the shape of what they are given, but none of its numbers.
_MAKERS = {
    _aten.ones_like.default,
    _aten.zeros_like.default,
    _aten.full_like.default,
    _aten.new_zeros.default,
    _aten.new_ones.default,
    _aten.new_full.default,
    _aten.full.default,
    _aten.zeros.default,
    _aten.ones.default,
    _aten.arange.default,
    _aten.scalar_tensor.default,
}
# Numbers in a result that is kept rather than computed again in every step.
_MOST_KEPT = 1 << 16


def clone_as_laid_out(t: Tensor) -> Tensor:
    """A copy of the same layout: one tensor that stands for all clients still does."""
    return t[:1].clone().expand_as(t) if t.dim() and len(t) > 1 and t.stride(0) == 0 else t.clone()


def remove_noops(graph: Graph) -> None:
    """Leave out operations that give back what they were given."""
    for node in list(graph.nodes):
        same = node.target == _aten.detach.default or (
            node.target == _aten.permute.default and list(node.args[1]) == list(range(len(node.args[1])))
        )
        if same:
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)
    graph.eliminate_dead_code()


class _Watched(Interpreter):
    """Runs a list of operations and shows each with what it was given and what it gave."""

    def __init__(self, module: GraphModule, show: Callable[[Node, Any, Any, Any], None]) -> None:
        super().__init__(module)
        self.show = show

    def run_node(self, n: Node) -> Any:
        """One operation."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        given = super().run_node(n)
        self.show(n, args, kwargs, given)
        return given


def keep_constants(made: GraphModule, given: Sequence[Tensor]) -> None:
    """Work out once what depends on shapes alone: the slope of a mean, zeros to add to."""
    constant = _constants(made.graph)
    outside = {node: [u for u in node.users if u not in constant and u.op != "output"] for node in constant}
    values: dict[Node, Tensor] = {}

    def note(node: Node, args: Any, kwargs: Any, value: Any) -> None:
        if outside.get(node) and isinstance(value, Tensor) and value.numel() <= _MOST_KEPT:
            values[node] = value  # as it lies in memory: its layout may decide that of a result

    with torch.no_grad():
        _Watched(made, note).run(*(clone_as_laid_out(t) for t in given))
    for number, (node, value) in enumerate(values.items()):
        # A plain attribute: looking up a buffer of a module takes longer.
        setattr(made, f"kept{number}", value)
        with made.graph.inserting_before(node):
            kept = made.graph.create_node("get_attr", f"kept{number}")
        for user in outside[node]:
            user.replace_input_with(node, kept)
    made.graph.eliminate_dead_code()


def _constants(graph: Graph) -> set[Node]:
    """The operations that see shapes but no numbers of the inputs, and whose results nobody writes to."""
    ours = [node for node in graph.nodes if isinstance(node.target, OpOverload)]
    written = {shown(arg) for node in ours if node.target._schema.is_mutable for arg in node.all_input_nodes}
    constant: set[Node] = set()
    for node in ours:
        drawn = torch.Tag.nondeterministic_seeded in node.target.tags
        if node.target._schema.is_mutable or drawn or shown(node) in written:
            continue
        inputs = node.all_input_nodes
        if node.target in _MAKERS or (inputs and constant.issuperset(inputs)):
            constant.add(node)
    return constant


def copied(made: GraphModule) -> GraphModule:
    """A copy whose list can be changed; what was kept stays a plain attribute, and no tensor is copied."""
    new = copy.deepcopy(made, {id(t): t for t in (*made.parameters(), *made.buffers())})
    for name in [n for n in new._buffers if n.startswith("kept")]:
        new.__dict__[name] = new._buffers.pop(name)
    return new


def by_methods(made: GraphModule, given: Sequence[Any]) -> None:
    """Call operations by the methods of tensors, which takes half as long as by their full names.

    Each is tried on what is `given`; one that does not give the very same keeps its name.
    """
    swaps: dict[Node, Callable[..., Any] | str] = {}

    def tried(node: Node, args: Any, kwargs: Any, value: Any) -> None:
        short = _shorter(node.target, args, kwargs, value)
        if short is not None:
            swaps[node] = short

    with torch.no_grad():
        _Watched(made, tried).run(*(clone_as_laid_out(t) if isinstance(t, Tensor) else t for t in given))
    for node, short in swaps.items():
        with made.graph.inserting_before(node):
            call = made.graph.call_method if isinstance(short, str) else made.graph.call_function
            new = call(short, node.args, node.kwargs)  # type: ignore[arg-type]
        node.replace_all_uses_with(new)
        made.graph.erase_node(node)
    made.recompile()


def _shorter(target: Any, args: Any, kwargs: Any, value: Any) -> Callable[..., Any] | str | None:
    """The name of a method, or a function, that gives the very same `value`, if there is one."""
    if not isinstance(target, OpOverload) or target._schema.is_mutable or not isinstance(value, Tensor):
        return None
    name = target._schema.name.split("::")[1]
    # As a method, `where` has its arguments in another order, which one trial may not show.
    method = name != "where" and hasattr(Tensor, name) and args and isinstance(args[0], Tensor)
    short: Callable[..., Any] | None = getattr(Tensor if method else torch, name, None)
    try:
        other = short(*args, **kwargs) if short is not None else None
    except (TypeError, RuntimeError):
        return None
    same = (
        isinstance(other, Tensor)
        and (other.stride(), other.dtype) == (value.stride(), value.dtype)
        and torch.equal(other.nan_to_num(), value.nan_to_num())
    )
    return (name if method else short) if same else None


def shown(node: Any) -> Any:
    """The node in whose memory this one lies, if it is a view."""
    while isinstance(node, Node) and node.op == "call_function" and _is_view(node.target):
        node = node.args[0]
    return node


def _is_view(target: Any) -> bool:
    if not isinstance(target, OpOverload):
        return True  # one of several results
    return target == _aten._unsafe_view.default or any(r.alias_info for r in target._schema.returns)
