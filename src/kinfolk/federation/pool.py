"""A pool: labelled rows split once into training and test rows, before anything is dealt.

Test rows are those published, or some of every class, or some of every natural client's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.datasets.rows import PLAIN, Rows, is_text
from kinfolk.federation.partition.holdout import Ints, by_owner, hold_out, in_order, stratified
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Client


@dataclass(frozen=True, eq=False)
class Pool:
    """Rows to deal from. Clients train on rows of `train` and are tested on rows of `test` only."""

    x: Tensor  # [pool, ...] float32, or bytes with a scale, or tokens
    y: Tensor  # [pool] int64, or [pool, length] with a class for each token
    train: Ints  # rows, increasing
    test: Ints  # rows, increasing; none of them in train
    classes: int
    scale: tuple[float, float] | None = None  # rows stored as bytes are x * scale[0] + scale[1]
    owner: Ints | None = None  # [pool] whose row it is by nature, a place in `names`
    names: tuple[Client, ...] = ()  # owners, sorted
    block: Ints | None = None  # [pool] rows that resemble one another, such as windows of one recording
    note: str = ""  # who was left out, for the description of the federation
    class_names: tuple[str, ...] = ()  # what the data call their classes
    start: Ints | None = None  # [pool] where in its client's text a row begins
    group: Ints | None = None  # [names] known groups

    @property
    def labels(self) -> Ints:
        """The labels as NumPy, for drawing."""
        return np.asarray(self.y.numpy(), dtype=np.int64)

    def part(self, rows: Ints, fraction: float, rng: np.random.Generator) -> tuple[Ints, Ints]:
        """Some of one client's rows as (kept, held out): drawn, or of text its last part."""
        if self.start is None:
            return hold_out(rows, fraction, rng, self.block)
        # With the token that follows a row.
        return in_order(rows, self.start, self.x.shape[1] + 1, fraction)


@dataclass(frozen=True, eq=False)
class Sampled:
    """Which natural clients take part, and how many do not."""

    who: Ints  # places in `client_names`, in order of name
    few: tuple[int, int]  # clients, and their rows, left out for having too few rows
    undrawn: tuple[int, int]  # clients, and their rows, that had enough and were not drawn


def sample(rows: Rows, spec: DataSpec, seed: Seed) -> Sampled:
    """Draw `clients` of the natural clients with `min_rows` rows or more; 0 takes them all.

    Of known groups they are drawn in turns, so that no group is larger than another that has clients left.

    >>> rows = Rows(np.zeros((4, 2), np.float32), np.zeros(4, np.int64), 1, PLAIN,
    ...     client=np.array([1, 1, 0, 1]), client_names=("bob", "ann"))
    >>> sample(rows, DataSpec(clients=0, min_rows=2), Seed(0))
    Sampled(who=array([1]), few=(1, 1), undrawn=(0, 0))
    """
    if rows.client is None:
        remedy = f"{spec.name!r} does not say whose row is whose; use 'iid' or another partition"
        raise KinfolkError("data.partition", "natural", remedy)
    counts = np.bincount(rows.client, minlength=len(rows.client_names))
    order = np.array(sorted(range(len(counts)), key=rows.client_names.__getitem__))
    able = order[counts[order] >= spec.min_rows]
    have = f"{len(able)} of its {len(counts)} clients have {spec.min_rows} rows or more"
    if len(able) == 0:
        raise KinfolkError("data.min_rows", spec.min_rows, f"the largest client has {counts.max()} rows")
    if spec.clients > len(able):
        raise KinfolkError("data.clients", spec.clients, f"{have}; give at most {len(able)}, 0 for all")
    who = able
    if spec.clients:
        rng = seed.numpy("data", "natural")
        if rows.group is None:
            drawn = rng.choice(len(able), spec.clients, replace=False)
        else:
            drawn = in_turns(rows.group[able], rng)[: spec.clients]
        who = able[np.sort(drawn)]
    many, few, rest = (int(counts[part].sum()) for part in (able, np.setdiff1d(order, able), who))
    return Sampled(who, (len(counts) - len(able), few), (len(able) - len(who), many - rest))


