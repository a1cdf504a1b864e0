"""Where the clients' own models lie: after a run, or trained from one start; seen along two axes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from kinfolk.clustering.distances import flat
from kinfolk.clustering.kmeans import kmeans
from kinfolk.experiment.asking import coordinated, trained_alike
from kinfolk.experiment.build import Parts, build_parts
from kinfolk.experiment.run import Result
from kinfolk.experiment.spec import load, override
from kinfolk.script import Ask, Groups, client_tasks
from kinfolk.streams import RoundContext
from kinfolk.types import Client

# Columns that are held as doubles at a time.
BLOCK = 1 << 16


def principal(points: torch.Tensor, axes: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """(Coordinates along the axes of largest variance [N, axes], share of the variance on each), float64.

    By the N x N products of the points, since there are fewer points than parameters.

    >>> place, share = principal(torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0]]))
    >>> (place[:, 0].abs() - torch.tensor([5.0, 0.0, 5.0])).abs().max() < 1e-6, round(float(share[0]), 6)
    (tensor(True), 1.0)
    """
    products = torch.zeros(len(points), len(points), dtype=torch.float64, device=points.device)
    for at in range(0, points.shape[1], BLOCK):
        here = points[:, at : at + BLOCK].double()
        here -= here.mean(0)
        products += here @ here.T
    values, vectors = torch.linalg.eigh(products)
    values, vectors = values.flip(0).clamp(min=0), vectors.flip(1)
    return vectors[:, :axes] * values[:axes].sqrt(), values[:axes] / values.sum().clamp(min=1e-300)


def picture(parts: Parts, result: Result, most: int) -> dict[str, Any]:
    """The models of at most so many clients after one more local update, and whose group they are in."""
    algorithm, federation = parts.algorithm, parts.federation
    order = parts.seed.numpy("picture").permutation(len(federation.clients))[:most]
    who = tuple(federation.clients[i] for i in sorted(order.tolist()))
    shared, each = algorithm.eval_inputs(result.state, who)
    with coordinated(parts, client_tasks(algorithm)) as coordinator:
        got = coordinator.perform(
            Ask("update", who, shared, each), RoundContext(parts.seed, result.rounds, who)
        )
    labels = algorithm.groups(result.state).tolist() if isinstance(algorithm, Groups) else [0] * len(who)
    group = dict(zip(federation.clients, labels, strict=True))
    points = flat(got.tree("model"), parts.learner.names).cpu()
    return _drawn(parts, got.clients, points, [int(group[c]) for c in got.clients], parts.title)


def first_picture(
    spec: str | Path, changes: Sequence[str], epochs: int, k: int, restarts: int = 20
) -> dict[str, Any]:
    """What every client of an experiment makes of the same first model, and the groups k-means finds there.

    FeSEM's first step, without a run. Models beyond 1 GiB are drawn by sketches, which keep distances.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".toml") as spec:
    ...     held = first_picture(spec.name, ["data.clients=8"], epochs=1, k=4)
    >>> len(held["x"]), held["title"]
    (8, '1 epoch from one start')
    """
    parts = build_parts(override(load(spec), changes))
    points = trained_alike(parts, epochs)
    groups = kmeans(points, k, parts.seed, restarts).labels.tolist()
    title = f"{epochs} epoch{'s' if epochs > 1 else ''} from one start"
    return _drawn(parts, parts.federation.clients, points, groups, title)


def _drawn(
    parts: Parts, who: tuple[Client, ...], points: torch.Tensor, groups: list[int], title: str
) -> dict[str, Any]:
    place, share = principal(points)
    federation, truth = parts.federation, parts.federation.truth
    known = None if truth is None else dict(zip(federation.clients, truth.tolist(), strict=True))
    return {
        "client": list(who),
        "x": place[:, 0].tolist(),
        "y": place[:, 1].tolist(),
        "share": share.tolist(),
        "group": groups,
        "truth": None if known is None else [int(known[c]) for c in who],
        "title": title,
    }
