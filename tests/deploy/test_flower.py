"""Over Flower 1.41.0, with real certificates and processes: make test-deploy, which installs it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from deployed import all_equal, federated, spec_of
from flowing import Federation

from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.record import read_rounds
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump, load, override
from kinfolk.experiment.state import to_message

pytest.importorskip("flwr", reason="Flower is not installed: make test-deploy installs it")

# Flower 1.41.0 imports what its newer dependencies call old.
pytestmark = [pytest.mark.deploy, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def small(method: str, rounds: int) -> Experiment:
    """Four sites: every message phase costs some 4 seconds."""
    return override(spec_of(method, rounds), ["data.clients=4"])


def the_same(folder: Path, spec: Experiment, tmp_path: Path) -> None:
    """Whether a deployed run has the state and the scores of the loop, bit for bit."""
    theirs = run(spec, tmp_path / "loop")
    loaded, _ = load_latest(folder / "checkpoints", dump(load(folder / "spec.toml")))
    assert loaded is not None
    assert all_equal(loaded.tensors["state"], to_message(theirs.state)[0])
    assert read_rounds(folder)[-1]["summary"] == read_rounds(theirs.folder)[-1]["summary"]


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    spec = small("fedavg", 2)
    with Federation(tmp_path_factory.mktemp("flower"), spec, federated(spec).clients) as found:
        yield found


# FeSEM's start takes the work of five rounds; a round of SLFed is many messages from site to site.
METHODS = {"fedavg": 2, "fesem,k=2": 7, "mdicfl,k=2": 2, "slfed": 1}


@pytest.mark.parametrize("method", METHODS)
def test_a_run_over_flower_has_the_bits_of_the_loop(method: str, federation: Federation, tmp_path: Path):
    """SLFed too: what its sites write to each other goes through the lead, as answers and requests."""
    spec = small(method, METHODS[method])
    the_same(federation.play(spec, method.partition(",")[0]), spec, tmp_path)


def test_processes_that_are_killed_change_no_bit(federation: Federation, tmp_path: Path):
    """A site's own process, its node, the SuperLink, and what plays the run at the server."""
    spec = small("feddc", rounds=5)
    site, killed = federation.clients[1], dict[str, int]()
    folder = federation.folder / "runs" / "hurt"
    rounds = folder / "rounds.jsonl"

    def watch() -> None:
        done = len(rounds.read_text().splitlines()) - 1 if rounds.exists() else -1
        for at, name, word in (
            (1, site, "site join"),
            (2, "localhost", "superlink"),
            (3, site, "supernode"),
            (4, "localhost", "flower_worker"),
        ):
            if done >= at and word not in killed:
                killed[word] = federation.kill(name, word)
                if word == "site join":
                    federation.start(site)

    federation.play(spec, "hurt", watch)
    assert set(killed.values()) == {1}, killed
    assert [line for line in federation.said if line.startswith("job 2: ")]
    the_same(folder, spec, tmp_path)
