"""The lead's part in an exchange: letters go from site to site by its hands, sealed, and no more of them than
there is room for."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from kinfolk.codec import decode
from kinfolk.deploy.mail import ECHO, STUB
from kinfolk.deploy.room import Rooms
from kinfolk.engines import rpc
from kinfolk.engines.memory import Sent
from kinfolk.engines.rpc import Header
from kinfolk.errors import KinfolkError
from kinfolk.types import Client, Message, nbytes

# What reading a site's own words may raise.
NONSENSE = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class Post:
    """Letters of one exchange, by kind and receiver; one of each kind from each sender to each receiver."""

    def __init__(self, among: Iterable[Client], rooms: Rooms) -> None:
        self.among, self.rooms = tuple(among), rooms
        self.wrote: list[Client] = []
        self.sent: Sent = {}
        self._held: dict[tuple[str, Client], dict[Client, Message]] = {}

    def take(self, who: Client, data: bytes, back: Header) -> None:
        """The letters in a reply; of one that holds other things, too much or too many, none."""
        try:
            sizes = {Client(to): int(size) for to, size in json.loads(back.get("sizes", "{}")).items()}
            found = [(*_kind(label), what) for label, what in rpc.unpack_several(*decode(data))]
        except (KinfolkError, *NONSENSE) as error:
            raise KinfolkError("letters", None, f"sent no letters ({type(error).__name__})") from error
        longest = max((nbytes(what) for _, _, what in found), default=0)
        if longest > self.rooms.letter:
            raise KinfolkError(
                "letters", None, f"a letter of {longest} bytes; there is room for {self.rooms.letter}"
            )
        for kind, to, what in found:
            if to in self.among and to != who and who not in (held := self._for(kind, to)):
                held[who] = what
                if kind == "":
                    self.sent[who, to] = min(max(sizes.get(to, 0), 0), nbytes(what))  # it is only told
        if who not in self.wrote:
            self.wrote.append(who)

    def stubs(self) -> Mapping[Client, rpc.Packed]:
        """For everybody who wrote: the signatures ahead of the letters."""
        return {to: rpc.pack_several(self._for(STUB, to).items()) for to in self.wrote}

    def all(self) -> Mapping[Client, rpc.Packed]:
        """For everybody who wrote: the letters, and what others have seen."""
        return {
            to: rpc.pack_several(
                [
                    *self._for("", to).items(),
                    *(([ECHO, who], what) for who, what in self._for(ECHO, to).items()),
                ]
            )
            for to in self.wrote
        }

    def _for(self, kind: str, to: Client) -> dict[Client, Message]:
        return self._held.setdefault((kind, to), {})


def _kind(label: Any) -> tuple[str, Client]:
    if isinstance(label, list):
        kind, to = label
        if kind not in (STUB, ECHO):
            raise ValueError("no kind of letter")
        return str(kind), Client(str(to))
    return "", Client(str(label))
