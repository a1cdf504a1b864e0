"""Checkpoints that write only what changed hold what whole ones would, bit for bit."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import assert_same_end, equal, go

from kinfolk.experiment import checkpoint, segments
from kinfolk.experiment.checkpoint import load_latest, save, saved_bytes
from kinfolk.experiment.segments import Segments
from kinfolk.experiment.spec import Experiment, dump
from kinfolk.experiment.state import memories_from_message, memories_to_message
from kinfolk.types import Client, Message

SPEC = dump(Experiment())
NAMES = tuple(Client(f"c{i:03}") for i in range(40))
Memories = dict[Client, Message]


def memory(value: float) -> Message:
    return {"model": {"w": torch.full((50, 3), value), "b": torch.tensor([value])}, "n": torch.tensor(7)}


def keep(folder: Path, number: int, held: Memories, kept: Segments, newest: int = 2) -> Path:
    def more(at: Path, final: Path, write: segments.WriteFile) -> dict[str, Any]:
        return kept.write(at, final, held, NAMES, write)

    return save(folder, number, {"state": {}}, {}, SPEC, newest, more=more)


def found(folder: Path, number: int) -> Memories:
    loaded, complaints = load_latest(folder, SPEC)
    assert loaded is not None
    assert (loaded.number, complaints) == (number, [])
    return memories_from_message(loaded.tensors["memory"], NAMES)


def assert_equal(one: Memories, other: Memories) -> None:
    assert list(one) == list(other)
    assert all(equal(one[who], other[who]) for who in one)
    assert all(list(one[who]) == list(other[who]) for who in one)


def segments_of(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir() if file.name.startswith("memory-")}


def written(folder: Path, before: set[int]) -> int:
    """Bytes of segments that were not there before."""
    return sum(f.stat().st_size for f in folder.glob("memory-*") if f.stat().st_ino not in before)


def inodes(folder: Path) -> set[int]:
    return {f.stat().st_ino for f in folder.rglob("*")}


def test_only_what_changed_is_written(tmp_path):
    held, kept = {who: memory(i) for i, who in enumerate(NAMES)}, Segments()
    whole = written(keep(tmp_path, 0, held, kept), set())
    keep(tmp_path, 1, held, kept)
    for number in (2, 3, 4):
        held = {**held, NAMES[number]: memory(100 + number)}
        before = inodes(tmp_path)
        new = written(keep(tmp_path, number, held, kept), before)
        # One client of 40 since the last checkpoint, two since the one before it; and a file's head.
        assert 0 < new < whole * 2 / 40 + 1000
        assert_equal(found(tmp_path, number), held)
    assert saved_bytes(tmp_path) < 2.5 * whole


@pytest.mark.parametrize("rounds", [(0, 1, 2, 3, 4), (2, 3, 4, 4), (1, 2, 3, 3, 3, 4)])
def test_the_newest_two_share_no_file(tmp_path, rounds):
    """Nor when a round is saved again, as at the end of a run."""
    held, kept = {who: memory(i) for i, who in enumerate(NAMES)}, Segments()
    for number in rounds:
        held = {**held, NAMES[number]: memory(100 + number)}
        keep(tmp_path, number, held, kept)
    one, two = (inodes(tmp_path / f"round-00000{number}") for number in (3, 4))
    assert not one & two
    before = found(tmp_path, 4)
    for name in sorted(segments_of(tmp_path / "round-000004")):
        path = tmp_path / "round-000004" / name
        path.write_bytes(path.read_bytes()[:-1] + b"\x01")  # in place, under all of its names
    loaded, complaints = load_latest(tmp_path, SPEC)
    assert loaded is not None
    assert loaded.number == 3
    assert len(complaints) == 1
    assert not equal(before[NAMES[4]], memories_from_message(loaded.tensors["memory"], NAMES)[NAMES[4]])


def random_walk(steps: int) -> list[Memories]:
    """Memories that change, change back, grow, take other forms, come late and go."""
    generator = torch.Generator().manual_seed(5)
    draw = lambda n: int(torch.randint(n, (1,), generator=generator))  # noqa: E731
    held: Memories = {who: memory(0) for who in NAMES[:30]}
    walk = []
    for _ in range(steps):
        held = dict(held)
        for _ in range(draw(6)):
            who = NAMES[draw(len(NAMES))]
            kinds: list[Message] = [
                memory(draw(3)),  # few values, so that many change back
                {},
                {"n": torch.tensor(float("nan")), "tree": {}},
                {"log": torch.zeros(draw(4), 5, dtype=torch.uint8), "yes": torch.tensor(True)},
                {"half": torch.ones(2, dtype=torch.bfloat16), "none": torch.zeros(0)},
                {"tree": {}, "n": torch.tensor(float("nan"))},
            ]
            held[who] = kinds[draw(len(kinds))]
        if draw(8) == 0:
            held.pop(NAMES[draw(len(NAMES))], None)
        walk.append(dict(sorted(held.items())))
    return walk


def same(one: Any, other: Any) -> bool:
    """Equal bits, of NaN too."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and bytes(one.reshape(-1).view(torch.uint8).tolist()) == bytes(
        other.reshape(-1).view(torch.uint8).tolist()
    )


