"""PENS: no server; clients find peers whose models have a low loss on their own rows, and mix with those.

Onoszko, Karlsson, Mogren, Listo Zec: Decentralized federated learning of deep neural networks on non-iid
data. FL-ICML workshop 2021. In each of the first rounds client i gets the models of n peers, drawn anew:

    l_j  <- F_i(w_j), the loss of each on i's training rows
    w_i  <- mean of w_i and of the m models of lowest loss; then E local epochs
    N_i  <- peers that were among the m more often than by chance, which is m / n in each round i met them

Afterwards i gets the models of m of its N_i, drawn anew, and takes the mean of all with its own; who has no
N_i draws among everybody. The paper's clients write whenever they like; here they do in rounds, and send to
those who ask. Whom a client takes for a neighbour is known to those it asks, and to nobody else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import peers
from kinfolk.algorithms.blocks.lowest_loss import summed_loss
from kinfolk.algorithms.blocks.peers import State, first_memory, mixed, sound_models, train_mixture
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace, ask, exchange
from kinfolk.streams import RoundContext
from kinfolk.task import Batch, Carry, ClientInfo, Peer, PeerTask, Plan, Scan, Table, Task
from kinfolk.types import Client, Message, Tree, tree_of

# Sums of m / n are not exact: who was taken exactly as often as by chance must not hang on the last bit.
SLACK = 1e-4


@dataclass(frozen=True)
class PENS:
    """No server: clients mix with peers whose models serve their own rows, and find out who these are."""

    learner: Learner
    sampled: int = 10  # n: peers whose models a client gets in each of the first rounds
    top: int = 2  # m: how many of these it takes, and how many of its neighbours it asks later
    select_rounds: int = 10  # rounds in which neighbours are sought
    tune_space: ClassVar[TuneSpace] = {"sampled": (5, 10), "top": (2, 4)}

    def __post_init__(self) -> None:
        for name, least in (("sampled", 1), ("top", 1), ("select_rounds", 0)):
            at_least(f"algorithm.{name}", getattr(self, name), least)

    init, eval_inputs, eval_tasks = peers.init, peers.eval_inputs, peers.eval_tasks
    complaints = peers.complaints

    def init_client(self, who: Client) -> Message:
        """Each client starts from the common initial model."""
        return first_memory(self.learner)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Local epochs; models of peers; in the first rounds the best of them, later all."""
        yield from ask("train", cohort)
        yield from exchange("request", cohort)
        yield from exchange("answer", cohort)
        if context.round < self.select_rounds:
            yield from ask("select", cohort)
        return state, {}

    def tasks(self) -> Table:
        """Train; ask peers; answer them; find the models that fit best."""
        once = Plan(1, steps=1, shuffle=False)
        every = Plan(self.learner.score_batch, shuffle=False)
        return {
            "train": train_mixture(self.learner),
            "request": PeerTask(self.ask_for, self.note),
            "answer": PeerTask(self.answer, self.take, ("model",)),
            "select": Task(self.begin, self.finish, (Scan(self.judge, every), Scan(self.choose, once))),
        }

    def ask_for(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """A word to those whose models are wanted."""
        return {peer: {"wants": torch.tensor(True)} for peer in self.wanted(memory, me)}

    def wanted(self, memory: Message, me: Peer) -> tuple[Client, ...]:
        """n of the others in this round; later m of the neighbours, or of all if none was found."""
        others = [c for c in me.context.cohort if c != me.name]
        count = self.sampled
        if me.context.round >= self.select_rounds:
            near = set(neighbours(memory, me.context.clients))
            others, count = [c for c in others if c in near] if near else others, self.top
        draw = me.context.seed.numpy("pens", me.context.round, me.name)
        return tuple(sorted(others[i] for i in draw.permutation(len(others))[:count]))

    def note(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """Note who asks."""
        return {**memory, "asked": torch.tensor([c in inbox for c in me.context.clients])}

    def answer(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """The own model, to those who ask."""
        asked = memory["asked"].tolist() if "asked" in memory else [False] * len(me.context.clients)
        who = [c for c, yes in zip(me.context.clients, asked, strict=True) if yes and c != me.name]
        return {peer: {"model": memory["model"]} for peer in who}

    def take(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """Hold the models to judge them; later take their mean with the own one."""
        memory = {key: value for key, value in memory.items() if key != "asked"}
        models, refused = sound_models(inbox, self.wanted(memory, me), memory, me.context.clients)
        memory["refused"] = refused
        if me.context.round >= self.select_rounds:
            all_of_them = [memory["model"], *models.values()]
            return {**memory, "mixed": mixed(all_of_them, [1 / len(all_of_them)] * len(all_of_them))}
        room = min(self.sampled, len(me.context.clients) - 1)
        return {**self.counted(memory, me), **offers(memory["model"], models, room, me.context.clients)}

    def counted(self, memory: Message, me: Peer) -> Message:
        """A memory with room for how often each peer was taken, and how often it would be by chance."""
        none = torch.zeros(len(me.context.clients))
        return {"taken": none, "chance": none, **memory}

    def begin(self, message: Message, memory: Message, facts: ClientInfo) -> Carry:
        """Nothing is summed yet; whoever got no models has only its own."""
        losses = torch.zeros(len(memory.get("from", peers.NOBODY)), dtype=torch.float64)
        return {**memory, "losses": losses.to(facts.rows.device) + facts.rows * 0.0}

    def judge(self, carry: Carry, batch: Batch) -> Carry:
        """Add F_i(w_j) of a batch."""
        if not len(carry["losses"]):
            return carry
        models = tree_of(carry, "offers")
        each = [{n: t[j] for n, t in models.items()} for j in range(len(carry["losses"]))]
        new = torch.stack([summed_loss(self.learner, model, batch) for model in each])
        return {**carry, "losses": carry["losses"] + new}

    def choose(self, carry: Carry, batch: Batch) -> Carry:
        """The mean of the own model and the m of lowest loss, and whom these are from."""
        if not len(carry["losses"]):
            return carry
        given, m = carry["from"] >= 0, min(self.top, len(carry["losses"]))
        losses = torch.where(given, carry["losses"].nan_to_num(nan=torch.inf), torch.inf)
        # Of equals the first, as a stable sort has them.
        rank = losses.argsort(stable=True).argsort(stable=True)
        best = given & (rank < m)
        share = best.double() / (1 + best.sum())
        own, models = tree_of(carry, "model"), tree_of(carry, "offers")
        place = torch.where(given, carry["from"], 0)
        got = given.sum().clamp(min=1)
        chance = torch.where(given, (m / got).clamp(max=1), 0.0).to(carry["chance"].dtype)
        return {
            **carry,
            "mixed": {n: _mean(own[n], models[n], share, best) for n in own},
            "taken": carry["taken"].scatter_add(0, place, best.to(carry["taken"].dtype)),
            "chance": carry["chance"].scatter_add(0, place, chance),
        }

    def finish(self, carry: Carry) -> tuple[Message, Message]:
        """Keep the mixture and the counts; models of others are let go."""
        return {}, {key: value for key, value in carry.items() if key not in ("losses", "offers", "from")}


def _mean(own: Tensor, models: Tensor, share: Tensor, best: Tensor) -> Tensor:
    """The mean of the own leaf and of those [n, ...] that have a share; of integers the largest."""
    if not own.is_floating_point():
        shape = (-1, *[1] * own.dim())
        return torch.where(best.reshape(shape), models, own).amax(0).maximum(own)
    total: Tensor = (1 - share.sum()) * own.double() + torch.tensordot(share, models.double(), 1)
    return total.to(own.dtype)


def offers(own: Tree, models: dict[Client, Tree], room: int, clients: Sequence[Client]) -> Message:
    """Models on a leading axis of `room`, and whom each is from; an empty place has the own one and -1."""
    empty = room - len(models)
    held = [*models.values(), *[own] * empty]
    stacked = {n: torch.stack([model[n] for model in held]) for n in own} if held else {}
    places = [clients.index(c) for c in models] + [-1] * empty
    return {"offers": stacked, "from": torch.tensor(places, dtype=torch.int64)}


def neighbours(memory: Message, clients: Sequence[Client]) -> tuple[Client, ...]:
    """N_i: the peers that were taken more often than by chance.

    >>> memory = {"taken": torch.tensor([0.0, 2.0, 1.0]), "chance": torch.tensor([0.0, 1.0, 1.0])}
    >>> neighbours(memory, ("a", "b", "c"))
    ('b',)
    """
    if "taken" not in memory:
        return ()
    near = memory["taken"] > memory["chance"] + SLACK
    return tuple(c for c, is_near in zip(clients, near.tolist(), strict=True) if is_near)
