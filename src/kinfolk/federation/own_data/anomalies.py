"""Anomalies of clients: not wrong, but worth a look before anything trains on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kinfolk.federation.own_data.loaded import Array, LoadedClients
from kinfolk.federation.own_data.missing import listed

# A client is much larger than the rest beyond this many times the median.
LARGE = 10
# Below this many rows a constant column tells nothing.
ENOUGH = 10


@dataclass(frozen=True)
class Anomaly:
    """One finding: what, at which clients, and a line about it."""

    what: str
    clients: list[str]
    line: str


def anomalies(loaded: LoadedClients) -> list[Anomaly]:
    """Everything unusual about loaded rows, each kind once.

    >>> rows = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1])
    >>> loaded = LoadedClients({"ann": rows, "bob": (np.ones((1, 2)), np.array([0]))}, ("no", "yes"))
    >>> [(one.what, one.clients) for one in anomalies(loaded)]
    [('single row', ['bob']), ('class at one client only', ['ann'])]
    """
    return [
        *_small(loaded),
        *_large(loaded),
        *_classes(loaded),
        *_targets(loaded),
        *_constant(loaded),
        *_copies(loaded),
    ]


def _small(loaded: LoadedClients) -> Iterator[Anomaly]:
    sizes = {who: len(y) for who, (_, y) in loaded.clients.items()}
    if alone := [who for who, rows in sizes.items() if rows == 1]:
        yield Anomaly("single row", alone, f"{len(alone)} with one row: nothing is left to test them on")
    if not loaded.class_names:
        return
    one = [who for who, (_, y) in loaded.clients.items() if len(y) > 1 and (y == y[0]).all()]
    if one:
        yield Anomaly("single class", one, f"{len(one)} with rows of one class only: {listed(one)}")


def _large(loaded: LoadedClients) -> Iterator[Anomaly]:
    sizes = {who: len(y) for who, (_, y) in loaded.clients.items()}
    middle = float(np.median(list(sizes.values())))
    if large := [who for who, rows in sizes.items() if len(sizes) > 2 and rows > LARGE * middle]:
        most = max(sizes[who] for who in large)
        line = f"{listed(large)}: up to {most} rows, where half the clients have at most {middle:g}"
        yield Anomaly("much larger than the rest", large, line)


def _classes(loaded: LoadedClients) -> Iterator[Anomaly]:
    if not loaded.class_names:
        return
    there = {who: np.unique(y) for who, (_, y) in loaded.clients.items()}
    owners = np.bincount(np.concatenate([*there.values()]), minlength=len(loaded.class_names))
    if len(there) > 1 and (lone := np.flatnonzero(owners == 1)).size:
        who = [name for name, own in there.items() if np.isin(lone, own).any()]
        names = listed(loaded.class_names[c] for c in lone.tolist())
        yield Anomaly("class at one client only", who, f"nobody else can learn or test it: class {names}")
    if (empty := np.flatnonzero(owners == 0)).size:
        names = listed(loaded.class_names[c] for c in empty.tolist())
        yield Anomaly(
            "class without rows", [], f"{len(empty)} of {len(owners)} classes have no rows: {names}"
        )


def _targets(loaded: LoadedClients) -> Iterator[Anomaly]:
    if loaded.class_names:
        return
    if all((y == np.rint(y)).all() for _, y in loaded.clients.values()):
        line = "every label is a whole number stored as a float; store integers if classes are meant"
        yield Anomaly("whole numbers to predict", [], line)


def _constant(loaded: LoadedClients) -> Iterator[Anomaly]:
    """Features that never change: anywhere, or at one client though they do elsewhere."""
    tables = {who: x.reshape(len(x), -1) for who, (x, _) in loaded.clients.items()}
    still = {who: (table == table[0]).all(0) for who, table in tables.items()}
    first = next(iter(tables.values()))[0]
    varies = np.zeros(len(first), dtype=bool)
    for who, table in tables.items():
        varies |= ~still[who] | (table[0] != first)
    if (never := np.flatnonzero(~varies)).size:
        which = f": {listed(loaded.feature_names[i] for i in never.tolist())}" if loaded.feature_names else ""
        yield Anomaly("constant features", [], f"{len(never)} of {len(first)} features never change{which}")
    yield from _constant_clients(loaded, tables, {who: own & varies for who, own in still.items()}, varies)


def _constant_clients(
    loaded: LoadedClients,
    tables: dict[str, Array],
    still: dict[str, NDArray[np.bool_]],
    varies: NDArray[np.bool_],
) -> Iterator[Anomaly]:
    """Clients and columns that are constant though they vary elsewhere."""
    # Most pixels of a small client are background; most columns of a table are not.
    share = 0.5 if loaded.feature_names else 0.999
    frozen = [w for w, s in still.items() if len(tables[w]) > 1 and varies.any() and s[varies].mean() > share]
    if frozen:
        line = f"most features are constant here though not elsewhere: {listed(frozen)}"
        yield Anomaly("constant client", frozen, line)
    if loaded.feature_names:
        others = {w: s for w, s in still.items() if len(tables[w]) >= ENOUGH and w not in frozen}
        yield from _constant_columns(others, loaded.feature_names)


def _constant_columns(still: dict[str, NDArray[np.bool_]], names: tuple[str, ...]) -> Iterator[Anomaly]:
    who = [name for name, own in still.items() if own.any()]
    if not who:
        return
    times = np.sum([*still.values()], axis=0)
    told = [
        f"{names[i]} ({times[i]} client{'s' * bool(times[i] > 1)})" for i in np.flatnonzero(times).tolist()
    ]
    yield Anomaly("constant columns", who, f"constant here though not elsewhere: {listed(told)}")


def _copies(loaded: LoadedClients) -> Iterator[Anomaly]:
    """Rows that occur more than once, features and label, to the bit."""
    digests = [_digests(x, y) for x, y in loaded.clients.values()]
    owner = np.repeat(np.arange(len(digests)), [len(own) for own in digests])
    _, row = np.unique(np.concatenate(digests), return_inverse=True)
    pairs, times = np.unique(row.reshape(-1) * len(digests) + owner, return_counts=True)
    copy, holder = np.divmod(pairs, len(digests))
    names = list(loaded.clients)
    shared = np.bincount(copy)[copy] > 1
    if shared.any():
        who = [names[i] for i in np.unique(holder[shared]).tolist()]
        distinct = len(np.unique(copy[shared]))
        line = (
            f"{times[shared].sum()} rows ({distinct} distinct) occur at more than one client: {listed(who)}"
        )
        yield Anomaly("rows at several clients", who, line)
    if (again := times > 1).any():
        who = [names[i] for i in np.unique(holder[again]).tolist()]
        line = f"{(times[again] - 1).sum()} rows repeat another of their client, maybe across its test split"
        yield Anomaly("copies within a client", who, f"{line}: {listed(who)}")


def _digests(x: Array, y: Array) -> NDArray[np.uint64]:
    """A 64-bit digest for each row: of a million rows, two that differ share one once in 10**7 cases."""
    features = np.asarray(x, dtype=np.float32).reshape(len(x), -1) + np.float32(0)  # -0 is 0
    labels = np.ascontiguousarray(y).reshape(len(y), -1)
    whole = np.concatenate([features.view(np.uint8), labels.view(np.uint8)], axis=1)
    raw, width = whole.tobytes(), whole.shape[1]
    made = (hashlib.blake2b(raw[i : i + width], digest_size=8).digest() for i in range(0, len(raw), width))
    return np.frombuffer(b"".join(made), dtype=np.uint64)
