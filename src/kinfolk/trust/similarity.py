"""How alike two models are by what they see in one another's images: histograms of their predictions.

Palanisamy Sundar et al.: Subjective Logic-based Decentralized Federated Learning for Non-IID Data. ARES 2024.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError


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


def similarity(mine: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], images: int, peer: str) -> Tensor:
    """lambda = (cos over my images + cos over theirs) / 2, in [0, 1].

    `mine` are my model's and the peer's counts [..., classes] on my images, `theirs` the two on the
    peer's images. Which of a pair comes first does not matter.

    >>> same, other = torch.tensor([3, 1]), torch.tensor([1, 3])
    >>> similarity((same, same), (same, other), 4, "bob")
    tensor(0.8000, dtype=torch.float64)
    """
    rows = [_cosine(pair, where, images, peer) for pair, where in ((mine, "my"), (theirs, "their"))]
    return ((rows[0] + rows[1]) / 2).clamp(0, 1)


def _cosine(pair: tuple[Tensor, Tensor], where: str, images: int, peer: str) -> Tensor:
    if pair[0].shape[-1:] != pair[1].shape[-1:]:
        shapes = [tuple(part.shape) for part in pair]
        raise KinfolkError(f"counts with {peer!r} on {where} images", shapes, "must have the same classes")
    x, y = (checked_counts(f"counts with {peer!r} on {where} images", part, images) for part in pair)
    # Never 0: counts sum to at least one image.
    return (x * y).sum(-1) / (x.square().sum(-1) * y.square().sum(-1)).sqrt()
