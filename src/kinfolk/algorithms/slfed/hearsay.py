"""Partners tell one another their opinions of everybody; then each client chooses whom to ask for a model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kinfolk.algorithms.slfed.peer_lists import PeerLists
from kinfolk.algorithms.slfed.trust import TrustOptions, add_hearsay, checked_told, direct_evidence, opinions
from kinfolk.shares.rejections import Rejections
from kinfolk.shares.secure_sum import request
from kinfolk.task import Peer, Table, peer_step
from kinfolk.types import Client, Message


@dataclass(frozen=True)
class HearsayExchange:
    """What is told, how it is weighed, and whom to ask after it."""

    trust: TrustOptions
    lists: PeerLists

    def tasks(self) -> Table:
        """The exchange of opinions."""
        return {"opinions": peer_step("lately", self._tell, self._hear, alike=("opinions",))}

    def _tell(self, memory: Message, me: Peer) -> dict[Client, Message]:
        """The opinions of everybody to those met in this round."""
        trust = memory["trust"] if self.trust.tell == "all" else direct_evidence(memory["trust"])
        told = torch.stack(opinions(trust, self.trust.conflict_aware))
        return {c: {"opinions": told} for c in _met(memory, me)}

    def _hear(self, inbox: dict[Client, Message], memory: Message, me: Peer) -> Message:
        """Weigh what was told, join it with what was known; then choose whom to ask, and for how much."""
        names, told, rejections = me.context.clients, {}, Rejections(me.context.clients, memory)
        for sender in rejections.expected(inbox, _met(memory, me)):
            with rejections.by(sender):
                told[names.index(sender)] = checked_told(inbox[sender].get("opinions"), len(names), sender)
        trust = add_hearsay(memory["trust"], told, names.index(me.name), self.trust)
        sigma = opinions(trust, self.trust.conflict_aware).s
        asked = request(names, self.lists.choose(trust, me), sigma)
        kept = {key: value for key, value in memory.items() if key != "lately"}
        return {**kept, **rejections.noted(), "trust": trust, **asked}


def _met(memory: Message, me: Peer) -> list[Client]:
    """Whom a client has compared itself with in this round."""
    return [me.context.clients[i] for i in memory["lately"].nonzero()[:, 0].tolist()]
