"""Clients' memories in a checkpoint: files of many clients each; only what changed is written.

A file is named after its bytes and never changed. What a checkpoint shares with an older one is a second name
(a hard link) of the same file, so that every checkpoint is a folder that is whole by itself. Neighbours share
nothing: each builds on the one before the last, and damage to a file leaves one of the newest two sound.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kinfolk.codec import encode
from kinfolk.experiment.state import memories_to_message
from kinfolk.types import Client, Message, leaves, map_leaves, stack_messages

NAME = re.compile(r"memory-[0-9a-f]{32}")
# Bytes of memories in one file: what a checkpoint takes of working memory besides the memories.
PART = 1 << 28
# Of more files than this a checkpoint is written whole, as it is where most of their bytes are out of date.
FILES = 64


class One(NamedTuple):
    """A client's memory: by the client's place among all; with its form and bytes, which take time."""

    place: int
    memory: Message
    form: Any
    size: int

    @staticmethod
    def of(place: int, memory: Message) -> One:
        """The memory of a client.

        >>> One.of(3, {"n": torch.tensor(1)}).size
        8
        """
        layout = tuple((key, tuple(v) if isinstance(v, dict) else None) for key, v in memory.items())
        found = [leaf for _, _, leaf in leaves(memory)]
        size = sum(leaf.numel() * leaf.element_size() for leaf in found)
        return One(place, memory, (layout, tuple((tuple(leaf.shape), leaf.dtype) for leaf in found)), size)


WriteFile = Callable[[str, bytes], dict[str, Any]]  # name, data: what a manifest says about the file


@dataclass(frozen=True)
class Written:
    """What one checkpoint holds: of each client the digest of its memory and the file that it is in."""

    folder: Path
    digests: dict[int, bytes]
    where: dict[int, str]
    held: dict[str, int]  # bytes of memories in each file, out of date or not
    files: dict[str, dict[str, Any]]  # what the manifest says of each, older ones first


@dataclass
class Segments:
    """What the last two checkpoints of this process hold; after a resume the first two are written whole."""

    older: Written | None = None
    newer: Written | None = None

    def write(
        self, folder: Path, final: Path, memories: Mapping[Client, Message], clients: tuple[Client, ...],
        write: WriteFile,
    ) -> dict[str, dict[str, Any]]:  # fmt: skip
        """Write or link the files of what will lie in `final`; what its manifest says of them."""
        place = {who: i for i, who in enumerate(clients)}
        held = [One.of(place[who], memories[who]) for who in sorted(memories, key=place.__getitem__)]
        made = Written(final, _digests(held), {}, {}, {})
        again = self.newer is not None and self.newer.folder == final  # takes the place of the newest
        base = self.newer if again else self.older
        if base is not None:
            _take_over(base, made, folder, held)
        for part in _parts([one for one in held if one.place not in made.where]):
            data = encode(packed(part))
            file = f"memory-{hashlib.sha256(data).hexdigest()[:32]}.safetensors"
            made.files[file], made.held[file] = write(file, data), _size(part)
            made.where.update((one.place, file) for one in part)
        self.older, self.newer = self.older if again else self.newer, made
        return made.files


def _take_over(base: Written, made: Written, folder: Path, held: Sequence[One]) -> None:
    """Link the files of an older checkpoint whose memories are still those of clients; or none of them."""
    same = {i: base.where[i] for i, digest in made.digests.items() if base.digests.get(i) == digest}
    live = set(same.values())
    kept = {file: size for file, size in base.held.items() if file in live}
    whole, new = _size(held), _size([one for one in held if one.place not in same])
    gone = base.digests.keys() - made.digests.keys()  # a file would bring them back
    stale = sum(kept.values()) + new > 2 * whole or len(kept) + new // PART > FILES + whole // PART
    if gone or stale:
        return
    try:
        for file in kept:
            os.link(base.folder / file, folder / file)
    except OSError:  # it was pruned or replaced, or this kind of disk has no links
        for file in kept:
            (folder / file).unlink(missing_ok=True)
        return
    made.where.update(same)
    made.held.update(kept)
    made.files.update({file: base.files[file] for file in kept})


def _parts(held: Sequence[One]) -> Iterator[list[One]]:
    """The memories in runs of at most PART bytes, and at least one client."""
    part, size = list[One](), 0
    for one in held:
        if part and size + one.size > PART:
            yield part
            part, size = [], 0
        part.append(one)
        size += one.size
    if part:
        yield part


def _size(held: Sequence[One]) -> int:
    return sum(one.size for one in held)


def packed(held: Sequence[One]) -> Message:
    """Memories as one message in which equal entries of many clients are one tensor.

    Memories of one form make a group: "0" are the places of its clients, "0.key" what they hold, stacked.

    >>> packed([One.of(4, {"n": torch.tensor(1)}), One.of(7, {"n": torch.tensor(2)}), One.of(8, {})])
    {'0': tensor([4, 7]), '0.n': tensor([1, 2]), '1': tensor([8])}
    """
    groups: dict[Any, list[One]] = {}
    for one in held:
        groups.setdefault(one.form, []).append(one)
    message: Message = {}
    for number, group in enumerate(groups.values()):
        message[str(number)] = torch.tensor([one.place for one in group])
        stacked = map_leaves(lambda leaf: leaf.cpu(), stack_messages([one.memory for one in group]))
        message |= {f"{number}.{key}": value for key, value in stacked.items()}
    return message


def unpacked(message: Message) -> Iterator[tuple[int, Message]]:
    """The memories behind `packed`, each in tensors of its own; a ValueError if it is none.

    >>> list(unpacked(packed([One.of(4, {"n": torch.tensor(1)}), One.of(8, {})])))
    [(4, {'n': tensor(1)}), (8, {})]
    """
    for group, entries in _groups(message):
        rows = [leaf.shape[:1] for _, _, leaf in leaves(entries)]
        if group.ndim != 1 or group.dtype != torch.int64 or any(found != group.shape for found in rows):
            raise ValueError("a group has not a row for each of its clients")
        for row, i in enumerate(group.tolist()):
            yield i, {key: _row(value, row) for key, value in entries.items()}


def joined(tensors: Mapping[str, Message]) -> dict[str, Message]:
    """The entries of a checkpoint with the memories in one, as they were before there were segments.

    >>> file = f"memory-{'0' * 32}"
    >>> joined({"state": {}, file: packed([One.of(1, {"n": torch.tensor(3)}), One.of(0, {})])})
    {'state': {}, 'memory': {'0.': {}, '1.n': tensor(3)}}
    """
    found = {name: message for name, message in tensors.items() if not NAME.fullmatch(name)}
    if "memory" in found:
        return found
    held = dict[int, Message]()
    for name, message in tensors.items():  # older ones first: of a client the last counts
        if NAME.fullmatch(name):
            held.update(unpacked(message))
    return {**found, "memory": memories_to_message(held)}


def _row(value: Any, row: int) -> Any:
    if isinstance(value, dict):
        return {name: leaf[row].clone() for name, leaf in value.items()}
    return value[row].clone()


def _groups(message: Message) -> Iterator[tuple[Tensor, Message]]:
    """(places of clients, what they hold by key) of each group."""
    for number, who in message.items():
        if "." not in number:
            prefix = f"{number}."
            entries = {k.removeprefix(prefix): v for k, v in message.items() if k.startswith(prefix)}
            if not isinstance(who, Tensor):
                raise ValueError("a group has no clients")
            yield who, entries


def _digests(held: Sequence[One]) -> dict[int, bytes]:
    """SHA-256 of every memory: its form and all its bytes."""
    found: dict[int, bytes] = {}
    for part in _parts(held):
        forms = {one.place: one.form for one in part}
        for who, entries in _groups(packed(part)):
            places = who.tolist()
            made = [hashlib.sha256(repr(forms[i]).encode()) for i in places]
            for _, _, leaf in leaves(entries):
                for digest, row in zip(made, _bytes(leaf), strict=True):
                    digest.update(row)
            found |= {i: digest.digest() for i, digest in zip(places, made, strict=True)}
    return found


def _bytes(stacked: Tensor) -> Any:
    """The bytes of every row."""
    flat = stacked.resolve_conj().resolve_neg().reshape(len(stacked), stacked[0].numel()).contiguous()
    return flat.view(torch.uint8).numpy()
