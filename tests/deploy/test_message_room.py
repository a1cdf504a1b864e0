"""Nobody fills the memory of another: what is too long is refused unread, and who sent it named."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from deployed import federated, sites_of, spec_of

from kinfolk.algorithms import ALGORITHMS
from kinfolk.codec import decode, encode
from kinfolk.deploy import agent as agents
from kinfolk.deploy.agent import Agent, ask
from kinfolk.deploy.agreement import Introduction
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.room import AGREEMENT, INTRODUCTION
from kinfolk.deploy.site import TOO_LONG
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_audit, read_rounds
from kinfolk.types import Client

MIB = 1 << 20
STATUS = Path("/proc/self/status")


def peak() -> int:
    """Bytes that this process has held at most since `forget_peak`."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak() -> int:
    """Begin to measure; what is held now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def stuffed(answer: bytes, size: int, **more: torch.Tensor) -> bytes:
    """A reply as it should be, but for a tensor of so many bytes."""
    message, header = decode(answer)
    return encode({**message, **more, "0.more": torch.zeros(size, dtype=torch.uint8)}, header)


def played(
    method: str, folder: Path, liar: Client, lies: Callable[[str, bytes], bytes], rounds: int = 2
) -> Any:
    spec = spec_of(method, rounds=rounds)
    rows = federated(spec)
    sites = sites_of(rows)

    def answered(who: Client, data: bytes) -> bytes:
        header, answer = decode(data)[1], sites[who].answer(data)
        return lies(header.get("task") or header["do"], answer) if who == liar else answer

    carrier = Threads({c: lambda data, c=c: answered(c, data) for c in rows.clients})  # type: ignore[misc]
    return lead(spec, folder, carrier, list(rows.clients), seconds=60)


def refusals(folder: Path) -> list[tuple[str, str]]:
    return [(line["client"], line["reason"]) for line in read_audit(folder) if line["event"] == "rejected"]


LIAR = Client("client-03")


@pytest.mark.parametrize(("method", "step"), [("fedavg", "update"), ("slfed", "send"), ("slfed", "echo")])
def test_a_reply_that_is_too_long_costs_its_sites_part_and_names_it(method: str, step: str, tmp_path: Path):
    """Case 7."""
    result = played(
        method, tmp_path / "run", LIAR, lambda at, answer: stuffed(answer, 64 * MIB) if at == step else answer
    )
    told = refusals(tmp_path / "run")
    assert result.rounds == 2
    assert [why for who, why in told if who == LIAR and "is above the limit of" in why]
    assert {who for who, why in told if "limit" in why} == {LIAR}


def test_letters_are_counted_one_by_one(tmp_path: Path):
    """All of them together may be as long as those of a model each; one of them may not."""

    def lies(at: str, answer: bytes) -> bytes:
        message, header = decode(answer)
        if at != "send" or "0.sealed" not in message:
            return answer
        long = torch.zeros(2 * MIB, dtype=torch.uint8)
        return encode({**message, "0.sealed": torch.cat([message["0.sealed"], long])}, header)  # type: ignore[list-item]

    played("slfed", tmp_path / "run", LIAR, lies)
    assert [why for who, why in refusals(tmp_path / "run") if who == LIAR and "there is room for" in why]


def alone(measure: str, *words: str) -> int:
    """What one of the two measures below returns in a process of its own, which no other test fills."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    code = f"import test_message_room as tests; print(tests.{measure}(*{words!r}))"
    command, environment = [sys.executable, "-c", code], {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1])


