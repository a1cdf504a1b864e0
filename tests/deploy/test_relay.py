"""The relay, acted out: whoever carries SLFed's messages reads, forges, replays and reorders nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import federated, sites_of, spec_of

from kinfolk.codec import decode, encode
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.letters import Identity, Place
from kinfolk.engines import rpc
from kinfolk.experiment.record import read_rounds
from kinfolk.types import Client, Message

Letter = tuple[str, Message]


class Relay:
    """A carrier that keeps all it has seen, and changes letters before they arrive."""

    def __init__(self, inner: Threads) -> None:
        self.inner, self.seen, self.turn = inner, list[bytes](), 0
        self.kept: dict[
            tuple[str, str], list[Letter]
        ] = {}  # (receiver, exchange) -> letters of the last time
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
        letters, place = rpc.unpack_several(message, header), (who, header["swap"])
        before, self.kept[place] = self.kept.get(place, []), letters
        if len(letters) > 2 and before:
            kind = ("torn", "replayed", "swapped", "forged")[self.turn % 4]
            was, letters, self.turn = letters, _changed(kind, letters, before), self.turn + 1
            touched = [
                not torch.equal(a["sealed"], b["sealed"]) for (_, a), (_, b) in zip(was, letters, strict=True)
            ]
            self.changed[kind] = self.changed.get(kind, 0) + sum(touched)
        body, labels = rpc.pack_several(letters)
        return encode(body, {**header, **labels})


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
    return [(first, one), (second, other), *rest]


@pytest.mark.slow
def test_a_hostile_relay_learns_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    texts = list[bytes]()
    seal = Identity.seal

    def listening(self: Identity, text: bytes, to: str, place: Place, alike: Any = None) -> bytes:
        texts.append(text)
        return seal(self, text, to, place, alike)

    monkeypatch.setattr(Identity, "seal", listening)
    spec = spec_of("slfed")
    rows = federated(spec)
    relay = Relay(Threads({who: site.answer for who, site in sites_of(rows).items()}))
    result = lead(spec, tmp_path / "run", relay, list(rows.clients), seconds=120)
    assert result.rounds == 8
    assert sorted(relay.changed) == ["forged", "replayed", "swapped", "torn"]
    # It reads nothing: no piece of any model, share or opinion is in what it has carried.
    carried, numbers = b"\0".join(relay.seen), [text[-32:] for text in texts if len(text) > 2000]
    assert len(numbers) > 100
    assert not [piece for piece in numbers if len(set(piece)) > 8 and piece in carried]
    # It changes nothing: every letter that it touched is named as one that did not arrive.
    audit = [json.loads(line) for line in (tmp_path / "run" / "audit.jsonl").read_text().splitlines()]
    named = [line["reason"] for line in audit if "its letter to" in line.get("reason", "")]
    told = sum(reason.count("is not sealed for this place") for reason in named)
    assert told == sum(relay.changed.values())
    assert all(not line.get("void") for line in read_rounds(tmp_path / "run"))
