"""FedFomo: each client mixes into its own model those of others that serve its validation rows better.

Zhang, Sapra, Fidler, Yeung, Alvarez: Personalized Federated Learning with First Order Model Optimization.
ICLR 2021. With b_i the client's model before its last training and w_i after it:

    q_n = (F_val(b_i) - F_val(w_n)) / |w_n - b_i|, of the models w_n it is sent and of its own w_i
    train from b_i + sum of max(q_n, 0) / (sum of max(q, 0)) (w_n - b_i), or from w_i if no q is above 0

It is sent those of highest affinity (the sum of q / sum|q| so far), or with a falling chance any others. The
server holds the last model of every client, N x model, and copies of what it sends in a round.
Set data.valid: if nobody has validation rows all judge by their training rows, which their own model always
suits; if only some have none, those train alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.many_models import copies
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner, own_model
from kinfolk.script import Script, TuneSpace, ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Batch, Carry, ClientInfo, Expected, Fit, FloatSpec, IntSpec, Plan, Scan, Table, Task
from kinfolk.types import Client, Message, PerClient, Stack, Tree, tree_of


@dataclass(frozen=True)
class State:
    """What clients have sent, and whom each of them likes."""

    models: Tree  # the last model of each client, every leaf [clients, ...]
    sent: Tensor  # [clients] bool: who has sent one
    affinity: Tensor  # P: [clients, clients] float64, of each for each
    clients: tuple[str, ...]
    judged_on: str  # "valid" or "train"; empty before anybody was asked


@dataclass(frozen=True)
class FedFomo:
    """A model for each client, made of those that lower the loss on its validation rows."""

    learner: Learner
    models: int = 5  # M: models that a client is sent, or all others if they are fewer
    norm: Literal["l2", "l1"] = "l2"  # of w_n - b_i; the paper's is l2, its code's l1
    epsilon: float = 0.3  # chance that a model is drawn and not the most liked, in the first round
    decay: float = 0.05  # what that chance loses in every round
    tune_space: ClassVar[TuneSpace] = {"models": (3, 5, 10), "epsilon": (0.0, 0.3)}

    def __post_init__(self) -> None:
        at_least("algorithm.models", self.models, 1)
        at_least("algorithm.epsilon", self.epsilon, 0)
        at_least("algorithm.decay", self.decay, 0)

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Nobody has sent anything."""
        n = len(clients)
        sent, affinity = torch.zeros(n, dtype=torch.bool), torch.zeros(n, n, dtype=torch.float64)
        return State(copies(first, n), sent, affinity, tuple(clients), "")

    def init_client(self, who: Client) -> Message:
        """Both models are the common initial one."""
        return {"model": self.learner.first, "before": self.learner.first}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Clients mix, train and send; the server keeps their models and notes whom they liked."""
        offers = {c: self.choose(state, c, context) for c in sorted(cohort)}
        got = yield from ask(state.judged_on or "valid", cohort, each=parcels(state, offers))
        if not got.clients:
            return state, {}
        # In the first round nobody has sent a model yet: there is nothing to judge, by whatever rows.
        judged_on = state.judged_on or ("valid" if bool(got.tensor("held").any()) else "train")
        rows = torch.tensor([state.clients.index(c) for c in got.clients])
        new = got.tree("model")
        models = {n: t.index_copy(0, rows.to(t.device), new[n].to(t)) for n, t in state.models.items()}
        affinity, liking = state.affinity.cpu().clone(), got.tensor("liking").cpu().double()
        for i, c, liked in zip(rows.tolist(), got.clients, liking, strict=True):
            affinity[i, offers[c]] += liked[: len(offers[c])]
        sent = state.sent.cpu().index_fill(0, rows, True)
        return State(models, sent, affinity, state.clients, judged_on), {"judged_on": judged_on}

    def choose(self, state: State, who: Client, context: RoundContext) -> list[int]:
        """Up to M positions of clients who have sent a model: each the most liked left, or any."""
        sent = state.sent.tolist()
        others = [j for j, c in enumerate(state.clients) if sent[j] and c != who]
        draw = context.seed.numpy("fedfomo", context.round, who)
        any_, best = draw.permutation(others).tolist(), draw.permutation(others).tolist()
        liked = state.affinity[state.clients.index(who)].tolist()
        best.sort(key=lambda j: -liked[j])  # ties stay as they were drawn
        explores = draw.random(self.models) < self.epsilon - context.round * self.decay
        taken: list[int] = []
        for explore in explores[: len(others)]:
            taken.append(next(j for j in (any_ if explore else best) if j not in taken))
        return taken

    def tasks(self) -> Table:
        """Judge by validation rows or by training rows; mix and train."""
        fit = Fit((self.learner.descent(),), self.learner.plan)
        liking, held = FloatSpec((self.models,), -1, 1), IntSpec(0, 1 << 40)
        expected: Expected = {"model": self.learner.first, "liking": liking, "held": held}
        return {
            split: Task(self.start, self.finish, (Scan(self.judge, self._rows(split)), fit), expected)
            for split in ("valid", "train")
        }

    def _rows(self, split: str) -> Plan:
        return Plan(self.learner.score_batch, shuffle=False, split=split)

    def start(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """All candidates, the own model last: that is where to start from unless rows say otherwise."""
        own, before = tree_of(memory, "model"), memory["before"]
        models = {n: torch.cat([t, own[n][None]]) for n, t in tree_of(message, "models").items()}
        given = torch.cat([message["given"], torch.ones_like(facts.rows[None], dtype=torch.bool)])
        apart = [(models[n] - before[n]).flatten(1) for n in self.learner.names]
        order = 2 if self.norm == "l2" else 1
        # Doubles: q is a difference of losses that may be nearly equal.
        none = torch.zeros(len(given) + 1, dtype=torch.float64, device=given.device)
        return {
            "models": models, "before": before, "model": own, "start": own, "given": given,
            "apart": torch.linalg.vector_norm(torch.cat(apart, 1), order, dim=1),
            "losses": none, "q": none[1:], "held": facts.steps,
        }  # fmt: skip

    def judge(self, carry: Carry, batch: Batch) -> Carry:
        """Add the losses of a batch; the mixture by all batches so far is, after the last, the mixture."""
        models, apart = carry["models"], carry["apart"]
        each = [carry["before"], *({n: t[j] for n, t in models.items()} for j in range(len(apart)))]
        outs = [self.learner.apply(model, batch).double() for model in each]
        losses = carry["losses"] + torch.stack(
            [batch.sum(self.learner.loss.row_loss(o, batch.y)) for o in outs]
        )
        # Sums of losses and not means: what q is divided by in the end takes the number of rows with it.
        q = (losses[0] - losses[1:]) / apart
        q = torch.where(carry["given"] & (apart > 0), q, 0.0).nan_to_num(0.0, 0.0, 0.0)
        model = mixed(models, shares(q))
        return {**carry, "losses": losses, "q": q, "model": model, "start": model}

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """Send the trained model and how each of the others was liked; keep it, and where it began."""
        q = carry["q"] / carry["q"].abs().sum().clamp(min=1e-30)
        liking = torch.cat([q[:-1], q.new_zeros(self.models - len(q) + 1)])
        reply = {"model": carry["model"], "liking": liking, "held": carry["held"]}
        return reply, {"model": carry["model"], "before": carry["start"]}

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Clients need nothing."""
        return {}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """Each client's own model, after its last training."""
        return {"personal": self.learner.score(start=own_model)}