@pytest.mark.parametrize(("part", "files"), [(1 << 28, 64), (2000, 64), (1 << 28, 3)])
def test_incremental_equals_whole_on_a_random_walk(tmp_path, monkeypatch, part, files):
    monkeypatch.setattr(segments, "PART", part)
    monkeypatch.setattr(segments, "FILES", files)
    kept, linked, whole = Segments(), 0, 0
    for number, held in enumerate(random_walk(60)):
        before = inodes(tmp_path) if number else set()
        path = keep(tmp_path, number, held, kept)
        shared = bool(inodes(path) & before)
        linked, whole = linked + shared, whole + (not shared)
        back = found(tmp_path, number)
        assert list(back) == list(held)
        assert all(same(back[who], held[who]) for who in held)
        assert {f.name for f in path.iterdir()} == {*segments_of(path), "manifest.json", "state.safetensors"}
    assert linked > 10
    assert whole > 4  # the first two, and where somebody went or too much was out of date
    assert len(os.listdir(tmp_path)) == 2


def test_what_is_out_of_date_takes_no_more_than_what_is_not(tmp_path):
    held, kept = {who: memory(i) for i, who in enumerate(NAMES)}, Segments()
    whole = written(keep(tmp_path, 0, held, kept), set())
    for number in range(1, 60):
        held = {**held, **{NAMES[(number * 7 + j) % 40]: memory(100 * number + j) for j in range(4)}}
        path = keep(tmp_path, number, held, kept)
        assert sum(f.stat().st_size for f in path.glob("memory-*")) < 2 * whole + 1000 * len(
            segments_of(path)
        )
    assert_equal(found(tmp_path, 59), held)


def test_a_changed_form_with_equal_bytes_is_a_change(tmp_path):
    kept = Segments()
    for number, n in enumerate((torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([[1.0]]))):
        keep(tmp_path, number, {NAMES[0]: {"n": n}, NAMES[1]: memory(1)}, kept)
    assert found(tmp_path, 2)[NAMES[0]]["n"].shape == (1, 1)
    keep(tmp_path, 3, {NAMES[0]: {"m": torch.tensor([[1.0]])}, NAMES[1]: memory(1)}, kept)
    keep(tmp_path, 4, {NAMES[0]: {"m": torch.tensor([[1.0]])}, NAMES[1]: memory(1)}, kept)
    assert list(found(tmp_path, 4)[NAMES[0]]) == ["m"]


@pytest.mark.parametrize("how", ["no links", "pruned", "replaced"])
def test_without_its_base_a_checkpoint_is_whole(tmp_path, monkeypatch, how):
    held, kept = {who: memory(i) for i, who in enumerate(NAMES)}, Segments()
    keep(tmp_path, 0, held, kept)
    keep(tmp_path, 1, held, kept)
    if how == "no links":

        def refuse(*_: Any) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("os.link", refuse)
    else:
        shutil.rmtree(tmp_path / "round-000000")
    if how == "replaced":
        keep(tmp_path, 0, {NAMES[3]: memory(-1)}, Segments())
    held = {**held, NAMES[3]: memory(-2)}
    path = keep(tmp_path, 2, held, kept)
    assert len(segments_of(path)) == 1
    assert_equal(found(tmp_path, 2), held)


