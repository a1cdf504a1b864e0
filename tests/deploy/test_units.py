"""The examples for systemd and Docker Compose: sound as files, locked down, and commands that exist."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer

from kinfolk.cli.commands import app

EXAMPLES = Path(__file__).parents[2] / "examples" / "deploy"
UNITS, COMPOSED = sorted((EXAMPLES / "systemd").glob("*.service")), sorted(EXAMPLES.glob("compose-*.yaml"))
# What must be set, and how.
HARDENED = {
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "CapabilityBoundingSet": "",
    "UMask": "0077",
}


def parsed(words: list[str]) -> None:
    """Parse a command line as `kinfolk` does; what it does not know is an error."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        command, words = command.commands[words[0]], words[1:]
    command.make_context("kinfolk", words)


def unit(path: Path) -> configparser.ConfigParser:
    found = configparser.ConfigParser(strict=True, interpolation=None)
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read(path)
    return found


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_have_a_user_of_their_own_limits_and_no_rights(path: Path):
    told = unit(path)
    assert told.sections() == ["Unit", "Service", "Install"]
    service = told["Service"]
    assert {key: service.get(key) for key in HARDENED} == HARDENED
    assert service["User"] not in ("", "root")
    assert {"MemoryMax", "TasksMax", "TimeoutStopSec", "StateDirectory", "Restart"} <= set(service)
    assert service["StateDirectoryMode"] == "0700"
    program, *words = service["ExecStart"].split()
    assert Path(program).name == "kinfolk"
    parsed(words)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_finds_nothing_to_say_about_units(path: Path, tmp_path: Path):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    there = path.read_text().replace("/opt/kinfolk/bin/kinfolk", str(shutil.which("true")))
    (tmp_path / path.name).write_text(there)
    command = [verify, "verify", "--man=no", str(tmp_path / path.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    ours = [line for line in done.stderr.splitlines() if path.name in line]
    if done.returncode and not ours:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr[:200]}")
    assert not ours


@pytest.mark.parametrize("path", COMPOSED, ids=lambda path: path.stem)
def test_containers_have_no_root_no_rights_and_keys_as_secrets(path: Path):
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    told = yaml.safe_load(path.read_text())
    assert set(told) <= {"name", "services", "secrets", "volumes"}
    (service,) = told["services"].values()
    assert service["user"].split(":")[0] not in ("0", "root")
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert {"mem_limit", "pids_limit", "stop_grace_period", "healthcheck"} <= set(service)
    assert {one["source"] for one in service["secrets"]} == set(told["secrets"])
    assert all(one["target"].endswith(".key") for one in service["secrets"])
    assert service["healthcheck"]["test"][0] == "CMD"
    parsed(service["command"])
    published = [port.rpartition(":")[2] for port in service.get("ports", [])]
    assert published == (["8002"] if "server" in path.stem else [])
    if "server" in path.stem:
        words = service["command"]
        port = words[words.index("--health-port") + 1]
        assert f":{port}/health" in " ".join(service["healthcheck"]["test"])


def test_the_image_runs_as_nobody_who_may_do_anything():
    lines = [
        line.split() for line in (EXAMPLES / "Dockerfile").read_text().splitlines() if line[:1].isalpha()
    ]
    assert [words[1] for words in lines if words[0] == "USER"] == ["10001:10001"]
    assert ["ENTRYPOINT", '["kinfolk"]'] in lines
