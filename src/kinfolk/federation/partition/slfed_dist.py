"""Dist-0 to Dist-3 of SLFed on CIFAR-10: how many classes are common to a client, how many rare."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kinfolk.errors import KinfolkError
from kinfolk.federation.partition.choose_tests import shares
from kinfolk.federation.partition.draws import Deal, by_class
from kinfolk.federation.partition.holdout import Ints
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client

CLASSES = 10
# Rows of a class, and how many classes have so many; which ones is drawn for every client.
STEPS: dict[str, tuple[tuple[int, int], ...]] = {
    "dist0": ((2000, 3), (1500, 2), (1000, 2), (5, 3)),
    "dist1": ((2500, 3), (5, 7)),
    "dist2": ((2000, 7), (5, 3)),
    "even": ((2000, 10),),
}
# Clients of each kind among 50; "any" has from 1 to MOST rows of a class, all equally likely.
MIX = {"dist0": 8, "dist1": 7, "dist2": 7, "even": 8, "any": 20}
MOST = 4000


def class_rows(kind: str, scale: float, rng: np.random.Generator) -> Ints:
    """How many rows of each class one client of this kind has, [10].

    >>> sorted(class_rows("dist1", 0.1, np.random.default_rng(0)).tolist())
    [1, 1, 1, 1, 1, 1, 1, 250, 250, 250]
    """
    if kind == "any":
        counts = rng.integers(1, MOST + 1, CLASSES)
    else:
        counts = rng.permutation(np.concatenate([np.full(n, rows) for rows, n in STEPS[kind]]))
    # At least one: a rare class is rare, not missing.
    scaled: Ints = np.maximum(1, np.rint(counts * scale)).astype(np.int64)
    return scaled


def mixed(count: int, rng: np.random.Generator) -> list[str]:
    """A kind for each of `count` clients, in the proportions of Dist-3.

    >>> sorted(mixed(5, np.random.default_rng(0)))
    ['any', 'any', 'dist0', 'dist1', 'even']
    """
    kinds = np.repeat(list(MIX), shares(np.array(list(MIX.values())), count))
    return [str(kind) for kind in rng.permutation(kinds)]


def deal_dist(name: str) -> Deal:
    """The deal of "dist0", "dist1", "dist2" or "dist3"; clients draw from the same rows, none twice.

    >>> labels = np.repeat(np.arange(10), 250)
    >>> len(deal_dist("dist1")(labels, {Client("ann"): 0}, DataSpec(scale_rows=0.1), Seed(0))["ann"])
    757
    """

    def deal(labels: Ints, sizes: Mapping[Client, int], spec: DataSpec, seed: Seed) -> dict[Client, Ints]:
        names, rows = sorted(sizes), by_class(labels)
        kinds = mixed(len(names), seed.numpy("data", "dist3")) if name == "dist3" else [name] * len(names)
        _fits(name, set(kinds), rows, spec)
        dealt = {}
        for who, kind in zip(names, kinds, strict=True):
            counts = class_rows(kind, spec.scale_rows, seed.numpy("data", "law", who))
            rng = seed.numpy("data", "rows", who)
            own = [rng.choice(r, n, replace=False) for r, n in zip(rows, counts.tolist(), strict=True)]
            dealt[who] = np.sort(np.concatenate(own))
        return dealt

    return deal


def _fits(name: str, kinds: set[str], rows: list[Ints], spec: DataSpec) -> None:
    if len(rows) != CLASSES:
        remedy = f"it is about {CLASSES} classes, the rows have {len(rows)}; use another partition"
        raise KinfolkError("data.partition", name, remedy)
    most = max(MOST if kind == "any" else STEPS[kind][0][0] for kind in kinds)
    fewest = min(map(len, rows))
    if max(1, round(most * spec.scale_rows)) > fewest:
        have = f"{name} asks for up to {most * spec.scale_rows:g} rows of a class, {fewest} are there"
        fits = f"give at most {np.floor(1e4 * fewest / most) / 1e4:g}"
        raise KinfolkError("data.scale_rows", spec.scale_rows, f"{have}; {fits}")
