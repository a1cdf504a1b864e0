"""Sites that answer what they like, a lead that asks for more than it may know, neighbours at the door."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deployed import all_equal, federated, sites_of, spec_of
from safetensors.torch import save_file

from kinfolk.codec import decode, encode
from kinfolk.deploy import carrier as carriers
from kinfolk.deploy import remote
from kinfolk.deploy.agent import Agent, ask
from kinfolk.deploy.agreement import Introduction, agree
from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.site import Site
from kinfolk.engines import one
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import read_audit
from kinfolk.experiment.run import Result, run
from kinfolk.experiment.spec import dump, override
from kinfolk.experiment.state import to_message
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.types import Client

Change = Callable[[Client, bytes, bytes], bytes | Exception]  # (who, request, answer) -> what arrives


class Between:
    """A carrier that sees all bytes and may put others in the place of answers."""

    def __init__(self, sites: Mapping[Client, Site], change: Change) -> None:
        self.inner, self.change = Threads({who: site.answer for who, site in sites.items()}), change
        self.sites = sites
        self.seen: list[bytes] = []

    def ask(self, requests: Mapping[Client, bytes], seconds: float) -> Iterator[tuple[Client, Any]]:
        """As `Carrier.ask`."""
        for who, answer in self.inner.ask(requests, seconds):
            arrives = self.change(who, requests[who], answer) if isinstance(answer, bytes) else answer
            self.seen += [requests[who], *([arrives] if isinstance(arrives, bytes) else [])]
            yield who, arrives


class Clock:
    """Time that passes by waiting alone, so that no deadline is missed for want of a fast machine."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        """Seconds that were waited."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Wait, in no time."""
        self.now += seconds


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "time", Clock())
    monkeypatch.setattr(carriers, "PAUSE", 30.0)
    monkeypatch.setattr(remote, "LOOK", 0.0)


def go(spec: Any, folder: Path, change: Change) -> tuple[Result, Between]:
    rows = federated(spec)
    carrier = Between(sites_of(rows), change)
    return lead(spec, folder, carrier, list(rows.clients), seconds=60), carrier


def refusals(folder: Path) -> list[tuple[str, str]]:
    return [(line["client"], line["reason"]) for line in read_audit(folder) if line["event"] == "rejected"]


def with_header(answer: bytes, **changes: str) -> bytes:
    message, header = decode(answer)
    return encode(message, {**header, **changes})


def summed(scheme: str = "additive64", rounds: int = 1) -> Any:
    return override(spec_of("fedavg", rounds=rounds), [f"secure_sums.scheme={scheme}"])


