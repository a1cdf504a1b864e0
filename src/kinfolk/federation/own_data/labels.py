"""Labels into classes: text by its sorted names, whole numbers as they are, floats not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from kinfolk.errors import KinfolkError
from kinfolk.federation.own_data.loaded import Array, ClientRows

# Text is taken for classes up to this many names, or a tenth of the rows where that is more.
FEW = 20
# A whole-numbered label may reach this far, or the number of rows where that is more.
FAR = 1000
_KINDS = {"b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "floats"}


def kind_of(y: Array) -> str:
    """What labels are: "text", "booleans", "whole numbers" or "floats".

    >>> kind_of(np.array(["a"])), kind_of(np.array([1])), kind_of(np.array([0.5]))
    ('text', 'whole numbers', 'floats')
    """
    return _KINDS.get(y.dtype.kind, "text")


def in_order(names: set[str]) -> tuple[str, ...]:
    """Names sorted; where all are whole numbers, as numbers.

    >>> in_order({"b", "a", "10"}), in_order({"10", "9"})
    (('10', 'a', 'b'), ('9', '10'))
    """
    if all(name.isascii() and name.isdigit() for name in names):
        return tuple(sorted(names, key=lambda name: (int(name), name)))
    return tuple(sorted(names))


def to_classes(
    parts: Mapping[str, ClientRows], label: str, names: Sequence[str] = (), classes: int = 0
) -> tuple[dict[str, Array], tuple[str, ...], list[str]]:
    """Labels by client, class names (none for regression) and what is to be said about it.

    >>> y = np.array(["b", "a", "a", "b"])
    >>> part = ClientRows(np.zeros((4, 1)), y, np.zeros(4, bool), np.arange(1, 5))
    >>> to_classes({"ann": part}, "y")[:2]
    ({'ann': array([1, 0, 0, 1])}, ('a', 'b'))
    """
    kind, notes = _common_kind(parts, label)
    if names or classes:
        return {who: part.y.astype(np.int64) for who, part in parts.items()}, tuple(names), notes
    if kind == "text":
        return _words(parts, label, notes)
    if kind == "floats":
        labels = {who: part.y.astype(np.float32) for who, part in parts.items()}
        said = f"label {label!r} holds floats: a number to predict (regression), not classes"
        return labels, (), [*notes, said]
    labels = {who: part.y.astype(np.int64) for who, part in parts.items()}
    if kind == "booleans":
        return labels, ("False", "True"), notes
    return labels, _numbered(parts, labels, label), notes


def _common_kind(parts: Mapping[str, ClientRows], label: str) -> tuple[str, list[str]]:
    """The kind all labels are of; a file of whole numbers among files of floats is of floats too."""
    first: dict[str, str] = {}
    for who, part in parts.items():
        first.setdefault(kind_of(part.y), who)
    if set(first) == {"whole numbers", "floats"}:
        said = (
            f"label {label!r} holds whole numbers at {first['whole numbers']!r} and floats at "
            f"{first['floats']!r}: taken as floats"
        )
        return "floats", [said]
    (kind, who), *others = first.items()
    if others:
        other, where = others[0]
        raise KinfolkError(f"data.{where}.{label}", other, f"{who!r} has {kind}; give all clients the same")
    return kind, []


def _words(
    parts: Mapping[str, ClientRows], label: str, notes: list[str]
) -> tuple[dict[str, Array], tuple[str, ...], list[str]]:
    found = {who: np.unique(part.y.astype(np.str_), return_inverse=True) for who, part in parts.items()}
    names = in_order({str(name) for own, _ in found.values() for name in own})
    rows = sum(len(part.y) for part in parts.values())
    if len(names) > max(FEW, rows // 10) or 2 * len(names) > rows:
        who, part = next(iter(parts.items()))
        remedy = (
            f"row {part.row[0]} is text, and {len(names)} of {rows} labels differ: too many for classes; "
            "name another label column or give numbers"
        )
        raise KinfolkError(f"data.{who}.{label}", str(part.y[0]), remedy)
    number = {name: i for i, name in enumerate(names)}
    labels = {
        who: np.array([number[str(name)] for name in own], dtype=np.int64)[place.reshape(-1)]
        for who, (own, place) in found.items()
    }
    said = f"label {label!r} holds text: its {len(names)} sorted names are classes 0 to {len(names) - 1}"
    return labels, names, [*notes, said]


def _numbered(parts: Mapping[str, ClientRows], labels: Mapping[str, Array], label: str) -> tuple[str, ...]:
    """Whole numbers are class numbers: from 0, and not so far that they must be something else."""
    far = max(FAR, sum(len(y) for y in labels.values()))
    for who, y in labels.items():
        wrong = np.flatnonzero((y < 0) | (y >= far))
        if len(wrong):
            value, row = int(y.flat[wrong[0]]), parts[who].row[wrong[0]]
            remedy = f"row {row}: number classes from 0 (below {far} here), or write them as words"
            raise KinfolkError(f"data.{who}.{label}", value, remedy)
    return tuple(str(c) for c in range(max(int(y.max()) for y in labels.values()) + 1))
