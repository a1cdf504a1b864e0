"""Images that stand for a client's rows when it is compared with others: a GAN's, our own, or controls.

A task makes them and keeps them in the client's memory as bytes, under "images"; "made" counts those
that may leave, and "copies" those that were too near to a training row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kinfolk.algorithms.slfed.copies import CopyGuard
from kinfolk.algorithms.slfed.gan import KEY, PART, Gan, from_bytes, to_bytes, to_unit
from kinfolk.algorithms.slfed.ranges import REACH, ROWS, Ranges, bounds, find_reach, looking_inward, outward
from kinfolk.algorithms.slfed.row_means import MADE, RowMeans
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.learning.noise import normal
from kinfolk.learning.optim import Adam
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Plan, Scan, Task, TrainStep
from kinfolk.types import Message, Tree, map_leaves

Kind = Literal["gan", "noise", "back_search", "means", "held_out"]
_GUARDED = ("gan", "means")  # made of training rows
# A pass of one step: what must be done once rows are at hand, so that their shape is known.
ONCE = Plan(1, steps=1, shuffle=False)
FOUND, SEEN = "work.found", "work.seen"
_NOISE, _SEARCH = 10, 11
# Images are looked at so many at a time; a GPU is fast enough for fewer calls to pay.
_TOGETHER = {"cpu": 256, "cuda": 2048}


@dataclass(frozen=True)
class StandIns:
    """How many images, of which kind."""

    learner: Learner
    kind: Kind = "gan"
    count: int = 1000
    gan: Gan = field(default_factory=Gan)
    guard: CopyGuard | None = field(default_factory=CopyGuard)  # of a GAN's images and of means
    search_steps: int = 100
    search_lr: float = 0.1
    search_weight: float = 0.1  # of the pull towards 0
    means_of: int = 8  # rows that an image of kind "means" is the mean of
    ranges: Ranges = "fixed"  # the gan's low and high; "own": of each feature, by the client's rows

    def task(self) -> Task:
        """Make images and keep them; nothing is replied."""
        passes: Mapping[str, tuple[Fit | Scan, ...]] = {
            "gan": (Scan(self._networks, ONCE), self.gan.fit(), Scan(self._generate, ONCE)),
            "noise": (Scan(self._noise, ONCE),),
            "back_search": (Scan(self._somewhere, ONCE), self._search(), Scan(self._searched, ONCE)),
            "means": self._means(),
            "held_out": (Scan(self._room, ONCE), Scan(self._hold, Plan(256, shuffle=False, split="valid"))),
        }
        guard = self.guard.passes() if self.guard and self.kind in _GUARDED else ()
        light = self.kind != "back_search"  # which looks through the client's own model
        work = [looking_inward(one, self.gan.low, self.gan.high) for one in (*passes[self.kind], *guard)]
        every = (*find_reach(self.ranges), *work)
        return Task(_begin, self._finish, every, {}, stream="gan", light=light)

    def _networks(self, carry: Carry, batch: Batch) -> Carry:
        return {**carry, PART: self.gan.first(carry[KEY], batch.x[0].numel())}

    def _generate(self, carry: Carry, batch: Batch) -> Carry:
        made = to_bytes(self.gan.images(carry[PART], carry[KEY], self.count))
        return self._watched({**carry, "images": made.reshape(self.count, *batch.x.shape[1:])})

    def _watched(self, carry: Carry) -> Carry:
        return self.guard.begin(carry, carry[ROWS], carry["images"][0].numel()) if self.guard else carry

    def _means(self) -> tuple[Scan, ...]:
        means = RowMeans(self.count, self.learner.outputs, self.means_of, self.gan.low, self.gan.high)

        def show(carry: Carry, batch: Batch) -> Carry:
            return self._watched(means.show(carry, batch))

        return Scan(means.room, ONCE), Scan(means.add, Plan(256, shuffle=False)), Scan(show, ONCE)

    def _noise(self, carry: Carry, batch: Batch) -> Carry:
        drawn = normal(carry[KEY], (self.count, *batch.x.shape[1:]), _NOISE)
        return {**carry, "images": to_bytes(drawn / 2)}

    def _somewhere(self, carry: Carry, batch: Batch) -> Carry:
        drawn = normal(carry[KEY], (self.count, *batch.x.shape[1:]), _SEARCH).to(batch.x.dtype)
        # Ranges of one's own reach over 99 of 100 values: rows begin within them.
        return {**carry, FOUND: {"x": drawn / 4 if REACH in carry else drawn}}

    def _search(self) -> Fit:
        """Adam on the images, which are to look to the own model like each class in turn."""
        descent = TrainStep(self._looks_like, Adam(), ("x",), self.search_lr, part=FOUND)
        return Fit((descent,), Plan(1, steps=self.search_steps, shuffle=False))

    def _looks_like(self, found: Tree, batch: Batch, carry: Carry) -> Tensor:
        """The sum over images of the loss and (weight / 2) |x|; the batch of rows is not looked at."""
        x = found["x"]
        y = torch.arange(self.count, device=x.device) % self.learner.outputs
        rows = outward(x, carry, self.gan.low, self.gan.high)
        loss = self.learner.loss.row_loss(self.learner.apply(carry["model"], rows), y)
        pull = (x.flatten(1).square().sum(1) + 1e-12).sqrt() * (self.search_weight / 2)
        return (loss + pull).sum()

    def _searched(self, carry: Carry, batch: Batch) -> Carry:
        return {**carry, "images": to_bytes(to_unit(carry[FOUND]["x"], self.gan.low, self.gan.high))}

    def _room(self, carry: Carry, batch: Batch) -> Carry:
        room = torch.zeros(self.count, *batch.x.shape[1:], dtype=torch.float64, device=batch.x.device)
        return {**carry, "images": to_bytes(room), FOUND: room, SEEN: torch.zeros_like(carry[ROWS])}

    def _hold(self, carry: Carry, batch: Batch) -> Carry:
        places = torch.arange(self.count, device=batch.row.device)[:, None]
        real = torch.ones_like(batch.row) if batch.weight is None else (batch.weight > 0).long()
        mine = ((batch.row[None, :] == places) & (real > 0)[None, :]).double()
        unit = to_unit(batch.x.flatten(1).double(), self.gan.low, self.gan.high)
        found = carry[FOUND] + (mine @ unit).reshape(carry[FOUND].shape)
        seen = carry[SEEN] + real.sum()
        # Those who hold few rows show them again and again.
        turn = torch.arange(self.count, device=seen.device) % seen.clamp(min=1)
        pixels = math.prod(found.shape[1:])
        shown = found.flatten(1).gather(0, turn[:, None].expand(-1, pixels)).reshape(found.shape)
        return {**carry, FOUND: found, SEEN: seen, "images": to_bytes(shown)}

    def _finish(self, carry: Carry) -> tuple[Message, Message]:
        made = torch.full_like(carry[KEY], self.count)
        copies = torch.zeros_like(made)
        if self.guard and self.kind in _GUARDED:
            images, made, copies = self.guard.without_copies(carry)
            carry = {**carry, "images": images}
        if self.kind == "means":
            made = torch.minimum(made, carry[MADE])
        if self.kind == "held_out":
            made = carry[SEEN].clamp(max=self.count)
        return keep_all({**carry, "made": made.long(), "copies": copies.long()})

    def __post_init__(self) -> None:
        object.__setattr__(self, "gan", self.gan.prepared(self.learner.prepare))
        at_least("algorithm.images_count", self.count, 2)
        if not self.gan.low < self.gan.high:
            raise KinfolkError("algorithm.high", self.gan.high, f"must be above low = {self.gan.low:g}")


def _begin(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    return {**memory, ROWS: facts.rows}


def keep_all(carry: Carry) -> tuple[Message, Message]:
    """Keep the whole carry, in order of names, less what was only needed for the work; send nothing.

    >>> keep_all({"model": {}, "work.rows": 3, "optimiser.0.first": {}, "key": 7})
    ({}, {'key': 7, 'model': {}})
    """
    return {}, {k: carry[k] for k in sorted(carry) if not k.startswith(("work.", "optimiser."))}


def checked_images(images: object, like: Tensor, sender: str) -> Tensor:
    """Images of a peer, or an error that names it: bytes, as many and as large as one's own, not all alike.

    >>> checked_images(torch.zeros(2, 3), torch.zeros(2, 3), "bob")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: images of 'bob': must be bytes of shape (2, 3)
    """
    fits = isinstance(images, Tensor) and images.dtype == torch.uint8 and images.shape == like.shape
    if not fits:
        raise KinfolkError(f"images of {sender!r}", None, f"must be bytes of shape {tuple(like.shape)}")
    assert isinstance(images, Tensor)
    flat = images.flatten(1)
    if flat.shape[1] > 1 and bool((flat == flat[:, :1]).all()):
        raise KinfolkError(f"images of {sender!r}", None, "are of one colour each and show nothing")
    if bool((flat == flat[:1]).all()):
        raise KinfolkError(f"images of {sender!r}", None, "are all the same image and tell nothing apart")
    return images


@torch.no_grad()
def predicted(
    learner: Learner, model: Tree, images: Tensor, low: float, high: float, letter: Message | None = None
) -> Tensor:
    """The class that a model in scoring mode gives each image of bytes: int64 [images].

    The letter that images came in may hold ranges of their own for each feature.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> predicted(learner, learner.first, torch.zeros(4, 2, dtype=torch.uint8), -1.0, 1.0).shape
    torch.Size([4])
    """
    device = next(iter(model.values())).device
    parts = torch.split(images.to(device), _TOGETHER.get(device.type, 256))
    ends = bounds(map_leaves(lambda t: t.to(device), letter or {}), low, high)
    return torch.cat([learner.apply(model, from_bytes(part, *ends)).argmax(1) for part in parts])