def in_turns(group: Ints, rng: np.random.Generator) -> Ints:
    """Places in a random order in which groups take turns.

    >>> group = np.array([0, 0, 0, 1, 1])
    >>> [group[in_turns(group, np.random.default_rng(seed))[:4]].sum().item() for seed in range(3)]
    [2, 2, 2]
    """
    order = rng.permutation(len(group))
    turn = np.zeros(len(group), np.int64)
    for g in np.unique(group):
        turn[group[order] == g] = np.arange((group == g).sum())
    return order[np.argsort(turn, kind="stable")]


def pool_of(rows: Rows, spec: DataSpec, seed: Seed) -> Pool:
    """Loaded rows as a pool, bytes still bytes; test rows are set apart before anything is dealt.

    >>> rows = Rows(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 1, 1]), 2, (1 / 255, 0.0),
    ...     test=np.array([False, False, True]))
    >>> pool_of(rows, DataSpec(), Seed(0)).test
    array([2])
    """
    if spec.partition == "natural":
        return _natural(rows, spec, seed)
    if rows.start is not None:
        raise KinfolkError("data.partition", spec.partition, "text is cut by its author; use 'natural'")
    x, scale = _stored(rows)
    if rows.test is None:
        train, test = stratified(rows.y, spec.test_fraction, seed.numpy("data", "pool"), rows.block)
    else:
        train, test = np.flatnonzero(~rows.test), np.flatnonzero(rows.test)
    y, called = torch.from_numpy(rows.y), rows.class_names
    return Pool(x, y, train, test, rows.classes, scale, block=rows.block, class_names=called)


def _natural(rows: Rows, spec: DataSpec, seed: Seed) -> Pool:
    """The rows of the clients that take part; of each client's rows some are held out for tests.

    Published test rows play no role here: some belong to clients who have nothing else.
    """
    sampled = sample(rows, spec, seed)
    who = sampled.who
    names = tuple(Client(rows.client_names[i]) for i in who)
    place = np.full(len(rows.client_names), -1)
    place[who] = np.arange(len(who))
    assert rows.client is not None  # `sample` has seen to it
    kept = np.flatnonzero(place[rows.client] >= 0)
    owner = place[rows.client[kept]]
    block, start = (None if given is None else given[kept] for given in (rows.block, rows.start))
    group = None if rows.group is None else rows.group[who]
    x, scale = _stored(replace(rows, x=rows.x[kept]))
    y = torch.from_numpy(rows.y[kept])
    none = np.zeros(0, np.int64)
    left_out = sampled.few[1] + sampled.undrawn[1]
    note = f" ({len(who)} of {len(rows.client_names)} clients, {left_out} rows left out)"
    pool = Pool(
        x, y, none, none, rows.classes, scale, owner, names, block, note, rows.class_names, start, group
    )
    parts = [
        pool.part(own, spec.test_fraction, seed.numpy("data", "held", name))
        for name, own in zip(names, by_owner(owner, len(names)), strict=True)
    ]
    train, test = (np.sort(np.concatenate([part[k] for part in parts])) for k in (0, 1))
    return replace(pool, train=train, test=test)


def _stored(rows: Rows) -> tuple[Tensor, tuple[float, float] | None]:
    """Rows as a federation keeps them: bytes with their scale, or floats or tokens without one."""
    x, scale = rows.x, rows.scale
    if is_text(rows):
        return torch.from_numpy(np.require(x, requirements=["C", "W"])), None
    if x.dtype != np.uint8 and scale != PLAIN:
        x = x * np.float32(scale[0]) + np.float32(scale[1])
    # A tensor may not share memory that cannot be written to.
    tensor = torch.from_numpy(np.require(x, requirements=["C", "W"]))
    return tensor, scale if x.dtype == np.uint8 else None
