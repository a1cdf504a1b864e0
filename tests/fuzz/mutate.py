"""Sound bytes made unsound: bits, cuts, splices, numbers and words; where they are JSON, whole values."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

# What a value in a JSON document or a word in a text is put to.
VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2,
        99,
        2**31,
        2**63,
        10**30,
        10**400,
        0.5,
        -0.0,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *("", "x", "ann", "../x", "\x1b[2J", "\ud800", "\0", "9" * 5000, "/etc/passwd", "x" * 5000),
    *([], {}, [[]], [None], ["x"], [1, 2], {"x": 1}, [{}], {"": None}, {"x": [1.0]}),
)
WORDS = (
    b"0",
    b"-1",
    b"9" * 5000,
    b"1e999",
    b"nan",
    b"\xff\xfe",
    b"\0",
    b"'",
    b'"',
    b"[" * 300,
    b"{" * 300,
    b"\n",
    b",",
)
DEEP = "[" * 20_000 + "]" * 20_000


def mutated(seeds: Sequence[bytes], random: Random) -> bytes:
    """One of the seeds, changed in one place or several; now and then left alone."""
    data = random.choice(seeds)
    for _ in range(random.randrange(4)):
        data = random.choice(_CHANGES)(data, seeds, random)
    return data


def _flip(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    if not data:
        return data
    altered = bytearray(data)
    altered[random.randrange(len(data))] ^= 1 << random.randrange(8)
    return bytes(altered)


def _cut(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def _splice(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    other = random.choice(seeds)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _insert(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    place = random.randrange(len(data) + 1)
    return data[:place] + random.choice(WORDS) + data[place + random.randrange(3) :]


def _number(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    """A number that is written out is another."""
    found = list(re.finditer(rb"\d+", data))
    if not found:
        return data
    here = random.choice(found)
    return data[: here.start()] + random.choice(WORDS[:5]) + data[here.end() :]


def _field(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    """Four or eight bytes, a length perhaps, are all ones, or a power of two."""
    size = random.choice((1, 2, 4, 8))
    place = random.randrange(len(data) + 1)
    number = random.choice((2 ** (8 * size) - 1, 2 ** random.randrange(8 * size), 0))
    return data[:place] + number.to_bytes(size, "little") + data[place + size :]


def _value(data: bytes, seeds: Sequence[bytes], random: Random) -> bytes:
    """A value somewhere in a JSON document is of another type, far off, or gone."""
    head, _, rest = data.partition(b"\n") if data.count(b"\n{") else (data, b"", b"")
    try:
        whole = json.loads(head)
    except (ValueError, RecursionError):
        return _insert(data, seeds, random)
    places = list(_places(whole))
    if not places:
        return json.dumps(random.choice(VALUES)).encode()
    holder, key = random.choice(places)
    fate = random.randrange(8)
    if fate == 0:
        del holder[key]
    elif fate == 1 and isinstance(holder, dict):
        holder[random.choice(("x", "", "../x", "\x1b[2J"))] = holder.pop(key)
    else:
        holder[key] = random.choice(VALUES)
    text = json.dumps(whole)
    if fate == 2:
        text = text.replace("null", DEEP, 1)
    return text.encode() + (b"\n" + rest if rest else b"")


def _places(value: Any) -> Any:
    """(what holds it, key) of every value inside a document."""
    if isinstance(value, dict | list):
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))[:8]
        for key in keys:
            yield value, key
            yield from _places(value[key])


_CHANGES: tuple[Callable[[bytes, Sequence[bytes], Random], bytes], ...] = (
    *(_flip, _cut, _splice, _insert, _number, _field, _value, _value),
)
