"""kNN-Per: FedAvg's model, mixed with what the most similar of the client's own rows say.

Marfoq, Neglia, Kameni, Vidal: Personalized Federated Learning through Local Memorization. ICML 2022,
equations 4 to 6. phi is what the last layer is given; S_i are the client's training rows:

    h_knn(y | x)  proportional to the sum over the k of S_i nearest to x with y_j = y of exp(-d(x, x_j))
    answer        lambda_i h_knn + (1 - lambda_i) h

The paper has d = |phi(x) - phi(x_j)|; its code, and the default here, |phi(x) - phi(x_j)|^2 over the width of
phi. Nothing is trained beside FedAvg's model, and nothing is kept: a client makes the store of its rows anew
when it answers. lambda_i is the one of eleven with the lowest loss on its validation rows (data.valid); who
has none takes `lam`. An exported personal model holds its client's rows as phi sees them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from kinfolk.algorithms.blocks import one_model
from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.algorithms.blocks.one_model import State, average
from kinfolk.errors import KinfolkError, at_least
from kinfolk.fold import Weights
from kinfolk.learning.learner import Learner, ScoreTask
from kinfolk.learning.network import Wrapper, overheard, tensor_out
from kinfolk.script import Script, TuneSpace
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Plan, Scan, Task
from kinfolk.types import Client, Message, Tree, plain_rows, tree_of

SHARES = 11  # values of lambda that are tried: 0, 0.1, ..., 1
LEAST = 1e-30  # a probability of 0 would have no logarithm


@dataclass(frozen=True)
class Kernel:
    """How much a neighbour says."""

    k: int
    name: str
    scale: float

    def votes(self, x: Tensor, stored: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
        """(h_knn [rows, classes] of x [rows, d], whether there is any row) by the stored ones of label >= 0.

        >>> x, stored = torch.tensor([[0.0]]), torch.tensor([[0.0], [1.0], [9.0], [0.0]])
        >>> Kernel(2, "exponential", 1.0).votes(x, stored, torch.tensor([0, 1, 1, -1]), 2)[0]
        tensor([[0.7311, 0.2689]])
        """
        # Doubles: a small difference of large products.
        a, b = x.double(), stored.double()
        squared = (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp(min=0)
        there = labels >= 0
        squared = torch.where(there, squared, torch.inf)
        near, at = squared.topk(min(self.k, len(stored)), largest=False)
        width = self.scale * (x.shape[1] if self.name == "gaussian" else 1)
        far = near / width if self.name == "gaussian" else near.sqrt() / width
        # exp(-d) over its sum: by softmax, which does not underflow where all are far.
        weight = torch.where(there.any(), torch.softmax(-far, 1), 0.0)
        said = labels[at][..., None] == torch.arange(classes, device=x.device)
        return (weight[..., None] * said).sum(1).float(), there.any()

    def answer(self, out: Tensor, x: Tensor, stored: Tensor, labels: Tensor, lam: Tensor) -> Tensor:
        """log of lambda h_knn + (1 - lambda) softmax(out), which is its own log-softmax."""
        votes, there = self.votes(x, stored, labels, out.shape[1])
        share = torch.where(there, lam, torch.zeros_like(lam))
        return (share * votes + (1 - share) * out.softmax(1)).clamp(min=LEAST).log()


@dataclass(frozen=True)
class KNNPer:
    """FedAvg's model, mixed for each client with the nearest of its own rows."""

    learner: Learner
    k: int = 10  # neighbours
    lam: float = 0.5  # lambda of clients without validation rows: the share of the neighbours' answer
    kernel: Literal["gaussian", "exponential"] = "gaussian"  # exp(-d^2 / width) or exp(-d)
    scale: float = 1.0  # what distances are divided by besides
    capacity: int = 1024  # most rows in a client's store: its first ones
    weights: Weights = "size"  # n_i / n, or the same for every client
    aggregate: RobustMean = RobustMean()
    summed: ClassVar[tuple[str, ...]] = ("update",)
    tune_space: ClassVar[TuneSpace] = {"k": (5, 10, 20), "scale": (0.1, 1.0)}

    def __post_init__(self) -> None:
        at_least("algorithm.k", self.k, 1)
        at_least("algorithm.capacity", self.capacity, 1)
        if not 0 <= self.lam <= 1:
            raise KinfolkError("algorithm.lam", self.lam, "give a number from 0 to 1")
        if not self.scale > 0:
            raise KinfolkError("algorithm.scale", self.scale, "give a number above 0")
        if not self.width:
            raise KinfolkError(
                "algorithm.name", "knn_per", "needs a network whose last layer is a Linear called 'head'"
            )
        if self.learner.loss.target != "class":
            raise KinfolkError("algorithm.name", "knn_per", "needs rows with one class each")

    init, tasks, eval_inputs = one_model.init, one_model.tasks, one_model.eval_inputs

    @property
    def width(self) -> int:
        """How many numbers phi has; 0 if the network has no layer to hear it at."""
        return int(getattr(getattr(self.learner.module, "head", None), "in_features", 0))

    @property
    def by(self) -> Kernel:
        """How much a neighbour says."""
        return Kernel(self.k, self.kernel, self.scale)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """w <- sum_i (n_i / n) w_i."""
        return State((yield from average(state.model, cohort, self.weights, self.aggregate))), {}

    def eval_tasks(self) -> Mapping[str, Task]:
        """Each client's mixture and, beside it, the common model."""
        scoring, mine = self.learner.scoring, self.learner
        store = Scan(self.store, Plan(mine.score_batch, shuffle=False, rows=self.capacity))
        choose = Scan(self.choose, Plan(mine.score_batch, shuffle=False, split="valid"))
        score = Scan(self.count, Plan(mine.score_batch, shuffle=False, split=mine.score_split))
        personal = ScoreTask(
            self.begin, lambda carry: (scoring.reply(carry), None), (store, choose, score), scoring.expected,
            network=self.whole_network,
            model=self.parts,
            conclude=scoring.conclude if mine.metrics else None,
        )  # fmt: skip
        return {"personal": personal, "centre": mine.score()}

    def begin(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """An empty store, with one place more for padding, and no losses yet."""
        model, device = tree_of(message, "model"), facts.rows.device
        stored = torch.zeros((self.capacity + 1, self.width), device=device)
        labels = torch.full((self.capacity + 1,), -1, dtype=torch.int64, device=device)
        losses = torch.zeros(SHARES, dtype=torch.float64, device=device)
        return {
            "model": model, "stored": stored, "labels": labels, "losses": losses,
            **self.learner.scoring.begin(device),
        }  # fmt: skip

    def store(self, carry: Carry, batch: Batch) -> Carry:
        """phi and labels of some rows, each in its own place."""
        x, _ = self.learner.heard(carry["model"], batch)
        place = batch.row if batch.weight is None else torch.where(batch.weight > 0, batch.row, self.capacity)
        stored, y = carry["stored"].index_put((place,), x), plain_rows(batch.y).long()
        labels = carry["labels"].index_put((place,), torch.where(place < self.capacity, y, -1))
        return {**carry, "stored": stored, "labels": labels}

    def choose(self, carry: Carry, batch: Batch) -> Carry:
        """The losses of all lambdas on validation rows."""
        x, out = self.learner.heard(carry["model"], batch)
        shares = torch.linspace(0, 1, SHARES, device=x.device)
        row_loss = self.learner.loss.row_loss
        new = [
            batch.sum(row_loss(self.by.answer(out, x, carry["stored"], carry["labels"], lam), batch.y))
            for lam in shares.unbind()
        ]
        return {**carry, "losses": carry["losses"] + torch.stack(new)}

    def chosen(self, carry: Carry) -> Tensor:
        """lambda_i: that of the lowest loss; `lam` if nothing was tried."""
        losses = carry["losses"]
        best = losses.argmin() / (SHARES - 1)
        return torch.where((losses == 0).all(), torch.full_like(best, self.lam), best)

    def count(self, carry: Carry, batch: Batch) -> Carry:
        """Score a batch of the mixture's answers."""
        x, out = self.learner.heard(carry["model"], batch)
        said = self.by.answer(out, x, carry["stored"], carry["labels"], self.chosen(carry))
        return self.learner.scoring.count(carry, said, batch, self.learner.loss.row_loss(said, batch.y))

    def whole_network(self) -> nn.Module:
        """A plain network for a client's mixture."""
        mine = self.learner
        return WithNeighbours(mine.plain_network(), self.by, self.capacity + 1, self.width, mine.output)

    def parts(self, carry: Carry) -> Tree:
        """The model, store and share of a carry under the names that `WithNeighbours` has for them."""
        model = {f"network.{n}": t for n, t in carry["model"].items()}
        return {
            **model,
            "stored": carry["stored"],
            "labels": carry["labels"],
            "lam": self.chosen(carry),
        }


class WithNeighbours(Wrapper):
    """A network and a store of rows as one network: log of lambda h_knn + (1 - lambda) h.

    >>> from kinfolk.learning.models import build_model
    >>> net = build_model("mlp", (1, 2, 2), 3, {"hidden": [4]})
    >>> whole = WithNeighbours(net, Kernel(1, "gaussian", 1.0), 2, 4)
    >>> whole(torch.zeros(1, 1, 2, 2)).exp().sum().round()
    tensor(1., grad_fn=<RoundBackward0>)
    """

    def __init__(self, network: nn.Module, by: Kernel, rows: int, width: int, output: str = "") -> None:
        super().__init__()
        self.network, self.by, self.output = network, by, output
        self.register_buffer("stored", torch.zeros(rows, width))
        self.register_buffer("labels", torch.full((rows,), -1, dtype=torch.int64))
        self.register_buffer("lam", torch.tensor(0.0))
        self.stored: Tensor
        self.labels: Tensor
        self.lam: Tensor

    @property
    def inner(self) -> nn.Module:
        """The network itself."""
        return self.network

    def forward(self, *placed: Any, **named: Any) -> Tensor:
        """The mixture's answer to rows, given as the network takes them."""
        with overheard(self.network, "head") as heard:
            out = tensor_out(self.network(*placed, **named), self.output)
        return self.by.answer(out, heard[-1], self.stored, self.labels, self.lam)
