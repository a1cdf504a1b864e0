"""The table of runs that go on: what its rows say, and that it fits wherever it is shown."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from small_runs import SPEC

from kinfolk import progress
from kinfolk.errors import BrokeDown
from kinfolk.experiment.compare import compare, planned
from kinfolk.live.standing import Standing
from kinfolk.live.table import RunsTable, time_left
from kinfolk.live.text import BLOCKS, sparkline


def engine(title: str, seed: int, rounds: int = 20) -> dict[str, Any]:
    return {"title": title, "seed": seed, "rounds": rounds, "note": "loop", "why": "", "warning": ""}


def scored(macro: float | None, worst: float = 0.1) -> dict[str, Any]:
    return {"centre": {"loss": {"macro": 2.0}, "accuracy": {"macro": macro, "worst": worst}}}


def played(run: Standing, rounds: int, value: float, seconds: float = 2.0) -> Standing:
    run.hear("engine", engine(run.title, run.seed))
    for number in range(1, rounds + 1):
        facts = {"round": number, "rounds": 20, "seconds": {"update": seconds, "score.centre": 1.0}}
        run.hear("round", {**facts, "summary": scored(value)})
        run.hear("evaluate", {**facts, "summary": scored(value, value / 2)})
    return run


def printed(table: RunsTable, width: int = 100, height: int = 50, **options: Any) -> list[str]:
    file = io.StringIO()
    Console(width=width, height=height, file=file, **options).print(table)
    return file.getvalue().rstrip("\n").split("\n")


def cells(table: RunsTable) -> dict[str, list[str]]:
    """Each method's cells, by its first word."""
    rows = [re.split(r"\s{1,}", line.strip()) for line in printed(table)[1:-1]]
    return {row[0]: row[1:] for row in rows}


def end(run: Standing) -> Standing:
    run.hear("end", {"reason": "done", "status": "finished"})
    return run


def test_a_row_has_the_mean_over_seeds_that_have_ended_and_the_first_ones_score_until_then():
    a, b, c = (Standing("ifca", seed) for seed in range(3))
    table = RunsTable([a, b, c])
    played(a, 5, 0.5)
    assert cells(table)["ifca"][:4] == ["0/3", "5/20", "50.0", "25.0"]
    end(played(a, 20, 0.6))
    played(b, 1, 0.1)
    assert cells(table)["ifca"][:4] == ["1/3", "1/20", "60.0", "30.0"], (
        "a seed that has just begun counts not"
    )
    end(played(b, 20, 0.7))
    assert cells(table)["ifca"][:4] == ["2/3", "20/20", "65.0", "32.5"]
    assert cells(table)["ifca"][-2:] == ["2", "1:00"], "training alone, and twenty rounds of three seconds"


def test_the_time_left_counts_what_has_not_begun_by_what_others_took():
    begun = played(Standing("a", 0), 10, 0.5)  # 3 s a round
    same, other = Standing("a", 1), Standing("b", 0)
    assert time_left([begun]) == 30
    assert time_left([begun, same, other]) == 30 + 60 + 60
    slow = end(played(Standing("b", 1), 20, 0.5, seconds=8.0))  # 9 s a round
    assert time_left([begun, same, other, slow]) == 30 + 60 + 180
    assert math.isnan(time_left([Standing("a", 0, rounds=20)]))


def test_a_run_that_broke_down_or_diverged_says_so_when_the_next_begins():
    a, b, c = Standing("x", 0), Standing("y", 0), Standing("z", 0)
    table = RunsTable([a, b, c])
    table.listener()("engine", engine("x", 0))
    listen = table.listener()
    listen("engine", engine("y", 0))
    listen("end", {"reason": "", "status": "diverged"})
    lines = printed(table)
    assert lines[1].endswith("broke down")
    assert lines[2].endswith("diverged")
    assert lines[3].endswith("waiting")
    assert lines[-1].strip() == "2 of 3 runs done"


def test_a_resumed_run_forgets_what_came_after_its_checkpoint():
    run = played(Standing("a", 0), 9, 0.5)
    run.hear("resume", {"round": 4, "summary": scored(0.25)})
    assert (run.done, run.value, list(run.curve)) == (4, 0.25, [1, 2, 3, 4])
    run.hear("round", {"round": 4, "rounds": 20, "bytes": {"update": {"up": 5}}})
    run.hear("round", {"round": 4, "rounds": 20, "bytes": {"update": {"up": 7}, "score.centre": {"down": 9}}})
    assert run.sent == {"up": 7}, "a round that is told of twice counts once"


NAMES = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=30)


@given(
    st.lists(st.tuples(NAMES, st.floats(allow_nan=True), st.integers(0, 10**6)), min_size=1, max_size=9),
    st.integers(50, 120),
    st.integers(8, 40),
)
def test_no_line_is_wider_than_the_terminal(found, width, height):
    runs = []
    for title, value, rounds in found:
        for seed in range(2):
            run = Standing(title, seed)
            run.hear("engine", engine(title, seed, rounds))
            run.hear("evaluate", {"round": 0, "summary": scored(value)})
            run.round({"round": 1, "seconds": {"update": abs(value)}})
            runs.append(run)
    lines = printed(RunsTable(runs), width, height)
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= height


