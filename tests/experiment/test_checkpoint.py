"""A checkpoint is whole or it is not used: kills, flipped bits, full disks, other experiments."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfolk.errors import KinfolkError
from kinfolk.experiment import checkpoint
from kinfolk.experiment.checkpoint import Loaded, load_latest, save
from kinfolk.experiment.spec import Experiment, dump, override

SPEC = dump(Experiment())


def tensors(number: int) -> dict[str, Any]:
    return {
        "state": {"centre": {"w": torch.full((2, 3), float(number)), "n": torch.tensor(number)}},
        "memory": {"empty": {}, "last": torch.arange(number)},
    }


def fill(folder: Path, *numbers: int, keep: int = 2) -> None:
    for number in numbers:
        save(folder, number, tensors(number), {"zoo": number, "best": [0.5, None]}, SPEC, keep)


def assert_is(found: Loaded | None, number: int) -> None:
    assert found is not None
    assert found.number == number
    assert found.facts == {"zoo": number, "best": [0.5, None]}
    assert list(found.facts) == ["zoo", "best"]
    want = tensors(number)
    assert torch.equal(found.tensors["state"]["centre"]["w"], want["state"]["centre"]["w"])
    assert torch.equal(found.tensors["memory"]["last"], want["memory"]["last"])
    assert found.tensors["memory"]["empty"] == {}
    assert list(found.tensors) == ["state", "memory"]


def visible(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_the_newest_is_loaded_and_the_oldest_go(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2, 9, 10)
    assert visible(tmp_path) == ["round-000009", "round-000010"]
    assert visible(tmp_path / "round-000010") == ["manifest.json", "memory.safetensors", "state.safetensors"]
    found, complaints = load_latest(tmp_path, SPEC)
    assert_is(found, 10)
    assert complaints == []
    fill(tmp_path, 1_234_567, keep=1)
    assert visible(tmp_path) == ["round-1234567"]
    assert_is(load_latest(tmp_path, SPEC)[0], 1_234_567)


def test_equal_checkpoints_have_equal_bytes(tmp_path: Path) -> None:
    fill(tmp_path / "a", 3)
    fill(tmp_path / "b", 3)
    for name in visible(tmp_path / "a" / "round-000003"):
        one, two = (tmp_path / run / "round-000003" / name for run in "ab")
        assert one.read_bytes() == two.read_bytes()


def test_nothing_saved_is_none_not_an_error(tmp_path: Path) -> None:
    assert load_latest(tmp_path / "nowhere", SPEC) == (None, [])
    (tmp_path / ".round-000001.tmp").mkdir()
    assert load_latest(tmp_path, SPEC) == (None, [])


def test_leftovers_are_ignored_and_swept_but_strangers_stay(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    shutil.copytree(tmp_path / "round-000001", tmp_path / ".round-000007.tmp")
    (tmp_path / "notes").mkdir()
    assert_is(load_latest(tmp_path, SPEC)[0], 1)
    fill(tmp_path, 2)
    assert visible(tmp_path) == ["notes", "round-000001", "round-000002"]


def test_later_rounds_of_a_rewound_run_go(tmp_path: Path) -> None:
    fill(tmp_path, 4, 5, keep=5)
    fill(tmp_path, 3, keep=1)
    assert visible(tmp_path) == ["round-000003"]


@pytest.mark.parametrize("name", ["manifest.json", "state.safetensors", "memory.safetensors"])
@pytest.mark.parametrize("how", ["cut", "empty", "gone", "longer"])
def test_a_torn_newest_falls_back(tmp_path: Path, name: str, how: str) -> None:
    fill(tmp_path, 1, 2)
    path = tmp_path / "round-000002" / name
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "longer": data + b" "}[how])
    found, complaints = load_latest(tmp_path, SPEC)
    assert_is(found, 1)
    assert len(complaints) == 1
    assert "round-000002" in complaints[0]
    assert name in complaints[0]
    assert "\n" not in complaints[0]
    fill(tmp_path, 2)  # the run goes on from round 1 and comes to round 2 again
    assert_is(load_latest(tmp_path, SPEC)[0], 2)
    assert visible(tmp_path) == ["round-000001", "round-000002"]


def test_every_cut_of_the_manifest_is_seen(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    path = tmp_path / "round-000001" / "manifest.json"
    data = path.read_bytes()
    for cut in range(0, len(data), 7):
        path.write_bytes(data[:cut])
        with pytest.raises(KinfolkError, match="no sound checkpoint"):
            load_latest(tmp_path, SPEC)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pair")
    for number in (1, 2):
        # Text that JSON can spell in two ways: a flipped bit in "\u00e9" must not go unseen.
        save(folder, number, tensors(number), {"zoo": number, "best": [0.5, None]}, SPEC + "# é\n")
    return folder


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_any_flipped_bit_is_seen(pair: Path, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["manifest.json", "state.safetensors", "memory.safetensors"]))
    path = pair / "round-000002" / name
    sound = path.read_bytes()
    flipped = bytearray(sound)
    flipped[data.draw(st.integers(0, len(sound) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(flipped)
    try:
        found, complaints = load_latest(pair, SPEC + "# é\n")
        assert_is(found, 1)
        assert len(complaints) == 1
    finally:
        path.write_bytes(sound)
    assert_is(load_latest(pair, SPEC + "# é\n")[0], 2)


def test_each_letter_of_the_manifest_counts(pair: Path) -> None:
    path = pair / "round-000002" / "manifest.json"
    sound = path.read_bytes()
    assert b"\\u00e9" in sound
    for place in range(len(sound)):
        flipped = bytearray(sound)
        flipped[place] ^= 0x20  # upper and lower case
        path.write_bytes(flipped)
        assert_is(load_latest(pair, SPEC + "# é\n")[0], 1)
    path.write_bytes(sound)


def test_no_sound_checkpoint_is_an_error(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    for number in (1, 2):
        (tmp_path / f"round-00000{number}" / "state.safetensors").write_bytes(b"")
    with pytest.raises(KinfolkError, match=r"no sound checkpoint .*round-000002.*remove the folder"):
        load_latest(tmp_path, SPEC)


def test_a_renamed_or_swapped_checkpoint_is_seen(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    os.rename(tmp_path / "round-000001", tmp_path / "round-000003")
    found, complaints = load_latest(tmp_path, SPEC)
    assert_is(found, 2)
    assert "holds round 1" in complaints[0]


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Alter a manifest and give it a checksum that fits."""
    path = folder / "manifest.json"
    body = json.loads(path.read_bytes())
    del body["sha256"]
    change(body)
    path.write_bytes(checkpoint._render(body))


