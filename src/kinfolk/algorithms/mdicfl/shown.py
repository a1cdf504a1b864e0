"""What MD-ICFL has made in a round, to look at: pseudo images, and how sure models are of pseudo rows."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from kinfolk.algorithms.mdicfl.output_distance import Probe, confidences
from kinfolk.learning.image_bytes import are_images, image_bytes
from kinfolk.learning.learner import Learner
from kinfolk.types import Tree

# The longest side of a pseudo image that is shown, and the bytes of all: classes beyond that are left out.
SIDE, MOST_BYTES = 32, 1 << 19


def shown(learner: Learner, labels: Tensor, models: Tree, probe: Probe) -> dict[str, Tensor]:
    """`confidence` [model, cluster of the rows, class]; `images` [cluster, class, ...] in bytes, if they are.

    `labels` are what the rows of a cluster were made for, class after class.
    """
    x, classes = probe.x, learner.outputs
    said = probe.ask(learner, models, x)
    said = said.reshape(len(said), *x.shape[:2], said.shape[-1])
    found = {"confidence": confidences(said, labels.to(x.device)).float()}
    if are_images(x.flatten(0, 1)):
        found["images"] = first_images(x, classes)
    return found


def first_images(x: Tensor, classes: int) -> Tensor:
    """The first image of each class of each cluster, of rows x [K, classes * M, ...].

    Black and white are the ends of the middle 96 % of all their values: a few stray far.

    >>> import torch
    >>> first_images(torch.arange(8.0).reshape(2, 4, 1, 1, 1), 2).flatten(1)
    tensor([[  0,  83],
            [172, 255]], dtype=torch.uint8)
    """
    first = x.reshape(len(x), classes, -1, *x.shape[2:])[:, :, 0]
    finite = first[first.isfinite()]
    ends = np.quantile(finite.cpu().numpy(), (0.02, 0.98)) if len(finite) else np.array((0.0, 1.0))
    low, high = map(float, ends)
    images = image_bytes(first.flatten(0, 1), low, high, SIDE)
    images = images.reshape(len(x), classes, *images.shape[1:])
    return images[:, : max(1, MOST_BYTES // max(1, images[:, 0].numel()))]
