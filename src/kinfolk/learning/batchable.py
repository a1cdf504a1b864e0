"""Whether a network can be batched over clients, what one step costs, and which layer stands in the way."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils.flop_counter import FlopCounterMode

from kinfolk.learning.dropout import dropping
from kinfolk.learning.learner import Learner
from kinfolk.learning.network import ReluPool2, call, run
from kinfolk.learning.norm import row_weights
from kinfolk.types import Rows, Tree, map_rows, row_count, row_leaves

# Operations of a layer in one step. On an H200 a ResNet18 with batches of 50 (8e9 a layer) trains faster
# client by client in lanes than many a call; MobileNetV2 (5e8) the other way round.
LARGE_LAYER = 2e9
# How vmap says that a layer draws.
_RANDOM = "randomness"


def obstacle(learner: Learner, x: Rows, y: Rows) -> str:
    """Why vmap cannot batch this network over clients, naming the layer; empty if it can.

    `x` and `y` are two rows.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(nn.Sequential(nn.Linear(2, 2), nn.AlphaDropout()), find_loss("cross_entropy"), 2)
    >>> obstacle(learner, torch.zeros(2, 2), torch.zeros(2, dtype=torch.int64))
    'layer 1 (AlphaDropout) draws random numbers'
    """
    network, kinds = copy.deepcopy(learner.training_module), _kinds(learner)
    inside: list[str] = []  # the layers that were entered and not left: the last one is where it failed
    for name, layer in network.named_modules():
        called = _called(name, kinds.get(name, type(layer).__name__))
        # Before hooks of the layer's own, which may be what fails.
        layer.register_forward_pre_hook(lambda _, __, called=called: inside.append(called), prepend=True)
        layer.register_forward_hook(lambda _, __, ___: inside.pop() and None)
    try:
        with warnings.catch_warnings(record=True) as heard:
            _slopes(learner, network, x, y)
    except Exception as error:  # whatever a user's layer raises under vmap, the answer is the same
        reason = (str(error).splitlines() or [type(error).__name__])[0].split(". ")[0][:120]
        where = inside[-1] if inside else _called("", kinds[""])
        return f"{where} draws random numbers" if _RANDOM in reason else f"{where}: {reason}"
    for one in heard:  # of what fails there is no more to say
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    return _otherwise(learner, network, x, y) or _mixing(learner, x)


def _slopes(learner: Learner, network: nn.Module, x: Rows, y: Rows, alone: bool = False) -> list[Tree]:
    """The gradients of two clients that share a call, each leaf [2, ...]; `alone`: and of each by itself."""
    names, held = learner.names, learner.first
    # Of two clients that were alike one might be taken for the other. What is frozen is the network's own.
    own = {n: t for n, t in network.state_dict().items() if n in held}
    states = {n: torch.stack([t, t * 1.25 if n in names else t]) for n, t in own.items()}
    for name in names:
        states[name].requires_grad_()
    keys = torch.tensor([1, 2], device=row_leaves(x)[0].device)
    each = [{n: t[i].detach().clone() for n, t in states.items()} for i in range(2)] if alone else []

    def loss(state: Tree, key: Tensor) -> Tensor:
        out = call(network, state, x, None, key, learner.output)
        return learner.loss.row_loss(out, y).mean()

    def slopes(total: Tensor, state: Tree) -> Tree:
        found = torch.autograd.grad(total, [state[n] for n in names], materialize_grads=True)
        return dict(zip(names, found, strict=True))

    with torch.enable_grad():
        made = [slopes(vmap(loss)(states, keys).sum(), states)]
        for state, key in zip(each, keys, strict=False):
            leaves = {n: t.requires_grad_(n in names) for n, t in state.items()}
            made.append(slopes(loss(leaves, key), leaves))
    return made


def _otherwise(learner: Learner, network: nn.Module, x: Rows, y: Rows) -> str:
    """The first layer whose gradient is another when clients share a call, or nothing.

    In doubles, since many layers make rounding large; a network that takes none is not asked.
    """
    x, y = (map_rows(lambda t: t.double() if t.is_floating_point() else t, rows) for rows in (x, y))
    try:
        together, *alone = _slopes(learner, copy.deepcopy(network).double(), x, y, alone=True)
    except Exception:  # as above
        return ""
    for name, both in together.items():
        for mine, own in zip(both, (one[name] for one in alone), strict=True):
            if (mine - own).nan_to_num().norm() > 1e-4 * own.nan_to_num().norm() + 1e-8:
                owner = name.rpartition(".")[0]
                called = _called(owner, _kinds(learner).get(owner, ""))
                return f"{called} has another gradient when clients share a call"
    return ""


def _kinds(learner: Learner) -> dict[str, str]:
    """The user's own names of the layers."""
    return {name: type(layer).__name__ for name, layer in learner.module.named_modules()}