def test_another_format_is_refused_not_skipped(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    forge(tmp_path / "round-000002", lambda body: body.update(format=99, kinfolk="9.9"))
    with pytest.raises(KinfolkError, match=r"format 99.*reads 1 and 2; use kinfolk 9\.9"):
        load_latest(tmp_path, SPEC)


def test_a_manifest_cannot_point_outside(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    forge(tmp_path / "round-000002", lambda body: body["files"].update({"../x.safetensors": {"bytes": 1}}))
    found, complaints = load_latest(tmp_path, SPEC)
    assert_is(found, 1)
    assert "no name for a file" in complaints[0]


@pytest.mark.parametrize("bomb", ["[" * 200_000, "9" * 10_000, "nonsense", "[]", "null", '{"sha256": ""}'])
def test_manifest_bombs(tmp_path: Path, bomb: str) -> None:
    fill(tmp_path, 1, 2)
    (tmp_path / "round-000002" / "manifest.json").write_text(bomb)
    assert_is(load_latest(tmp_path, SPEC)[0], 1)


@pytest.mark.parametrize(
    "change",
    ["local.lr=0.05", "model.name=cnn", "run.seed=1", "algorithm.k=2", "data.rows=61", "run.split=valid"],
)
def test_another_experiment_is_refused_by_name(tmp_path: Path, change: str) -> None:
    fill(tmp_path, 1)
    other = dump(override(Experiment(), ["run.rounds=99", change]))
    with pytest.raises(KinfolkError, match="belongs to another experiment") as caught:
        load_latest(tmp_path, other)
    assert change.split("=")[0] in str(caught.value)
    assert "run.rounds" not in str(caught.value)
    assert str(tmp_path)[:20] in str(caught.value)


def test_a_run_may_go_on_longer_and_elsewhere(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    free = ["run.rounds=99", "run.target=0.9", "run.checkpoint_every=5", "engine.name=loop", "engine.chunk=3"]
    assert_is(load_latest(tmp_path, dump(override(Experiment(), free)))[0], 1)


def test_a_spec_of_another_age_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1, {}, {}, "[local]\nmomentums = 1\n")
    with pytest.raises(KinfolkError, match=r"cannot read its spec.*momentums"):
        load_latest(tmp_path, SPEC)


@pytest.mark.parametrize(
    "place", ["os.fsync", "os.rename", "kinfolk.experiment.checkpoint.private_file", "pathlib.Path.mkdir"]
)
@pytest.mark.parametrize("number", [2, 3])
def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, number: int
) -> None:
    fill(tmp_path, 1, 2)
    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        with pytest.raises(KinfolkError, match=r"No space left on device.*free space") as caught:
            fill(tmp_path, number)
    assert str(tmp_path)[:20] in str(caught.value)
    assert visible(tmp_path) == ["round-000001", "round-000002"]
    assert_is(load_latest(tmp_path, SPEC)[0], 2)


def test_the_old_one_returns_when_the_new_one_cannot_move_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 2)
    real = os.rename
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", lambda a, b: full() if Path(a).suffix == ".tmp" else real(a, b))
        with pytest.raises(KinfolkError, match="No space left"):
            fill(tmp_path, 2)
    assert visible(tmp_path) == ["round-000002"]
    assert_is(load_latest(tmp_path, SPEC)[0], 2)


