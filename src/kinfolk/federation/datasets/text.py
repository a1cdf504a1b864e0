"""Text by author: LEAF's Shakespeare and Sent140, manual pages in eight languages; tokens and windows.

A token is a whole number: the place of a character in a known alphabet, or the hash of a word. Nothing is
counted over clients, so that no client's words reach another.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from kinfolk.federation.datasets.files import Archive
from kinfolk.federation.datasets.leaf import User, every_user, user_labels, user_rows
from kinfolk.federation.datasets.rows import PLAIN, Array, Rows, check_rows
from kinfolk.federation.partition.holdout import Ints
from kinfolk.federation.spec import DataSpec

# LEAF's alphabet for Shakespeare.
_UPPER = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
LETTERS = "\n !\"&'(),-.0123456789:;>?" + _UPPER + "[]" + _UPPER.lower() + "}"
LINE = 80  # characters of a row
# Of Sent140: tokens of a row, and how many there are; 0 stands before a short tweet.
TWEET, WORDS = 25, 10_000
MOODS = ("negative", "positive")
_WORD = re.compile(r"[\w']+|[.,!?;]")
_TEXT = 4  # where a tweet's words are in LEAF's row: id, date, query, user, text, set


def characters(text: str, alphabet: str) -> Array:
    """The places of characters in an alphabet, as bytes; one that is not in it is an error.

    >>> characters("cab", "abc").tolist()
    [2, 0, 1]
    >>> characters("cub", "abc")
    Traceback (most recent call last):
    ValueError: 'u' is not in the alphabet
    """
    place = {letter: i for i, letter in enumerate(alphabet)}
    try:
        return np.array([place[letter] for letter in text], np.uint8)
    except KeyError as error:
        raise ValueError(f"{error.args[0]!r} is not in the alphabet") from None


def words(text: str, length: int = TWEET, count: int = WORDS) -> list[int]:
    """The first words of a text as tokens 1 to count - 1, zeros in front of a short one.

    Words are runs of letters, digits, underscores and apostrophes in lower case, and each of . , ! ? ; is a
    word. A word's token is the CRC-32 of its UTF-8 bytes modulo count - 1, plus 1: about one word in
    ten shares its token with another of the thousand most common ones.

    >>> words("Good, good.", length=5)
    [0, 2274, 4158, 2274, 7464]
    """
    found = [zlib.crc32(word.encode()) % (count - 1) + 1 for word in _WORD.findall(text.lower())[:length]]
    return [0] * (length - len(found)) + found


def official_shakespeare(archive: Archive) -> Rows:
    """Shakespeare by role from LEAF's all_data json: 80 characters and the next one, in order of the text.

    Its train and test files are never read: they were drawn at random among windows that overlap in all but
    one character.
    """
    parts, starts = [], []
    for user in every_user(archive, whole_only=True):
        parts.append((replace(user, x=[], y=[]), *_lines(user)))
        starts.append(np.arange(len(user.y)))
    return user_rows(
        parts, tuple(LETTERS), scale=PLAIN, start=np.concatenate([*starts, np.zeros(0, np.int64)])
    )


def _lines(user: User) -> tuple[Array, Array]:
    for place, (x, y) in enumerate(zip(user.x, user.y, strict=True)):
        if not (isinstance(x, str) and isinstance(y, str) and len(x) == LINE and len(y) == 1):
            raise user.bad(f"has in row {place + 1} no {LINE} characters and the next one")
    try:
        x, y = (characters("".join(part), LETTERS) for part in (user.x, user.y))
    except ValueError as error:
        raise user.bad(f"has a character that is not LEAF's: {error}") from None
    return x.reshape(-1, LINE), y.astype(np.int64)


def official_sent140(archive: Archive) -> Rows:
    """Sent140 by user from LEAF's json: 25 tokens of a tweet, negative or positive; see `words`."""
    parts = []
    for user in every_user(archive):
        labels = user_labels(user, len(MOODS))
        for place, row in enumerate(user.x):
            if not isinstance(row, list) or len(row) <= _TEXT or not isinstance(row[_TEXT], str):
                raise user.bad(f"has in row {place + 1} no id, date, query, user and text")
        x = np.array([words(row[_TEXT]) for row in user.x], np.int16)
        parts.append((replace(user, x=[], y=[]), x, labels))
    return user_rows(parts, MOODS, scale=PLAIN)


def compact_manuals(found: Mapping[str, Array]) -> Rows:
    """Manual pages as running text, one client a page; the languages are the known groups."""
    text, offset, names = found["text"], found["offset"], tuple(found["client"].tolist())
    alphabet = str(found["alphabet"])
    if (
        offset[0] != 0
        or offset[-1] != len(text)
        or len(offset) != len(names) + 1
        or (np.diff(offset) < 1).any()
    ):
        raise ValueError("its offsets do not fit its text and clients")
    group = np.unique(found["language"], return_inverse=True)[1].astype(np.int64)
    client = np.repeat(np.arange(len(names)), np.diff(offset))
    rows = Rows(
        text.astype(np.uint8), text.astype(np.int64), len(alphabet), PLAIN,
        client=client, client_names=names, class_names=tuple(alphabet), group=group,
    )  # fmt: skip
    return check_rows(rows)


def windows(rows: Rows, spec: DataSpec) -> Rows:
    """Running text cut into windows as the spec says; rows that are cut already, every so many of them.

    A window is `window` tokens of one client, `stride` tokens after the one before; its target is the next
    token, or with `targets = "every"` the next one of each of its tokens.

    >>> text = np.array([0, 1, 2, 3, 4, 7, 8, 9], np.uint8)
    >>> owner = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    >>> rows = Rows(text, text.astype(np.int64), 10, PLAIN, client=owner, client_names=("ann", "bob"))
    >>> cut = windows(rows, DataSpec(window=2, stride=2))
    >>> cut.x.tolist(), cut.y.tolist(), cut.client.tolist(), cut.start.tolist()
    ([[0, 1], [2, 3], [7, 8]], [2, 4, 9], [0, 0, 1], [0, 2, 0])
    """
    if rows.x.ndim > 1:
        if rows.start is None or spec.stride <= 1:
            return rows
        kept = np.flatnonzero(rows.start % spec.stride == 0)
        assert rows.client is not None
        return replace(rows, x=rows.x[kept], y=rows.y[kept], client=rows.client[kept], start=rows.start[kept])
    assert rows.client is not None
    length = spec.window
    first, start = _starts(rows.client, length, spec.stride or length)
    x = np.lib.stride_tricks.sliding_window_view(rows.x, length)[first]
    every = np.lib.stride_tricks.sliding_window_view(rows.y, length)
    y = every[first + 1] if spec.targets == "every" else rows.y[first + length]
    return replace(
        rows, x=np.ascontiguousarray(x), y=np.ascontiguousarray(y), client=rows.client[first], start=start
    )


def _starts(client: Ints, length: int, stride: int) -> tuple[Ints, Ints]:
    """Where windows begin, in the whole text and in that of their client; the next token is there as well."""
    ends = np.flatnonzero(np.diff(client, append=-1)) + 1
    begins = np.concatenate([[0], ends[:-1]])
    found = [np.arange(begin, end - length, stride) for begin, end in zip(begins, ends, strict=True)]
    first = np.concatenate(found)
    return first, first - np.repeat(begins, [len(part) for part in found])
