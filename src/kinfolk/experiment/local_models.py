"""Where the clients' own models lie: the local updates of a finished run, seen along two axes."""

from __future__ import annotations

from typing import Any

import torch

from kinfolk.clustering.distances import flat
from kinfolk.experiment.asking import staged
from kinfolk.experiment.build import Parts
from kinfolk.experiment.run import Result
from kinfolk.script import Ask, Groups, installed
from kinfolk.streams import Turn


def principal(points: torch.Tensor, axes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """(Coordinates along the axes of largest variance [N, axes], share of the variance on each), float64.

    By the N x N products of the points, since there are fewer points than parameters.

    >>> place, share = principal(torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]))
    >>> (place[:, 0].abs() - torch.tensor([5.0, 0.0, 5.0])).abs().max() < 1e-6, round(float(share[0]), 6)
    (tensor(True), 1.0)
    """
    here = points.double() - points.double().mean(0)
    values, vectors = torch.linalg.eigh(here @ here.T)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    return vectors[:, :axes] * values[:axes].sqrt(), values[:axes] / values.sum().clamp(min=1e-300)


def picture(parts: Parts, result: Result, most: int) -> dict[str, Any]:
    """The models of at most so many clients after one more local update, and whose group they are in."""
    algorithm, federation = parts.algorithm, parts.federation
    order = parts.seed.numpy("picture").permutation(len(federation.clients))[:most]
    who = tuple(federation.clients[i] for i in sorted(order.tolist()))
    shared, each = algorithm.serve(result.state, who)
    with staged(parts, installed(algorithm)) as stage:
        got = stage.perform(Ask("update", who, shared, each), Turn(parts.seed, result.rounds, who))
    place, share = principal(flat(got.tree("model"), parts.learner.names).cpu())
    labels = algorithm.groups(result.state).tolist() if isinstance(algorithm, Groups) else [0] * len(who)
    group = dict(zip(federation.clients, labels, strict=True))
    truth = None if federation.truth is None else dict(zip(federation.clients, federation.truth.tolist(),
                                                           strict=True))  # fmt: skip
    return {
        "client": list(got.clients),
        "x": place[:, 0].tolist(),
        "y": place[:, 1].tolist(),
        "share": share.tolist(),
        "group": [int(group[c]) for c in got.clients],
        "truth": None if truth is None else [int(truth[c]) for c in got.clients],
        "title": parts.title,
    }
