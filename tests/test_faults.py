"""The page of faults: every case is there once, and every test that it names exists."""

from __future__ import annotations

import os
import re

import pytest
from pages import ROOT, read

PAGE = "docs/privacy/faults.md"
CASES = 50
RESULTS = {"holds", "deployment"}
LINK = re.compile(r"\[`(?P<file>\w+\.py)::(?P<test>\w+)`\]\((?P<path>[^)]+)\)")


def rows(text: str) -> list[list[str]]:
    """The cells of the table's rows that begin with a number."""
    lines = [line for line in text.splitlines() if re.match(r"\| \d+ \|", line)]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def wrong(row: list[str]) -> str:
    """What is wrong with a row of the table; empty if nothing is."""
    number, _, _, tests, result = row
    named = list(LINK.finditer(tests))
    if result not in RESULTS:
        return f"{number}: {result!r} is no result"
    if result == "holds" and not named:
        return f"{number}: holds by no test"
    if LINK.sub("", tests).replace("<br>", "").strip("- "):
        return f"{number}: more than tests: {tests}"
    for one in named:
        path = ROOT / os.path.normpath(f"docs/privacy/{one['path']}")
        if path.name != one["file"] or not path.is_file():
            return f"{number}: no file {one['path']}"
        if f"\ndef {one['test']}(" not in path.read_text():
            return f"{number}: no {one['test']} in {one['path']}"
    return ""


def test_every_case_is_there_once_and_every_test_exists():
    table = rows(read(PAGE))
    assert [int(row[0]) for row in table] == list(range(1, CASES + 1))
    assert [said for row in table if (said := wrong(row))] == []


@pytest.mark.parametrize(
    ("tests", "result", "said"),
    [
        ("-", "holds", "holds by no test"),
        ("-", "perhaps", "is no result"),
        ("[`test_fold.py::test_none`](../../tests/test_fold.py)", "holds", "no test_none"),
        ("[`test_fold.py::test_none`](../../tests/test_void.py)", "holds", "no file"),
        ("see there", "deployment", "more than tests"),
    ],
)
def test_a_row_that_is_wrong_is_told(tests, result, said):
    assert said in wrong(["1", "a case", "what follows", tests, result])
