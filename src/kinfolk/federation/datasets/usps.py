"""USPS digits, 16 by 16: LIBSVM's text, or the "zip" files of The Elements of Statistical Learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kinfolk.federation.datasets.files import Archive, corrupt
from kinfolk.federation.datasets.idx import DIGITS
from kinfolk.federation.datasets.rows import CENTRED, Array, Rows, check_rows, halves
from kinfolk.federation.datasets.table import Doubles, labels

_PIXELS = 256


def _line(words: list[str], sparse: bool) -> Doubles:
    """Label and pixels of one line, 257 numbers; LIBSVM leaves out pixels that are exactly 0."""
    if not sparse:
        return np.array(words, dtype=np.float64)
    row = np.zeros(1 + _PIXELS)
    pairs = np.array([word.split(":") for word in words[1:]], dtype=np.float64).reshape(-1, 2)
    place = pairs[:, 0].astype(np.int64)
    if len(place) and not (place.min() >= 1 and place.max() <= _PIXELS):
        raise ValueError("no such pixel")
    row[0], row[place] = float(words[0]) - 1, pairs[:, 1]  # LIBSVM counts digits from 1
    return row


def parse_usps(text: str, name: Path | str) -> tuple[Array, Array]:
    """Images [n, 1, 16, 16] of bytes, ink bright, and digits, from lines of either form.

    >>> x, y = parse_usps("4 1:1.0 256:-1.0", "usps/usps")
    >>> x[0, 0, 0, :2].tolist(), int(x[0, 0, 15, 15]), y.tolist()
    ([255, 128], 0, [3])
    """
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        try:
            rows += [_line(words, ":" in line)] if words else []
            if words and (len(rows[-1]) != 1 + _PIXELS or not (np.abs(rows[-1][1:]) <= 1).all()):
                raise ValueError
        except ValueError:
            wrong = f"line {number} is not a label and {_PIXELS} numbers in [-1, 1]"
            raise corrupt(name, wrong) from None
    if not rows:
        raise corrupt(name, "it has no rows")
    table = np.stack(rows)
    x = np.rint((table[:, 1:] + 1) / 2 * 255).astype(np.uint8)
    return x.reshape(-1, 1, 16, 16), labels(table[:, 0], name, "label", 9)


def official(folder: Path) -> Rows:
    """USPS from usps and usps.t (plain or .bz2), or zip.train and zip.test (plain or .gz).

    >>> official(Path("none"))
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: data.file = 'none/usps.bz2': is missing; fetch it or add it
    """
    with Archive(folder) as archive:
        pair = ("zip.train", "zip.test") if archive.find("zip.train", "zip.train.gz") else ("usps", "usps.t")
        packing = ".gz" if pair[0] == "zip.train" else ".bz2"
        parts = []
        for plain in pair:
            name = archive.need(plain + packing, plain)
            parts.append(parse_usps(archive.text(name), archive.folder / name))
    x, y, test = halves(*parts)
    return check_rows(Rows(x, y, 10, CENTRED, test, class_names=DIGITS))