class Killed(BaseException):
    pass


def counted(real: Callable[..., Any], calls: list[int], most: int) -> Callable[..., Any]:
    """The function, until it and others were called so often."""

    def call(*args: Any, **named: Any) -> Any:
        calls[0] += 1
        if calls[0] > most:
            raise Killed
        return real(*args, **named)

    return call


CALLS = ("os.fsync", "os.link", "os.rename", "os.open", "shutil.rmtree")


@pytest.mark.parametrize("call", range(14))
def test_killed_at_any_call_the_one_before_is_whole(tmp_path, monkeypatch, call):
    """As a kill would: nothing more happens to the disk. Then another process goes on."""
    held, kept = {who: memory(i) for i, who in enumerate(NAMES)}, Segments()
    keep(tmp_path, 0, held, kept)
    keep(tmp_path, 1, held, kept)
    later, calls = {**held, NAMES[3]: memory(-2)}, [0]
    with monkeypatch.context() as patch:
        for target in CALLS:
            module, name = target.split(".")
            owner = {"os": os, "shutil": shutil}[module]
            patch.setattr(owner, name, counted(getattr(owner, name), calls, call))
        try:
            keep(tmp_path, 2, later, kept)
            number = 2
        except Killed:
            loaded, complaints = load_latest(tmp_path, SPEC)
            assert loaded is not None
            number = loaded.number
            assert complaints == []
    assert number in (1, 2)
    assert_equal(found(tmp_path, number), held if number == 1 else later)
    resumed = Segments()
    for again in (2, 3, 4):
        keep(tmp_path, again, later, resumed)
        assert_equal(found(tmp_path, again), later)
    assert sorted(os.listdir(tmp_path)) == ["round-000003", "round-000004"]


def test_an_old_checkpoint_is_read_and_an_alien_one_refused(tmp_path):
    held = {NAMES[2]: memory(3), NAMES[5]: {}}
    flat = memories_to_message({NAMES.index(who): one for who, one in held.items()})
    save(tmp_path, 1, {"state": {}, "memory": flat}, {}, SPEC)
    path = tmp_path / "round-000001" / "manifest.json"
    body = json.loads(path.read_bytes())
    del body["sha256"]
    path.write_bytes(checkpoint._render({**body, "format": 1}))
    assert_equal(found(tmp_path, 1), held)


def test_a_resealed_segment_that_is_none_is_damage(tmp_path):
    kept = Segments()
    keep(tmp_path, 1, {NAMES[2]: memory(3)}, kept)
    path = keep(tmp_path, 2, {NAMES[2]: memory(3)}, kept)
    (name,) = segments_of(path)
    body = json.loads((path / "manifest.json").read_bytes())
    del body["sha256"]
    for wrong in ({"0": torch.tensor(3)}, {"0": torch.tensor([1, 2]), "0.n": torch.tensor([1])}, {"0": {}}):
        data = segments.encode(wrong)
        (path / name).write_bytes(data)
        body["files"][name] = {"bytes": len(data), "sha256": segments.hashlib.sha256(data).hexdigest()}
        (path / "manifest.json").write_bytes(checkpoint._render(body))
        loaded, complaints = load_latest(tmp_path, SPEC)
        assert loaded is not None
        assert loaded.number == 1
        assert "do not fit" in complaints[0]


@pytest.mark.parametrize("engine", ["loop", "workers"])
def test_a_run_with_part_of_its_clients_resumes_to_the_same_end(tmp_path, engine):
    words = ("algorithm.name=local", "data.clients=9", "run.participation=0.3", "run.checkpoint_every=1")
    words = (*words, f"engine.name={engine}", *(["engine.processes=2"] * (engine == "workers")))
    go(tmp_path / "whole", *words, "run.rounds=8")
    go(tmp_path / "half", *words, "run.rounds=5")
    path = tmp_path / "half" / "checkpoints" / "round-000005"
    assert len(segments_of(path)) > 1
    go(tmp_path / "half", *words, "run.rounds=8", resume=True)
    assert_same_end(tmp_path / "half", tmp_path / "whole")
