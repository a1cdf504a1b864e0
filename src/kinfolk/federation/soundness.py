"""What must hold of every federation before anything trains on it; builders end with `check`."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import SPLITS, Federation, Split

# A position without a class, as PyTorch marks it.
IGNORED = -100


def check(federation: Federation) -> Federation:
    """Give the federation back if it is sound; otherwise name the client, the value and the remedy.

    >>> from kinfolk.federation.federation import pack
    >>> none, one = torch.zeros(0, dtype=torch.int64), torch.tensor([0])
    >>> check(Federation(("ann",), torch.zeros(1, 2), torch.tensor([7]),
    ...     {"train": pack([one]), "valid": pack([none]), "test": pack([none])}, classes=2))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.ann.y = 7: labels run from 0 to 1; correct the label or raise classes
    """
    _names(federation)
    _layout(federation)
    _trained(federation)
    _finite(federation)
    _labels(federation)
    _apart(federation)
    return federation


def _names(f: Federation) -> None:
    if not f.clients:
        raise KinfolkError("data.clients", 0, "a federation needs at least one client")
    if any(not name for name in f.clients):
        raise KinfolkError("data.clients", "", "give every client a name")
    for a, b in zip(f.clients, f.clients[1:], strict=False):
        if a == b:
            raise KinfolkError("data.clients", a, "this name occurs twice; give every client its own")
        if a > b:
            raise KinfolkError("data.clients", a, f"stands before {b!r}; sort the clients by name")


def _layout(f: Federation) -> None:
    if set(f.splits) != set(SPLITS):
        raise KinfolkError("data.splits", sorted(f.splits), "give exactly " + ", ".join(SPLITS))
    if f.x.dtype != (torch.float32 if f.scale is None else torch.uint8):
        raise KinfolkError("data.x", str(f.x.dtype), "store rows as float32, or as bytes with a scale")
    wanted = torch.int64 if f.classes > 0 else torch.float32
    if f.y.dtype != wanted or (f.classes > 0 and f.y.dim() != 1):
        found = f"{f.y.dtype}, {f.y.dim()} axes"
        raise KinfolkError("data.y", found, f"with classes = {f.classes} store {wanted}, one label per row")
    if len(f.x) != len(f.y):
        raise KinfolkError("data.y", len(f.y), f"there are {len(f.x)} rows of x; give one y for each")
    if f.truth is not None and f.truth.shape != (len(f.clients),):
        raise KinfolkError("data.truth", tuple(f.truth.shape), "give one known group per client")
    for name, split in f.splits.items():
        inside = bool(((split.row >= 0) & (split.row < len(f.x))).all())
        if not inside or not fits(split, len(f.clients)):
            raise KinfolkError(f"data.splits.{name}", None, "offsets, rows or owners lie outside the pool")


def fits(split: Split, clients: int) -> bool:
    """Whether the offsets of a split fit its rows and its clients.

    >>> from kinfolk.federation.federation import pack
    >>> fits(pack([torch.tensor([4, 7])]), clients=1), fits(pack([torch.tensor([4, 7])]), clients=2)
    (True, False)
    """
    sets = len(split.start) - 1
    return (
        sets >= 0
        and len(split.of) == clients
        and bool(((split.of >= 0) & (split.of < sets)).all())
        and int(split.start[0]) == 0
        and int(split.start[-1]) == len(split.row)
        and bool((split.start.diff() >= 0).all())
    )


def _trained(f: Federation) -> None:
    empty = (f.splits["train"].counts() == 0).nonzero().flatten().tolist()
    if empty:
        who = f.clients[empty[0]]
        raise KinfolkError(f"data.{who}", "0 training rows", "leave this client out or give it rows")


def _first(f: Federation, bad: Tensor) -> tuple[int, Tensor] | None:
    """The first client that owns a row marked bad, and its bad rows; most often there is none."""
    if not bad.any() or not any(bool(bad[s.row].any()) for s in f.splits.values()):
        return None
    for i in range(len(f.clients)):
        own = torch.unique(torch.cat([s.rows(i) for s in f.splits.values()]))
        if bad[own].any():
            return i, own[bad[own]]
    return None


def _finite(f: Federation) -> None:
    if f.x.is_floating_point():
        bad = ~f.x.isfinite().reshape(len(f.x), -1).all(1)
    else:
        bad = torch.zeros(len(f.x), dtype=torch.bool)  # bytes are finite; a copy of them is not free
    if f.classes == 0:
        bad |= ~f.y.isfinite().reshape(len(f.y), -1).all(1)
    found = _first(f, bad)
    if found:
        who, rows = f.clients[found[0]], len(found[1])
        value = f"{rows} row{'s' * (rows > 1)} with NaN or infinity"
        raise KinfolkError(f"data.{who}", value, "remove or fill these rows")


def _labels(f: Federation) -> None:
    if f.classes <= 0:
        return
    wrong = (f.y < 0) | (f.y >= f.classes)
    if f.y.dim() > 1:  # a class per position, of which some may be left out
        wrong &= f.y != IGNORED
    found = _first(f, wrong.reshape(len(f.y), -1).any(1))
    if found:
        row = found[1][0]
        remedy = f"labels run from 0 to {f.classes - 1}; correct the label or raise classes"
        raise KinfolkError(f"data.{f.clients[found[0]]}.y", int(f.y[row][wrong[row]].flatten()[0]), remedy)


def _apart(f: Federation) -> None:
    """No test row is anybody's row to learn from; no validation row is the same client's training row."""
    learnt = torch.zeros(len(f.x), dtype=torch.bool, device=f.x.device)
    learnt[f.splits["train"].row] = True
    learnt[f.splits["valid"].row] = True
    test, train, valid = f.splits["test"], f.splits["train"], f.splits["valid"]
    if learnt[test.row].any():
        for i, who in enumerate(f.clients):
            shared = int(learnt[test.rows(i)].sum())
            if shared:
                value = f"{shared} test row{'s' * (shared > 1)} also used for training or validation"
                raise KinfolkError(f"data.{who}", value, "split the pool before rows are dealt")
    for i, who in enumerate(f.clients if len(valid.row) else ()):
        shared = int(torch.isin(valid.rows(i), train.rows(i)).sum())
        if shared:
            value = f"{shared} validation row{'s' * (shared > 1)} also used for training"
            raise KinfolkError(f"data.{who}", value, "hold validation rows out of the training rows")
