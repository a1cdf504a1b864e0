"""The notebooks under examples/ run from top to bottom, with what is public, and are stored without outputs.

Cells are Python without magics, so the standard library is enough to run them: no notebook server, no kernel.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from test_public import private

BOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


def code(book):
    cells = json.loads(book.read_text())["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run(book):
    """Run all cells in one namespace; the value of each cell's last line, as a notebook would show it."""
    space, shown = {"__name__": "__main__"}, []
    for text in code(book):
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, book.name, "exec"), space)
        shown.append(eval(compile(ast.Expression(last.value), book.name, "eval"), space) if last else None)
    return space, shown


def test_there_are_two_notebooks_without_outputs():
    assert [book.stem for book in BOOKS] == ["find_groups", "own_clients"]
    for book in BOOKS:
        cells = json.loads(book.read_text())["cells"]
        assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells), book


@pytest.mark.parametrize("book", BOOKS, ids=lambda book: book.stem)
def test_a_notebook_uses_only_what_is_public(book):
    assert private("\n".join(code(book))) == []


def test_the_notebook_on_own_clients_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    _, shown = run(BOOKS[1])
    assert set(shown[-1]["algorithm"]) == {"local", "fedavg", "fedavg_tuned"}
    assert "fedavg_tuned" in capsys.readouterr().out


def test_the_notebook_on_groups_finds_them(monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    space, _ = run(BOOKS[0])
    assert space["choice"].k == 2, space["choice"].reason
    kinds = [{int(name.split("-")[1]) % 2 for name in names} for names in space["groups"].values()]
    assert sorted(map(sorted, kinds)) == [[0], [1]]
    assert space["placed"].groups["ann"] != space["placed"].groups["bob"]
