"""Run folders that somebody writes, followed: what is new is read once, torn ends wait, ends are known."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import kinfolk
from kinfolk.cli.follow import follow as followed_to_its_end
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import Records, write_json, write_text
from kinfolk.lock import writing
from kinfolk.report.follow import Followed, FollowedRun, Tail
from kinfolk.report.follow_view import line, view
from kinfolk.report.read import load_run
from kinfolk.report.status import KILLED, as_it_is


def begin(folder: Path, rounds: int = 20, **more: Any) -> Records:
    """What a run has written when it begins."""
    facts = {
        "format": 1,
        "algorithm": "fesem",
        "title": "fesem k=2",
        "seed": 0,
        "status": "running",
        "reason": "",
    }
    write_json(folder / "run.json", {**facts, "federation": {"clients": 4, "rows": 40}, **more})
    write_text(folder / "spec.toml", f"[run]\nrounds = {rounds}\n")
    return Records(folder)


def fact(number: int, value: float = 0.5, **more: Any) -> dict[str, Any]:
    summary = {"centre": {"loss": {"macro": 1.0}, "accuracy": {"macro": value, "worst": value / 2}}}
    seconds = {"update": 2.0, "score.centre": 1.0}
    groups = {"sizes": {"0": 1, "1": 3}, "switch": 0.25, "moved": {"ann": [0, 1]}, "ari": 0.5}
    sent = {"update": {"down": 1000, "up": 1000}, "score.centre": {"down": 9}}
    return {
        "cohort": 4,
        "answered": 3,
        "bytes": sent,
        "seconds": seconds,
        "groups": groups,
        "summary": summary,
        **more,
    }


def shown(followed: Followed, width: int = 80) -> str:
    file = io.StringIO()
    Console(width=width, file=file).print(view(followed))
    return file.getvalue()


def row(text: str, name: str) -> str:
    return next(line[len(name) :].strip() for line in text.splitlines() if line.startswith(f"{name} "))


def test_one_run_shows_what_its_records_say(tmp_path):
    records = begin(tmp_path)
    records.append_round(
        0, {"summary": fact(0, 0.25)["summary"], "bytes": {}, "seconds": {"score.centre": 9.0}}
    )
    for number in (1, 2, 3):
        records.append_round(number, fact(number, 0.25 + number / 10, extra=0.5))
    records.audit("silent", client="ann", round=1)
    records.audit("silent", client="bob", round=1)
    records.audit("warning", text="a client has 9 rows")
    followed = Followed(tmp_path)
    with writing(tmp_path):
        assert followed.look() is True
        assert followed.look() is False
        assert followed.over is False
        text = shown(followed)
    assert row(text, "status").startswith(f"running, process {os.getpid()} on ")
    # 20 rounds less 3 and 1.5 rounds' worth of a start; 3 s a round.
    assert row(text, "rounds") == "3 of 18 [###.................], 0:45 left"
    assert row(text, "accuracy") == "55.0% (centre), worst client 27.5%, after round 3"
    assert row(text, "groups") == "2 groups, 1 moved; clients 1, 3; ARI 0.50"
    assert row(text, "bytes") == "3 kB down, 3 kB up; 2 kB a round"
    assert row(text, "time") == "3 s a round, 2 s of it in training"
    assert row(text, "answers") == "3 of 4 asked"
    assert row(text, "audit") == "silent 2, warning 1"
    assert row(text, "warning") == "a client has 9 rows"
    assert line(followed.standings[0]) == (
        "fesem k=2 seed 0: round 3/18, accuracy 55.0% (centre), 2 groups, 1 moved, 0:45 left"
    )


def test_what_was_read_is_not_read_again(tmp_path, monkeypatch):
    records = begin(tmp_path)
    for number in range(1000):
        records.append_round(number, fact(number))
    run = FollowedRun(tmp_path)
    run.look()
    before = run.standing.sent
    path = tmp_path / "rounds.jsonl"
    size = path.stat().st_size
    with path.open("r+b") as file:  # whoever reads the beginning again would find nothing there
        file.write(b"#" * (size // 2))
    records.append_round(1000, fact(1000))
    assert run.look() is True
    assert run.standing.sent == {way: count + 1000 for way, count in before.items()}
    assert run.rounds.at == path.stat().st_size

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a file was opened")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    assert run.look() is False


def test_a_torn_line_waits_for_its_end(tmp_path):
    records, run = begin(tmp_path), FollowedRun(tmp_path)
    records.append_round(1, fact(1))
    text = json.dumps({"round": 2, **fact(2, 0.9)}) + "\n"
    for cut in (10, 100):
        with (tmp_path / "rounds.jsonl").open("a") as file:
            file.write(text[:cut])
        run.look()
        assert run.standing.done == 1
        text = text[cut:]
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write(text)
    run.look()
    assert (run.standing.done, run.standing.value) == (2, 0.9)


def test_a_run_that_goes_back_is_read_anew(tmp_path):
    records, run = begin(tmp_path), FollowedRun(tmp_path)
    for number in range(6):
        records.append_round(number, fact(number, number / 10))
    run.look()
    records.rewind(3)
    run.look()
    assert (run.standing.done, run.standing.value, run.standing.sent["up"]) == (3, 0.3, 4000)
    records.append_round(4, fact(4, 0.9))
    records.amend_round(4, fact(4, 0.8))  # the last line is written again
    run.look()
    assert (run.standing.done, run.standing.value, run.standing.sent["up"]) == (4, 0.8, 5000)
    (tmp_path / "rounds.jsonl").unlink()
    run.look()
    assert (run.standing.done, run.standing.sent) == (0, {})


@given(st.lists(st.sampled_from(["append", "tear", "rewind", "amend", "look"]), max_size=25))
def test_following_comes_to_what_reading_at_once_does(tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("run")
    records, run, number, torn = begin(folder), FollowedRun(folder), 0, False
    for step in [*steps, "look"]:
        if step == "append" and not torn:
            number += 1
            records.append_round(number, fact(number, number / 100, mark=len(steps)))
        elif step == "tear" and not torn:
            torn = True
            with (folder / "rounds.jsonl").open("a") as file:
                file.write('{"round": 99, "cohort"')
        elif step == "rewind" and number:
            number, torn = number - 1, False
            records.rewind(number)
        elif step == "amend" and number:
            torn = False
            records.amend_round(number, fact(number, number / 50))
        elif step == "look":
            run.look()
    whole = FollowedRun(folder)
    whole.look()
    assert (run.standing, run.extra) == (whole.standing, whole.extra)


def test_who_is_killed_is_told_from_who_runs(tmp_path):
    begin(tmp_path)
    assert load_run(tmp_path).facts["status"] == "running", "without a lock, nobody can tell"
    code = "import sys, time; from pathlib import Path; from kinfolk.lock import writing\n"
    code += "with writing(Path(sys.argv[1])): print(1, flush=True); time.sleep(600)"
    env = {**os.environ, "PYTHONPATH": str(Path(kinfolk.__file__).parents[1])}
    writer = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], env=env, stdout=subprocess.PIPE)
    try:
        assert writer.stdout.readline()
        followed = Followed(tmp_path)
        followed.look()
        facts = load_run(tmp_path).facts
        assert (facts["status"], f"process {writer.pid} on " in facts["reason"]) == ("running", True)
        assert (followed.standings[0].status, followed.over) == ("running", False)
    finally:
        writer.kill()
        writer.communicate()
    assert followed.look() is True
    assert (followed.standings[0].status, followed.standings[0].reason) == ("killed", KILLED)
    assert followed.over is True
    assert load_run(tmp_path).facts["status"] == "killed"


def test_a_run_that_ends_while_it_is_looked_at_was_not_killed(tmp_path):
    with writing(tmp_path):
        begin(tmp_path)
    ended = {"status": "finished", "reason": "3 rounds done"}
    assert as_it_is(tmp_path, {"status": "running"}, lambda: ended) == ended
    assert as_it_is(tmp_path, {"status": "running"}, lambda: {"status": "running"})["status"] == "killed"


def test_a_comparison_is_over_when_nobody_writes_it(tmp_path):
    followed = Followed(tmp_path / "c")
    assert (followed.look(), followed.over) == (False, False)
    with writing(tmp_path / "c"):
        names = ["fesem-k=2-seed0", "fesem-k=2-seed1", "local-seed0"]
        write_json(tmp_path / "c" / "compare.json", {"runs": names})
        assert followed.look() is True
        assert [one.title for one in followed.standings] == ["fesem-k=2", "fesem-k=2", "local"]
        assert followed.over is False
        with writing(tmp_path / "c" / names[0]):
            begin(tmp_path / "c" / names[0]).append_round(1, fact(1))
            followed.look()
            assert [one.title for one in followed.standings] == ["fesem k=2", "fesem k=2", "local"]
            assert [one.status for one in followed.standings] == ["running", "waiting", "waiting"]
            assert "now fesem k=2 seed 0: 2 groups, 1 moved" in shown(followed)
        begin(tmp_path / "c" / names[0], status="finished")
        followed.look()
        assert (followed.standings[0].rounds, followed.over) == (1, False), "it is between two runs"
    assert followed.over is True, "told to stop, or killed"


@pytest.mark.parametrize(
    "text", ["{}", "[]", '{"runs": []}', '{"runs": "fedavg-seed0"}', '{"runs": ["../x", 3]}']
)
def test_a_comparison_that_names_no_run_is_an_error_and_not_waited_for(tmp_path, text):
    (tmp_path / "compare.json").write_text(text)
    with pytest.raises(KinfolkError, match=r"compare\.json'?: must list the names of run folders"):
        followed_to_its_end(tmp_path, quiet=True)


def test_a_comparison_without_names_is_told_by_a_look(tmp_path):
    (tmp_path / "compare.json").write_text('{"runs": []}')
    with pytest.raises(KinfolkError, match="must list the names"):
        Followed(tmp_path).look()


def test_a_comparison_that_is_being_written_is_waited_for(tmp_path):
    (tmp_path / "compare.json").write_text('{"runs": ["fed')
    followed = Followed(tmp_path)
    assert (followed.look(), followed.over) == (False, False)
    (tmp_path / "compare.json").write_text('{"runs": ["fedavg-seed0", "../x"]}')
    assert followed.look()
    assert list(followed.runs) == ["fedavg-seed0"]


def test_runs_beside_one_another_are_over_when_each_is(tmp_path):
    begin(tmp_path / "a", status="finished")
    begin(tmp_path / "b")
    (tmp_path / "notes").mkdir()
    followed = Followed(tmp_path)
    followed.look()
    assert [one.status for one in followed.standings] == ["finished", "running"]
    assert followed.over is False
    begin(tmp_path / "b", status="stopped")
    followed.look()
    assert followed.over is True


def test_a_run_of_a_newer_version_is_refused(tmp_path):
    begin(tmp_path, format=2, versions={"kinfolk": "9.1"})
    with pytest.raises(KinfolkError, match=r"is of format 2, this version reads 1; use kinfolk 9\.1"):
        Followed(tmp_path).look()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"title": 3, "scores": [1], "federation": 5, "seed": "x"}', "\0"]
)
def test_a_run_file_that_is_no_run_file_ends_nothing(tmp_path, text):
    records = begin(tmp_path)
    records.append_round(1, fact(1))
    (tmp_path / "run.json").write_text(text)
    strange = '{"round": 2, "seconds": 3, "bytes": [1], "groups": [2], "summary": {"a": 1}}'
    with (tmp_path / "rounds.jsonl").open("a") as file:
        file.write(f'3\n[]\n{{"round": "x"}}\n{strange}\n')
    (tmp_path / "audit.jsonl").write_text('{"event": "silent"}\n{"ev\n')
    followed = Followed(tmp_path)
    followed.look()
    assert shown(followed)
    assert followed.runs[""].amiss == {"silent": 1, "unreadable": 1}


@pytest.mark.parametrize("width", [80, 60, 30])
def test_no_line_is_wider_than_the_terminal(tmp_path, width):
    records = begin(tmp_path, rounds=1000, title="fesem " + "k=2 " * 20)
    for number in range(300):
        records.append_round(number, fact(number, number / 300))
    records.audit("warning", text="a warning that is longer than any line of a terminal " * 3)
    followed = Followed(tmp_path)
    followed.look()
    assert max(cell_len(one) for one in shown(followed, width).splitlines()) <= width


def test_following_writes_nothing_and_needs_no_torch(tmp_path):
    records = begin(tmp_path / "r", status="finished")
    records.append_round(1, fact(1))
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "r", *(tmp_path / "r").rglob("*"))}
    code = "import sys; sys.modules['torch'] = None\nfrom pathlib import Path\n"
    code += "from kinfolk.cli.follow import follow\nfollow(Path(sys.argv[1]))"
    env = {**os.environ, "PYTHONPATH": str(Path(kinfolk.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r")],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "fesem k=2 seed 0: finished\n"
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "r", *(tmp_path / "r").rglob("*"))} == before


def test_a_tail_tells_a_file_that_was_written_anew_from_one_that_has_grown(tmp_path):
    path = tmp_path / "file"
    path.write_text("a\nb\n")
    tail = Tail(path)
    assert tail.new() == (True, [b"a", b"b"])
    path.write_text("c\nd\ne\n")  # the same file, longer, with other text
    assert tail.new() == (True, [b"c", b"d", b"e"])
    path.write_text("c\n")
    assert tail.new() == (True, [b"c"])
    path.unlink()
    assert tail.new() == (True, [])
    assert tail.new() == (False, [])
