"""A run's records: typed, atomic, readable after a crash and without torch."""

from __future__ import annotations

import errno
import json
import math
import os
import struct
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import go

from kinfolk.errors import KinfolkError
from kinfolk.experiment import saving
from kinfolk.experiment.record import (
    SCHEMA,
    Records,
    plain,
    read_audit,
    read_rounds,
    read_scores,
    round_files,
    write_json,
    write_text,
)


def rows(**change: Any) -> dict[str, Any]:
    return {
        "client": ["ann", "bob"],
        "model": ["centre", "personal"],
        "split": ["test", "test"],
        "score": ["accuracy", "accuracy"],
        "value": [0.25, math.nan],
        "rows": np.array([3, 4]),
        **change,
    }


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_scores_keep_types_and_order(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.write_scores(10, rows())
    path = records.write_scores(9, pd.DataFrame({**rows(), "round": [9, 9]}))
    assert path == tmp_path / "records" / "round-000009.parquet"
    assert pq.read_schema(path).equals(SCHEMA)
    frame = read_scores(tmp_path)
    assert frame["round"].tolist() == [9, 9, 10, 10]
    assert frame["round"].dtype == np.int32
    assert frame["rows"].dtype == np.int64
    assert frame["value"].tolist()[0] == 0.25
    assert pq.read_table(path)["value"].null_count == 0
    assert math.isnan(pq.read_table(path)["value"].to_pylist()[1])


def test_a_round_without_clients_and_a_run_without_rounds(tmp_path: Path) -> None:
    before = read_scores(tmp_path)
    Records(tmp_path).write_scores(1, {name: [] for name in rows()})
    for frame in (before, read_scores(tmp_path)):
        assert frame.empty
        assert list(frame.columns) == SCHEMA.names
    assert read_rounds(tmp_path) == []
    assert read_audit(tmp_path) == []


@pytest.mark.parametrize(
    "wrong",
    [
        rows(extra=[1, 2]),
        {k: v for k, v in rows().items() if k != "split"},
        rows(model=["centre", "global"]),
        rows(client=["ann", None]),
        rows(client=["ann"]),
        rows(rows=[1.5, 2.0]),
        rows(rows=[1, 2**70]),
        rows(value=["good", "bad"]),
        rows(round=[1, 2]),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(KinfolkError, match="scores"):
        Records(tmp_path).write_scores(1, wrong)
    assert read_scores(tmp_path).empty


def test_damaged_or_foreign_score_files_are_named(tmp_path: Path) -> None:
    path = Records(tmp_path).write_scores(1, rows())
    good = path.read_bytes()
    path.write_bytes(good[:-20])
    with pytest.raises(KinfolkError, match=r"round-000001\.parquet"):
        read_scores(tmp_path)
    pd.DataFrame({"a": [1]}).to_parquet(path)
    with pytest.raises(KinfolkError, match="must have the columns"):
        read_scores(tmp_path)
    path.write_bytes(good)
    (path.parent / "notes.txt").write_text("mine")
    (path.parent / ".round-000002.parquet.tmp").write_bytes(good[:50])
    assert len(read_scores(tmp_path)) == 2


def test_rewind_drops_later_rounds_and_the_torn_line(tmp_path: Path) -> None:
    records = Records(tmp_path)
    for number in range(1, 6):
        records.write_scores(number, rows())
        records.append_round(number, {"loss": 1 / number})
    records.audit("started")
    (tmp_path / "records" / ".round-000006.parquet.tmp").write_bytes(b"half")
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write('{"round": 6, "lo')
    assert [r["round"] for r in read_rounds(tmp_path)] == [1, 2, 3, 4, 5]
    records.rewind(3)
    assert [r["round"] for r in read_rounds(tmp_path)] == [1, 2, 3]
    assert read_rounds(tmp_path)[2]["loss"] == 1 / 3
    assert (tmp_path / "rounds.jsonl").read_bytes().endswith(b"\n")
    assert sorted(set(read_scores(tmp_path)["round"])) == [1, 2, 3]
    assert sorted(os.listdir(tmp_path / "records")) == [f"round-00000{n}.parquet" for n in (1, 2, 3)]
    assert len(read_audit(tmp_path)) == 1
    records.append_round(4, {})
    assert [r["round"] for r in read_rounds(tmp_path)] == [1, 2, 3, 4]


def test_rewind_of_an_empty_run(tmp_path: Path) -> None:
    Records(tmp_path / "none").rewind(0)
    assert not (tmp_path / "none").exists()


@given(st.integers(0, 200))
def test_any_tear_of_the_last_line_can_be_rewound(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    run = tmp_path_factory.mktemp("run")
    records = Records(run)
    for number in (1, 2, 3):
        records.append_round(number, {"name": "é\n", "size": number})
    whole = (run / "rounds.jsonl").read_bytes()
    (run / "rounds.jsonl").write_bytes(whole[: max(0, len(whole) - cut)])
    records.rewind(3)
    left = [r["round"] for r in read_rounds(run)]
    assert left == [1, 2, 3][: whole[: max(0, len(whole) - cut)].count(b"\n")]


NO_NUMBERS = ['{"round": 2, "bytes": {"": null}}', '{"round": 2, "seconds": {"server": null}}']


@pytest.mark.parametrize("line", ["[1]", "{}", '{"round": "1"}', "{", "[" * 100_000, "\xff", *NO_NUMBERS])
def test_a_broken_line_in_the_middle_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "rounds.jsonl").write_bytes(b'{"round": 1}\n' + line.encode("latin-1") + b'\n{"round": 3}\n')
    with pytest.raises(KinfolkError, match=r"rounds\.jsonl:2"):
        read_rounds(tmp_path)
    with pytest.raises(KinfolkError, match=r"rounds\.jsonl:2"):
        Records(tmp_path).rewind(1)


def test_a_score_that_is_no_number_breaks_no_line(tmp_path: Path) -> None:
    Records(tmp_path).append_round(1, {"summary": {"centre": {"loss": {"macro": float("nan")}}}})
    assert read_rounds(tmp_path)[0]["summary"]["centre"]["loss"]["macro"] is None


def test_audit_is_timed_and_survives_a_torn_line(tmp_path: Path) -> None:
    records = Records(tmp_path)
    start = datetime.now(UTC)
    records.audit("rejected", client="ann\nbob", norm=float("inf"), time="never", size=torch.tensor([1, 2]))
    with (tmp_path / "audit.jsonl").open("a") as file:
        file.write('{"event": "ha')
    records.audit("resumed")
    first, torn, last = read_audit(tmp_path)
    assert (first["event"], first["client"], first["norm"], first["size"]) == (
        "rejected",
        "ann\nbob",
        None,
        [1, 2],
    )
    when = datetime.fromisoformat(first["time"])
    assert abs((when - start).total_seconds()) < 60
    assert when.utcoffset() is not None
    assert torn == {"event": "unreadable", "line": 2, "text": '{"event": "ha'}
    assert last["event"] == "resumed"


def test_the_round_number_can_not_be_overwritten_by_a_fact(tmp_path: Path) -> None:
    Records(tmp_path).append_round(4, {"round": 99, "a": 1})
    assert read_rounds(tmp_path) == [{"round": 4, "a": 1}]


facts = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(facts)
def test_facts_are_strict_json(value: Any) -> None:
    def strict(word: str) -> None:
        raise AssertionError(word)

    text = json.dumps(plain({"fact": value, "array": np.array([np.nan, 1.0])}), allow_nan=False)
    back = json.loads(text, parse_constant=strict)
    assert back == plain(back)
    assert back["array"] == [None, 1.0]
    if value == value and not isinstance(value, list | dict | float):
        assert back["fact"] == value


def test_what_json_can_not_hold_is_refused() -> None:
    with pytest.raises(KinfolkError, match="object"):
        plain({"a": [object()]})


@pytest.mark.parametrize("place", ["os.fsync", "os.replace", "os.open"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    records = Records(tmp_path)
    path = records.write_scores(1, rows())
    write_json(tmp_path / "a.json", {"n": 1})
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(place, full)
        wait = (
            records.settle if place == "os.fsync" else lambda: records.write_scores(1, rows(value=[1.0, 1.0]))
        )
        with pytest.raises(KinfolkError, match=r"No space left.*free space") as caught:
            wait()
        assert str(tmp_path)[:20] in str(caught.value)
        with pytest.raises(KinfolkError, match="No space left"):
            write_json(tmp_path / "a.json", {"n": 2})
    assert path.read_bytes() == before
    assert json.loads((tmp_path / "a.json").read_text()) == {"n": 1}
    assert not list(tmp_path.rglob("*.tmp"))


def synced(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The inodes of files that somebody has waited for."""
    usual, found = os.fsync, set[int]()

    def noted(number: int) -> None:
        found.add(os.fstat(number).st_ino)
        usual(number)

    monkeypatch.setattr("os.fsync", noted)
    return found


def test_the_wait_for_the_disk_is_for_all_files_since_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, found = Records(tmp_path), synced(monkeypatch)
    files = [records.write_scores(number, rows(round=[number] * 2)) for number in (1, 2, 3)]
    assert not found
    records.rewind(2)
    records.settle()
    assert {file.stat().st_ino for file in files[:2]} <= found
    found.clear()
    last = records.write_scores(3, rows(round=[3] * 2))
    records.settle()
    assert {last.stat().st_ino} == found


def test_no_checkpoint_is_ahead_of_the_records_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, usual, seen = synced(monkeypatch), saving.save, []

    def save(folder: Path, number: int, *more: Any) -> Path:
        files = [path for at, path in round_files(tmp_path / "run", "records") if at <= number]
        seen.append(number)
        assert {path.stat().st_ino for path in [*files, tmp_path / "run" / "rounds.jsonl"]} <= found
        return usual(folder, number, *more)

    monkeypatch.setattr(saving, "save", save)
    go(tmp_path / "run", "run.rounds=5", "run.checkpoint_every=2")
    assert seen == [0, 2, 4, 5]
    last = round_files(tmp_path / "run", "records")[-1]
    assert last[0] == 5
    assert last[1].stat().st_ino in found


def test_appending_to_a_full_disk_or_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "file", "é")
    assert (tmp_path / "file").read_bytes() == "é".encode()
    with pytest.raises(KinfolkError, match="choose another folder"):
        Records(tmp_path / "file").append_round(1, {})
    monkeypatch.setattr("os.open", full)
    with pytest.raises(KinfolkError, match="No space left"):
        Records(tmp_path).audit("started")


def test_reading_what_is_not_a_run(tmp_path: Path) -> None:
    for read in (read_scores, read_rounds, read_audit):
        with pytest.raises(KinfolkError, match="name the folder of a run"):
            read(tmp_path / "nowhere")


def test_records_are_read_without_torch() -> None:
    code = "import sys, kinfolk.experiment.record; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "facts",
    [
        {"summary": 3},
        {"summary": {"centre": 0.5}},
        {"summary": {"centre": {"accuracy": {"macro": "0.5"}}}},
        {"bytes": {"update": 12}},
        {"seconds": {"update": [1]}},
        {"cohort": "4"},
        {"extra": [1]},
        {"info": []},
        {"lost": "ann"},
        {"lost": {"centre": "ann"}},
        {"lost": {"centre": [1]}},
        {"groups": 2},
        {"round": True},
        {"round": 1.0},
    ],
)
def test_a_line_that_no_run_writes_is_named(tmp_path, facts):
    records = Records(tmp_path)
    records.append_round(
        1, {"summary": {"centre": {"accuracy": {"macro": None, "clients": 2}}}, "info": {"x": [1]}}
    )
    assert len(read_rounds(tmp_path)) == 1
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, **facts}) + "\n")
    with pytest.raises(
        KinfolkError, match=r"rounds\.jsonl:2 = .*is not a line about a round; mend or remove it"
    ):
        read_rounds(tmp_path)


def test_scores_with_holes_or_of_no_text_are_one_line(tmp_path):
    row = {name: ["x", "y"] for name in ("client", "model", "split", "score")}
    whole = {
        "round": [1, 1],
        **row,
        "value": [0.5, 0.5],
        "rows": [1, 1],
        "group": [0, 0],
        "margin": [0.5, None],
    }
    path = tmp_path / "records" / "round-000001.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table(whole, SCHEMA), path)
    assert len(read_scores(tmp_path)) == 2
    pq.write_table(pa.table({**whole, "client": ["x", None]}, SCHEMA), path)
    with pytest.raises(KinfolkError, match="has holes in the column client"):
        read_scores(tmp_path)
    text = pa.StringArray.from_buffers(2, pa.py_buffer(struct.pack("<3i", 0, 1, 2)), pa.py_buffer(b"x\xff"))
    pq.write_table(pa.table({**whole, "client": text}, SCHEMA), path)
    with pytest.raises(KinfolkError, match="cannot be read"):
        read_scores(tmp_path)