def shares(q: Tensor) -> Tensor:
    """max(q, 0) / sum; all to the last, the client's own, if none is above 0.

    >>> shares(torch.tensor([3.0, -1.0, 1.0])), shares(torch.tensor([-1.0, -2.0]))
    (tensor([0.7500, 0.0000, 0.2500]), tensor([0., 1.]))
    """
    good = q.clamp(min=0)
    own = torch.cat([torch.zeros_like(q[1:]), torch.ones_like(q[:1])])
    return torch.where(good.sum() > 0, good / good.sum().clamp(min=1e-38), own)


def mixed(models: Tree, share: Tensor) -> Tree:
    """b + sum of share (w_n - b): the mean, since shares sum to 1. Counters are the own model's.

    >>> mixed({"w": torch.tensor([[0.0], [4.0]]), "n": torch.tensor([7, 8])}, torch.tensor([0.75, 0.25]))
    {'w': tensor([1.]), 'n': tensor(8)}
    """
    return {
        n: torch.tensordot(share.to(t), t, 1) if t.is_floating_point() else t[-1] for n, t in models.items()
    }


def parcels(state: State, offers: Mapping[Client, Sequence[int]]) -> Stack:
    """A message for each client: the models it is offered, as many places for each; empty ones are marked."""
    who, most = tuple(offers), max(map(len, offers.values()), default=0)
    given = torch.zeros(len(who), most, dtype=torch.bool)
    rows = torch.zeros(len(who), most, dtype=torch.int64)
    for i, taken in enumerate(offers.values()):
        given[i, : len(taken)], rows[i, : len(taken)] = True, torch.tensor(taken, dtype=torch.int64)
    models = {n: t[rows.to(t.device)] for n, t in state.models.items()}
    return Stack(who, torch.zeros(len(who), dtype=torch.int64), {"models": models, "given": given})
