"""A client's model and its personal aggregated model (PAM) around the sums: begin a round, recover, train."""

from __future__ import annotations

from typing import Literal

import torch

from kinfolk.algorithms.slfed.feature_ranges import REACH
from kinfolk.algorithms.slfed.probe_images import keep_all
from kinfolk.algorithms.slfed.trust import no_evidence
from kinfolk.learning.learner import Learner
from kinfolk.shares.rejections import Rejections, without_reasons
from kinfolk.shares.secure_sum import first_memory
from kinfolk.task import Carry, ClientInfo, Fit, Peer, Task
from kinfolk.types import Message, Tree, map_leaves, tree_of

# What lives longer than a round; all else in a memory is one round's.
KEPT = (
    "answered", "copies", "images", "key", "made", "model", "pam", REACH, "reasons", "rejected",
    "request_log", "trust",
)  # fmt: skip

# What is worked on where the engine works.
LARGE = ("images", "model", "pam")


def local_training(learner: Learner, of: Literal["model", "pam"], stream: str) -> Task:
    """Train the own model or the PAM, and go on from there."""

    def start(message: Message, memory: Message, facts: ClientInfo) -> Carry:
        # Training that diverged, or a sum with somebody's NaN in it, must not stay forever.
        other = memory["model" if of == "pam" else "pam"]
        model = finite_or(memory[of], other)
        return {**memory, "model": model, "pam": model}

    return Task(start, keep_all, (Fit((learner.descent(),), learner.plan),), {}, stream)


def begin_round(learner: Learner, mixes_pam: bool, memory: Message, me: Peer) -> Message:
    """Nothing of an earlier round is left over; until there is a better one, the own model is the PAM."""
    n = len(me.context.clients)
    first = {"trust": no_evidence(n), **first_memory(n)}
    held = {**first, **{key: memory[key] for key in KEPT if key in memory}}
    held |= without_reasons(held)
    # Before the first round there was no PAM, and after a round alone the model is what was trained.
    if mixes_pam and "request_log" in memory:
        held["model"] = memory["pam"]
    if not bool(is_finite(held["model"])):
        rejections = Rejections(me.context.clients, held)
        rejections.add(me.name, f"model of {me.name!r}: is not finite; it goes on from its last that was")
        held |= {**rejections.noted(), "model": _last_finite(learner, memory)}
    key = torch.tensor(me.context.seed.number("gan", me.context.round, me.name))
    held |= {"key": key, "pam": held["model"]}
    held["now"] = torch.tensor(me.context.round)
    return on_host({name: held[name] for name in sorted(held)})


def _last_finite(learner: Learner, memory: Message) -> Tree:
    """What the client began its last training from; if that is not finite either, the common first model."""
    first = {name: leaf.to(tree_of(memory, "model")[name].device) for name, leaf in learner.first.items()}
    return finite_or(tree_of(memory, "model"), memory["pam"], first)


def on_host(memory: Message) -> Message:
    """The memory with all but what is large on the host: messages and lists are read number by number.

    A task that an engine runs on a device, such as training or making images, leaves everything there.

    >>> on_host({"now": torch.tensor(3)})["now"]
    tensor(3)
    """
    return {**memory, **map_leaves(lambda t: t.cpu(), {k: memory[k] for k in memory if k not in LARGE})}


def finite_or(*trees: Tree) -> Tree:
    """The first tree whose numbers are all finite; the last whatever it is. Without a branch on numbers.

    >>> bad, good = {"w": torch.tensor([float("nan"), 1.0])}, {"w": torch.tensor([2.0, 3.0])}
    >>> finite_or(bad, good), finite_or(good, bad)
    ({'w': tensor([2., 3.])}, {'w': tensor([2., 3.])})
    """
    first, *others = trees
    if not others:
        return first
    sound = is_finite(first)
    rest = finite_or(*others)
    return {name: torch.where(sound, leaf, rest[name].to(leaf)) for name, leaf in first.items()}


def is_finite(tree: Tree) -> torch.Tensor:
    """Whether all numbers of a model are: a tensor of one bool.

    >>> is_finite({"w": torch.tensor([1.0, float("inf")])})
    tensor(False)
    """
    return torch.stack([leaf.isfinite().all() for leaf in tree.values()]).all()
