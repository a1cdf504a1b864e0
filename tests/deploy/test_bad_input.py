"""One clear line where a person can act; the federation goes on where the quorum holds."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch
from certified import certify
from deployed import all_equal, federated, sites_of, spec_of

from kinfolk.codec import decode, encode
from kinfolk.deploy import site as sites_module
from kinfolk.deploy import store
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.certificates import days_left, warning
from kinfolk.deploy.lead import lead
from kinfolk.deploy.letters import Identity, Trust, bond
from kinfolk.deploy.site import Site
from kinfolk.deploy.supervise import serve
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import disk_errors, read_audit, read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override
from kinfolk.experiment.state import to_message
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.types import Client

QUORUM = ["run.quorum=0.5"]


def played(spec: Any, folder: Path, sites: dict[Client, Site], **more: Any) -> tuple[Any, list[str]]:
    told: list[str] = []

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "warning":
            told.append(facts["text"])

    carrier = Threads({c: s.answer for c, s in sites.items()})
    return lead(spec, folder, carrier, list(sites), seconds=60, watch=watch, **more), told


def refused_or_left_out(sites: dict[Client, Site], who: Client, why: str, folder: Path) -> None:
    """Without a quorum the line that names it; with one, a run of the others, and the same words."""
    spec = spec_of("fedavg", rounds=2)
    with pytest.raises(KinfolkError, match=why) as error:
        played(spec, folder / "strict", sites)
    assert str(error.value).startswith(f"site = '{who}'")
    assert "\n" not in str(error.value)
    assert not (folder / "strict").exists()
    result, told = played(override(spec, QUORUM), folder / "quorum", sites)
    assert result.rounds == 2
    assert [line for line in told if line.startswith(f"site {who} is left out of the run")]
    assert {line["answered"] for line in read_rounds(folder / "quorum") if line.get("round")} == {
        len(sites) - 1
    }


def vouched(name: str, who: Client, rows: Any, authority: Identity) -> Site:
    own = Identity.new()
    trust = Trust(name, authority.public, bond(authority, name, who, own.public))
    return Site(who, rows.only(who), identity=own, trust=trust)


@pytest.mark.parametrize("place", [0, 3])
@pytest.mark.parametrize("name", ["hearts", "lungs"])
def test_a_kit_of_another_federation(name: str, place: int, tmp_path: Path):
    """Also one of the same name, of another authority."""
    rows = federated(spec_of("fedavg"))
    ours, theirs = Identity.new(), Identity.new()
    who = rows.clients[place]
    sites = {c: vouched("lungs", c, rows, ours) for c in rows.clients} | {
        who: vouched(name, who, rows, theirs)
    }
    refused_or_left_out(sites, who, rf"has a kit of {name} \(\w+\), others one of lungs", tmp_path)


@pytest.mark.parametrize("place", [0, 3])
def test_other_columns(place: int, tmp_path: Path):
    rows = federated(spec_of("fedavg"))
    who = rows.clients[place]
    other = from_arrays({str(who): (torch.zeros(20, 7), torch.arange(20) % 10)})
    sites = {**sites_of(rows), who: Site(who, other)}
    refused_or_left_out(sites, who, r"its shape are \(7,\)", tmp_path)


def test_numbers_where_others_have_classes(tmp_path: Path):
    rows = federated(spec_of("fedavg"))
    who, shape = rows.clients[3], rows.shape
    other = from_arrays({str(who): (torch.zeros(20, *shape), torch.rand(20))})
    refused_or_left_out(
        {**sites_of(rows), who: Site(who, other)}, who, "predicts numbers|they must be the same", tmp_path
    )


def test_a_site_that_lacks_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rows, build = federated(spec_of("fedavg")), sites_module.build_parts
    sites, turn = sites_of(rows), list[int]()

    def without(spec: Any, shell: Any, network: Any = None) -> Any:
        turn.append(1)
        if sites[rows.clients[3]]._lock.locked():  # it is this site that builds
            try:
                raise ModuleNotFoundError("No module named 'opacus'", name="opacus")
            except ImportError as error:
                raise KinfolkError("privacy.mode", "server", "is not installed") from error
        return build(spec, shell, network)

    monkeypatch.setattr(sites_module, "build_parts", without)
    refused_or_left_out(
        sites, rows.clients[3], "has no opacus, which privacy.mode needs; install it there", tmp_path
    )


def test_below_the_quorum_nothing_begins(tmp_path: Path):
    rows = federated(spec_of("fedavg"))
    other = from_arrays({str(c): (torch.zeros(20, 7), torch.arange(20) % 10) for c in rows.clients[:3]})
    sites = {**sites_of(rows), **{c: Site(c, other.only(c)) for c in rows.clients[:3]}}
    with pytest.raises(KinfolkError, match=r"its shape are \(7,\)"):
        played(override(spec_of("fedavg"), ["run.quorum=0.7"]), tmp_path / "run", sites)
    result, _ = played(override(spec_of("fedavg", rounds=1), ["run.quorum=0.6"]), tmp_path / "run", sites)
    assert result.rounds == 1


def test_clocks_hours_apart_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Whatever a machine thinks the time is, forwards and backwards: deadlines go by the monotonic clock."""
    spec, draw = spec_of("fedavg", rounds=3), random.Random(1)
    theirs, wall = run(spec, tmp_path / "loop"), time.time
    monkeypatch.setattr(time, "time", lambda: wall() + draw.uniform(-9, 9) * 3600)
    ours, told = played(spec, tmp_path / "run", sites_of(federated(spec)))
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    assert told == []
    assert {line["answered"] for line in read_rounds(tmp_path / "run") if line.get("round")} == {8}


