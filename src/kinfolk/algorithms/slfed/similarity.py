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
_WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


def histogram(labels: Tensor, classes: int) -> Tensor:
    """How many images [images] were put into each class: int64 [classes].

    >>> histogram(torch.tensor([0, 2, 2]), 4)
    tensor([1, 0, 2, 0])
    """
    if labels.dim() != 1 or labels.is_floating_point() or not len(labels):
        raise KinfolkError("labels", tuple(labels.shape), "give a list of whole numbers, one for each image")
    if bool(((labels < 0) | (labels >= classes)).any()):
        far = int(labels.max() if int(labels.min()) >= 0 else labels.min())
        raise KinfolkError("labels", far, f"must lie in 0 ... {classes - 1}")
    # Not bincount: on CUDA it has no deterministic form.
    return (labels[:, None] == torch.arange(classes, device=labels.device)).sum(0)


def checked_counts(field: str, counts: Tensor, images: int) -> Tensor:
    """Counts [..., classes] in float64, or an error naming `field`: each whole, 0 or more, together `images`.

    >>> checked_counts("counts of 'bob'", torch.tensor([4, -1]), 3)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: counts of 'bob' = -1.0: must be whole numbers of 0 or more
    """
    if images < 1:
        raise KinfolkError("images", images, "give 1 or more")
    values = counts.double()
    bad = ~((values >= 0) & values.isfinite() & (values == values.floor()))
    if bool(bad.any()):
        raise KinfolkError(field, float(values[bad][0]), "must be whole numbers of 0 or more")
    if values.dim() < 1:
        raise KinfolkError(field, float(values), "give one number for each class")
    off = values.sum(-1) != images
    if bool(off.any()):
        total = int(values.sum(-1)[off][0])
        raise KinfolkError(field, total, f"must sum to the {images} images that were classified")
    return values


def checked_labels(field: str, labels: Tensor, classes: int, images: int) -> Tensor:
    """Classes [..., images] in int64, or an error naming `field`: one for each image, in 0 ... classes - 1.

    >>> checked_labels("classes of 'bob'", torch.tensor([0, 4]), classes=4, images=2)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: classes of 'bob' = 4: must lie in 0 ... 3
    """
    if images < 1:
        raise KinfolkError("images", images, "give 1 or more")
    if labels.dtype not in _WHOLE:
        raise KinfolkError(field, str(labels.dtype), "must be whole numbers")
    if labels.shape[-1:] != (images,):
        raise KinfolkError(field, tuple(labels.shape), f"give one class for each of the {images} images")
    values = labels.long()  # bytes cannot be compared with 256 classes
    bad = (values < 0) | (values >= classes)
    if bool(bad.any()):
        raise KinfolkError(field, int(values[bad][0]), f"must lie in 0 ... {classes - 1}")
    return values


@dataclass(frozen=True)
class Counts:
    """As published: how many images fall into each class, and the cosine of such counts.

    `mine` are my model's and the peer's notes on my images, `theirs` the two on the peer's images. Which of a
    pair comes first does not matter.

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
        named = f"counts with {peer!r} on {where} images"
        if pair[0].shape[-1:] != pair[1].shape[-1:]:
            raise KinfolkError(named, [tuple(part.shape) for part in pair], "must have the same classes")
        x, y = (checked_counts(named, part, self.images) for part in pair)
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
        return checked_labels("labels", labels, self.classes, self.images).to(self.form[0])

    def similarity(self, mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], peer: str) -> Tensor:
        """lambda = (share of my images that both models put into one class + share of theirs) / 2."""
        shares = []
        for pair, where in ((mine, "my"), (theirs, "their")):
            named = f"classes with {peer!r} on {where} images"
            x, y = (checked_labels(named, part, self.classes, self.images) for part in pair)
            # Not a mean, which may multiply by 1 / images: 49 of 49 would be less than 1.
            shares.append((x == y).sum(-1).double() / self.images)
        return (shares[0] + shares[1]) / 2


Measure = Counts | Images
MEASURES: Mapping[Compare, type[Counts] | type[Images]] = {"counts": Counts, "images": Images}
