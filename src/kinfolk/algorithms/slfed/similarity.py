"""How similar two models are by what they see in one another's images: counts of classes, or image by image.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.

The paper's measure is the cosine of histograms of predicted classes. Ours, "images", is the share of images
that both models put into the same class: a histogram forgets which image it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError

Compare = Literal["counts", "images"]
Form = tuple[torch.dtype, tuple[int, ...]]  # of an entry of a message


def histogram(labels: Tensor, classes: int) -> Tensor:
    """How many images [images] were put into each class: int64 [classes].

    >>> histogram(torch.tensor([0, 2, 2]), 4)
    tensor([1, 0, 2, 0])
    """
    # Not bincount: on CUDA it has no deterministic form.
    return (labels[:, None] == torch.arange(classes, device=labels.device)).sum(0)


@dataclass(frozen=True)
class Counts:
    """As published: how many images fall into each class, and the cosine of such counts.

    `mine` are my model's and the peer's notes on my images, `theirs` the two on the peer's images. Which of a
    pair comes first does not matter. That notes have the agreed `form` is checked where they arrive.

    >>> counts = Counts(classes=2, images=4)
    >>> same, other = counts.note(torch.tensor([0, 0, 0, 1])), torch.tensor([1, 3])
    >>> counts.similarity((same, same), (same, other), "bob")
    tensor(0.8000, dtype=torch.float64)
    """

    classes: int
    images: int

    @property
    def form(self) -> Form:
        """Of what is noted: one int64 for each class."""
        return torch.int64, (self.classes,)

    def note(self, labels: Tensor) -> Tensor:
        """The counts of the classes [images] that a model predicts."""
        return histogram(labels, self.classes)

    def similarity(self, mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], peer: str) -> Tensor:
        """lambda = (cos over my images + cos over theirs) / 2, in [0, 1]."""
        my, their = (self._cosine(*pair, peer) for pair in ((mine, "my"), (theirs, "their")))
        return ((my + their) / 2).clamp(0, 1)

    def _cosine(self, pair: tuple[Tensor, Tensor], where: str, peer: str) -> Tensor:
        x, y = (part.double() for part in pair)
        for counts in (x, y):
            named, total = f"counts with {peer!r} on {where} images", counts.sum(-1)
            if bool((counts < 0).any()):
                raise KinfolkError(named, float(counts.min()), "must be whole numbers of 0 or more")
            if bool((total != self.images).any()):
                off = int(total[total != self.images][0])
                raise KinfolkError(named, off, f"must sum to the {self.images} images that were classified")
        # Never 0: counts sum to at least one image.
        return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()


@dataclass(frozen=True)
class Images:
    """Ours: the class of each image, and the share of images that two models agree on.

    A message holds one number for each image, a byte (uint8) up to 256 classes and an int64 beyond. So a
    partner learns the predicted class of every image, of its own as well, which it may have chosen; counts
    tell only how many were of each.

    >>> same, other = torch.tensor([0, 1, 1, 2]), torch.tensor([1, 0, 1, 2])
    >>> Images(classes=3, images=4).similarity((same, same), (same, other), "bob")
    tensor(0.7500, dtype=torch.float64)
    """

    classes: int
    images: int

    @property
    def form(self) -> Form:
        """Of what is noted: one number for each image, a byte where that is enough."""
        return torch.uint8 if self.classes <= 256 else torch.int64, (self.images,)

    def note(self, labels: Tensor) -> Tensor:
        """The classes [images] that a model predicts, as they are."""
        return labels.to(self.form[0])

    def similarity(self, mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], peer: str) -> Tensor:
        """lambda = (share of my images that both models put into one class + share of theirs) / 2."""
        shares = []
        for pair, where in ((mine, "my"), (theirs, "their")):
            x, y = (part.long() for part in pair)  # bytes cannot be compared with 256 classes
            bad = torch.cat([part[(part < 0) | (part >= self.classes)] for part in (x, y)])
            if len(bad):
                named = f"classes with {peer!r} on {where} images"
                raise KinfolkError(named, int(bad[0]), f"must lie in 0 ... {self.classes - 1}")
            # Not a mean, which may multiply by 1 / images: 49 of 49 would be less than 1.
            shares.append((x == y).sum(-1).double() / self.images)
        return (shares[0] + shares[1]) / 2


Measure = Counts | Images
MEASURES: Mapping[Compare, type[Counts] | type[Images]] = {"counts": Counts, "images": Images}