def kill_at(monkeypatch: pytest.MonkeyPatch, target: str, call: int) -> None:
    """Stop the process at the n-th call of a function: nothing after it happens, no clean-up either."""
    module, name = target.rsplit(".", 1)
    owner = {"os": os, "shutil": shutil}[module]
    real, seen = getattr(owner, name), []

    def maybe(*args: Any, **named: Any) -> Any:
        seen.append(args)
        if len(seen) == call:
            monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
            raise SystemExit
        return real(*args, **named)

    monkeypatch.setattr(owner, name, maybe)


@pytest.mark.parametrize(("number", "call"), [(2, 1), (2, 2), (3, 1)])
def test_a_kill_between_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, call: int
) -> None:
    """Even when round 2 takes the place of another round 2, one of them is there at any moment."""
    fill(tmp_path, 2, keep=1)
    with monkeypatch.context() as patch:
        kill_at(patch, "os.rename", call)
        with pytest.raises(SystemExit):
            fill(tmp_path, number, keep=1)
    assert_is(load_latest(tmp_path, SPEC)[0], 2)
    fill(tmp_path, number, keep=1)
    assert visible(tmp_path) == [f"round-00000{number}"]
    assert_is(load_latest(tmp_path, SPEC)[0], number)


def test_a_kill_before_the_replaced_one_is_removed(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    shutil.copytree(tmp_path / "round-000001", tmp_path / "round-000002.old")
    assert_is(load_latest(tmp_path, SPEC)[0], 2)
    fill(tmp_path, 2)
    assert visible(tmp_path) == ["round-000001", "round-000002"]


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_kill_while_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    fill(tmp_path, 1)
    with monkeypatch.context() as patch:
        kill_at(patch, "os.fsync", call)
        with pytest.raises(SystemExit):
            fill(tmp_path, 2)
    assert (tmp_path / ".round-000002.tmp").exists()
    assert_is(load_latest(tmp_path, SPEC)[0], 1)
    fill(tmp_path, 2)
    assert visible(tmp_path) == ["round-000001", "round-000002"]


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> object:
        return open, (str(self.path), "w")


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    bomb = pickle.dumps(Canary(tmp_path / "canary"))
    for name in ("state.pt", "state.pkl"):
        (tmp_path / "round-000002" / name).write_bytes(bomb)
        (tmp_path / name).write_bytes(bomb)
    assert_is(load_latest(tmp_path, SPEC)[0], 2)
    (tmp_path / "round-000002" / "state.safetensors").write_bytes(bomb)
    assert_is(load_latest(tmp_path, SPEC)[0], 1)
    (tmp_path / "round-000002" / "manifest.json").write_bytes(bomb)
    assert_is(load_latest(tmp_path, SPEC)[0], 1)
    assert not (tmp_path / "canary").exists()


def test_bad_names_and_bad_messages_write_nothing(tmp_path: Path) -> None:
    for wrong in ({"../state": {}}, {"": {}}, {"state": {"a": 1}}):
        with pytest.raises(KinfolkError):
            save(tmp_path, 1, wrong, {}, SPEC)
    with pytest.raises(KinfolkError, match="JSON"):
        save(tmp_path, 1, {}, {"a": object()}, SPEC)
    assert visible(tmp_path) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(KinfolkError, match="choose another folder"):
        fill(tmp_path / "file", 1)
    with pytest.raises(KinfolkError, match="cannot be read"):
        load_latest(tmp_path / "file", SPEC)


@pytest.mark.parametrize(
    "change",
    [
        lambda body: body.pop("round"),
        lambda body: body.update(round="2"),
        lambda body: body.update(spec=7),
        lambda body: body.update(facts=[]),
        lambda body: body.pop("kinfolk"),
        lambda body: body.update(files={"state.safetensors": 3}),
        lambda body: body["files"]["state.safetensors"].pop("sha256"),
        lambda body: body.update(files=None),
        lambda body: body.update(format="1"),
        lambda body: body.update(format=None),
    ],
)
def test_a_resealed_manifest_that_says_nonsense_falls_back(tmp_path: Path, change: Any) -> None:
    fill(tmp_path, 1, 2)
    forge(tmp_path / "round-000002", change)
    found, complaints = load_latest(tmp_path, SPEC)
    assert_is(found, 1)
    assert len(complaints) == 1
    assert complaints[0].startswith("round-000002 is skipped: ")


def test_tensors_that_were_sealed_again_and_are_none_fall_back(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    nonsense = b"no tensors at all"
    (tmp_path / "round-000002/state.safetensors").write_bytes(nonsense)
    facts = {"bytes": len(nonsense), "sha256": hashlib.sha256(nonsense).hexdigest()}
    forge(tmp_path / "round-000002", lambda body: body["files"].update({"state.safetensors": facts}))
    found, complaints = load_latest(tmp_path, SPEC)
    assert_is(found, 1)
    assert "state.safetensors is torn or malformed" in complaints[0]
