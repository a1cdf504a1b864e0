"""Whoever carries letters and wishes ill: it keeps all it sees, and changes letters before they arrive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kinfolk.codec import decode, encode
from kinfolk.deploy.carrier import Carrier
from kinfolk.engines import rpc
from kinfolk.types import Client, Message

Letter = tuple[Any, Message]
KINDS = ("torn", "replayed", "swapped", "forged", "reordered")


class Relay:
    """A carrier between two others: it sees all bytes, and hands on what it likes."""

    def __init__(self, inner: Carrier, kinds: Sequence[str] = KINDS) -> None:
        self.inner, self.kinds, self.seen, self.turn = inner, kinds, list[bytes](), 0
        # (receiver, exchange) -> letters of the last time
        self.kept: dict[tuple[str, str], list[Letter]] = {}
        self.changed: dict[str, int] = {}

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`, as a hostile one would."""
        self.seen += requests.values()
        for who, answer in self.inner.ask(
            {c: self.meddled(c, data) for c, data in requests.items()}, seconds
        ):
            self.seen += [answer] if isinstance(answer, bytes) else []
            yield who, answer

    def meddled(self, who: Client, data: bytes) -> bytes:
        """What is handed to a site instead."""
        message, header = decode(data)
        if header.get("do") != "receive":
            return data
        every = rpc.unpack_several(message, header)
        letters = [one for one in every if isinstance(one[0], str)]
        rest = [one for one in every if not isinstance(one[0], str)]
        place = (str(who), header["swap"])
        before, self.kept[place] = self.kept.get(place, []), letters
        if len(letters) > 1 and before:
            kind = self.kinds[self.turn % len(self.kinds)]
            was, letters, self.turn = letters, _changed(kind, letters, before), self.turn + 1
            held = dict(letters)
            touched = [not torch.equal(a["sealed"], held[sender]["sealed"]) for sender, a in was]
            self.changed[kind] = self.changed.get(kind, 0) + sum(touched)
        body, labels = rpc.pack_several([*letters, *rest])
        return encode(body, {**header, **labels})

    def sealed(self) -> list[bytes]:
        """All letters that it has carried, as they were."""
        found = []
        for data in self.seen:
            message, header = decode(data)
            if "labels" in header:
                parts = rpc.unpack_several(message, header)
                found += [bytes(what["sealed"].numpy()) for _, what in parts if "sealed" in what]
        return found


def _changed(kind: str, letters: list[Letter], before: list[Letter]) -> list[Letter]:
    (first, one), (second, other), *rest = letters
    if kind == "torn":
        one = {"sealed": one["sealed"] ^ (torch.arange(len(one["sealed"])) == 40).to(torch.uint8)}
    if kind == "replayed":
        one = dict(before).get(first, one)
    if kind == "swapped":
        one, other = other, one
    if kind == "forged":
        one = {"sealed": torch.randint(256, one["sealed"].shape).to(torch.uint8)}
    changed = [(first, one), (second, other), *rest]
    return changed[::-1] if kind == "reordered" else changed


def hook(folder: Path) -> None:
    """In NVFlare's job process at the server: the carrier becomes a relay, which reports to a folder."""
    from kinfolk.deploy import nvflare_lead

    calls = nvflare_lead.Calls

    class Reporting(Relay):
        def ask(self, requests: Any, seconds: float) -> Any:
            yield from super().ask(requests, seconds)
            letters = self.sealed()
            plain = sum(b"__metadata__" in letter or b"kinfolk" in letter for letter in letters)
            told = {"changed": self.changed, "letters": len(letters), "plain": plain}
            (folder / "relay.json").write_text(json.dumps(told))

    nvflare_lead.Calls = lambda: Reporting(calls())  # type: ignore[misc, assignment]
