"""SLFed: no server; clients trust those whose models see made images as their own do, and average.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.

A round of client A: every few rounds train a weak GAN and make images; show them to a few direct partners;
compare the histograms of both models' predictions; turn that into opinions, hear the partners' opinions
of everybody; ask those of whom A is least uncertain for their models, each scaled by its similarity, as
shares of which A learns the sum; train what comes out, the personal aggregated model (PAM).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.comparison import Comparison
from kinfolk.algorithms.slfed.gan import Gan
from kinfolk.algorithms.slfed.hearsay import HearsayExchange
from kinfolk.algorithms.slfed.look import look, shown
from kinfolk.algorithms.slfed.peer_lists import PeerLists
from kinfolk.algorithms.slfed.personal_models import begin_round, local_training
from kinfolk.algorithms.slfed.probe_images import ImageOptions, ProbeImages
from kinfolk.algorithms.slfed.similarity import Compare
from kinfolk.algorithms.slfed.trust import TrustOptions
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner, own_model
from kinfolk.learning.tokens import writes
from kinfolk.script import Script, ask, exchange
from kinfolk.shares.books import booked, opened
from kinfolk.shares.options import ShareOptions
from kinfolk.shares.rejections import BOOKS as OF_REFUSALS
from kinfolk.shares.rejections import reasons
from kinfolk.shares.secure_sum import BOOKS as OF_SUMS
from kinfolk.shares.secure_sum import SecureSum
from kinfolk.shares.vector import layers_of
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Carry, ClientInfo, Peer, PeerTask, Table, Task
from kinfolk.types import Client, Message, PerClient, Tree

# What memories hold of peers, a row for each: closed between steps.
BOOKS = ("trust", *OF_SUMS)


@dataclass(frozen=True)
class State:
    """There is no server: all that is known is who has joined."""

    joined: Tensor  # [clients] int64: 1 for those who have trained and made images


@dataclass(frozen=True)
class SLFed:
    """No server: subjective-logic trust, personal aggregated models, sums by secret shares.

    All defaults are as published, or the nearest to it where the paper is silent; options of ours say so.
    As published the lists do not find groups; `slfed_similar` has lists that do (docs/papers/slfed.md).
    """

    lasting = ("answered",)  # what a member has answered stays answered, whatever becomes of the round

    learner: Learner
    direct: int = 2  # DS: partners each client chooses in a round
    images: ImageOptions = field(default_factory=ImageOptions)
    gan: Gan = field(default_factory=Gan)
    compare: Compare = "counts"  # of predictions: how many of each class; "images" is ours: the class of each
    trust: TrustOptions = field(default_factory=TrustOptions)
    # M_A and the M_i of a sum: the PAM of the last round after local training, or (read literally) as it was.
    mixes: Literal["trained", "pam"] = "trained"
    # Ours: rounds before anybody is asked for a model; in their second half clients meet and compare.
    local_rounds: int = 0
    shares: ShareOptions = field(default_factory=ShareOptions)

    makes_rows: ClassVar[str] = "probe images"

    def __post_init__(self) -> None:
        at_least("algorithm.direct", self.direct, 1)
        at_least("algorithm.local_rounds", self.local_rounds, 0)
        if not self.learner.loss.classification:
            raise KinfolkError(
                "algorithm.name", "slfed", "compares predicted classes: one a row, with an output for each"
            )
        if self.images.kind == "text":
            writes(self.learner, "algorithm.images.kind", "text")

    def makes_tokens(self, shape: tuple[int, ...]) -> None:
        """Refuse images that are made of values where rows are tokens, which have none."""
        if self.images.kind in ("gan", "means"):
            remedy = (
                "makes rows of numbers, these are tokens; use 'text' for the next token, or 'back_search'"
            )
            raise KinfolkError("algorithm.images.kind", self.images.kind, remedy)

    def public_secrets(self) -> str:
        """Masks that follow from the seed hide nothing from anybody who knows it."""
        public = self.shares.entropy == "stream" and self.shares.limits.hides
        return "algorithm.shares.entropy=stream" if public else ""

    def rows_shown(self) -> int:
        """The images, and the lowest and highest value of each of their columns."""
        return self.images.count + 2

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> State:
        """Nobody has joined."""
        return State(torch.zeros(len(clients), dtype=torch.int64))

    def init_client(self, who: Client) -> Message:
        """Each client starts from the common initial model."""
        first = self.learner.first
        return {"model": first, "pam": first}

    def round(self, state: State, cohort: tuple[Client, ...], context: RoundContext) -> Script[State]:
        """One round; every answer is empty, and all that matters goes from client to client."""
        if context.round < self.local_rounds // 2:
            yield from ask("local_train", cohort)
            return state, {}
        place = {who: i for i, who in enumerate(context.clients)}
        new = [who for who in cohort if not state.joined[place[who]]]
        if new:
            yield from ask("local_train", new)
        yield from exchange("begin", cohort)
        makers = cohort if self.images.due(context.round - self.local_rounds // 2) else new
        joined, peers = state.joined.clone(), len(context.clients)
        if makers:
            got = yield from ask("generate_images", makers)
            joined[[place[who] for who in got.clients]] = 1
        for step in (
            "images",
            "counts",
            "opinions",
            *self._sums().steps(peers, self._longest(context.round, peers)),
        ):
            yield from exchange(step, cohort)
        yield from ask("train", cohort)
        return State(joined), {}

    def tasks(self) -> Table:
        """What clients can be asked, and what they tell one another."""
        # What a step opens it opens for every client: no more than it reads.
        told: list[tuple[Table, Sequence[str]]] = [
            ({"begin": PeerTask(lambda memory, me: {}, self._begin)}, BOOKS),
            (
                Comparison(self.learner, self.images, self.compare, self.direct).tasks(),
                ("trust", *OF_REFUSALS),
            ),
            (HearsayExchange(self.trust, self._lists()).tasks(), ("trust", *OF_REFUSALS)),
            (self._sums().tasks(), OF_SUMS),
        ]
        return {
            # The stream's name decides the order of rows, and with it every result.
            "local_train": local_training(self.learner, "model", stream="practise"),
            "generate_images": ProbeImages(self.learner, self.images, self.gan).task(),
            **{
                name: booked(task, books) if isinstance(task, PeerTask) else task
                for table, books in told
                for name, task in table.items()
            },
            "train": local_training(self.learner, "pam", stream="batch"),
        }

    def eval_inputs(self, state: State, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """Clients need nothing."""
        return {}, None

    def eval_tasks(self) -> Mapping[str, Task]:
        """The PAM as it was put together ("centre"), and the model after training on top of it."""
        # Nobody learns whose labels these are in the rounds; scores are not to tell.
        return {
            "centre": self.learner.score(start=_pam, by_class=False),
            "personal": self.learner.score(start=own_model, by_class=False),
        }

    def complaints(self, memory: Message, clients: Sequence[Client]) -> dict[Client, str]:
        """Whose messages a client could not use in this round, and why, out of its memory."""
        if "reasons" not in memory:
            return {}
        return reasons(opened({"reasons": memory["reasons"]}, BOOKS, len(clients)), clients)

    def look(self, memories: Mapping[Client, Message], context: RoundContext) -> dict[str, Tensor]:
        """What clients think of one another after a round, and whom they ask: see `look.look`."""
        return look(memories, context, self._lists())

    def shows(
        self, state: State, memories: Mapping[Client, Message], made: Any, context: RoundContext
    ) -> dict[str, Tensor]:
        """Uncertainty, the sizes of lists, and the opinions of a few about one another."""
        return shown(memories, context, self._lists())

    def _begin(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        mixes_pam = self.mixes == "pam" and me.context.round > self.local_rounds
        return begin_round(self.learner, mixes_pam, memory, me)

    def _lists(self) -> PeerLists:
        return PeerLists(self.trust, self.local_rounds, self.shares.limits.min_members)

    def _sums(self) -> SecureSum:
        numbers = sum(length for _, length in layers_of(self.learner.first))
        return SecureSum(self.shares, numbers, self._longest)

    def _longest(self, round: int, peers: int) -> int:
        return self._lists().longest(round, peers, self.direct)


@dataclass(frozen=True)
class SLFedSimilar(SLFed):
    """SLFed with lists of the most similar peers (ours): finds groups where the published lists do not.

    After rounds alone clients compare, image by image, what their models see in rows that were searched for
    in a model, and list those who stand out. Every option of SLFed can still be set; these have new defaults.
    """

    images: ImageOptions = field(default_factory=lambda: ImageOptions("back_search", 200))
    compare: Compare = "images"
    trust: TrustOptions = field(default_factory=lambda: TrustOptions(rank="similarity"))
    local_rounds: int = 12


def _pam(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    return {"model": memory["pam"]}
