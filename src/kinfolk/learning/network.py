"""How a network is run: prepared once, then called with a tree of numbers in place of its own.

Rows that are several tensors go to the inputs of `forward` by their names; "0", "1", ... go by their places.
A network that has one input and knows none of the names takes all of them as one dict. Sequences that
were padded come with a mask, if `forward` asks for one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from kinfolk.errors import KinfolkError, near
from kinfolk.learning.dropout import dropping
from kinfolk.learning.norm import row_weights, without_padding
from kinfolk.types import LENGTHS, Rows, Tree

# What makes a network fit to be run for clients: it keeps its names, and gives the same up to rounding.
Prepare = Callable[[nn.Module], nn.Module]

# What `forward` may ask of padded sequences, made of their lengths [rows] and of what is real [rows, T].
# PyTorch's attention calls padding True, everybody else what is real.
_OF_PADDING: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "mask": lambda lengths, real: real,
    "attention_mask": lambda lengths, real: real,
    "key_padding_mask": lambda lengths, real: ~real,
    "lengths": lambda lengths, real: lengths,
}


def plain(network: nn.Module) -> nn.Module:
    """The network as it is, but for BatchNorm, which leaves padding out.

    >>> plain(nn.Sequential(nn.BatchNorm1d(2)))
    Sequential(
      (0): RowBatchNorm()
    )
    """
    return exchange_layers(network, without_padding)


class ReluPool2(nn.Module):
    """A ReLU and max-pooling by two."""

    def forward(self, x: Tensor) -> Tensor:
        """The larger of 0 and the largest of every two by two values of x [rows, channels, height, width]."""
        # Pooled first: the same numbers and gradients, and a quarter of them to cut off at 0.
        return F.relu(F.max_pool2d(x, 2))


class Wrapper(nn.Module):
    """A network of ours around one of the user's; whoever calls it gives it what the inner one takes."""

    @property
    def inner(self) -> nn.Module:
        """The network whose inputs are meant."""
        raise NotImplementedError


def innermost(network: nn.Module) -> nn.Module:
    """The user's own network, whatever is around it.

    >>> innermost(nn.ReLU())
    ReLU()
    """
    return innermost(network.inner) if isinstance(network, Wrapper) else network


class Inputs(NamedTuple):
    """What `forward` takes."""

    names: tuple[str, ...]  # of its inputs, in order
    needed: tuple[str, ...]  # those without a default
    any_name: bool  # it takes **others as well


def inputs_of(network: nn.Module) -> Inputs:
    """The inputs of a network.

    >>> inputs_of(nn.Bilinear(2, 3, 4))
    Inputs(names=('input1', 'input2'), needed=('input1', 'input2'), any_name=False)
    """
    forward = innermost(network).forward
    return _inputs(getattr(forward, "__func__", forward), hasattr(forward, "__self__"))


@lru_cache(maxsize=256)
def _inputs(forward: Callable[..., Any], bound: bool) -> Inputs:
    found = list(inspect.signature(forward).parameters.values())[bound:]
    named = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    needed = tuple(p.name for p in named if p.default is p.empty)
    return Inputs(tuple(p.name for p in named), needed, any(p.kind is p.VAR_KEYWORD for p in found))