def _called(name: str, kind: str) -> str:
    return f"layer {name} ({kind})" if name else f"the network ({kind})"


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
                return f"{name} lets one row of a batch change another"
    return ""


def _outputs(learner: Learner, x: Rows, weight: Tensor | None) -> list[tuple[str, Tensor]]:
    """What layers put out in training mode, in the order they are left, and then the buffers they hold."""
    network = copy.deepcopy(learner.training_module)
    made: list[tuple[str, Tensor]] = []

    def note(called: str) -> Callable[[nn.Module, object, object], None]:
        return lambda _, __, out: made.append((called, out)) if isinstance(out, Tensor) else None

    kinds = _kinds(learner)
    for name, layer in network.named_modules():
        layer.register_forward_hook(note(_called(name, kinds.get(name, type(layer).__name__))))
    key = torch.tensor(1, device=row_leaves(x)[0].device)
    with torch.no_grad(), row_weights(weight), dropping(key):
        run(network, x, learner.output)
    for path, buffer in network.named_buffers():
        owner = path.rpartition(".")[0]
        made.append((_called(owner, kinds.get(owner, "")), buffer.clone()[None]))
    return made


@dataclass(frozen=True)
class Cost:
    """What one row costs in a forward pass, and the size of the network."""

    flops: int  # multiply and add count as two
    floats: int  # numbers that the layers put out
    parameters: int  # numbers in the tree, buffers included; of a learner without what is frozen
    layers: int = 1  # calls of layers that have a matrix of weights
    lstm: bool = False  # has one, which on a CPU is one kernel for one network and many for several

    def large(self, rows: int) -> bool:
        """Whether a layer of one network, trained on so many rows at a time, nearly fills a GPU."""
        return 3 * self.flops * rows >= LARGE_LAYER * self.layers


def cost(of: Learner | nn.Module, x: Rows) -> Cost:
    """Count one forward pass of one row.

    >>> cost(nn.Linear(4, 3), torch.zeros(1, 4))
    Cost(flops=24, floats=3, parameters=15, layers=1, lstm=False)
    """
    network = copy.deepcopy(of.module if isinstance(of, Learner) else of).eval()
    made: list[int] = []
    products: list[nn.Module] = []

    def note(layer: nn.Module, given: object, out: object) -> None:
        made.append(_held(layer, out))
        if any(p.dim() > 1 for p in layer.parameters(recurse=False)):
            products.append(layer)

    for layer in network.modules():
        if not list(layer.children()) or isinstance(layer, nn.MultiheadAttention):
            layer.register_forward_hook(note)
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), _countable(), counter:
        run(network, map_rows(lambda t: t[:1], x), of.output if isinstance(of, Learner) else "")
    own = of.first if isinstance(of, Learner) else network.state_dict()
    numbers = sum(t.numel() for t in own.values())
    lstm = any(isinstance(layer, nn.LSTM) for layer in network.modules())
    return Cost(int(counter.get_total_flops()), sum(made), numbers, max(len(products), 1), lstm)


def _held(layer: nn.Module, out: object) -> int:
    """Numbers that a layer makes of one row and that its gradient needs."""
    first = out[0] if isinstance(out, tuple) and out else out
    if not isinstance(first, Tensor) or isinstance(layer, ReluPool2):
        return 0  # what is pooled right after it was made takes hardly any memory of its own
    if isinstance(layer, nn.RNNBase):  # the gates of each step, and the states
        return 8 * first.numel() * int(layer.num_layers)
    if isinstance(layer, nn.MultiheadAttention):  # where each place looks, and what it looks by
        places = first.numel() // int(layer.embed_dim)
        return 4 * first.numel() + 2 * int(layer.num_heads) * places**2
    return first.numel()


@contextmanager
def _countable() -> Iterator[None]:
    """Within: no layer is one operation of its own, whose products nobody counts."""
    fast, one_dnn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        torch._C._set_mkldnn_enabled(False)  # its public form warns of settings that are not touched
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch._C._set_mkldnn_enabled(one_dnn)
