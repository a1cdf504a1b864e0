"""Messages within one process: nothing is copied, and what was read is let go."""

import weakref

import torch

from kinfolk.engines.memory import InProcess, Memories
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import PeerTask
from kinfolk.types import Client

NAMES = tuple(map(Client, "abc"))


def test_a_message_is_the_very_tensor_and_is_let_go_once_it_is_read():
    letters, alive = {}, {}

    def send(memory, me):
        out = {who: {"v": torch.ones(3)} for who in NAMES if who != me.name}
        letters.update({(me.name, who): weakref.ref(letter["v"]) for who, letter in out.items()})
        return out

    def receive(inbox, memory, me):
        assert all(letters[sender, me.name]() is letter["v"] for sender, letter in inbox.items())
        alive[me.name] = sum(ref() is not None for ref in letters.values())
        return {"heard": torch.tensor(len(inbox))}

    engine = InProcess()
    held = engine.memories = Memories(lambda who: {})
    sent = engine.swap(PeerTask(send, receive), NAMES, RoundContext(Seed(0), 0, NAMES))
    assert alive["a"] == 6 > alive["b"] > alive["c"]
    assert set(sent.values()) == {12}
    assert {int(m["heard"]) for m in held.values()} == {2}
