"""Clients that add noise before anything leaves them: what the server makes of it costs nothing more."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kinfolk.privacy.gaussian import clipped, noised
from kinfolk.task import Carry, ClientInfo, Task
from kinfolk.types import Message, Tree

# Where a carry, and a reply that is not yet concluded, hold the trees that a client was sent.
_SENT = "sent."


def trees(task: Task) -> dict[str, Tree]:
    """What a task replies that noise can hide: trees of real numbers."""
    return {
        key: value
        for key, value in task.reply.items()
        if isinstance(value, dict) and all(t.is_floating_point() for t in value.values())
    }


def noisy(task: Task, clip: float, std: float) -> Task:
    """A task whose reply is clipped, all its trees together, and has noise on every number.

    A tree of which the client was sent one like it under the same key is that plus an update; any other is an
    update itself. What a task replies besides trees is none of this.
    """
    keys = trees(task)

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        like = {_SENT + key: message[key] for key, tree in keys.items() if _alike(message.get(key), tree)}
        return {**task.start(message, memory, facts), **like}

    def finish(carry: Carry) -> tuple[Message, Message | None]:
        reply, kept = task.finish(carry)
        return {**reply, **{key: value for key, value in carry.items() if key.startswith(_SENT)}}, kept

    def conclude(reply: Message) -> Message:
        sent = {key: reply.pop(key) for key in list(reply) if key.startswith(_SENT)}
        reply = task.conclude(reply) if task.conclude else reply
        flat: dict[tuple[str, str], Tensor] = {(key, n): t for key in keys for n, t in reply[key].items()}
        began = {(key, n): t for key in keys for n, t in sent.get(_SENT + key, {}).items()}
        moved = {at: t.double() - began[at].double() if at in began else t.double() for at, t in flat.items()}
        short = clipped({at: t[None] for at, t in moved.items()}, clip)
        made = noised({at: t[0] for at, t in short.items()}, std)
        made = {at: t + began[at].double() if at in began else t for at, t in made.items()}
        trees = {key: {n: made[key, n].to(t.dtype) for n, t in reply[key].items()} for key in keys}
        return {**reply, **trees}

    return replace(task, start=start, finish=finish, conclude=conclude, common=False)


def _alike(sent: object, declared: Tree) -> bool:
    if not isinstance(sent, dict) or sent.keys() != declared.keys():
        return False
    return all(sent[n].shape == t.shape for n, t in declared.items())