def arguments(network: nn.Module, x: Rows) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What a network is called with for some rows: by place, and by name.

    >>> class Both(nn.Module):
    ...     def forward(self, text, mask): ...
    >>> arguments(Both(), {"0": torch.ones(1, 3), "0.lengths": torch.tensor([2])})
    ((tensor([[1., 1., 1.]]),), {'mask': tensor([[ True,  True, False]])})
    >>> arguments(Both(), {"txt": torch.ones(1), "mask": torch.ones(1)})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.x = 'txt': forward has no input of this name; did you mean 'text'?
    """
    if isinstance(x, Tensor):
        return (x,), {}
    given = {name: t for name, t in x.items() if not name.endswith(LENGTHS)}
    takes = inputs_of(network)
    placed = [name for name in given if name.isdecimal()]
    named = {name: t for name, t in given.items() if name not in placed}
    strange = [] if takes.any_name else [name for name in named if name not in takes.names]
    asked = _asked(x, set(takes.names) - set(named))
    if strange and len(strange) == len(given) and len(set(takes.needed) - set(asked)) == 1:
        return (given,), asked
    if strange:
        remedy = f"forward has no input of this name; {near(strange[0], takes.names)}"
        raise KinfolkError("data.x", strange[0], remedy)
    return tuple(given[name] for name in sorted(placed, key=int)), {**named, **asked}


def _asked(x: Mapping[str, Tensor], free: set[str]) -> dict[str, Tensor]:
    """Masks and lengths of padded sequences, those that `forward` has inputs for and nobody gave."""
    found: dict[str, Tensor] = {}
    padded = [name for name in x if name.endswith(LENGTHS)]
    for key in padded:
        name, lengths = key.removesuffix(LENGTHS), x[key]
        real = torch.arange(x[name].shape[1], device=lengths.device) < lengths[:, None]
        for word, make in _OF_PADDING.items():
            # Of several sequences each has its own, the first one's need no name before them.
            for called in (f"{name}_{word}", *([word] if key == padded[0] else [])):
                if called in free:
                    found[called] = make(lengths, real)
    return found


def call(
    network: nn.Module,
    tree: Tree,
    x: Rows,
    weight: Tensor | None = None,
    key: Tensor | None = None,
    output: str = "",
) -> Tensor:
    """The network's output with the numbers of a tree; `weight` [rows] is 0 for rows that are padding.

    With a `key` dropout follows from it. `output` names what is meant where a network gives an object that is
    no tensor.
    """
    placed, named = arguments(network, x)
    with row_weights(weight), dropping(key), _plain_attention():
        return tensor_out(functional_call(network, tree, placed, named), output)


def run(network: nn.Module, x: Rows, output: str = "") -> Tensor:
    """The network's output with the numbers that it holds.

    >>> run(nn.Identity(), torch.tensor([2.0]))
    tensor([2.])
    """
    placed, named = arguments(network, x)
    return tensor_out(network(*placed, **named), output)


def tensor_out(out: Any, output: str = "") -> Tensor:
    """The tensor of what a network gave: itself, or what stands under a name or at a place of an object.

    >>> tensor_out({"logits": torch.tensor([2.0]), "hidden": None}, "logits")
    tensor([2.])
    >>> tensor_out({"logits": torch.tensor([2.0])})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: model.output = '': the network gives a dict, no tensor; name one of: logits
    """
    if isinstance(out, Tensor):
        return out
    known = _fields(out)
    if output not in known:
        kind = f"the network gives a {type(out).__name__}, no tensor"
        remedy = f"{kind}; name one of: {', '.join(known)}" if known else f"{kind}, and none in it"
        raise KinfolkError("model.output", output, remedy)
    return known[output]


def _fields(out: Any) -> dict[str, Tensor]:
    """The tensors of an object by name or by place, however it holds them."""
    if isinstance(out, Mapping):
        held: Mapping[Any, Any] = out
    elif isinstance(out, Sequence) and not hasattr(out, "_fields"):
        held = dict(enumerate(out))
    else:
        held = out._asdict() if hasattr(out, "_fields") else getattr(out, "__dict__", {})
    return {str(name): value for name, value in held.items() if isinstance(value, Tensor)}


@contextmanager
def _plain_attention() -> Iterator[None]:
    """Within vmap attention is made of plain products.

    Fused kernels know no clients, and what vmap makes of them fails or goes over clients one by one.
    """
    if torch._C._functorch.maybe_current_level() is None:
        yield
        return
    # Not `sdpa_kernel`: it takes as long as a small layer.
    was = [is_on() for is_on, _ in _FUSED]
    for _, switch in _FUSED:
        switch(False)
    try:
        yield
    finally:
        for (_, switch), on in zip(_FUSED, was, strict=True):
            switch(on)


_CUDA: Any = torch.backends.cuda  # whose flags are those of other devices too
_FUSED = [
    (_CUDA.flash_sdp_enabled, _CUDA.enable_flash_sdp),
    (_CUDA.mem_efficient_sdp_enabled, _CUDA.enable_mem_efficient_sdp),
    (_CUDA.cudnn_sdp_enabled, _CUDA.enable_cudnn_sdp),
]


@contextmanager
def overheard(network: nn.Module, layer: str) -> Iterator[list[Tensor]]:
    """What a layer is given each time the network runs: one row of numbers for each row.

    >>> net = nn.Sequential(nn.ReLU(), nn.Linear(2, 3))
    >>> with overheard(net, "1") as heard:
    ...     _ = net(torch.tensor([[-1.0, 2.0]]))
    >>> heard
    [tensor([[0., 2.]])]
    """
    heard: list[Tensor] = []
    hook = network.get_submodule(layer).register_forward_pre_hook(
        lambda _, given: heard.append(given[0].flatten(1))
    )
    try:
        yield heard
    finally:
        hook.remove()


def exchange_layers(module: nn.Module, equal: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Replace every layer inside a module by what `equal` gives for it; names stay.

    A layer that stands in several places stays one layer.

    >>> exchange_layers(nn.Sequential(nn.ReLU()), lambda old: nn.Tanh() if isinstance(old, nn.ReLU) else old)
    Sequential(
      (0): Tanh()
    )
    """
    made: dict[nn.Module, nn.Module] = {}

    def fresh(old: nn.Module) -> nn.Module:
        if old not in made:
            made[old] = equal(old)
            for name, child in list(old._modules.items()):
                if child is not None:
                    setattr(old, name, fresh(child))
        return made[old]

    return fresh(module)
