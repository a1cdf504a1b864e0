"""A site's letters in one run: written, opened, and beside what others were told.

What a client tells all others alike, such as its opinions, is compared before it counts. With each letter of
such an exchange goes a stub, sealed as well: the sender's signature over digests. Receivers show one another
the stubs that they have. Two that contradict each other prove that their sender told two stories, to anybody
and without what was told. Nobody can make such a proof about a site that did not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.codec import decode, encode
from kinfolk.deploy.letters import Identity, Place, Refused, Said, contradict
from kinfolk.deploy.room import Rooms
from kinfolk.engines import rpc
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_text
from kinfolk.task import PeerTask
from kinfolk.types import Client, Message, leaves, nbytes

# Kinds of letters besides those of the method: a signature ahead of its letter, and those that one has seen.
STUB, ECHO = "stub", "echo"
Parts = list[tuple[Any, Message]]


class Mail:
    """The letters of site `who`; what must be known again after a kill is in `folder`."""

    def __init__(
        self, who: Client, identity: Identity, keys: Mapping[Client, str], rooms: Rooms, folder: Path | None
    ) -> None:
        self.who, self.identity, self.keys, self.rooms, self.folder = who, identity, keys, rooms, folder
        self.exposed: dict[Client, tuple[Said, Said]] = {}  # who told two stories, with the proof
        self._exchange = 0  # letters of earlier ones are old
        self._stubs: dict[Client, Said] = {}
        self._told = (-1, "")  # the last exchange in which something was told to all, and its digest
        self._load()

    def write(self, swap: PeerTask, written: Mapping[Client, Message], place: Place) -> rpc.Packed:
        """What is written to others, sealed for each, with stubs; the sizes are those of what is inside."""
        self._begin(place)
        alike = {to: _alike(swap, what) for to, what in written.items()}
        self._commit(place, {part: digest for parts in alike.values() for part, digest in parts.items()})
        sealed: Parts = []
        for to, what in written.items():
            own, text = {**place, "from": self.who, "to": to}, encode(what)
            data = self.identity.seal(text, self.keys[to], own, alike[to])
            _fits(f"the letter to {to}", len(data), self.rooms.letter)
            sealed.append((to, {"sealed": _bytes(data)}))
            if swap.alike:
                stub = json.dumps(self.identity.say(text, own, alike[to]).plain()).encode()
                sealed.append(([STUB, to], {"sealed": self._sealed(stub, to, own, STUB)}))
        body, labels = rpc.pack_several(sealed)
        _fits("all letters", nbytes(body), self.rooms.letters)
        return body, {**labels, "sizes": json.dumps({to: nbytes(what) for to, what in written.items()})}

    def echo(self, arrived: Parts, among: Iterable[Client], place: Place) -> rpc.Packed:
        """To everybody who takes part: the stubs that came here."""
        self._at(place)
        self._stubs = {}
        for sender, what in arrived:
            try:
                text = self._opened(sender, what, place, STUB)
                self._stubs[Client(sender)] = self._said(json.loads(text), Client(sender), place)
            except (Refused, ValueError, RecursionError):
                continue  # a sender without a stub is refused when its letter comes
        told = {sender: said.plain() for sender, said in self._stubs.items()}
        self._save("stubs.json", json.dumps([int(place["letters"]), told]))
        seen = json.dumps(told).encode()
        others = [to for to in among if to in self.keys and to != self.who]
        places = {to: {**place, "from": self.who, "to": to} for to in others if self._stubs}
        return rpc.pack_several(
            ([ECHO, to], {"sealed": self._sealed(seen, to, own, ECHO)}) for to, own in places.items()
        )

    def read(
        self, swap: PeerTask, arrived: Parts, place: Place
    ) -> tuple[dict[Client, Message], dict[str, str]]:
        """(what others wrote, whose letters are refused and why): what was tampered with does not arrive."""
        self._at(place)
        if swap.alike:
            self._compare([(label[1], what) for label, what in arrived if _is(label, ECHO)], place)
        inbox: dict[Client, Message] = {}
        refused: dict[str, str] = {}
        for sender, what in arrived:
            if _is(sender, ECHO):
                continue
            try:
                if sender in inbox:
                    raise Refused("is no letter of a site of this run")
                inbox[Client(sender)] = self._letter(swap, sender, what, place)
            except (Refused, KinfolkError) as error:
                refused[str(sender)] = str(error) if isinstance(error, Refused) else "cannot be read"
        self._exchange = int(place["letters"]) + 1
        return inbox, refused

    def learn(self, proofs: str) -> None:
        """Take in what others have proven."""
        new = {who: both for who, both in proven(proofs, self.keys).items() if who not in self.exposed}
        if new:
            self.exposed |= new
            self._save("exposed.json", self.proofs())

    def proofs(self) -> str:
        """Who told two stories, and the proof, as JSON: what anybody with their public keys can check."""
        return json.dumps({who: [said.plain() for said in both] for who, both in self.exposed.items()})

    def _letter(self, swap: PeerTask, sender: Any, what: Message, place: Place) -> Message:
        own = {**place, "from": str(sender), "to": self.who}
        text, said = self.identity.open(self._carried(sender, what), self.keys[sender], own)
        message = decode(text)[0]
        if said.alike != _alike(swap, message):
            raise Refused("is not what its sender has signed")
        if swap.alike and self._stubs.get(sender) != said:
            raise Refused("is not what its sender has announced")
        if sender in self.exposed:
            raise Refused("of one who told others something else")
        return message

    def _compare(self, echoes: Parts, place: Place) -> None:
        """What came here beside what came to others."""
        for witness, what in echoes:
            try:
                seen = json.loads(self._opened(witness, what, place, ECHO))
                theirs = {Client(who): Said.read(said) for who, said in seen.items()}
            except (Refused, ValueError, AttributeError, RecursionError):
                continue
            for sender, said in theirs.items():
                mine = self._stubs.get(sender)
                if mine and sender not in self.exposed and contradict(self.keys[sender], mine, said):
                    self.exposed[sender] = mine, said
                    self._save("exposed.json", self.proofs())

    def _said(self, told: Any, sender: Client, place: Place) -> Said:
        said, own = Said.read(told), {**place, "from": sender, "to": self.who}
        if said.place != own or not said.by(self.keys[sender]):
            raise Refused("not signed by its sender")
        return said

    def _sealed(self, data: bytes, to: Client, place: Place, kind: str) -> Tensor:
        return _bytes(self.identity.seal(data, self.keys[to], {**place, "kind": kind}))

    def _opened(self, sender: Any, what: Message, place: Place, kind: str) -> bytes:
        own = {**place, "from": str(sender), "to": self.who, "kind": kind}
        return self.identity.open(self._carried(sender, what), self.keys[sender], own)[0]

    def _carried(self, sender: Any, what: Message) -> bytes:
        sealed = what.get("sealed")
        if not isinstance(sender, str) or sender not in self.keys or not isinstance(sealed, Tensor):
            raise Refused("is no letter of a site of this run")
        if sealed.dtype != torch.uint8 or sealed.dim() != 1 or len(sealed) > self.rooms.letter:
            raise Refused("is no letter, or too long")
        return bytes(sealed.numpy())

    def _begin(self, place: Place) -> None:
        self._at(place)
        self._exchange, self._stubs = int(place["letters"]), {}

    def _at(self, place: Place) -> None:
        if int(place["letters"]) < self._exchange:
            raise KinfolkError("message.letters", place["letters"], "are letters of an exchange that is over")

    def _commit(self, place: Place, alike: Mapping[str, str]) -> None:
        """Sign no second story of one place, whatever the lead makes of this site: it would be the proof."""
        if not alike:
            return
        digest = hashlib.sha256(json.dumps([dict(place), dict(alike)], sort_keys=True).encode()).hexdigest()
        number, before = self._told
        if int(place["letters"]) < number or (int(place["letters"]) == number and digest != before):
            raise KinfolkError("message.letters", place["letters"], "something else was told there already")
        if (int(place["letters"]), digest) != self._told:
            self._told = int(place["letters"]), digest
            self._save("told.json", json.dumps(self._told))

    def _save(self, name: str, text: str) -> None:
        if self.folder is not None:
            write_text(self.folder / name, text)

    def _load(self) -> None:
        if self.folder is None:
            return
        if (path := self.folder / "told.json").exists():
            number, digest = json.loads(path.read_text(encoding="utf-8"))
            self._told = int(number), str(digest)
        if (path := self.folder / "stubs.json").exists():
            self._exchange, stubs = json.loads(path.read_text(encoding="utf-8"))
            self._stubs = {Client(sender): Said.read(said) for sender, said in stubs.items()}
        if (path := self.folder / "exposed.json").exists():
            self.exposed = proven(path.read_text(encoding="utf-8"), self.keys)


def proven(text: str, keys: Mapping[Client, str]) -> dict[Client, tuple[Said, Said]]:
    """Who told two stories by the proofs in `text`, each checked here: whoever wrote it is not believed.

    >>> proven("[", {})
    {}
    """
    found: dict[Client, tuple[Said, Said]] = {}
    try:
        for who, both in json.loads(text).items():
            one, other = map(Said.read, both)
            if who in keys and contradict(keys[who], one, other):
                found[Client(who)] = one, other
    except (Refused, ValueError, TypeError, AttributeError, RecursionError):
        pass
    return found


def _alike(swap: PeerTask, message: Message) -> dict[str, str]:
    """Digests of the parts of a message that all are told alike, by their place in it."""
    told: Iterable[tuple[str, str, Tensor]] = (
        (key if name is None else f"{key}/{name}", key if name is None else name, leaf)
        for key, name, leaf in leaves(message)
    )
    return {
        path: hashlib.sha256(encode({"part": leaf})).hexdigest()
        for path, name, leaf in told
        if name in swap.alike
    }


def _is(label: Any, kind: str) -> bool:
    return isinstance(label, list) and len(label) == 2 and label[0] == kind


def _bytes(data: bytes) -> Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype=np.uint8).copy())


def _fits(what: str, size: int, room: int) -> None:
    if size > room:
        raise KinfolkError("letter", f"{size} bytes", f"{what} may have {room}; use a smaller model")
