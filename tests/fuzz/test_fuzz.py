"""Any bytes are taken or refused in one line, wherever they come in; `make fuzz` goes on for longer."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutate import mutated
from targets import Finding, Target, targets, tried

from kinfolk.errors import KinfolkError

# A few for each place, the same in every run; KINFOLK_FUZZ=long draws new ones, and many.
LONG = os.environ.get("KINFOLK_FUZZ") == "long"
EXAMPLES = 2000 if LONG else 25
NAMES = (
    *("message", "wire-reply", "between-processes", "spec", "checkpoint-manifest", "checkpoint-tensors"),
    *("npz", "npy", "csv", "one-csv", "parquet", "leaf", "gz", "zip", "tar.gz", "store"),
    *("run.json", "rounds.jsonl", "audit.jsonl", "scores", "client-facts", "federation.json"),
)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    return targets(tmp_path_factory.mktemp("sound") / "scratch")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "in"


def test_every_place_is_fuzzed(places: dict[str, Target]) -> None:
    assert tuple(places) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_sound_bytes_are_taken_and_lies_are_not(places: dict[str, Target], folder: Path, name: str) -> None:
    assert [tried(places[name], data, folder) for data in places[name].sound] == [True] * len(
        places[name].sound
    )
    assert [tried(places[name], data, folder) for data in places[name].lies] == [False] * len(
        places[name].lies
    )


@pytest.mark.parametrize("name", NAMES)
def test_changed_bytes_are_taken_or_refused_in_one_line(
    places: dict[str, Target], folder: Path, name: str
) -> None:
    @given(st.randoms(use_true_random=False))
    @settings(
        max_examples=EXAMPLES, derandomize=not LONG, suppress_health_check=list(HealthCheck), deadline=None
    )
    def any_bytes(drawn: random.Random) -> None:
        tried(places[name], mutated(places[name].seeds, drawn), folder)

    any_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_noise_is_taken_or_refused_in_one_line(places: dict[str, Target], folder: Path, name: str) -> None:
    chance = random.Random(7)
    for size in (0, 1, 8, 40, 400):
        tried(places[name], chance.randbytes(size), folder)


def test_what_no_bytes_may_set_off_is_a_finding(folder: Path) -> None:
    def crash(data: bytes, folder: Path) -> None:
        raise TypeError("unexpected")

    def two_lines(data: bytes, folder: Path) -> None:
        error = KinfolkError("a", None, "b")
        error.args = ("a\nb",)
        raise error

    for take in (crash, two_lines):
        with pytest.raises(Finding):
            tried(Target((b"",), take), b"", folder)
