"""Over NVFlare, with real certificates and processes: make test-deploy, which installs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deployed import all_equal, spec_of

from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import dump, load
from kinfolk.experiment.state import to_message

pytest.importorskip("nvflare", reason="NVFlare is not installed: make test-deploy installs it")
from kinfolk.deploy.kits import ALLOWED, Kit, Project, provision
from kinfolk.deploy.local import local
from kinfolk.deploy.submit import write_job
from kinfolk.errors import KinfolkError
from kinfolk.types import Client

pytestmark = pytest.mark.deploy


def test_a_whole_deployment_in_one_call_has_the_bits_of_the_loop(tmp_path: Path):
    spec = spec_of("fesem,k=2")
    theirs = run(spec, tmp_path / "loop")
    folder = local(spec, tmp_path / "trial", seconds=120)
    loaded, _ = load_latest(folder / "checkpoints", dump(load(folder / "spec.toml")))
    assert loaded is not None
    assert all_equal(loaded.tensors["state"], to_message(theirs.state)[0])
    assert read_rounds(folder)[-1]["summary"] == read_rounds(theirs.folder)[-1]["summary"]


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    project = Project("trial", "localhost", 8002, ("north", "south"), ("lead@trial.org",))
    return provision(project, tmp_path_factory.mktemp("kits") / "kits")


def test_a_kit_lets_jobs_name_our_four_classes_and_sends_no_logs(kits: dict[str, Path]):
    for name in ("localhost", "north", "south"):
        told = json.loads((kits[name] / "local" / "resources.json").read_text())
        assert told["class_allow_list"] == list(ALLOWED)
        assert told["class_list_enforcement_mode"] == "enforce"
        assert not told["allow_log_streaming"]
        assert not [one for one in told["components"] if "log" in one["path"].lower()]
        assert "/tmp/nvflare" not in json.dumps(told)


def test_keys_are_their_owners_alone_and_vouched_for(kits: dict[str, Path]):
    for path in [*kits.values(), *(kits[name] / "site.key" for name in ("north", "south"))]:
        assert path.stat().st_mode & 0o077 == 0
    assert Kit.open(kits["north"]).site == "north"
    card = kits["north"] / "kinfolk.json"
    card.write_text((kits["south"] / "kinfolk.json").read_text())
    with pytest.raises(KinfolkError, match="vouches for"):
        Kit.open(kits["north"])


def test_a_job_holds_no_code(tmp_path: Path):
    job = write_job(tmp_path, spec_of("fedavg"), "first", ["north", "south"], False, 60.0)
    assert not [
        path for path in job.rglob("*") if path.suffix in (".py", ".so", ".zip") or path.name == "custom"
    ]
    named = [
        one["path"]
        for config in job.rglob("config_fed_*.json")
        for one in json.loads(config.read_text())["components"]
    ]
    assert set(named) <= set(ALLOWED)


def test_limits_of_nvflare_leave_room_for_all_sites(kits: dict[str, Path], tmp_path: Path):
    """A thread for every site at work, every site registered, and an answer while one of them is dead."""
    sites = [Client(f"site-{i}") for i in range(150)]
    job = write_job(tmp_path, spec_of("fedavg"), "first", sites, False, 60.0)
    told = json.loads(next(job.rglob("config_fed_server.json")).read_text())
    assert [flow["args"]["max_outbound_call_threads"] for flow in told["workflows"]] == [150]
    server = json.loads((kits["localhost"] / "local" / "resources.json").read_text())["servers"][0]
    assert server["max_num_clients"] > 1000
    assert server["admin_timeout"] < 5.0  # when an admin's own command gives up
