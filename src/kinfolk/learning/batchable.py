"""Whether a network can be batched over clients, what one step costs, and which layer stands in the way."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode

from kinfolk.learning.learner import Learner
from kinfolk.learning.network import ReluPool2, call, run
from kinfolk.learning.norm import row_weights
from kinfolk.types import Rows, Tree, map_rows, row_count, row_leaves

# Operations of a layer in one step. On an H200 a ResNet18 with batches of 50 (8e9 a layer) trains faster
# client by client in lanes than many a call; MobileNetV2 (5e8) the other way round.
LARGE_LAYER = 2e9


def obstacle(learner: Learner, x: Rows, y: Rows) -> str:
    """Why vmap cannot batch this network over clients, naming the layer; empty if it can.

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
    inside: list[str] = []  # the layers that were entered and not left: the last one is where it failed
    for name, layer in network.named_modules():
        called = _called(name, layer)
        layer.register_forward_pre_hook(lambda _, __, called=called: inside.append(called))
        layer.register_forward_hook(lambda _, __, ___: inside.pop() and None)
    # Two clients. What is frozen is the network's own, one for both.
    model = {name: torch.stack([t, t]) for name, t in learner.first.items()}
    trained = [model[name].requires_grad_() for name in learner.names]

    def loss(model: Tree) -> Tensor:
        out = call(network, model, x, output=learner.output)
        return learner.loss.row_loss(out, y).mean()

    try:
        with torch.enable_grad():
            losses = vmap(loss)(model)
            torch.autograd.grad(losses.sum(), trained, materialize_grads=True)
    except Exception as error:  # whatever a user's layer raises under vmap, the answer is the same
        reason = (str(error).splitlines() or [type(error).__name__])[0][:120]
        return f"layer {inside[-1] if inside else _called('', network)}: {reason}"
    mixing = _mixing(learner, x)
    return f"layer {mixing} lets one row of a batch change another" if mixing else ""


def _called(name: str, layer: nn.Module) -> str:
    return f"{name or 'the network'} ({type(layer).__name__})"


def _mixing(learner: Learner, x: Rows) -> str:
    """The first layer in which a row of padding changes the real rows or a buffer, or nothing.

    Padding carries weight 0, which our own BatchNorm obeys; any other layer that looks across rows
    would let it in.
    """
    if all(torch.equal(t[0], t[1]) for t in row_leaves(x)):  # rows that are alike tell nothing
        return ""
    alone = _outputs(learner, x, None)
    real = torch.ones(row_count(x) + 1, device=row_leaves(x)[0].device)
    real[-1] = 0
    joined = _outputs(learner, map_rows(lambda t: torch.cat([t, t[:1]]), x), real)
    for (name, a), (_, b) in zip(alone, joined, strict=False):
        if a.shape[1:] == b.shape[1:] and a.numel() and a.is_floating_point():
            apart = (a - b[: len(a)]).abs().max()
            if apart > 1e-4 + 1e-3 * a.abs().max():
                return name
    return ""


def _outputs(learner: Learner, x: Rows, weight: Tensor | None) -> list[tuple[str, Tensor]]:
    """What layers put out in training mode, in the order they are left, and then the buffers they hold."""
    network = copy.deepcopy(learner.training_module)
    made: list[tuple[str, Tensor]] = []

    def note(called: str) -> Callable[[nn.Module, object, object], None]:
        return lambda _, __, out: made.append((called, out)) if isinstance(out, Tensor) else None

    layers = dict(network.named_modules())
    for name, layer in layers.items():
        layer.register_forward_hook(note(_called(name, layer)))
    with torch.no_grad(), row_weights(weight):
        run(network, x, learner.output)
    for path, buffer in network.named_buffers():
        owner = path.rpartition(".")[0]
        made.append((_called(owner, layers[owner]), buffer.clone()[None]))
    return made


@dataclass(frozen=True)
class Cost:
    """What one row costs in a forward pass, and the size of the network."""

    flops: int  # multiply and add count as two
    floats: int  # numbers that the layers put out
    parameters: int  # numbers in the tree, buffers included; of a learner without what is frozen
    layers: int = 1  # calls of layers that have a matrix of weights

    def large(self, rows: int) -> bool:
        """Whether a layer of one network, trained on so many rows at a time, nearly fills a GPU."""
        return 3 * self.flops * rows >= LARGE_LAYER * self.layers


def cost(of: Learner | nn.Module, x: Rows) -> Cost:
    """Count one forward pass of one row.

    >>> cost(nn.Linear(4, 3), torch.zeros(1, 4))
    Cost(flops=24, floats=3, parameters=15, layers=1)
    """
    network = copy.deepcopy(of.module if isinstance(of, Learner) else of).eval()
    made: list[int] = []
    products: list[nn.Module] = []

    def note(layer: nn.Module, given: object, out: object) -> None:
        # What is pooled right after it was made takes hardly any memory of its own.
        made.append(out.numel() if isinstance(out, Tensor) and not isinstance(layer, ReluPool2) else 0)
        if any(p.dim() > 1 for p in layer.parameters(recurse=False)):
            products.append(layer)

    for layer in network.modules():
        if not list(layer.children()):
            layer.register_forward_hook(note)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        run(network, map_rows(lambda t: t[:1], x), of.output if isinstance(of, Learner) else "")
    own = of.first if isinstance(of, Learner) else network.state_dict()
    numbers = sum(t.numel() for t in own.values())
    return Cost(int(counter.get_total_flops()), sum(made), numbers, max(len(products), 1))