@pytest.mark.parametrize("width", [80, 60])
def test_heads_and_numbers_are_whole_at_usual_widths(width):
    runs = [played(Standing("fesem k=4 patience=0", 0), 20, 0.871), Standing("fedavg", 0)]
    lines = printed(RunsTable(runs), width)
    assert lines[0].split()[:5] == ["method", "seeds", "round", "accuracy", "%"]
    assert {"0/1", "20/20", "87.1"} <= set(lines[1].split())
    assert "".join(lines).count("…") == (width == 60), "of a long name only"
    assert ("worst" in lines[0]) == ("s/round" in lines[0]) == (width == 80)


def test_of_many_methods_those_around_the_one_that_goes_on_are_shown():
    runs = [Standing(f"m{i}", 0) for i in range(40)]
    for run in runs[:20]:
        end(played(run, 1, 0.5))
    played(runs[20], 1, 0.5)
    lines = printed(RunsTable(runs), height=16)
    assert [line.split()[0] for line in lines[1:-2]] == [f"m{i}" for i in range(15, 25)]
    assert lines[-2].strip() == "15 more above, 15 more below"


def test_curves_share_one_scale_and_are_plain_where_letters_are():
    low, high = played(Standing("a", 0), 1, 0.0), played(Standing("b", 0), 1, 1.0)
    lines = printed(RunsTable([low, high]))
    assert BLOCKS[0] in lines[1]
    assert BLOCKS[-1] in lines[2]
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    Console(width=80, file=file).print(RunsTable([low, high]))
    file.seek(0)
    assert "#" in file.read()


@given(st.lists(st.floats(allow_infinity=True, allow_nan=True), max_size=60), st.integers(1, 20))
def test_a_sparkline_is_never_too_long_and_never_fails(values, width):
    line = sparkline(values, width)
    assert len(line) == min(len(values), width)
    assert set(line) <= set(BLOCKS + " ")


def on_terminal(monkeypatch: pytest.MonkeyPatch, width: int) -> io.StringIO:
    file = io.StringIO()

    def console(stderr: bool) -> Console:
        return Console(file=file, force_terminal=True, width=width, height=24, legacy_windows=False)

    monkeypatch.setattr(progress, "Console", console)
    return file


def frames(file: io.StringIO) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", file.getvalue())
    return re.split(r"[\r\n]+", plain)


@pytest.mark.parametrize("width", [80, 60])
def test_a_comparison_on_a_terminal_shows_the_table_as_wide_as_it_is(tmp_path, monkeypatch, width):
    file = on_terminal(monkeypatch, width)
    names = ["local", "fedavg", "ifca,k=2"]
    with progress.telling(18, runs=planned(SPEC, names, 2)) as teller:
        compare(SPEC, names, 2, tmp_path / "c", watch=lambda name, k: teller.watch(f"{name} seed {k}"))
        assert teller.table is not None
        last = printed(teller.table)
    lines = frames(file)
    assert max(map(cell_len, lines)) <= width
    assert any(line.startswith("method") and "accuracy %" in line for line in lines)
    assert [line.split()[-1] for line in last[1:4]] == ["done"] * 3
    assert "2/2" in last[1]
    assert last[-1].strip() == "6 of 6 runs done"
    assert sum(line.startswith("engine: loop") for line in lines) == 1


def test_elsewhere_a_comparison_prints_lines_and_quiet_is_quiet(tmp_path, capsys):
    with progress.telling(3, runs=planned(SPEC, ["local"], 1)) as teller:
        compare(SPEC, ["local"], 1, tmp_path / "c", watch=lambda name, k: teller.watch(f"{name} seed {k}"))
        assert teller.table is None
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[0]) == ("", "engine: loop: one client after another on cpu (as asked)")
    with progress.telling(3, quiet=True, runs=planned(SPEC, ["local"], 1)) as teller:
        compare(SPEC, ["local"], 1, tmp_path / "d", watch=lambda name, k: teller.watch(f"{name} seed {k}"))
    assert capsys.readouterr() == ("", "")


def test_the_frame_stays_when_a_comparison_is_broken_off(monkeypatch):
    file = on_terminal(monkeypatch, 80)

    def broken_off() -> None:
        with progress.telling(9, runs=[("local", 0)]) as teller:
            teller.watch("local seed 0")("engine", engine("local", 0))
            raise BrokeDown("run", "r", "no use")

    with pytest.raises(BrokeDown):
        broken_off()
    assert "0/20" in frames(file)[-3]


@pytest.mark.parametrize("width", [80, 60])
def test_the_bar_of_a_run_has_score_and_groups_and_cuts_no_number(monkeypatch, width):
    file = on_terminal(monkeypatch, width)
    groups = {"sizes": {"0": 3, "1": 4}, "switch": 0.5, "moved": {"ann": [0, 1]}}
    with progress.telling(1000) as teller:
        listen = teller.watch("fesem k=2")
        listen("engine", engine("fesem k=2", 0, 1000))
        listen("round", {"round": 999, "rounds": 1000, "summary": scored(0.871), "groups": groups})
    line = [line for line in frames(file) if "fesem" in line][-1].rstrip()
    assert cell_len(line) <= width
    assert " 999/1000 " in line
    assert "accuracy 87.1%" in line
    assert line.endswith("2 groups, 1 moved") == (width == 80)
