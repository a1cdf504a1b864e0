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

from kinfolk.algorithms.slfed.copy_guard import CopyGuard
from kinfolk.algorithms.slfed.feature_ranges import (
    REACH,
    ROWS,
    Ranges,
    bounds,
    find_reach,
    looking_inward,
    outward,
)
from kinfolk.algorithms.slfed.gan import KEY, PART, Gan, from_bytes, to_bytes, to_unit
from kinfolk.algorithms.slfed.row_means import MADE, RowMeans
from kinfolk.errors import KinfolkError, at_least
from kinfolk.learning.learner import Learner
from kinfolk.learning.noise import normal
from kinfolk.learning.optim import Adam
from kinfolk.task import Batch, Carry, ClientInfo, Fit, Plan, Scan, Task, TrainStep
from kinfolk.types import Message, Tree, map_leaves, plain_rows

_GUARDED = ("gan", "means")  # made of training rows
# A pass of one step: what must be done once rows are at hand, so that their shape is known.
ONCE = Plan(1, steps=1, shuffle=False)
FOUND, SEEN = "work.found", "work.seen"
_NOISE, _SEARCH = 10, 11
# Images are looked at so many at a time; a GPU is fast enough for fewer calls to pay.
_TOGETHER = {"cpu": 256, "cuda": 2048}


# Of back search: the rate, and the weight of the pull towards 0.
_SEARCH_LR, SEARCH_WEIGHT = 0.1, 0.1


@dataclass(frozen=True)
class ImageOptions:
    """Which images, how many, and when they are made again: `[algorithm.images]`."""

    # "gan" is the paper's; "means" of rows of a class and "back_search" are ours, the others are controls.
    kind: Literal["gan", "noise", "back_search", "means", "held_out"] = "gan"
    count: int = 1000  # G
    every: int = 4  # g: rounds from one set of images to the next
    growth: float = 1.0  # above 1 that gap grows by this factor each time, so that images get rarer
    means_of: int = 8  # rows that an image of "means" is the mean of
    search_steps: int = 100  # of "back_search"
    low: float = -1.0  # the range of the numbers in a row, which bytes are spread over
    high: float = 1.0
    # "fixed": that; "own": each feature's, by a client's rows; "auto": own for tables.
    ranges: Ranges = "auto"

    def __post_init__(self) -> None:
        for name, least in (("count", 2), ("every", 1), ("growth", 1), ("means_of", 3)):
            at_least(f"algorithm.images.{name}", getattr(self, name), least)
        if not self.low < self.high:
            raise KinfolkError("algorithm.images.high", self.high, f"must be above low = {self.low:g}")

    def due(self, round: int) -> bool:
        """Whether new images are made: first in round 0, then after gaps of every * growth ** i rounds.

        >>> [r for r in range(40) if ImageOptions(every=3, growth=2.0).due(r)]
        [0, 3, 9, 21]
        """
        at, gap = 0.0, float(self.every)
        while at < round:
            at, gap = at + gap, gap * self.growth
        return at < round + 1


