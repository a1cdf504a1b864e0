"""A learner: one network, its loss and how a client trains it. It knows nothing of other clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from kinfolk.learning import conv, linear, metrics
from kinfolk.learning.layers import exchange_layers
from kinfolk.learning.losses import Loss
from kinfolk.learning.norm import RowBatchNorm, has_batch_norm, in_any_order, row_weights, without_padding
from kinfolk.learning.optim import SGD
from kinfolk.learning.pool import fast_pool, join_relu_and_pool
from kinfolk.task import (
    Batch,
    Carry,
    ClientInfo,
    Expected,
    Fit,
    Objective,
    Optimiser,
    Plan,
    Scan,
    Task,
    TrainStep,
)
from kinfolk.types import Message, Tree

Start = Callable[[Message, Message, ClientInfo], Carry]
Finish = Callable[[Carry], tuple[Message, Message | None]]


def received_model(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    """Start from the model that was sent."""
    return {"model": message["model"]}


def own_model(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    """Start from the model that was kept."""
    return {"model": memory["model"]}


def reply_model(carry: Carry) -> tuple[Message, None]:
    """Send the trained model; keep nothing new."""
    return {"model": carry["model"]}, None


def keep_model(carry: Carry) -> tuple[Message, Message]:
    """Keep the trained model; send nothing."""
    return {}, {"model": carry["model"]}


@dataclass(frozen=True)
class Learner:
    """A network as pure functions of its tree of parameters and buffers.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> learner.names, learner.apply(learner.first, torch.zeros(4, 2)).shape
    (('weight', 'bias'), torch.Size([4, 3]))
    """

    module: nn.Module
    loss: Loss
    outputs: int
    optimiser: Optimiser = field(default_factory=SGD)
    plan: Plan = field(default_factory=lambda: Plan(batch=20))
    lr: float = 0.1
    decay: float = 1.0
    clip: float = 0.0
    tune_lr: float = 0.0  # the learning rate of fine-tuning; 0: that of the round
    score_split: str = "test"
    score_batch: int = 256
    half: bool = False  # products in bfloat16; parameters, gradients, norms and losses stay float32
    in_order: bool = False  # what convolutions give lies in memory as usual, not as is fastest

    # One copy of the network in each mode, since switching modes walks the whole network.
    _training: nn.Module = field(init=False, repr=False)
    _scoring: nn.Module = field(init=False, repr=False)
    _constants: Tree = field(init=False, repr=False)
    _coarse: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        plain = exchange_layers(copy.deepcopy(self.module), _for_many)
        for layer in plain.modules():
            if isinstance(layer, conv.ClientConv2d):
                layer.in_order = self.in_order
        object.__setattr__(self, "_training", plain.train())
        object.__setattr__(self, "_scoring", copy.deepcopy(plain).eval())
        known = plain.state_dict()
        constants = {name: b for name, b in plain.named_buffers() if name not in known}
        object.__setattr__(self, "_constants", constants)
        object.__setattr__(self, "_coarse", frozenset(_products(plain)) if self.half else frozenset())
        if has_batch_norm(self.module):
            object.__setattr__(self, "plan", replace(self.plan, drop_single=True))

    @property
    def first(self) -> Tree:
        """The module's own weights and buffers: the common initial model.

        A tensor that the module holds under several names (tied weights) stands under the first of them.
        """
        state = self.module.state_dict(keep_vars=True)
        names = {id(t): name for name, t in reversed(state.items())}
        return {name: t.detach().clone() for name, t in state.items() if names[id(t)] == name}

    @property
    def names(self) -> tuple[str, ...]:
        """The trainable entries; the others are buffers."""
        return tuple(name for name, p in self.module.named_parameters() if p.requires_grad)

    @property
    def draws(self) -> str:
        """The name of a layer that draws random numbers in training, or nothing."""
        for name, m in self.module.named_modules():
            if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0:
                return name or type(m).__name__
        return ""

    def for_rows(self, x: Tensor) -> Learner:
        """This learner, or one `in_order` if the network can not do with the layouts that are fastest.

        A `view` of what a convolution gives takes the usual one for granted.

        >>> from kinfolk.learning.losses import find_loss
        >>> class View(nn.Module):
        ...     def forward(self, x):
        ...         return x.view(len(x), -1)
        >>> for last in (nn.Flatten(), View()):
        ...     learner = Learner(nn.Sequential(nn.Conv2d(3, 2, 3), last), find_loss("cross_entropy"), 8)
        ...     learner.for_rows(torch.zeros(2, 3, 4, 4)).in_order
        False
        True
        """
        try:
            with torch.no_grad():
                self.apply(self.first, x)
        except RuntimeError as problem:
            if "view size is not compatible" in str(problem):
                return replace(self, in_order=True)
        return self

    @property
    def training_module(self) -> nn.Module:
        """The network in training mode, as `objective` runs it."""
        return self._training

    def apply(self, model: Tree, x: Tensor) -> Tensor:
        """The network's output in scoring mode (BatchNorm by its running statistics)."""
        return self._call(self._scoring, model, x)

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """The mean loss of a batch in training mode; BatchNorm's buffers in `model` are updated."""
        with row_weights(batch.weight):
            out = self._call(self._training, model, batch.x)
        return batch.mean(self.loss.row_loss(out, batch.y))

    def _call(self, network: nn.Module, model: Tree, x: Tensor) -> Tensor:
        # Buffers outside of the state (a mask, say) do not travel, but must be where the rows are.
        here = {name: b.to(x.device) for name, b in self._constants.items()}
        if self._coarse:
            model = {n: t.bfloat16() if n in self._coarse else t for n, t in model.items()}
            x = x.bfloat16()
        out: Tensor = functional_call(network, {**here, **model}, (x,))
        return out.float() if self._coarse else out

    def params(self, model: Tree) -> Tree:
        """The trainable part of a model: what distances and penalties are about."""
        return {name: model[name] for name in self.names}

    @property
    def head(self) -> tuple[str, ...]:
        """The trainable parameters of the last layer; none if the network has no layer called `head`."""
        return tuple(name for name in self.names if name.startswith("head."))

    def descent(self, objective: Objective | None = None) -> TrainStep:
        """How this learner moves its model along an objective (its own mean loss by default)."""
        return TrainStep(
            objective or self.objective, self.optimiser, self.names, self.lr, self.decay, clip=self.clip
        )

    def train(
        self,
        objective: Objective | None = None,
        start: Start = received_model,
        finish: Finish = reply_model,
        reply: Expected | None = None,
    ) -> Task:
        """A task: start, train by the learner's plan, finish."""
        expected = {"model": self.first} if reply is None else reply
        return Task(start, finish, (Fit((self.descent(objective),), self.plan),), expected)

    def tuning(self, epochs: int) -> Fit:
        """Some plain epochs on the client's own rows, at a rate of their own if there is one."""
        plan, descent = replace(self.plan, epochs=epochs, steps=0), self.descent()
        own = replace(descent, lr=self.tune_lr, decay=1.0) if self.tune_lr else descent
        return Fit((own,), plan)

    def score(
        self,
        start: Start = received_model,
        tune: Fit | None = None,
        stream: str = "tune",
        by_class: bool = True,
    ) -> Task:
        """A task that scores a model on the client's rows, after some training if any is given.

        Without `by_class` the reply has no counts by class, which would tell what labels the client has.
        """

        classes = self.outputs if self.loss.classification else 0

        def begin(message: Message, memory: Message, facts: ClientInfo) -> Carry:
            return {**start(message, memory, facts), "tally": metrics.blank(classes, facts.rows.device)}

        def count(carry: Carry, batch: Batch) -> Carry:
            # BatchNorm without running statistics normalises by the batch in scoring too.
            with row_weights(batch.weight):
                out = self.apply(carry["model"], batch.x)
            tally = metrics.count(carry["tally"], out, batch, self.loss.row_loss(out, batch.y))
            return {**carry, "tally": tally}

        plan = Plan(self.score_batch, shuffle=False, split=self.score_split)
        told = _tally if by_class else _tally_without_classes
        expected = told({"tally": metrics.blank(classes, torch.device("cpu"))})[0]
        passes = (*((tune,) if tune else ()), Scan(count, plan))
        common = start is received_model and tune is None
        return Task(begin, told, passes, expected, stream=stream, common=common)


def _products(module: nn.Module) -> Iterator[str]:
    """The parameters of all layers but BatchNorm, whose statistics need every digit."""
    for path, layer in module.named_modules():
        if not isinstance(layer, RowBatchNorm):
            yield from (
                f"{path}.{name}" if path else name for name, _ in layer.named_parameters(recurse=False)
            )


def _for_many(layer: nn.Module) -> nn.Module:
    """The layer, or its equal for many clients in one call."""
    normed = in_any_order(without_padding(layer))
    return linear.for_clients(conv.for_clients(fast_pool(join_relu_and_pool(normed))))


def _tally(carry: Carry) -> tuple[Message, None]:
    return carry["tally"], None


def _tally_without_classes(carry: Carry) -> tuple[Message, None]:
    return metrics.without_classes(carry["tally"]), None
