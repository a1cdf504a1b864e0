"""Direct partners show one another images, and compare what both models see in them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.peers import links
from kinfolk.algorithms.slfed.feature_ranges import REACH, checked_reach
from kinfolk.algorithms.slfed.personal_models import on_host
from kinfolk.algorithms.slfed.probe_images import ImageOptions, checked_images, predicted
from kinfolk.algorithms.slfed.similarity import MEASURES, Compare, Measure
from kinfolk.algorithms.slfed.trust import add_contacts
from kinfolk.learning.learner import Learner
from kinfolk.learning.tokens import takes_tokens, vocabulary
from kinfolk.shares.messages import entry
from kinfolk.shares.rejections import Rejections
from kinfolk.task import Peer, Table, peer_step
from kinfolk.types import Client, Message, Tree, tree_of


@dataclass(frozen=True)
class Comparison:
    """How partners are compared: by which images, by what of the predictions."""

    learner: Learner
    images: ImageOptions
    compare: Compare
    direct: int  # partners each client chooses in a round

    def tasks(self) -> Table:
        """The exchanges: images, then what was predicted on them."""
        return {
            "images": peer_step("now", self._show, self._look),
            "counts": peer_step("seen", self._report, self._compare),
        }

    def _show(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """The images, to this round's partners."""
        if not int(memory.get("made", 0)):
            return {}
        shown = {key: memory[key] for key in ("images", REACH) if key in memory}
        return {who: dict(shown) for who in partners(me, self.direct)}

    def _look(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """What the own model predicts on the own images and on the partners'."""
        memory = on_host(memory)
        seen, rejections = {}, Rejections(me.context.clients, memory)
        tokens = self._tokens(memory)
        for sender in rejections.expected(inbox, partners(me, self.direct)):
            if not int(memory.get("made", 0)):
                break  # nothing of one's own to compare with, which is nobody's fault
            with rejections.by(sender):
                theirs = checked_images(inbox[sender].get("images"), memory["images"], sender, tokens)
                reach = checked_reach(inbox[sender], memory, sender)
                seen[sender] = self._seen(tree_of(memory, "model"), theirs, reach)
        if seen:
            seen[me.name] = self._seen(tree_of(memory, "model"), memory["images"], memory)
        return {**memory, **rejections.noted(), "seen": seen}

    def _tokens(self, memory: Message) -> int:
        """How many tokens there are, where rows are tokens; else 0."""
        made = memory.get("images")
        text = made is not None and takes_tokens(self.learner, tuple(made.shape[1:]))
        return vocabulary(self.learner.module) if text else 0

    def _seen(self, model: Tree, images: Tensor, message: Message) -> Tensor:
        reach = {key: message[key] for key in (REACH,) if key in message}
        labels = predicted(self.learner, model, images, self.images.low, self.images.high, reach)
        return self._measure().note(labels).cpu()

    def _measure(self) -> Measure:
        return MEASURES[self.compare](self.learner.outputs, self.images.count)

    def _report(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """To each partner: what the own model made of its images, and of the own."""
        seen = memory["seen"]
        return {c: {"yours": seen[c], "mine": seen[me.name]} for c in seen if c != me.name}

    def _compare(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """lambda with each partner, as evidence."""
        seen, measure, rejections = memory["seen"], self._measure(), Rejections(me.context.clients, memory)
        met: dict[int, Tensor] = {}
        for sender in rejections.expected(inbox, seen):
            with rejections.by(sender):
                theirs = [entry(inbox[sender], key, *measure.form, sender).cpu() for key in ("yours", "mine")]
                pairs = (seen[me.name], theirs[0]), (seen[sender], theirs[1])
                met[me.context.clients.index(sender)] = measure.similarity(*pairs, sender)
        lately = torch.zeros(len(me.context.clients), dtype=torch.bool)
        lately[list(met)] = True
        kept = {key: value for key, value in memory.items() if key != "seen"}
        trust = add_contacts(memory["trust"], met)
        return {**kept, **rejections.noted(), "trust": trust, "lately": lately}


def partners(me: Peer, direct: int) -> tuple[Client, ...]:
    """This round's direct partners in its cohort: those a client chooses, and those who choose it.

    >>> from kinfolk.streams import RoundContext, Seed
    >>> context = RoundContext(Seed(1), 0, tuple(map(Client, "abcdef")))
    >>> partners(Peer(Client("a"), context), 1), partners(Peer(Client("b"), context), 1)
    (('b', 'c', 'e'), ('a', 'f'))
    """
    return links(me.context, direct).get(me.name, ())
