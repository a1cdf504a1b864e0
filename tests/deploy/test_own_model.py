"""A site takes its own model out of a run, with the bits that a simulation exports; nobody else's leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from deployed import Flaky, federated, spec_of
from safetensors import safe_open
from safetensors.torch import load_file

from kinfolk.deploy import carrier as carriers
from kinfolk.deploy import remote
from kinfolk.deploy.delivery import FILE
from kinfolk.deploy.lead import lead
from kinfolk.deploy.own_model import export_own
from kinfolk.deploy.own_rows import simulated_rows
from kinfolk.deploy.site import Site
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import parse
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.trained import load
from kinfolk.types import Client

# (method, kind): of all, of groups, of each client by its memory, and fine-tuned on its rows.
KINDS = (
    ("fedavg", "centre"),
    ("fesem,k=2", "centre"),
    ("fesem,k=2", "fine-tuned"),
    ("local", "personal"),
    ("fedavg_tuned", "fine-tuned"),
    ("slfed", "personal"),
)


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carriers, "PAUSE", 0.0)


def sites_of(spec: Any, folder: Path) -> dict[Client, Site]:
    return {c: Site(c, simulated_rows(spec, c), folder / c) for c in federated(spec).clients}


def weights(folder: Path) -> tuple[Any, Any]:
    """All that a file of weights holds; in what order its own writer decides."""
    with safe_open(folder / "model.safetensors", "numpy") as file:
        names = list(file.keys())
        return file.metadata(), {
            n: (t.dtype, t.shape, t.tobytes()) for n in names for t in [file.get_tensor(n)]
        }


@pytest.mark.parametrize(("method", "kind"), KINDS)
def test_each_site_has_the_files_that_a_simulation_exports_for_it(method: str, kind: str, tmp_path: Path):
    """Also where messages are lost and sites die on the way."""
    spec = spec_of(method, rounds=8 if "fesem" in method else 2)
    rows = federated(spec)
    run(spec, tmp_path / "loop")
    theirs = load(tmp_path / "loop")
    carrier = Flaky(sites_of(spec, tmp_path / "sites"), loses=0.05, dies=0.05)
    lead(spec, tmp_path / "first", carrier, list(rows.clients), seconds=60)
    for who in rows.clients[::3]:
        theirs.export(tmp_path / "theirs" / who, client=who, kind=kind)  # type: ignore[arg-type]
        export_own(tmp_path / "sites" / who, who, "first", tmp_path / "ours" / who, kind)
        ours, same = tmp_path / "ours" / who, tmp_path / "theirs" / who
        assert weights(ours) == weights(same)
        assert (ours / "model.json").read_bytes() == (same / "model.json").read_bytes()
        told, expected = ((folder / "README.md").read_text().splitlines() for folder in (ours, same))
        unlike = [line for line, other in zip(told, expected, strict=True) if line != other]
        assert [line.split("|")[1].strip() for line in unlike] == ["data", "federation fingerprint"]
    assert json.loads((tmp_path / "first" / FILE).read_text())["without"] == []


class Kept:
    """A carrier that keeps all bytes that leave sites; some sites may be gone."""

    def __init__(self, inner: Flaky) -> None:
        self.inner, self.left, self.gone = inner, list[bytes](), set[Client]()

    def ask(self, requests: Mapping[Client, bytes], seconds: float) -> Iterator[tuple[Client, Any]]:
        """As `Carrier.ask`."""
        there = {c: data for c, data in requests.items() if c not in self.gone}
        for who, answer in self.inner.ask(there, seconds):
            self.left += [answer] if isinstance(answer, bytes) else []
            yield who, answer


@pytest.mark.parametrize(("method", "kind"), [("local", "personal"), ("fedavg_tuned", "fine-tuned")])
def test_no_piece_of_a_models_bytes_leaves_a_site_for_its_export(method: str, kind: str, tmp_path: Path):
    spec = spec_of(method, rounds=2)
    rows = federated(spec)
    carrier = Kept(Flaky(sites_of(spec, tmp_path / "sites"), 0.0, 0.0))
    lead(spec, tmp_path / "first", carrier, list(rows.clients), seconds=60)
    carried = b"\0".join(carrier.left)
    for who in rows.clients[:2]:
        export_own(tmp_path / "sites" / who, who, None, tmp_path / who, kind)
        tensors = load_file(tmp_path / who / "model.safetensors")
        pieces = [
            p for t in tensors.values() for p in t.view(torch.uint8).flatten().split(32) if len(p) == 32
        ]
        moved = [bytes(p.numpy()) for p in pieces if p.any()]
        assert len(moved) > 100
        assert not [piece for piece in moved[::20] if piece in carried]


def test_who_was_away_at_the_end_has_its_model_when_the_run_is_resumed(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr(remote, "GLANCE", 0.1)
    spec = spec_of("fedavg", rounds=2)
    rows = federated(spec)
    sites = sites_of(spec, tmp_path / "sites")
    carrier, gone = Kept(Flaky(sites, 0.0, 0.0)), rows.clients[2]

    def watch(event: str, facts: dict[str, Any]) -> None:
        carrier.gone |= {gone} if event == "round" and facts["round"] == 2 else set()

    lead(spec, tmp_path / "first", carrier, list(rows.clients), seconds=2, watch=watch)
    assert json.loads((tmp_path / "first" / FILE).read_text())["without"] == [gone]
    with pytest.raises(KinfolkError, match="it comes when the run has ended"):
        export_own(tmp_path / "sites" / gone, gone, "first", tmp_path / "out")
    carrier.gone = set()
    lead(spec, tmp_path / "first", carrier, list(rows.clients), resume=True, seconds=2)
    assert export_own(tmp_path / "sites" / gone, gone, "first", tmp_path / "out")
    assert json.loads((tmp_path / "first" / FILE).read_text())["without"] == []


def test_rows_that_each_site_standardises_by_itself_are_told_on_its_own_card(tmp_path: Path):
    draw = np.random.default_rng(0)
    own = {who: (draw.normal(5, 3, size=(20, 3)), np.arange(20) % 2) for who in ("ann", "bob")}
    rows = from_arrays(own)
    spec = parse("[data]\nstandardize = 'client'\n[run]\nrounds = 1\n[engine]\nname = 'loop'\n")
    run(spec, tmp_path / "loop", federation=rows)
    sites = {
        c: Site(c, replace(rows.only(c), class_names=rows.class_names), tmp_path / c) for c in rows.clients
    }
    lead(spec, tmp_path / "first", Flaky(sites, 0.0, 0.0), list(sites), seconds=60)
    for who in rows.clients:
        export_own(tmp_path / who, who, "first", tmp_path / "ours" / who)
        load(tmp_path / "loop").export(tmp_path / "theirs" / who, client=who)
        ours, theirs = (
            json.loads((tmp_path / f / who / "model.json").read_text()) for f in ("ours", "theirs")
        )
        assert ours == theirs
        assert ours["standardized"]["rows"]["mean"][0] > 3


@pytest.mark.parametrize("kind", ["personal", "nonsense"])
def test_what_is_not_there_is_one_line(kind: str, tmp_path: Path):
    spec = spec_of("fedavg", rounds=1)
    rows = federated(spec)
    lead(spec, tmp_path / "first", Flaky(sites_of(spec, tmp_path / "sites"), 0, 0), list(rows.clients))
    who = rows.clients[0]
    with pytest.raises(KinfolkError, match="there are centre"):
        export_own(tmp_path / "sites" / who, who, "first", tmp_path / "out", kind)
    with pytest.raises(KinfolkError, match="did you mean 'first'"):
        export_own(tmp_path / "sites" / who, who, "frist", tmp_path / "out")
    assert not (tmp_path / "out").exists()