def grown_lead(folder: str) -> int:
    """By how many bytes a lead that is sent too much grows beyond one that is not."""
    long: list[bytes] = []
    held: list[int] = []

    def honest(at: str, answer: bytes) -> bytes:
        if at == "update" and not held:
            held.append(forget_peak())
        return answer

    def lies(at: str, answer: bytes) -> bytes:
        if at != "update":
            return answer
        header = decode(answer)[1]
        if not long:
            long.append(encode({"sealed": torch.zeros(512 * MIB, dtype=torch.uint8)}, header))
            held.append(forget_peak())
        return long[0]

    played("fedavg", Path(folder) / "first", LIAR, lambda at, answer: answer, rounds=1)  # what is loaded once
    played("fedavg", Path(folder) / "honest", LIAR, honest, rounds=1)
    usual = peak() - held.pop()
    played("fedavg", Path(folder) / "lied", LIAR, lies, rounds=1)
    return peak() - held.pop() - usual


def grown_site(folder: str) -> int:
    """By how many bytes a site grows that is sent too much, and then answers others."""
    site = next(iter(sites_of(federated(spec_of("fedavg"))).values()))
    long = bytes(512 * MIB)
    with Agent(site.answer, Path(folder) / "door", site.refusal) as agent:
        before = forget_peak()
        assert decode(ask(agent.path, long, 60))[1]["error"] == TOO_LONG
        grown = peak() - before
        hello = encode({}, {"to": site.who, "do": "introduce"})
        assert Introduction.read(decode(ask(agent.path, hello, 60))[1]["introduction"]).who == site.who
    return grown


@pytest.mark.skipif(not STATUS.exists(), reason="memory is measured by /proc")
def test_the_leads_memory_is_bounded_whatever_a_site_writes(tmp_path: Path):
    """Case 7: 512 MiB of one site, that are there once, as the carrier has brought them, and never again."""
    assert alone("grown_lead", str(tmp_path)) < 200 * MIB


def test_what_a_site_says_of_itself_is_bounded(tmp_path: Path):
    with pytest.raises(KinfolkError, match=r"site = 'client-03': .*above the limit") as told:
        played(
            "fedavg",
            tmp_path / "run",
            LIAR,
            lambda at, answer: stuffed(answer, INTRODUCTION) if at == "introduce" else answer,
        )
    assert "\n" not in str(told.value)


def test_a_lead_that_sends_too_much_is_refused_unread(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    site = next(iter(sites_of(federated(spec_of("fedavg"))).values()))
    said = decode(site.answer(encode({"x": torch.zeros(AGREEMENT, dtype=torch.uint8)}, {"to": site.who})))[1]
    assert said == {"from": site.who, "error": TOO_LONG}
    assert "was refused unread" in caplog.text


@pytest.mark.skipif(not STATUS.exists(), reason="memory is measured by /proc")
def test_the_door_of_a_site_lets_nothing_in_that_is_too_long(tmp_path: Path):
    """Half a gibibyte by the socket, of which the site holds a piece at a time; then it answers others."""
    assert alone("grown_site", str(tmp_path)) < 64 * MIB


def test_a_message_that_never_ends_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Case 8: many begin and do not end; the site answers others meanwhile, and holds none for long."""
    monkeypatch.setattr(agents, "IDLE", 0.3)
    before = threading.active_count()
    with Agent(bytes.upper, tmp_path / "door") as agent, ExitStack() as stack:
        doors = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(50)]
        for door in doors:
            door.connect(str(agent.path))
            door.sendall((100 * MIB).to_bytes(8, "big") + bytes(1000))
        assert ask(agent.path, b"hello", 30) == b"HELLO"
        for door in doors:
            door.settimeout(30)
            assert door.recv(1) == b""  # closed by the site, which has not heard the rest
        until = time.monotonic() + 30
        while threading.active_count() > before + 1 and time.monotonic() < until:
            time.sleep(0.05)
        assert threading.active_count() <= before + 1


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_there_is_room_for_what_every_method_says(method: str, tmp_path: Path):
    """Of honest messages none is refused for its length."""
    if method == "majority_label":
        pytest.skip("has nothing to send")
    played(method, tmp_path / "run", Client("nobody"), lambda at, answer: answer, rounds=13)
    assert not [why for _, why in refusals(tmp_path / "run") if "limit" in why or "room" in why]
    assert any(line.get("answered") for line in read_rounds(tmp_path / "run"))
