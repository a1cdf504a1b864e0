"""A network as a chain of layers, so that its hidden units can be put into another order.

Whoever reorders the units of a layer must reorder its rows, what normalises it, and the inputs of the
next layer. That is all only in a chain: the network is traced, and a branch, a sum of two paths or a module
whose handling of units is not known is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NoReturn

from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm

from kinfolk.errors import KinfolkError
from kinfolk.learning.network import ReluPool2

# Activations, pools and the like, which treat every unit alike and keep their order: as modules, and as
# functions and methods; `flatten` makes blocks of units.
EVEN_MODULES = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Tanh, nn.Sigmoid, nn.Softplus),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, nn.Flatten),
    *(nn.Hardtanh, nn.Dropout, nn.Dropout2d, nn.Identity, nn.Softmax, nn.LogSoftmax, ReluPool2),
)
EVEN = {
    *("relu", "relu_", "relu6", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid", "softplus"),
    *("max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "pad", "flatten"),
    *("hardtanh", "dropout", "dropout2d", "softmax", "log_softmax"),
    *("reshape", "view", "squeeze", "mean", "contiguous", "float"),
}


@dataclass(frozen=True)
class Layer:
    """One linear or convolution layer, by the names of its leaves."""

    weight: str  # [units, inputs, ...]
    bias: str | None
    carried: tuple[str, ...]  # leaves [units] of the norms that follow
    block: int  # neighbouring inputs that belong to one unit of the layer before: height * width, or 1

    def leaves(self) -> tuple[str, ...]:
        """Every leaf whose first axis is the layer's units."""
        return (self.weight, *([self.bias] if self.bias else []), *self.carried)


@dataclass(frozen=True)
class Chain:
    """The layers of a network in the order in which they are called; the last one is the output."""

    layers: tuple[Layer, ...]

    def after(self, layer: int) -> tuple[str, ...]:
        """The leaves of all later layers: what clients train on while `layer` and those below are frozen."""
        return tuple(name for later in self.layers[layer + 1 :] for name in later.leaves())


def chain_of(network: nn.Module) -> Chain:
    """The chain of a network of linear and convolution layers, norms, pools and activations.

    >>> net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 2))
    >>> [(layer.weight, layer.block) for layer in chain_of(net).layers]
    [('0.weight', 1), ('4.weight', 9)]
    """
    _known(network)
    layers: list[Layer] = []
    units, flat = 0, True  # of the latest layer; whether it was a linear one
    for name, module in _calls(network):
        prefix = f"{name}." if name else ""
        if isinstance(module, nn.Linear | nn.Conv2d):
            block = _block(name, module, units, flat)
            bias = f"{prefix}bias" if module.bias is not None else None
            layers.append(Layer(f"{prefix}weight", bias, (), block))
            units, flat = module.weight.shape[0], isinstance(module, nn.Linear)
        elif (carried := _norm_leaves(name, module, units)) and layers:
            layers[-1] = replace(layers[-1], carried=(*layers[-1].carried, *carried))
    if not layers:
        _refuse("", network, "there is no linear or convolution layer in it")
    return Chain(tuple(layers))


def _known(network: nn.Module) -> None:
    """Refuse a module with weights of its own that is neither a layer nor a norm, by its own name.

    Before the trace, which would stumble inside an attention and blame the network around it.
    """
    for name, module in network.named_modules():
        weights = next(module.parameters(recurse=False), None) is not None
        if weights and not isinstance(module, nn.Linear | nn.Conv2d) and not _is_norm(module):
            _refuse(name, module, "its handling of units is not known")


def _calls(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The modules in the order in which a single path leads through them."""
    if isinstance(network, nn.Linear | nn.Conv2d):
        yield "", network
        return
    current: fx.Node | None = None
    shapes: set[fx.Node] = set()
    seen: set[str] = set()
    for node in _traced(network).nodes:
        if _is_shape(node, shapes):
            shapes.add(node)
            continue
        inputs = [n for n in node.all_input_nodes if n not in shapes]
        if inputs != ([] if node.op == "placeholder" else [current]) or (
            node.op == "placeholder" and current
        ):
            _refuse(*_owner(node, network), "it joins or branches; give a network that is one chain")
        if node.op == "call_module":
            name, module = str(node.target), network.get_submodule(str(node.target))
            if not isinstance(module, EVEN_MODULES):
                if name in seen:
                    _refuse(name, module, "it is called twice")
                seen.add(name)
                yield name, module
        elif node.op not in ("placeholder", "output") and _word(node) not in EVEN:
            _refuse(
                *_owner(node, network), f"it calls {_word(node)!r}, which is not known to keep units apart"
            )
        current = node


def _traced(network: nn.Module) -> fx.Graph:
    tracer = fx.Tracer()
    # Norms of the project's own have no children either: they are looked at, not into.
    childless = lambda module, name: next(module.children(), None) is None  # noqa: E731
    tracer.is_leaf_module = childless  # type: ignore[method-assign]
    try:
        return tracer.trace(network)
    except Exception as error:  # a network of the user's own can fail in any way
        _refuse("", network, f"its forward cannot be traced ({type(error).__name__})")


def _is_shape(node: fx.Node, shapes: set[fx.Node]) -> bool:
    """Whether a node speaks of shapes only, such as x.shape[0]."""
    if node.op not in ("call_function", "call_method"):
        return False
    asks = _word(node) in ("size", "dim") or (_word(node) == "getattr" and node.args[1] in ("shape", "ndim"))
    inputs = node.all_input_nodes
    return asks or (bool(inputs) and all(n in shapes for n in inputs))


def _word(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else str(getattr(node.target, "__name__", node.target))


def _owner(node: fx.Node, network: nn.Module) -> tuple[str, nn.Module]:
    """The innermost module whose forward made this node."""
    names = list(node.meta.get("nn_module_stack") or {})
    names = names[:-1] if node.op == "call_module" else names
    return (names[-1], network.get_submodule(names[-1])) if names else ("", network)


def _block(name: str, module: nn.Linear | nn.Conv2d, units: int, flat: bool) -> int:
    """Inputs per unit of the layer before."""
    if isinstance(module, nn.Conv2d) and module.groups != 1:
        _refuse(name, module, "its inputs fall into groups")
    inputs = module.weight.shape[1]
    if not units:
        return 1
    if inputs % units or (inputs != units and (flat or isinstance(module, nn.Conv2d))):
        _refuse(name, module, f"it has {inputs} inputs after a layer of {units} units")
    return inputs // units


def _norm_leaves(name: str, module: nn.Module, units: int) -> tuple[str, ...]:
    """The leaves of a norm, one number per unit; an error for anything that is no such norm."""
    if not _is_norm(module):
        _refuse(name, module, "its handling of units is not known")
    own = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    found = {leaf: value for leaf, value in own if value.dim()}
    if units and any(value.shape != (units,) for value in found.values()):
        _refuse(name, module, f"it does not have one number for each of the {units} units before it")
    return tuple(f"{name}.{leaf}" for leaf in found)


def _is_norm(module: nn.Module) -> bool:
    batch = isinstance(module, _BatchNorm) or {"running_mean", "running_var"} <= set(module._buffers)
    group = isinstance(module, nn.GroupNorm) and module.num_groups in (1, module.num_channels)
    return batch or group or isinstance(module, nn.LayerNorm)


def _refuse(name: str, module: nn.Module, why: str) -> NoReturn:
    shown = f"{name} ({type(module).__name__})" if name else type(module).__name__
    raise KinfolkError("network", shown, f"units cannot be matched: {why}")
