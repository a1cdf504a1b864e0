"""What must hold of every federation before anything trains on it; builders end with `check`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError, visible
from kinfolk.federation.federation import SPLITS, Federation, Split
from kinfolk.types import IGNORED, LENGTHS, named_leaves, plain_rows, row_leaves

# Types that rows are stored in; others are brought to one of them when they are read.
STORED = (
    torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


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
    _shown("data.clients", "client", f.clients, line=True)
    _shown("data.class_names", "class", f.class_names)
    _shown("data.feature_names", "column", f.feature_names)
    for a, b in zip(f.clients, f.clients[1:], strict=False):
        if a == b:
            raise KinfolkError("data.clients", a, "this name occurs twice; give every client its own")
        if a > b:
            raise KinfolkError("data.clients", a, f"stands before {b!r}; sort the clients by name")


def _shown(field: str, what: str, names: Sequence[str], line: bool = False) -> None:
    """Refuse names that a terminal would obey; those that stand in lines of text also if they end a line."""

    def wrong(text: str) -> bool:
        return visible(text) != text or (line and "\n" in text)

    if wrong("".join(names)):
        strange = next(filter(wrong, names))
        raise KinfolkError(field, strange, f"holds control characters; give this {what} another name")


def _layout(f: Federation) -> None:
    if set(f.splits) != set(SPLITS):
        raise KinfolkError("data.splits", sorted(f.splits), "give exactly " + ", ".join(SPLITS))
    if f.scale is not None and (isinstance(f.x, dict) or f.x.dtype != torch.uint8):
        raise KinfolkError("data.scale", f.scale, "only rows that are bytes have one; leave it out")
    if f.classes > 0 and (isinstance(f.y, dict) or f.y.dtype != torch.int64):
        found = f"{', '.join(f.y)}" if isinstance(f.y, dict) else str(f.y.dtype)
        remedy = f"with classes = {f.classes} store torch.int64, one label per row or position"
        raise KinfolkError("data.y", found, remedy)
    for name, leaf in {**named_leaves("x", f.x), **named_leaves("y", f.y)}.items():
        if leaf.dtype not in STORED:
            known = ", ".join(str(kind).removeprefix("torch.") for kind in STORED)
            raise KinfolkError(f"data.{name}", str(leaf.dtype), f"store rows as one of {known}")
        if leaf.dim() == 0 or len(leaf) != f.rows:
            have = len(leaf) if leaf.dim() else 0
            remedy = f"there are {f.rows} rows of x; give one {name[:1]} for each"
            raise KinfolkError(f"data.{name}", have, remedy)
    _inputs(f)
    if f.truth is not None and f.truth.shape != (len(f.clients),):
        raise KinfolkError("data.truth", tuple(f.truth.shape), "give one known group per client")
    for name, split in f.splits.items():
        inside = bool(((split.row >= 0) & (split.row < f.rows)).all())
        if not inside or not fits(split, len(f.clients)):
            raise KinfolkError(f"data.splits.{name}", None, "offsets, rows or owners lie outside the pool")


def _inputs(f: Federation) -> None:
    """Inputs are named so that a network can take them; masks are as long as what they mask."""
    if not isinstance(f.x, dict):
        return
    for name in f.x:
        if not name.removesuffix(LENGTHS).isidentifier() and not name.removesuffix(LENGTHS).isdecimal():
            raise KinfolkError("data.x", name, "name inputs as the parameters of forward are named")
    longs = {name: t.shape[1] for name, t in f.x.items() if t.dim() > 1 and "mask" not in name}
    for name, t in f.x.items():
        if name.endswith(LENGTHS):
            most = longs.get(name.removesuffix(LENGTHS), 0)
            if (
                t.dim() != 1
                or t.is_floating_point()
                or (len(t) and not 0 <= int(t.min()) <= int(t.max()) <= most)
            ):
                raise KinfolkError(f"data.x.{name}", list(t.shape), f"give a number from 0 to {most} per row")
        elif "mask" in name and longs and (t.dim() < 2 or t.shape[1] not in longs.values()):
            other, long = next(iter(longs.items()))
            raise KinfolkError(
                f"data.x.{name}",
                f"row shape {list(t.shape[1:])}",
                f"{other} has rows of {long}; a mask has one value for each of them",
            )


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
    bad = torch.zeros(f.rows, dtype=torch.bool, device=f.device)
    for leaf in (*row_leaves(f.x), *row_leaves(f.y)):
        if leaf.is_floating_point() and leaf.numel():  # bytes are finite; a copy of them is not free
            bad |= ~leaf.isfinite().reshape(f.rows, -1).all(1)
    found = _first(f, bad)
    if found:
        who, rows = f.clients[found[0]], len(found[1])
        value = f"{rows} row{'s' * (rows > 1)} with NaN or infinity"
        raise KinfolkError(f"data.{who}", value, "remove or fill these rows")


def _labels(f: Federation) -> None:
    if f.classes <= 0:
        return
    y = plain_rows(f.y)
    wrong = (y < 0) | (y >= f.classes)
    if y.dim() > 1:  # a position of a sequence may have no label; a run says what marks it
        wrong &= y >= 0
    found = _first(f, wrong.reshape(f.rows, -1).any(1))
    if found:
        row = found[1][0]
        left_out = f", or {IGNORED} to leave a position out" if y.dim() > 1 else ""
        remedy = f"labels run from 0 to {f.classes - 1}{left_out}; correct the label or raise classes"
        raise KinfolkError(f"data.{f.clients[found[0]]}.y", int(y[row][wrong[row]].flatten()[0]), remedy)


def _apart(f: Federation) -> None:
    """No test row is anybody's row to learn from; no validation row is the same client's training row."""
    learnt = torch.zeros(f.rows, dtype=torch.bool, device=f.device)
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
