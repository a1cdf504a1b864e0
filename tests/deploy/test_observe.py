"""Machines see how a deployed run stands, and nothing of what the sites hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from deployed import federated, sites_of, spec_of

from kinfolk.deploy.carrier import Threads
from kinfolk.deploy.lead import lead
from kinfolk.deploy.observe import Endpoint, Observed
from kinfolk.experiment.record import read_rounds
from kinfolk.types import Client

NAMES = [Client("north"), Client('so"u\\th')]
LINE = re.compile(r'(# TYPE kinfolk_\w+ (gauge|counter)|kinfolk_\w+\{(\w+="([^"\\]|\\.)*",?)+\} [0-9.e+-]+)')


def read(endpoint: Endpoint, page: str) -> str:
    with urlopen(f"http://127.0.0.1:{endpoint.port}{page}", timeout=10) as answer:
        return answer.read().decode()


def test_a_site_that_is_late_and_back_shows():
    seen = Observed("first", NAMES)
    seen.watch("warning", {"text": "", "late": NAMES[1]})
    seen.watch("warning", {"text": "", "late": NAMES[1]})
    assert seen.status()["sites"] == {NAMES[0]: "here", NAMES[1]: "away"}
    assert 'kinfolk_deadlines_missed_total{run="first",site="so\\"u\\\\th"} 2' in seen.metrics()
    seen.watch("warning", {"text": "", "back": NAMES[1]})
    assert seen.status()["sites"][NAMES[1]] == "here"
    assert all(LINE.fullmatch(line) for line in seen.metrics().splitlines())


def test_what_a_run_adds_up_to_is_what_its_records_say(tmp_path: Path):
    spec = spec_of("fedavg", rounds=3)
    sites = sites_of(federated(spec))
    seen = Observed("run", list(sites))
    carrier = Threads({c: site.answer for c, site in sites.items()})
    lead(spec, tmp_path / "run", carrier, list(sites), seconds=60, watch=seen.watch)
    told, lines = seen.status(), read_rounds(tmp_path / "run")
    sent: dict[str, Any] = {}
    for line in lines:
        for kind, ways in line["bytes"].items():
            for way, count in ways.items():
                sent[f"{kind}.{way}"] = sent.get(f"{kind}.{way}", 0) + count
    assert told["bytes"] == sent
    assert (told["round"], told["state"]) == (3, "finished")
    with Endpoint(seen, 0) as endpoint:
        assert read(endpoint, "/health") == "ok\n"
        assert json.loads(read(endpoint, "/status"))["bytes"] == sent
        assert 'kinfolk_round{run="run"} 3\n' in read(endpoint, "/metrics")
        with pytest.raises(HTTPError, match="404"):
            read(endpoint, "/../etc/passwd")
