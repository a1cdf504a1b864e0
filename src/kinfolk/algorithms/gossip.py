"""Gossip averaging: no server; each client averages its model with those of the peers it is linked with.

Lian, Zhang, Zhang, Hsieh, Zhang, Liu: Can Decentralized Algorithms Outperform Centralized Algorithms? NeurIPS
2017 (D-PSGD). Several local steps between two averages: Sun, Li, Wang: Decentralized Federated Averaging.
IEEE TPAMI 45(4), 2023. With x_i what client i starts from:

    local   z_i <- x_i after E local epochs
    mix     x_i <- sum_j W_ij z_j

W has the weights of Metropolis and Hastings, symmetric and doubly stochastic on any graph of links (Xiao,
Boyd, Lall: A Scheme for Robust Distributed Sensor Fusion. IPSN 2005): W_ij = 1 / (1 + max(d_i, d_j)) of peers
who are linked, W_ii what is left; on a ring of one neighbour to each side 1/3 each. In place of what does not
arrive, or is no model, a client takes its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from kinfolk.algorithms.blocks import peers
from kinfolk.algorithms.blocks.peers import State, first_memory, links, mixed, sound_models, train_mixture
from kinfolk.errors import at_least
from kinfolk.learning.learner import Learner
from kinfolk.script import Script, TuneSpace, ask, exchange
from kinfolk.streams import RoundContext
from kinfolk.task import Peer, PeerTask, Table
from kinfolk.types import Client, Message


@dataclass(frozen=True)
class Gossip:
    """No server: each client trains, then averages its model with those of its links in this round."""

    learner: Learner
    topology: Literal["random", "ring"] = "random"  # links are drawn anew in each round, or stay
    neighbours: int = 2  # peers that each client chooses, on a ring the next ones; a link goes both ways
    tune_space: ClassVar[TuneSpace] = {"neighbours": (1, 2, 5)}

    def __post_init__(self) -> None:
        at_least("algorithm.neighbours", self.neighbours, 1)

    init, eval_inputs, eval_tasks = peers.init, peers.eval_inputs, peers.eval_tasks
    complaints = peers.complaints

    def init_client(self, who: Client) -> Message:
        """Each client starts from the common initial model."""
        return first_memory(self.learner)

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """Local epochs; then x_i <- sum_j W_ij z_j."""
        yield from ask("train", cohort)
        yield from exchange("mix", cohort)
        return state, {}

    def tasks(self) -> Table:
        """Train the last mixture; send what comes of it to all who are linked."""
        return {"train": train_mixture(self.learner), "mix": PeerTask(self.send, self.receive, ("model",))}

    def graph(self, me: Peer) -> dict[Client, tuple[Client, ...]]:
        """Everybody's links in this round."""
        return links(me.context, self.neighbours, self.topology == "ring")

    def send(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """z_i, to every link."""
        return {peer: {"model": memory["model"]} for peer in self.graph(me).get(me.name, ())}

    def receive(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """x_i <- sum_j W_ij z_j; a weight whose model is not there is the own one's."""
        graph = self.graph(me)
        models, refused = sound_models(inbox, graph.get(me.name, ()), memory, me.context.clients)
        weights = metropolis(graph, me.name)
        others = {peer: weights[peer] for peer in models}
        x = mixed([memory["model"], *models.values()], [1 - sum(others.values()), *others.values()])
        return {**memory, "mixed": x, "refused": refused}


def metropolis(graph: Mapping[Client, tuple[Client, ...]], me: Client) -> dict[Client, float]:
    """W_ij = 1 / (1 + max(d_i, d_j)) of each link j.

    >>> metropolis({"a": ("b",), "b": ("a", "c"), "c": ("b",)}, "a")
    {'b': 0.3333333333333333}
    """
    mine = graph.get(me, ())
    return {peer: 1 / (1 + max(len(mine), len(graph[peer]))) for peer in mine}
