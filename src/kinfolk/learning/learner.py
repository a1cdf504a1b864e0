"""A learner: one network, its loss and how a client trains it. It knows nothing of other clients."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from kinfolk.learning.dropout import has_dropout
from kinfolk.learning.freezing import frozen_names, frozen_parts
from kinfolk.learning.losses import Loss
from kinfolk.learning.metrics import without_classes
from kinfolk.learning.network import Prepare, call, overheard, plain
from kinfolk.learning.norm import RowBatchNorm, has_batch_norm
from kinfolk.learning.optim import SGD
from kinfolk.learning.row_metrics import Metric, Scoring
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
    Schedule,
    Task,
    TrainStep,
)
from kinfolk.types import Message, Rows, Tree, map_rows, plain_rows, row_leaves, tree_of

Start = Callable[[Message, Message, ClientInfo], Carry]
Finish = Callable[[Carry], tuple[Message, Message | None]]


def received_model(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    """Start from the model that was sent."""
    return {"model": tree_of(message, "model")}


def own_model(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    """Start from the model that was kept."""
    return {"model": tree_of(memory, "model")}


def reply_model(carry: Carry) -> tuple[Message, None]:
    """Send the trained model; keep nothing new."""
    return {"model": carry["model"]}, None


def keep_model(carry: Carry) -> tuple[Message, Message]:
    """Keep the trained model; send nothing."""
    return {}, {"model": carry["model"]}


@dataclass(frozen=True)
class ScoreTask(Task):
    """A task whose last pass scores a model; whoever wants the model itself ends it before that."""

    # The plain network that the model belongs to, made anew by each call.
    network: Callable[[], nn.Module] | None = None
    # Where the model is when the last pass begins.
    model: Callable[[Carry], Tree] = lambda carry: tree_of(carry, "model")

    def giving(self) -> Task:
        """The same task, ended before it scores: its reply is the model, to the bit the one that is scored.

        >>> from kinfolk.learning.losses import find_loss
        >>> task = Learner(nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3).score()
        >>> len(task.passes), len(task.giving().passes)
        (1, 0)
        """
        return Task(self.start, self._give, self.passes[:-1], stream=self.stream)

    def _give(self, carry: Carry) -> tuple[Message, None]:
        return {"model": self.model(carry)}, None

    def on(self, split: str) -> ScoreTask:
        """The same task on the rows of another split.

        >>> from kinfolk.learning.losses import find_loss
        >>> Learner(nn.Linear(2, 3), find_loss("cross_entropy"), 3).score().on("valid").passes[-1].plan.split
        'valid'
        """
        last = self.passes[-1]
        rows = replace(last, plan=replace(last.plan, split=split))
        return replace(self, passes=(*self.passes[:-1], rows))


@dataclass(frozen=True)
class Learner:
    """A network as pure functions of its tree of parameters and buffers.

    >>> import torch
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
    tune_epochs: int = 0  # epochs of fine-tuning; 0: what the method asks for
    score_split: str = "test"
    by_class: bool = True  # whether clients may tell counts by class when they are scored
    score_batch: int = 256
    metrics: tuple[Metric, ...] = ()  # what is scored besides
    score_rows: int = (
        0  # most rows of a client that are scored, and what a row's outputs and targets are like:
    )
    score_like: Mapping[str, Tensor] = field(default_factory=dict)  # only for metrics that need all rows
    by_round: Callable[[int], float] | None = None  # schedules: see TrainStep
    by_step: Schedule | None = None
    output: str = ""  # what is meant of an object that the network gives in place of a tensor
    half: bool = False  # products in bfloat16; parameters, gradients, norms and losses stay float32
    draws: bool = False  # the network itself calls dropout in training; of its layers it is known
    prepare: Prepare = plain  # whoever runs many clients may have layers that are faster
    # Mean and deviation of standardised targets, by output: scores are in the targets' own units.
    units: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    # One copy of the network in each mode, since switching modes walks the whole network.
    _training: nn.Module = field(init=False, repr=False)
    _scoring: nn.Module = field(init=False, repr=False)
    _frozen: frozenset[str] = field(init=False, repr=False)
    _coarse: frozenset[str] = field(init=False, repr=False)
    # Both copies by device: what does not travel lies there, once for both and for all clients.
    _placed: dict[torch.device, tuple[nn.Module, nn.Module]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_frozen", frozen_names(self.module))
        # What is frozen is never written to: all copies of the network hold the same tensors.
        ready = self.prepare(copy.deepcopy(self.module, _same(self._state(frozen=True))))
        object.__setattr__(self, "_training", ready.train())
        object.__setattr__(self, "_scoring", copy.deepcopy(ready, _same(self._constants())).eval())
        for part in frozen_parts(ready).values():
            part.eval()
        object.__setattr__(self, "_coarse", frozenset(_products(ready)) if self.half else frozenset())
        here = {} if self.half else {torch.device("cpu"): (self._training, self._scoring)}
        object.__setattr__(self, "_placed", here)
        if self.draws or has_dropout(ready):
            object.__setattr__(self, "plan", replace(self.plan, draws=True))
        if has_batch_norm(ready):
            object.__setattr__(self, "plan", replace(self.plan, drop_single=True))

    @property
    def first(self) -> Tree:
        """The module's own weights and buffers, without what is frozen: the common initial model.

        A tensor that the module holds under several names (tied weights) stands under the first of them.
        """
        return {name: t.detach().clone() for name, t in self._state(frozen=False).items()}

    @property
    def frozen(self) -> Tree:
        """What is not trained and every site has from the start: it is in no message and no memory.

        >>> from kinfolk.learning.losses import find_loss
        >>> network = nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 3))
        >>> learner = Learner(network, find_loss("cross_entropy"), outputs=3)
        >>> list(learner.frozen), list(learner.first)
        (['0.weight', '0.bias'], ['1.weight', '1.bias'])
        """
        return {name: t.detach() for name, t in self._state(frozen=True).items()}

    def _constants(self) -> dict[str, Tensor]:
        """What does not travel: what is frozen, and buffers outside of the state, as a mask."""
        known = self._training.state_dict()
        outside = {name: b for name, b in self._training.named_buffers() if name not in known}
        return {**outside, **self._state(frozen=True)}

    def _state(self, frozen: bool) -> dict[str, Tensor]:
        state = self.module.state_dict(keep_vars=True)
        names = {id(t): name for name, t in reversed(state.items())}
        own = {name: t for name, t in state.items() if names[id(t)] == name}
        return {name: t for name, t in own.items() if (name in self._frozen) == frozen}

    @property
    def names(self) -> tuple[str, ...]:
        """The trainable entries; the others are buffers."""
        return tuple(name for name, p in self.module.named_parameters() if p.requires_grad)

    @property
    def training_module(self) -> nn.Module:
        """The network in training mode, as `objective` runs it."""
        return self._training

    def apply(self, model: Tree, rows: Rows | Batch, training: bool = False) -> Tensor:
        """The network's output in scoring mode (BatchNorm by its running statistics, if it has any).

        Of rows that are all real, or of a batch, in which some may be padding.
        """
        return self._call(training, model, rows)

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """The mean loss of a batch in training mode; BatchNorm's buffers in `model` are updated."""
        out = self.apply(model, batch, training=True)
        return batch.mean(self.loss.row_loss(out, batch.y))

    def heard(self, model: Tree, rows: Rows | Batch) -> tuple[Tensor, Tensor]:
        """(what the layer `head` is given, the network's output), in scoring mode."""
        x = rows if isinstance(rows, Tensor | dict) else rows.x
        with overheard(self._on(row_leaves(x)[0].device)[1], "head") as heard:
            out = self.apply(model, rows)
        return heard[-1].float(), out

    def _call(self, training: bool, model: Tree, rows: Rows | Batch) -> Tensor:
        if isinstance(rows, Tensor | dict):
            x, weight, key = rows, None, None
        else:
            x, weight, key = rows.x, rows.weight, rows.key
        if self._coarse:
            model = {n: t.bfloat16() if n in self._coarse else t for n, t in model.items()}
            x = map_rows(lambda t: t.bfloat16() if t.is_floating_point() else t, x)
        network = self._on(row_leaves(x)[0].device)[not training]
        out = call(network, model, x, weight, key, self.output)
        return out.float() if self._coarse else out

    def _on(self, device: torch.device) -> tuple[nn.Module, nn.Module]:
        """The network in training and in scoring mode, with what does not travel on a device."""
        if device not in self._placed:
            there: dict[int, object] = {}
            for name, t in self._constants().items():
                new = t.detach().to(device, torch.bfloat16 if name in self._coarse else t.dtype)
                there[id(t)] = nn.Parameter(new, False) if isinstance(t, nn.Parameter) else new
            training, scoring = (copy.deepcopy(n, dict(there)) for n in (self._training, self._scoring))
            self._placed[device] = training, scoring
        return self._placed[device]

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
            objective or self.objective, self.optimiser, self.names, self.lr, self.decay,
            clip=self.clip, by_round=self.by_round, by_step=self.by_step,
        )  # fmt: skip

    def train(
        self,
        objective: Objective | None = None,
        start: Start = received_model,
        finish: Finish = reply_model,
        reply: Expected | None = None,
        sent: Expected | None = None,
    ) -> Task:
        """A task: start, train by the learner's plan, finish; it is sent at least a model, unless told."""
        model = {"model": self.first}
        sent = model if sent is None and start is received_model else sent
        expected = model if reply is None else reply
        return Task(start, finish, (Fit((self.descent(objective),), self.plan),), expected, sent=sent)

    def tuning(self, epochs: int) -> Fit:
        """Some plain epochs on the client's own rows; their rate and number may be set by themselves."""
        plan, descent = replace(self.plan, epochs=self.tune_epochs or epochs, steps=0), self.descent()
        own = replace(descent, lr=self.tune_lr, decay=1.0, by_round=None) if self.tune_lr else descent
        return Fit((own,), plan)

    def score(
        self,
        start: Start = received_model,
        tune: Fit | None = None,
        stream: str = "tune",
        by_class: bool = True,
    ) -> ScoreTask:
        """A task that scores a model on the client's rows, after some training if any is given.

        Without `by_class` the reply has no counts by class, which would tell what labels the client has.
        """

        scoring = self.scoring

        def begin(message: Message, memory: Message, facts: ClientInfo) -> Carry:
            return {**start(message, memory, facts), **scoring.begin(facts.rows.device)}

        def count(carry: Carry, batch: Batch) -> Carry:
            out = self.apply(carry["model"], batch)
            loss = self.loss.row_loss(out, batch.y)
            return scoring.count(carry, self.in_units(out), self.batch_in_units(batch), loss)

        def told(reply: Message) -> Message:
            return reply if by_class and self.by_class else without_classes(reply)

        plan = Plan(self.score_batch, shuffle=False, split=self.score_split)
        passes = (*((tune,) if tune else ()), Scan(count, plan))
        common = start is received_model and tune is None
        return ScoreTask(
            begin, lambda carry: (told(scoring.reply(carry)), None), passes, told(scoring.expected),
            stream=stream, common=common, network=self.plain_network,
            conclude=scoring.conclude if self.metrics else None,
        )  # fmt: skip

    @property
    def scoring(self) -> Scoring:
        """How clients are scored."""
        loss, one = self.loss, self.loss.target in ("class", "soft", "labels", "positions")
        classes = self.outputs if one else 2 if loss.target == "binary" else 0
        like, rows = self.score_like, self.score_rows
        return Scoring(classes, loss.target, loss.class_axis, self.metrics, rows, like, loss.ignored)

    def in_units(self, values: Tensor) -> Tensor:
        """Outputs or targets in the targets' own units, in float64, if targets are standardised.

        >>> from kinfolk.learning.losses import find_loss
        >>> learner = Learner(nn.Linear(2, 1), find_loss("mse"), outputs=1, units=((50.0,), (10.0,)))
        >>> learner.in_units(torch.tensor([0.0, 2.0])).tolist()
        [50.0, 70.0]
        """
        if self.units is None:
            return values
        mean, std = self.units
        if len(mean) == 1:
            return values.double() * std[0] + mean[0]
        # By column: numbers, unlike a tensor of them, are on every device and in every recorded step.
        columns = [values[:, k].double() * std[k] + mean[k] for k in range(len(mean))]
        return torch.stack(columns, dim=1)

    def batch_in_units(self, batch: Batch) -> Batch:
        """The same batch with its targets in their own units."""
        return batch if self.units is None else batch._replace(y=self.in_units(plain_rows(batch.y)))

    def plain_network(self) -> nn.Module:
        """A copy of the network as it was given, without what makes it fast for many clients.

        >>> from kinfolk.learning.losses import find_loss
        >>> Learner(nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3).plain_network()
        Linear(in_features=2, out_features=3, bias=True)
        """
        return copy.deepcopy(self.module)


def _same(tensors: dict[str, Tensor]) -> dict[int, object]:
    """For `copy.deepcopy`: these are not copied."""
    return {id(t): t for t in tensors.values()}


def _products(module: nn.Module) -> Iterator[str]:
    """The parameters of all layers but BatchNorm, whose statistics need every digit."""
    for path, layer in module.named_modules():
        if not isinstance(layer, RowBatchNorm):
            yield from (
                f"{path}.{name}" if path else name for name, _ in layer.named_parameters(recurse=False)
            )
