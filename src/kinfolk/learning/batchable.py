"""Whether a network can be batched over clients, what one step costs, and which layer stands in the way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.utils.flop_counter import FlopCounterMode

from kinfolk.learning.learner import Learner


def obstacle(learner: Learner, x: Tensor, y: Tensor) -> str:
    """Why vmap can not batch this network over clients, naming the layer; empty if it can.

    `x` and `y` are two rows.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(nn.Sequential(nn.Linear(2, 2), nn.Dropout()), find_loss("cross_entropy"), 2)
    >>> obstacle(learner, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))
    'layer 1 (Dropout) draws random numbers'
    """
    if learner.draws:
        kind = type(learner.module.get_submodule(learner.draws)).__name__
        return f"layer {learner.draws} ({kind}) draws random numbers"
    network = copy.deepcopy(learner.training_module)
    entered: list[str] = []
    for name, layer in network.named_modules():
        layer.register_forward_pre_hook(_note(entered, f"{name or 'the network'} ({type(layer).__name__})"))
    params, buffers = stack_module_state([network, copy.deepcopy(network)])

    def loss(params: dict[str, Tensor], buffers: dict[str, Tensor]) -> Tensor:
        out = functional_call(network, {**params, **buffers}, (x,))
        return learner.loss.row_loss(out, y).mean()

    try:
        with torch.enable_grad():
            losses = vmap(loss)(params, buffers)
            torch.autograd.grad(losses.sum(), list(params.values()), materialize_grads=True)
    except Exception as error:  # whatever a user's layer raises under vmap, the answer is the same
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        return f"layer {entered[-1] if entered else type(network).__name__}: {reason}"
    return ""


def _note(entered: list[str], name: str) -> Callable[[nn.Module, object], None]:
    def hook(layer: nn.Module, inputs: object) -> None:
        entered.append(name)

    return hook


@dataclass(frozen=True)
class Cost:
    """What one row costs in a forward pass, and the size of the network."""

    flops: int  # multiply and add count as two
    floats: int  # numbers that the layers put out
    parameters: int  # numbers in the tree, buffers included


def cost(learner: Learner, x: Tensor) -> Cost:
    """Count one forward pass of one row.

    >>> from kinfolk.learning.losses import find_loss
    >>> cost(Learner(nn.Linear(4, 3), find_loss("cross_entropy"), 3), torch.zeros(1, 4))
    Cost(flops=24, floats=3, parameters=15)
    """
    network = copy.deepcopy(learner.module).eval()
    made: list[int] = []
    for layer in network.modules():
        if not list(layer.children()):
            layer.register_forward_hook(
                lambda _, __, out: made.append(out.numel() if isinstance(out, Tensor) else 0)
            )
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        network(x[:1])
    numbers = sum(t.numel() for t in network.state_dict().values())
    return Cost(int(counter.get_total_flops()), sum(made), numbers)
