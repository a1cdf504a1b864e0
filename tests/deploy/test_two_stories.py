"""A site that tells its peers different things is exposed by its own signatures; nobody else ever is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import federated, sites_of, spec_of

from kinfolk.codec import decode, encode
from kinfolk.deploy.agreement import Agreement
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import FILE, PROOFS, lead
from kinfolk.deploy.letters import Identity
from kinfolk.deploy.mail import Mail, proven
from kinfolk.deploy.room import ANY
from kinfolk.deploy.site import Begun, Site
from kinfolk.engines import rpc
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override
from kinfolk.task import Peer, PeerTask
from kinfolk.types import Client, Message, leaves, map_leaves

SUMS = ["secure_sums.scheme=additive64"]


def two_faced(swap: PeerTask, liars: list[Client]) -> PeerTask:
    """Tells one of its recipients something else; who is first to have two of them is the liar."""

    def send(memory: Message, me: Peer) -> dict[Client, Message]:
        written = swap.send(memory, me)
        if not liars and len(written) > 1:
            liars.append(me.name)
        if liars != [me.name]:
            return written
        for to in sorted(written)[1:2]:
            written[to] = {
                key: _bent(value, swap.alike) for key, value in map_leaves(torch.clone, written[to]).items()
            }
            if "opinions" in written[to]:
                s, d, u = written[to]["opinions"].unbind(0)
                written[to]["opinions"] = torch.stack([d, s, u])
        return written

    return replace(swap, send=send)


def _bent(value: Any, alike: tuple[str, ...]) -> Any:
    """Commitments of which the last has other bits: the recipient's own, wherever it stands, may be right."""
    if isinstance(value, dict) and "commitments" in alike:
        return {**value, "commitments": value["commitments"].flip(1) if "commitments" in value else None}
    return value


def federation_with_liar(method: str, extra: list[str], name: str, folder: Path, monkeypatch: Any) -> Any:
    spec = override(spec_of(method, rounds=3), extra)
    rows = federated(spec)
    liars, begin = list[Client](), Begun.__init__

    def begins(self: Begun, site: Site, text: str) -> None:
        begin(self, site, text)
        self.table = {**self.table, name: two_faced(self.table[name], liars)}  # type: ignore[arg-type]

    monkeypatch.setattr(Begun, "__init__", begins)
    sites = sites_of(rows)
    result = lead(
        spec, folder, Threads({c: s.answer for c, s in sites.items()}), list(rows.clients), seconds=60
    )
    return result, liars[0], sites


