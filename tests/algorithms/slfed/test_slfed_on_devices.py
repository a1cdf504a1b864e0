"""SLFed on a device: what is large stays there, what is read number by number comes to the host."""

import torch
from film import slfed

from kinfolk.contract import toy
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Peer
from kinfolk.types import Client, leaves, map_leaves

NAMES = tuple(map(Client, "abcdef"))


class RemoteMemories(torch.Tensor):
    """Stands for a tensor on a device: only asking for it brings it to the host."""

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_images_are_looked_at_where_they_are_and_books_are_kept_on_the_host():
    federation = toy.grouped((12,) * 6, side=8, noise=0.5, names=NAMES)
    algorithm = slfed(toy.learner("tiny_cnn", federation), images__kind="noise", images__count=30)
    context, swap, seen = RoundContext(Seed(0), 0, NAMES), algorithm.tasks()["images"], {}
    with toy.coordinated(algorithm, federation) as coordinator:
        memories = coordinator.engine.memories

        def act(request):
            if getattr(request, "swap", "") == "images":
                far = {c: map_leaves(lambda t: t.as_subclass(RemoteMemories), memories[c]) for c in NAMES}
                messages = {c: swap.send(far[c], Peer(c, context)) for c in NAMES}
                for c in NAMES:
                    inbox = {sender: sent[c] for sender, sent in messages.items() if c in sent}
                    seen[c] = swap.receive(inbox, far[c], Peer(c, context))
            return coordinator.perform(request, context)

        state = algorithm.init(toy.first_model(algorithm), NAMES, Seed(0))
        play(algorithm.round(state, NAMES, context), act)
    places = {key: isinstance(leaf, RemoteMemories) for m in seen.values() for key, _, leaf in leaves(m)}
    assert {key for key, far in places.items() if far} == {"images", "model", "pam"}
    assert {"trust", "request_log", "rejected", "now", "made", "seen"} <= set(places)


def test_everybody_begins_with_one_copy_of_the_first_model():
    federation = toy.grouped((12,) * 6, side=8, noise=0.5, names=NAMES)
    held = slfed(toy.learner("tiny_cnn", federation)).init_client(NAMES[0])
    assert held["model"] is held["pam"]
