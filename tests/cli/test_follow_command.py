"""`kinfolk show RUN --follow`: what it prints on a terminal and elsewhere, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from small_runs import SPEC, go

from kinfolk.cli import follow as following
from kinfolk.experiment.compare import compare


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[float]]:
    """What happens while the command sleeps, one thing each time; how long it has slept."""

    def take(*steps: Callable[[], Any]) -> list[float]:
        left, slept = list(steps), list[float]()

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            if not left:
                raise AssertionError("it goes on when nothing more comes")
            left.pop(0)()

        monkeypatch.setattr(following.time, "sleep", sleep)
        return slept

    return take


def files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_that_appears_later_is_followed_to_its_table_and_nothing_is_written(kinfolk, meanwhile):
    seen: dict[Path, bytes] = {}
    slept = meanwhile(
        lambda: None,
        lambda: go(Path("r"), "algorithm.name=ifca", "algorithm.k=2") and seen.update(files(Path("r"))),
    )
    code, out, err = kinfolk("show", "r", "--follow")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "r: no run there yet; waiting for one (Ctrl-C ends)"
    assert lines[1] == "ifca k=2 seed 0: finished, 3 rounds done"
    assert "Scores of 4 clients after round 3" in out
    assert "run folder: r" in lines
    assert lines[-1].startswith(("verdict:    ", " " * 12))
    assert files(Path("r")) == seen
    assert slept == [following.LOOK] * 2, "no busy loop"


def test_lines_tell_of_every_run_and_come_seldom(kinfolk, meanwhile, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(following.time, "monotonic", lambda: now[0])

    def watch(title: str, seed: int) -> Any:
        def listen(event: str, facts: dict[str, Any]) -> None:
            if event in ("round", "end"):
                now[0] += 2.0
                step()

        return listen

    # The comparison and the command take turns: each event of the one is a look of the other.
    followed = following.Followed(Path("c"))
    lines: list[str] = []
    state = following.Lines()

    def step() -> None:
        followed.look()
        lines.extend(state.new(followed))

    compare(SPEC, ["local", "fedavg"], 1, Path("c"), watch=watch)
    step()
    assert followed.over
    shown = [line for line in lines if line.startswith("fedavg")]
    assert re.fullmatch(r"fedavg seed 0: round 0/3, accuracy \d+\.\d% \(centre\)", shown[0])
    assert shown[-1] == "fedavg seed 0: finished, 3 rounds done"
    assert len(shown) == 3, "of four rounds in eight seconds two, and the end"


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    file = io.StringIO()

    def console() -> Console:
        return Console(file=file, force_terminal=True, width=width, height=24, legacy_windows=False)

    monkeypatch.setattr(following, "out", console)
    return file


def frames(file: io.StringIO) -> list[str]:
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue()))


@pytest.mark.parametrize("width", [80, 60])
def test_a_terminal_shows_the_run_as_wide_as_it_is(kinfolk, meanwhile, monkeypatch, width):
    file = on_terminal(monkeypatch, width)
    meanwhile(lambda: go(Path("r"), "run.rounds=1"))
    code, out, _ = kinfolk("show", "r", "--follow")
    lines = frames(file)
    assert code == 0
    assert max(map(cell_len, lines)) <= width
    assert lines[0] == "r: no run there yet; waiting for one (Ctrl-C ends)"
    assert any(re.match(r"rounds +1 of 1 \[#{20}\]", line) for line in lines)
    assert "Scores of 4 clients" in out


@pytest.mark.parametrize("width", [None, 80])
def test_ctrl_c_leaves_quietly(kinfolk, meanwhile, monkeypatch, width):
    if width:
        on_terminal(monkeypatch, width)

    def stop() -> None:
        raise KeyboardInterrupt

    meanwhile(stop)
    code, out, err = kinfolk("show", "r", "--follow")
    assert (code, err) == (130, "")
    assert out in ("", "r: no run there yet; waiting for one (Ctrl-C ends)\n")
    assert os.listdir() == []


def test_a_machine_waits_and_then_gets_json(kinfolk, meanwhile):
    meanwhile(lambda: go(Path("r")))
    code, out, err = kinfolk("show", "r", "--follow", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["folder"], told["rows"][0]["algorithm"], "figure" in told) == ("r", "fedavg", False)


def test_what_can_never_be_a_run_is_refused(kinfolk):
    Path("file").write_text("")
    code, _, err = kinfolk("show", "file", "--follow")
    assert (code, err) == (
        2,
        "error: run = 'file': is not a folder; name a run folder or a comparison folder\n",
    )


def test_a_run_that_broke_down_ends_the_following_and_says_why(kinfolk):
    go(Path("r"))
    facts = json.loads(Path("r/run.json").read_text())
    Path("r/run.json").write_text(
        json.dumps({**facts, "status": "stopped", "reason": "told to stop at round 3"})
    )
    code, out, _ = kinfolk("show", "r", "--follow")
    assert code == 0
    assert out.startswith("fedavg seed 0: stopped, told to stop at round 3\n")
    assert re.search(r"status +stopped, told to stop at round 3", out)


def test_a_killed_run_is_called_killed(kinfolk):
    go(Path("r"))
    facts = json.loads(Path("r/run.json").read_text())
    Path("r/run.json").write_text(json.dumps({**facts, "status": "running", "reason": ""}))
    code, out, _ = kinfolk("show", "r")
    assert code == 0
    assert re.search(r"status +killed, its process ended without a word; it can be resumed", out)
    code, out, _ = kinfolk("show", "r", "--follow")
    assert out.startswith("fedavg seed 0: killed, its process ended without a word; it can be resumed\n")


def test_a_comparison_that_was_broken_off_says_what_it_lacks(kinfolk):
    def watch(title: str, seed: int) -> Any:
        if title == "fedavg":
            raise KeyboardInterrupt
        return lambda event, facts: None

    with pytest.raises(KeyboardInterrupt):
        compare(SPEC, ["local", "fedavg", "ifca,k=2"], 2, Path("c"), watch=watch)
    for words in (["show", "c"], ["show", "c", "--follow"]):
        code, out, _ = kinfolk(*words)
        assert code == 0
        assert "4 of 6 runs have not begun: fedavg-seed0, fedavg-seed1, ifca-k=2-seed0, ..." in out