@pytest.mark.parametrize(
    ("method", "extra", "name"),
    [("slfed", [], "opinions"), ("slfed", [], "shares"), ("fedavg", SUMS, "sums.share")],
)
def test_who_tells_two_stories_is_named_with_the_proof_and_excluded(
    method: str, extra: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Case 41."""
    result, liar, sites = federation_with_liar(method, extra, name, tmp_path / "run", monkeypatch)
    assert result.rounds == 3
    audit = read_audit(tmp_path / "run")
    told = [line for line in audit if "two stories" in line.get("reason", "")]
    assert {line["client"] for line in told} == {liar}
    # Whoever has the public keys can check it, years later: the run folder holds the two signatures.
    keys = Agreement.read((tmp_path / "run" / FILE).read_text()).keys
    proof = (tmp_path / "run" / PROOFS).read_text()
    assert set(proven(proof, keys)) == {liar}
    assert not proven(proof, {**keys, liar: Identity.new().public})
    # It has no part in what follows, and no site takes a letter of it any more.
    first = told[0]["round"]
    later = [line for line in read_rounds(tmp_path / "run") if line.get("round", 0) > first + 1]
    assert {line["answered"] for line in later} == {7}
    for who, site in sites.items():
        assert site.begun is not None
        assert who == liar or set(site.begun.mail.exposed) <= {liar}


class Framing:
    """A carrier that wants somebody to look like a liar: it bends and swaps stubs, echoes and proofs."""

    def __init__(self, inner: Threads) -> None:
        self.inner, self.old, self.touched = inner, list[Message](), 0

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`."""
        for who, answer in self.inner.ask({c: self._bent(data) for c, data in requests.items()}, seconds):
            yield who, self._with_lies(answer) if isinstance(answer, bytes) else answer

    def _bent(self, data: bytes) -> bytes:
        message, header = decode(data)
        if header.get("swap") != "opinions" or header.get("do") not in ("echo", "receive"):
            return data
        letters = rpc.unpack_several(message, header)
        for i, (_, what) in enumerate(letters):
            self.old.append(what)
            if i % 2 and header["do"] == "receive":
                letters[i] = letters[i][0], self.old[self.touched % len(self.old)]
                self.touched += 1
        body, labels = rpc.pack_several(letters)
        return encode(body, {**header, **labels})

    def _with_lies(self, answer: bytes) -> bytes:
        message, header = decode(answer)
        if "exposed" not in header:
            return answer
        eve = Identity.new()
        place = {"run": "r", "from": "client-001", "to": "x", "swap": "opinions"}
        forged = [eve.say(text, place, {"opinions": text.hex()}).plain() for text in (b"1", b"2")]
        return encode(message, {**header, "exposed": json.dumps({"client-001": forged})})


def test_a_forging_relay_frames_nobody(tmp_path: Path):
    spec = spec_of("slfed", rounds=4)
    rows = federated(spec)
    sites = sites_of(rows)
    carrier = Framing(Threads({c: s.answer for c, s in sites.items()}))
    assert lead(spec, tmp_path / "run", carrier, list(rows.clients), seconds=60).rounds == 4
    assert carrier.touched > 20
    assert not [line for line in read_audit(tmp_path / "run") if "two stories" in line.get("reason", "")]
    assert not (tmp_path / "run" / PROOFS).exists()
    assert not [c for c, s in sites.items() if s.begun is None or s.begun.mail.exposed]


def test_a_site_signs_no_second_story_whatever_it_is_asked(tmp_path: Path):
    """It was killed, forgot what it wrote, and is asked for the same place with another memory."""
    ann, bob = Identity.new(), Identity.new()
    keys = {Client("ann"): ann.public, Client("bob"): bob.public}
    place = {"run": "r", "round": "0", "swap": "opinions", "letters": "7"}
    swap = PeerTask(lambda memory, me: {}, lambda inbox, memory, me: memory, alike=("opinions",))

    def write(text: float, number: int = 7) -> Any:
        mail = Mail(Client("ann"), ann, keys, ANY, tmp_path)  # anew each time
        return mail.write(
            swap, {Client("bob"): {"opinions": torch.tensor(text)}}, {**place, "letters": str(number)}
        )

    write(0.5)
    write(0.5)
    with pytest.raises(KinfolkError, match="something else was told there already"):
        write(0.25)
    write(0.25, 8)
    with pytest.raises(KinfolkError, match="something else"):
        write(0.5)


def test_what_all_are_told_alike_is_in_every_letter_of_slfed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """An exchange that compares nothing would pass the tests above by not being attacked."""
    seen: dict[str, int] = {}
    write = Mail.write

    def counting(self: Mail, swap: PeerTask, written: Any, place: Any) -> Any:
        for what in written.values():
            parts = [name or key for key, name, _ in leaves(what) if (name or key) in swap.alike]
            seen[place["swap"]] = seen.get(place["swap"], 0) + len(parts)
        return write(self, swap, written, place)

    monkeypatch.setattr(Mail, "write", counting)
    spec = spec_of("slfed", rounds=2)
    rows = federated(spec)
    sites = sites_of(rows)
    lead(
        spec,
        tmp_path / "run",
        Threads({c: s.answer for c, s in sites.items()}),
        list(rows.clients),
        seconds=60,
    )
    assert {name for name, count in seen.items() if count} >= {"opinions", "shares"}
    assert run(spec, tmp_path / "loop").rounds == 2