@pytest.mark.parametrize("file", ["before", "memory"])
def test_a_full_disk_at_a_site_costs_its_part_and_leaves_its_memory_whole(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    spec, full = spec_of("local", rounds=3), list[bool]()
    rows, write = federated(spec), store.write_bytes
    sites = sites_of(rows, tmp_path / "sites")
    who = rows.clients[3]

    def writes(path: Path, data: bytes, field: str) -> None:
        if full and who in str(path) and path.name.startswith(file):
            path.with_name("half").write_bytes(data[: len(data) // 2])
            with disk_errors(field, path):
                raise OSError(28, "No space left on device")
        write(path, data, field)

    def held() -> Any:
        begun = sites[who].begun
        assert begun is not None
        return begun.store.memory

    kept: dict[int, Any] = {}

    def watch(event: str, facts: dict[str, Any]) -> None:
        if event == "round":
            kept[facts["round"]] = held()
            full[:] = [True] if facts["round"] == 1 else []

    monkeypatch.setattr(store, "write_bytes", writes)
    carrier = Threads({c: s.answer for c, s in sites.items()})
    result = lead(spec, tmp_path / "run", carrier, list(sites), seconds=60, watch=watch)
    assert result.rounds == 3
    audit = [line for line in read_audit(tmp_path / "run") if line["event"] == "rejected"]
    assert {(line["client"], line["round"]) for line in audit} == {(who, 1)}
    assert "No space left" in caplog.text
    assert all_equal(kept[1], kept[2])  # as if it had not been asked
    assert not all_equal(kept[2], kept[3])


def test_a_port_in_use_is_told_before_the_engine_starts(tmp_path: Path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        service = {"servers": [{"service": {"target": f"localhost:{port}"}}]}
        (tmp_path / "startup").mkdir()
        (tmp_path / "startup" / "fed_server.json").write_text(json.dumps(service))
        with pytest.raises(KinfolkError, match=f"^port = {port}: is in use on this machine"):
            serve(tmp_path, tmp_path / "runs", Event())
    with pytest.raises(KinfolkError, match="is no kit of a server"):
        serve(tmp_path / "startup", tmp_path / "runs", Event())


@pytest.fixture
def kit(tmp_path: Path) -> Callable[..., Path]:
    """A kit's certificates, as NVFlare lays them out."""

    def made(begins: int = -1, days: int = 361, name: str = "north", foreign: bool = False) -> Path:
        return certify(tmp_path / "north", name, begins, days, foreign)

    return made


def test_an_expired_or_foreign_certificate_is_told_where_somebody_can_act(
    kit: Callable[..., Path], tmp_path: Path
):
    """Case 15, before the engine: what TLS would say is of no help to anybody."""
    assert days_left(kit(), "north") == 359
    assert warning(kit(), "north") == ""
    assert warning(kit(days=21), "north") == "the certificate of north ends in 19 days; ask for a new kit"
    with pytest.raises(KinfolkError, match=r"has expired on \d{4}-\d\d-\d\d; ask whoever made the kits"):
        days_left(kit(begins=-400), "north")
    with pytest.raises(KinfolkError, match="set the clock of this machine"):
        days_left(kit(begins=2), "north")
    with pytest.raises(KinfolkError, match="is not signed by the authority of this kit"):
        days_left(kit(foreign=True), "north")
    with pytest.raises(KinfolkError, match="is that of south, not of north"):
        days_left(kit(name="south"), "north")
    (kit() / "startup" / "client.crt").write_bytes(b"none")
    with pytest.raises(KinfolkError, match="cannot be read"):
        days_left(tmp_path / "north")
    with pytest.raises(KinfolkError, match="has no certificate"):
        days_left(tmp_path / "nowhere")


def test_a_site_that_answers_with_another_runs_bytes(tmp_path: Path):
    """Whole replies of an earlier run of the same spec, number for number."""
    spec = spec_of("fedavg", rounds=2)
    rows = federated(spec)
    liar, kept = rows.clients[3], dict[tuple[str, str], bytes]()

    def play(folder: Path, replays: bool) -> None:
        sites = sites_of(rows)

        def answer(who: Client, data: bytes) -> bytes:
            header, answer = decode(data)[1], sites[who].answer(data)
            if who != liar or header["do"] != "ask":
                return answer
            key = header["task"], header["number"]
            return kept[key] if replays else kept.setdefault(key, answer)

        lead(
            spec,
            folder,
            Threads({c: lambda d, c=c: answer(c, d) for c in rows.clients}),
            list(rows.clients),
            seconds=60,
        )  # type: ignore[misc]

    play(tmp_path / "first", replays=False)
    play(tmp_path / "second", replays=True)
    told = [line for line in read_audit(tmp_path / "second") if line["event"] == "rejected"]
    assert {line["client"] for line in told} == {liar}
    assert all("message.token" in line["reason"] for line in told)
    assert len(told) >= 2


def test_a_request_that_is_none_ends_no_site():
    site = next(iter(sites_of(federated(spec_of("fedavg"))).values()))
    for data in (
        b"",
        b"\0" * 100,
        b"\xff" * 100,
        encode({}, {}),
        encode({}, {"to": "x"}),
        encode({}, {"to": site.who}),
    ):
        assert decode(site.answer(data))[1]["error"]