ANSWERS = {
    "no bytes": lambda answer: b"",
    "no message": lambda answer: b"\xff" * 64,
    "cut": lambda answer: answer[: len(answer) // 2],
    "of another site": lambda answer: with_header(answer, **{"from": "client-000"}),
    "of another run": lambda answer: with_header(answer, token="0" * 16),
    "a number of rows that is none": lambda answer: with_header(answer, rows="-5"),
    "private text": lambda answer: with_header(answer, error="Ann Smith has\nlung cancer"),
}


@pytest.mark.parametrize("how", ANSWERS)
def test_a_reply_that_is_none_costs_its_sites_part_and_nothing_else(how: str, tmp_path: Path):
    spec = spec_of("fedavg", rounds=2)
    liar = federated(spec).clients[3]

    def change(who: Client, request: bytes, answer: bytes) -> bytes:
        header = decode(request)[1]
        lies = who == liar and header.get("task") == "update"
        return ANSWERS[how](answer) if lies else answer

    result, _ = go(spec, tmp_path / "run", change)
    assert result.rounds == 2
    assert [who for who, _ in refusals(tmp_path / "run")] == [liar, liar]
    everything = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [data for data in everything if b"Ann Smith" in data]


def test_a_reply_of_an_earlier_request_or_round_is_refused(tmp_path: Path):
    """Case 13: what was a good reply once is none to anything else."""
    spec = spec_of("fedavg", rounds=3)
    liar, kept = federated(spec).clients[3], list[bytes]()

    def replays(who: Client, request: bytes, answer: bytes) -> bytes:
        if who != liar or decode(request)[1].get("task") != "update":
            return answer
        kept.append(answer)
        return kept[0]

    result, _ = go(spec, tmp_path / "run", replays)
    (second, third) = refusals(tmp_path / "run")
    assert (result.rounds, second[0], third[0]) == (3, liar, liar)
    assert all("message.number" in reason for _, reason in (second, third))


WORDS = ["3", "[" * 5000, '{"client-001": {}}', '{"nobody": "torn"}']


@pytest.mark.parametrize("key", ["refused", "sizes", "labels"])
def test_whatever_a_site_says_of_letters_the_run_goes_on(key: str, tmp_path: Path):
    """It says of whom it took no letter, how long its own are, and which is for whom."""
    for number, word in enumerate(WORDS):
        spec = summed()
        liar = federated(spec).clients[3]

        def change(who: Client, request: bytes, answer: bytes, word: str = word, liar: str = liar) -> bytes:
            header = decode(answer)[1]
            return with_header(answer, **{key: word}) if who == liar and key in header else answer

        result, _ = go(spec, tmp_path / str(number), change)
        assert result.rounds == 1
        assert "nobody" not in dict(refusals(tmp_path / str(number)))


def test_of_a_task_that_fails_the_kind_of_error_leaves_the_site_and_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Case 20: what a task says when it fails may hold rows."""
    spec, perform = spec_of("fedavg", rounds=2), one.perform
    ill = federated(spec).clients[3]

    def fails(task: Any, message: Any, memory: Any, rows: Any, who: Client, context: Any) -> Any:
        if who == ill and context.round == 1:
            raise ValueError(f"row 7 of Ann Smith, aged {41}, is odd: {rows.x[0]}")
        return perform(task, message, memory, rows, who, context)

    monkeypatch.setattr(one, "perform", fails)
    result, carrier = go(spec, tmp_path / "run", lambda who, request, answer: answer)
    assert result.rounds == 2
    assert any(who == ill and "ValueError" in reason for who, reason in refusals(tmp_path / "run"))
    everything = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [data for data in (*carrier.seen, *everything) if b"Ann Smith" in data or b"aged" in data]


def test_a_spec_that_names_paths_learns_nothing_of_what_is_there(tmp_path: Path):
    """Weights may be files of a site; which there are, and what is in them, is no business of the lead."""
    spec = spec_of("fedavg")
    rows = federated(spec)
    sites = sites_of(rows)
    (tmp_path / "patients").mkdir()
    save_file({"ann_smith": torch.ones(3)}, tmp_path / "patients" / "oncology-2026.safetensors")
    met = [Introduction.of(c, rows.only(c), sites[c].identity.public) for c in rows.clients]
    good = agree(met, dump(spec), "r1")

    def told(path: Path) -> str:
        text = dump(override(spec, [f"model.weights={path}"]))
        asked = {"to": rows.clients[0], "do": "begin", "agreement": replace(good, spec=text).text()}
        return decode(sites[rows.clients[0]].answer(encode({}, asked)))[1]["error"]

    guesses = ("none.safetensors", "oncology-2026.safetensors", "", "oncology-2026.pt")
    found = {told(tmp_path / "patients" / guess) for guess in guesses}
    assert len(found) == 1
    assert "because of model.weights" in found.pop()


def test_a_spec_that_nobody_can_build_is_told_at_the_lead_with_its_reason(tmp_path: Path):
    spec = override(spec_of("fedavg"), ["model.weights=nowhere.safetensors"])
    with pytest.raises(KinfolkError, match="no such file"):
        go(spec, tmp_path / "run", lambda who, request, answer: answer)


MOMENTS = {
    "of more rows than it has": lambda m: replace(m, count=10**18),
    "of none": lambda m: replace(m, count=0),
    "of deviations below 0": lambda m: replace(m, squares=-m.squares),
    "of other columns": lambda m: replace(m, mean=m.mean[:1], squares=m.squares[:1]),
    "beyond all rows": lambda m: replace(m, mean=m.mean + 1e300),
}


@pytest.mark.parametrize("which", ["rows", "targets"])
@pytest.mark.parametrize("how", MOMENTS)
def test_moments_that_no_rows_have_are_refused_before_they_scale_those_of_all(how: str, which: str):
    draw = np.random.default_rng(0)
    rows = from_arrays(
        {name: (draw.normal(size=(40, 3)), draw.normal(size=(40, 2))) for name in ("ann", "bob")}
    )
    met = [Introduction.of(c, rows.only(c), "key", by="global", target="global") for c in rows.clients]
    assert agree(met, "", "r").outline.scaling is not None
    lies = replace(met[1].told, **{which: MOMENTS[how](getattr(met[1].told, which))})
    with pytest.raises(KinfolkError, match="site = 'bob': tells moments that its rows cannot have"):
        agree([met[0], Introduction.read(replace(met[1], told=lies).text())], "", "r")


def models_in(seen: list[bytes], of: str) -> set[bytes]:
    """Pieces of the models in what was carried to (`to`) or from sites."""
    messages = [message for message, header in map(decode, seen) if of in header and "model" in message]
    leaves = [t.contiguous().view(torch.uint8).flatten() for m in messages for t in m["model"].values()]
    return {bytes(piece.numpy()) for leaf in leaves for piece in leaf.split(32) if len(piece) == 32}


@pytest.mark.parametrize("scheme", ["additive64", "shamir61"])
def test_secure_sums_have_the_bits_of_the_loop_and_no_model_passes_the_lead(scheme: str, tmp_path: Path):
    spec = summed(scheme, rounds=2)
    theirs = run(spec, tmp_path / "loop")
    _, plain = go(spec_of("fedavg", rounds=1), tmp_path / "plain", lambda who, request, answer: answer)
    ours, hidden = go(spec, tmp_path / "run", lambda who, request, answer: answer)
    assert all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    # What of the first round's models nobody else has; without secure sums it is carried as it is.
    pieces = models_in(plain.seen, "from") - models_in(plain.seen, "to")
    assert len(pieces) > 1000
    carried = b"\0".join(hidden.seen)
    assert not [piece for piece in sorted(pieces)[::50] if piece in carried]
    # Nor does any site's private key, or a part of one, there or in what the lead keeps (case 50).
    kept = b"\0".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    for site in hidden.sites.values():
        for key in (site.identity.signing, site.identity.opening):
            assert key[:16] not in carried + kept
            assert key.hex()[:32].encode() not in carried + kept


@pytest.mark.parametrize("scheme", ["additive64", "shamir61"])
def test_who_vanishes_after_it_has_shared_is_in_the_sum_or_there_is_none(scheme: str, tmp_path: Path):
    """Case 47. Its shares are with the others: enough of them suffice by Shamir's scheme, and not without."""
    spec = summed(scheme)
    gone, theirs = federated(spec).clients[3], run(spec, tmp_path / "loop")
    lost = list[str]()

    def vanishes(who: Client, request: bytes, answer: bytes) -> bytes | Exception:
        task = decode(request)[1].get("task", "")
        if who != gone or not task.startswith("sums.answer"):
            return answer
        lost.append(task)
        return ConnectionError("gone")

    ours, _ = go(spec, tmp_path / "run", vanishes)
    assert lost
    same = all_equal(to_message(ours.state)[0], to_message(theirs.state)[0])
    void = [line["event"] for line in read_audit(tmp_path / "run") if line["event"] == "no_sum"]
    assert (same, bool(void)) == ((True, False) if scheme == "shamir61" else (False, True))


@pytest.mark.skipif(os.name != "posix", reason="a socket in a folder")
def test_no_door_is_opened_where_others_can_write(tmp_path: Path):
    """The folder of short paths has a name that all of a machine can guess, and make first."""
    theirs = tmp_path / "kinfolk-1000"
    theirs.mkdir()
    theirs.chmod(0o777)
    with pytest.raises(KinfolkError, match="others can write there"):
        Agent(bytes.upper, theirs / "door")
    theirs.chmod(0o700)
    with Agent(bytes.upper, theirs / "door") as first:
        with pytest.raises(KinfolkError, match="is running already"):
            Agent(bytes.lower, theirs / "door")
        assert ask(first.path, b"hello", 5) == b"HELLO"


class Died(BaseException):
    """The lead's process has ended."""


def test_a_lead_that_goes_back_gets_no_second_sum_of_the_same_models(tmp_path: Path):
    """Sums of eight models and of seven of them would be the eighth; the notes of sites do not go back."""
    spec = override(summed(rounds=2), ["run.checkpoint_every=2"])
    rows, again = federated(spec), list[bool]()
    left_out = rows.clients[3]

    def vanishes(who: Client, request: bytes, answer: bytes) -> bytes | Exception:
        trains = decode(request)[1].get("task") == "update"
        return ConnectionError("gone") if again and who == left_out and trains else answer

    def dies(event: str, facts: dict[str, Any]) -> None:
        if event == "round" and facts["round"] == 1 and not again:
            raise Died

    carrier = Between(sites_of(rows, tmp_path / "sites"), vanishes)
    with pytest.raises(Died):
        lead(spec, tmp_path / "run", carrier, list(rows.clients), seconds=60, watch=dies)
    summed_before = [line["event"] for line in read_audit(tmp_path / "run")]
    again.append(True)
    lead(spec, tmp_path / "run", carrier, list(rows.clients), resume=True, seconds=60, watch=dies)
    first = [line for line in read_audit(tmp_path / "run") if line["event"] == "no_sum"]
    assert "no_sum" not in summed_before
    assert first
    assert first[0]["round"] == 0
    assert first[0]["reason"].startswith("0 of the 3 members")
