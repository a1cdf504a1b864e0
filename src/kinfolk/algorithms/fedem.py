"""FedEM: every client's distribution is a mixture of K shared components, in shares of its own.

Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions.
NeurIPS 2021, Algorithm 1.

    E        q_k(x, y) proportional to pi_ik exp(-loss_k(x, y)), on training rows in scoring mode
    M        pi_ik <- mean of q_k;  component k is trained on q_k-weighted rows, divided by the batch size
    server   each component <- sum_i (n_i / n) of who replied
    answer   sum_k pi_ik softmax_k(x)

q belongs to the components as they were sent and to the old pi, both of which a client holds until its task
ends; so q is worked out again where it is needed, and no table of rows is kept. Clipping is of all
components' gradients together. A regression has exp(-squared error) and answers with the mean of outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.many_models import copies, distinct
from kinfolk.errors import at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner, ScoreTask
from kinfolk.learning.network import Wrapper, tensor_out
from kinfolk.script import Script, fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Plan, Scan, Table, Task
from kinfolk.types import Client, Message, PerClient, Rows, Tree, tree_of

LEAST_SHARE = 1e-30  # a share of 0 would have no logarithm


@dataclass(frozen=True)
class State:
    """The shared components."""

    components: Tree  # every leaf [K, ...]


class Weighed(NamedTuple):
    """A batch whose mean weighs each row, and is still divided by the number of rows.

    >>> x, halves = torch.zeros(2, 1), torch.tensor([0.5, 0.5])
    >>> half = Weighed(x, torch.zeros(2), torch.arange(2), None, None, halves)
    >>> half.mean(torch.tensor([2.0, 4.0]))
    tensor(1.5000)
    """

    x: Rows
    y: Rows
    row: Tensor
    weight: Tensor | None
    key: Tensor | None
    q: Tensor

    def mean(self, values: Tensor) -> Tensor:
        """(1 / rows) sum of q * value, padding left out."""
        return Batch(self.x, self.y, self.row, self.weight).mean(values * self.q)


@dataclass(frozen=True)
class FedEM:
    """K components for everyone and a mixture of them for each client."""

    learner: Learner
    k: int = 3  # K, number of components; 1 gives FedAvg
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()  # of all components together
    summed: ClassVar[tuple[str, ...]] = ("update",)

    def __post_init__(self) -> None:
        at_least("algorithm.k", self.k, 1)

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """K different starts: alike ones would get the same q and stay alike."""
        return State(distinct(copies(first, self.k), self.learner.names, seed))

    def init_client(self, who: Client) -> Message:
        """Equal shares."""
        return {"pi": torch.full((self.k,), 1 / self.k)}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Each component <- sum_i (n_i / n) of what clients made of it."""
        by = self.aggregate.tree_fold("components", state.components, self.weights)
        shared = {"components": state.components}
        return State((yield from fold(by, "update", cohort, shared))), {}

    def tasks(self) -> Table:
        """Train all components, then look what share of the rows each had."""
        every_row = Plan(self.learner.score_batch, shuffle=False)
        names = tuple(f"{j}.{n}" for j in range(self.k) for n in self.learner.names)
        train = Fit((replace(self.learner.descent(self.objective), names=names),), self.learner.plan)
        expected = {"components": copies(self.learner.first, self.k)}
        passes = (train, Scan(self.count, every_row))
        return {"update": Task(self.start, self.finish, passes, expected, sent=expected)}

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """The components to be trained and as they were sent; shares as they were and to be summed."""
        sent = tree_of(message, "components")
        # Laid side by side for training: BatchNorm under vmap loses what it writes into a slice of a stack.
        model = {f"{j}.{n}": leaf[j] for j in range(self.k) for n, leaf in sent.items()}
        return {"model": model, "sent": sent, "pi": memory["pi"], "sum": memory["pi"] * 0, "rows": facts.rows}

    def objective(self, model: Tree, batch: Batch, carry: Carry) -> Tensor:
        """Sum over components of (1 / rows) sum of q_k * loss_k; nothing in one moves another."""
        q = torch.softmax(self.joint(carry, batch), 1)
        losses = []
        for j in range(self.k):
            one = {n: model[f"{j}.{n}"] for n in carry["sent"]}
            losses.append(self.learner.objective(one, cast(Batch, Weighed(*batch, q[:, j])), carry))
        return torch.stack(losses).sum()

    def joint(self, carry: Carry, batch: Batch) -> Tensor:
        """log pi_k - loss_k of every row, [rows, K], by the components as they were sent."""
        outs = self.outputs(carry["sent"], batch)
        losses = torch.stack([self.learner.loss.row_loss(out, batch.y) for out in outs], 1)
        return _log(carry["pi"]) - losses

    def outputs(self, components: Tree, batch: Batch) -> list[Tensor]:
        """What each component says of the rows, in scoring mode."""
        return [self.learner.apply(_one(components, j), batch) for j in range(self.k)]

    def count(self, carry: Carry, batch: Batch) -> Carry:
        """Add the shares of a batch."""
        return {**carry, "sum": carry["sum"] + batch.sum(torch.softmax(self.joint(carry, batch), 1))}

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """Send the components, keep pi_k = mean of q_k."""
        model, pi = carry["model"], carry["sum"] / carry["rows"].clamp(min=1)
        stack = {n: torch.stack([model[f"{j}.{n}"] for j in range(self.k)]) for n in carry["sent"]}
        return {"components": stack}, {"pi": pi}

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Everyone is served all components."""
        return {"components": state.components}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """The client's own mixture."""
        mine = self.learner
        scoring = mine.scoring

        def begin(message: Message, memory: Message, facts: ClientInfo) -> Carry:
            sent = {"sent": tree_of(message, "components"), "pi": memory["pi"]}
            return sent | scoring.begin(facts.rows.device)

        def count(carry: Carry, batch: Batch) -> Carry:
            out = self.mixture(carry, batch)
            loss = mine.loss.row_loss(out, batch.y)
            return scoring.count(carry, mine.in_units(out), mine.batch_in_units(batch), loss)

        scan = Scan(count, Plan(mine.score_batch, shuffle=False, split=mine.score_split))
        return {
            "personal": ScoreTask(
                begin, lambda carry: (scoring.reply(carry), None), (scan,), scoring.expected,
                network=self.mixed_network,
                model=_parts,
                conclude=scoring.conclude if mine.metrics else None,
            )
        }  # fmt: skip

    def mixed_network(self) -> nn.Module:
        """A plain network for a client's mixture."""
        components = [self.learner.plain_network() for _ in range(self.k)]
        mine = self.learner
        return Mixture(components, mine.loss.target, mine.loss.class_axis, mine.output)

    def mixture(self, carry: Carry, batch: Batch) -> Tensor:
        """log of sum_k pi_k softmax_k, which is its own log-softmax; of numbers, sum_k pi_k out_k."""
        outs = torch.stack(self.outputs(carry["sent"], batch))
        return _mixed(outs, carry["pi"], self.learner.loss.target, self.learner.loss.class_axis)


