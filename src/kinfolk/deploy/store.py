"""What a site remembers of a run, on its own disk: whole after a kill at any moment, and able to go back.

The lead numbers the states of its clients' memories with marks that only grow. When it voids a round, or goes
on from a checkpoint after it died, it tells which marks count for nothing (see `Course`), and each site takes
its memory back to what it was before the first of them that changed it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from kinfolk.codec import decode, encode
from kinfolk.engines.memory import Memories
from kinfolk.engines.rpc import pack_several, unpack_several
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_bytes
from kinfolk.types import Client, Message

_REPLY = "reply.safetensors"
# So many rewinds are told again and again; a site that has missed more has missed them for good.
TOLD = 256


@dataclass(frozen=True)
class Course:
    """Where the lead stands in its run, as every request tells.

    >>> course = Course(mark=7, rewinds=((3, 5),))
    >>> Course.read(course.text()) == course
    True
    """

    mark: int = 0  # of the state that this request may change
    rewinds: tuple[tuple[int, int], ...] = ()  # (after, up to): states with these marks count for nothing
    oldest: int = 0  # no rewind goes back behind this mark

    def text(self) -> str:
        """As JSON."""
        return json.dumps([self.mark, self.rewinds, self.oldest])

    @staticmethod
    def read(text: str) -> Course:
        """The course behind `text`."""
        try:
            mark, rewinds, oldest = json.loads(text)
            return Course(int(mark), tuple((int(a), int(b)) for a, b in rewinds), int(oldest))
        except (ValueError, TypeError, RecursionError) as error:
            raise KinfolkError("message.course", text[:40], "is no course of a run") from error


@dataclass
class Store:
    """A site's memory of one run, and its last reply, which is given again to whoever asks again.

    >>> held = Store(Client("ann"), Memories(lambda who: {"n": torch.tensor(0)}))
    >>> for mark in (1, 2, 3):
    ...     held.follow(Course(mark))
    ...     held.keep({"n": torch.tensor(mark)}, request=mark, reply=b"")
    >>> held.follow(Course(4, rewinds=((1, 3),)))
    >>> held.memory
    {'n': tensor(1)}
    """

    who: Client
    memories: Memories
    folder: Path | None = None  # None: in this process alone
    at: int = 0  # the mark of the last change
    told: int = 0  # the highest mark that was heard of
    last: int = -1  # the number of the last request that was answered
    reply: bytes = b""
    before: dict[int, tuple[int, Message]] = field(default_factory=dict)  # mark -> what was before it

    @property
    def memory(self) -> Message:
        """What this client remembers now."""
        return self.memories[self.who]

    def follow(self, course: Course) -> None:
        """Go where the lead is: back where it went back, and forget what it will never go back to."""
        pruned = course.rewinds[0][1] if len(course.rewinds) >= TOLD else 0
        if self.at and self.told < pruned:
            raise KinfolkError(
                "site", self.who, "was away for too long to go on; join again with an empty memory"
            )
        for after, upto in course.rewinds:
            if after < self.at <= upto:
                self._back(after)
        for mark in [mark for mark in self.before if mark <= course.oldest]:
            del self.before[mark]
            if self.folder:
                _earlier(self.folder, mark).unlink(missing_ok=True)
        self.told, self._mark = max(self.told, course.mark), course.mark

    def keep(self, memory: Message | None, request: int, reply: bytes, lasting: bool = False) -> None:
        """Remember what a request has left, and the reply to it; on the disk before anybody hears of it.

        What cannot be written there has not been. A reply that leaves the memory as it was is made again
        after a kill, unless it is `lasting`.
        """
        before = dict(self.before), self.memory, self.at, self.last, self.reply
        try:
            self._keep(memory, request, reply, lasting)
        except KinfolkError:
            self.before, held, self.at, self.last, self.reply = before
            self.memories.restore({self.who: held})
            raise

    def _keep(self, memory: Message | None, request: int, reply: bytes, lasting: bool) -> None:
        if memory is not None:
            if self._mark > self.at:
                self.before[self._mark] = (self.at, self.memory)
                if self.folder:
                    what = encode(self.memory, {"at": str(self.at)})
                    write_bytes(_earlier(self.folder, self._mark), what, "site")
            self.memories[self.who] = memory
            self.memories.flush()
            self.at = self._mark
        self.last, self.reply = request, reply
        if memory is not None:
            self._write()
        elif lasting and self.folder:
            write_bytes(self.folder / _REPLY, encode(self._given(), {"last": str(request)}), "site")

    def load(self) -> None:
        """Know again what is on the disk, if there is anything."""
        if self.folder is None:
            return
        if (path := self.folder / "memory.safetensors").exists():
            self._load(path, self.folder)
        if (path := self.folder / _REPLY).exists():
            given, header = decode(path.read_bytes())
            if int(header["last"]) > self.last:
                self.last, self.reply = int(header["last"]), bytes(given["bytes"].numpy())

    def _load(self, path: Path, folder: Path) -> None:
        message, header = decode(path.read_bytes())
        parts = dict(unpack_several(message, header))
        self.at, self.told, self.last = (int(header[key]) for key in ("at", "told", "last"))
        self.reply = bytes(parts["reply"]["bytes"].numpy())
        self.memories.restore({self.who: parts["memory"]})
        for file in folder.glob("before-*.safetensors"):
            earlier, facts = decode(file.read_bytes())
            self.before[int(file.stem.removeprefix("before-"))] = (int(facts["at"]), earlier)

    def _back(self, after: int) -> None:
        later = sorted(mark for mark in self.before if mark > after)
        if not later or self.before[later[0]][0] > after:
            raise KinfolkError("site", self.who, "no longer holds its memory of that round; join again")
        self.at, memory = self.before[later[0]]
        self.memories.restore({self.who: memory})
        for mark in later:
            del self.before[mark]
        self._write()  # first: until it is there, what follows is still needed
        for mark in later if self.folder else ():
            _earlier(self.folder, mark).unlink(missing_ok=True)  # type: ignore[arg-type]

    def _write(self) -> None:
        if self.folder is None:
            return
        parts: Mapping[str, Message] = {"memory": self.memory, "reply": self._given()}
        message, named = pack_several(parts.items())
        header = {"at": str(self.at), "told": str(self.told), "last": str(self.last), **named}
        write_bytes(self.folder / "memory.safetensors", encode(message, header), "site")

    def _given(self) -> Message:
        return {"bytes": torch.from_numpy(np.frombuffer(self.reply or b"", dtype=np.uint8).copy())}


def _earlier(folder: Path, mark: int) -> Path:
    return folder / f"before-{mark}.safetensors"