@dataclass(frozen=True)
class ProbeImages:
    """How a client makes its images."""

    learner: Learner
    images: ImageOptions = field(default_factory=ImageOptions)
    gan: Gan = field(default_factory=Gan)
    guarded: bool = True  # copies of training rows among a GAN's images and means do not leave

    def task(self) -> Task:
        """Make images and keep them; nothing is replied."""
        passes: Mapping[str, tuple[Fit | Scan, ...]] = {
            "gan": (Scan(self._networks, ONCE), self._gan.fit(*self._range), Scan(self._generate, ONCE)),
            "noise": (Scan(self._noise, ONCE),),
            "back_search": (Scan(self._somewhere, ONCE), self._search(), Scan(self._searched, ONCE)),
            "means": self._means(),
            "held_out": (Scan(self._room, ONCE), Scan(self._hold, Plan(256, shuffle=False, split="valid"))),
        }
        guard = self._guard.passes() if self.guarded and self.images.kind in _GUARDED else ()
        work = [looking_inward(one, *self._range) for one in (*passes[self.images.kind], *guard)]
        every = (*find_reach(self.images.ranges), *work)
        return Task(_begin, self._finish, every, {}, stream="gan")

    def _networks(self, carry: Carry, batch: Batch) -> Carry:
        return {**carry, PART: self._gan.first(carry[KEY], plain_rows(batch.x)[0].numel())}

    def _generate(self, carry: Carry, batch: Batch) -> Carry:
        made = to_bytes(self._gan.images(carry[PART], carry[KEY], self.images.count))
        return self._watched(
            {**carry, "images": made.reshape(self.images.count, *plain_rows(batch.x).shape[1:])}
        )

    def _watched(self, carry: Carry) -> Carry:
        return self._guard.begin(carry, carry[ROWS], carry["images"][0].numel()) if self.guarded else carry

    def _means(self) -> tuple[Scan, ...]:
        means = RowMeans(self.images.count, self.learner.outputs, self.images.means_of, *self._range)

        def show(carry: Carry, batch: Batch) -> Carry:
            return self._watched(means.show(carry, batch))

        return Scan(means.room, ONCE), Scan(means.add, Plan(256, shuffle=False)), Scan(show, ONCE)

    def _noise(self, carry: Carry, batch: Batch) -> Carry:
        drawn = normal(carry[KEY], (self.images.count, *plain_rows(batch.x).shape[1:]), _NOISE)
        return {**carry, "images": to_bytes(drawn / 2)}

    def _somewhere(self, carry: Carry, batch: Batch) -> Carry:
        drawn = normal(carry[KEY], (self.images.count, *plain_rows(batch.x).shape[1:]), _SEARCH).to(
            plain_rows(batch.x).dtype
        )
        # Ranges of one's own reach over 99 of 100 values: rows begin within them.
        return {**carry, FOUND: {"x": drawn / 4 if REACH in carry else drawn}}

    def _search(self) -> Fit:
        """Adam on the images, which are to look to the own model like each class in turn."""
        descent = TrainStep(self._looks_like, Adam(), ("x",), _SEARCH_LR, part=FOUND)
        return Fit((descent,), Plan(1, steps=self.images.search_steps, shuffle=False))

    def _looks_like(self, found: Tree, batch: Batch, carry: Carry) -> Tensor:
        """The sum over images of the loss and (weight / 2) |x|; the batch of rows is not looked at."""
        x = found["x"]
        y = torch.arange(self.images.count, device=x.device) % self.learner.outputs
        rows = outward(x, carry, *self._range)
        loss = self.learner.loss.row_loss(self.learner.apply(carry["model"], rows), y)
        pull = (x.flatten(1).square().sum(1) + 1e-12).sqrt() * (SEARCH_WEIGHT / 2)
        return (loss + pull).sum()

    def _searched(self, carry: Carry, batch: Batch) -> Carry:
        return {**carry, "images": to_bytes(to_unit(carry[FOUND]["x"], *self._range))}

    def _room(self, carry: Carry, batch: Batch) -> Carry:
        room = torch.zeros(
            self.images.count,
            *plain_rows(batch.x).shape[1:],
            dtype=torch.float64,
            device=plain_rows(batch.x).device,
        )
        return {**carry, "images": to_bytes(room), FOUND: room, SEEN: torch.zeros_like(carry[ROWS])}

    def _hold(self, carry: Carry, batch: Batch) -> Carry:
        places = torch.arange(self.images.count, device=batch.row.device)[:, None]
        real = torch.ones_like(batch.row) if batch.weight is None else (batch.weight > 0).long()
        mine = ((batch.row[None, :] == places) & (real > 0)[None, :]).double()
        unit = to_unit(plain_rows(batch.x).flatten(1).double(), *self._range)
        found = carry[FOUND] + (mine @ unit).reshape(carry[FOUND].shape)
        seen = carry[SEEN] + real.sum()
        # Those who hold few rows show them again and again.
        context = torch.arange(self.images.count, device=seen.device) % seen.clamp(min=1)
        pixels = math.prod(found.shape[1:])
        shown = found.flatten(1).gather(0, context[:, None].expand(-1, pixels)).reshape(found.shape)
        return {**carry, FOUND: found, SEEN: seen, "images": to_bytes(shown)}

    def _finish(self, carry: Carry) -> tuple[Message, Message]:
        made = torch.full_like(carry[KEY], self.images.count)
        copies = torch.zeros_like(made)
        if self.guarded and self.images.kind in _GUARDED:
            images, made, copies = self._guard.without_copies(carry)
            carry = {**carry, "images": images}
        if self.images.kind == "means":
            made = torch.minimum(made, carry[MADE])
        if self.images.kind == "held_out":
            made = carry[SEEN].clamp(max=self.images.count)
        return keep_all({**carry, "made": made.long(), "copies": copies.long()})

    @property
    def _range(self) -> tuple[float, float]:
        return self.images.low, self.images.high

    @property
    def _gan(self) -> Gan:
        return self.gan.prepared(self.learner.prepare)

    @property
    def _guard(self) -> CopyGuard:
        return CopyGuard(*self._range)


def _begin(message: Message, memory: Message, facts: ClientInfo) -> Carry:
    return {**memory, ROWS: facts.rows}


def keep_all(carry: Carry) -> tuple[Message, Message]:
    """Keep the whole carry, in order of names, less what was only needed for the work; send nothing.

    >>> keep_all({"model": {}, "work.rows": 3, "optimiser.0.first": {}, "key": 7})
    ({}, {'key': 7, 'model': {}})
    """
    return {}, {k: carry[k] for k in sorted(carry) if not k.startswith(("work.", "optimiser."))}


def checked_images(images: object, like: Tensor, sender: str) -> Tensor:
    """Images of a peer, or an error that names it: bytes, as many and as large as the own, not all equal.

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
    learner: Learner, model: Tree, images: Tensor, low: float, high: float, message: Message | None = None
) -> Tensor:
    """The class that a model in scoring mode gives each image of bytes: int64 [images].

    The message that images came in may hold ranges of their own for each feature.

    >>> from kinfolk.learning.losses import find_loss
    >>> learner = Learner(torch.nn.Linear(2, 3), find_loss("cross_entropy"), outputs=3)
    >>> predicted(learner, learner.first, torch.zeros(4, 2, dtype=torch.uint8), -1.0, 1.0).shape
    torch.Size([4])
    """
    device = next(iter(model.values())).device
    parts = torch.split(images.to(device), _TOGETHER.get(device.type, 256))
    ends = bounds(map_leaves(lambda t: t.to(device), message or {}), low, high)
    return torch.cat([learner.apply(model, from_bytes(part, *ends)).argmax(1) for part in parts])