class Mixture(Wrapper):
    """A client's mixture as one network: log of sum_k pi_k softmax_k; of numbers, sum_k pi_k out_k.

    >>> Mixture([nn.Linear(2, 3), nn.Linear(2, 3)], "class")(torch.zeros(4, 2)).exp().sum(1).round().tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def __init__(
        self, components: Sequence[nn.Module], target: str, class_axis: int = -1, output: str = ""
    ) -> None:
        super().__init__()
        self.components, self.target = nn.ModuleList(components), target
        self.class_axis, self.output = class_axis, output
        self.register_buffer("pi", torch.full((len(components),), 1 / len(components)))
        self.pi: Tensor

    @property
    def inner(self) -> nn.Module:
        """A component."""
        return self.components[0]

    def forward(self, *placed: Any, **named: Any) -> Tensor:
        """The mixture's answer to rows, given as a component takes them."""
        outs = [tensor_out(one(*placed, **named), self.output) for one in self.components]
        return _mixed(torch.stack(outs), self.pi, self.target, self.class_axis)


def _parts(carry: Carry) -> Tree:
    """The components and shares of a carry under the names that `Mixture` has for them."""
    sent: Tree = carry["sent"]
    parts = {f"components.{j}.{n}": t[j] for n, t in sent.items() for j in range(len(t))}
    return {**parts, "pi": carry["pi"]}


def _mixed(outs: Tensor, pi: Tensor, target: str, class_axis: int = -1) -> Tensor:
    """Outputs [k, rows, ...] as those of the mixture: of probabilities, where outputs stand for such."""
    share = pi.reshape(-1, *[1] * (outs.dim() - 1))
    if target in ("class", "soft", "positions"):
        axis = -1 if class_axis == -1 else class_axis + 1
        return torch.logsumexp(_log(share) + outs.log_softmax(axis), 0)
    if target in ("labels", "binary"):  # the logit of the mixed probability
        there, not_there = (torch.logsumexp(_log(share) + logsigmoid(z), 0) for z in (outs, -outs))
        return there - not_there
    return (share * outs).sum(0)


def _one(components: Tree, j: int) -> Tree:
    return {name: leaf[j] for name, leaf in components.items()}


def _log(share: Tensor) -> Tensor:
    return share.clamp(min=LEAST_SHARE).log()
