"""Notebooks as pages. They are stored without outputs and run for the page: what it shows is never old.

Cells are Python without magics: no notebook server and no kernel are needed.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def page(book: Path, *, run: bool = True) -> str:
    """The notebook as Markdown, each cell of code followed by what it prints."""
    cells = json.loads(book.read_text())["cells"]
    shown = (
        outputs(["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]) if run else None
    )
    parts = []
    for cell in cells:
        text = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(text)
            continue
        parts.append(f"```python\n{text}\n```")
        output = next(shown) if shown else ""
        if output:
            parts.append(f"```text\n{output}\n```")
    note = f"The notebook is [examples/{book.name}]({book.name}); this page was made by running it."
    return "\n\n".join([*parts, note if run else ""]) + "\n"


def outputs(cells: list[str]) -> Iterator[str]:
    """What each cell prints, with the value of its last line, one after another in an empty folder."""
    space: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        os.environ.setdefault("COLUMNS", "80")
        for cell in cells:
            with contextlib.redirect_stdout(io.StringIO()) as said:
                value = run_cell(cell, space)
            yield "\n".join(filter(None, [said.getvalue().rstrip(), "" if value is None else str(value)]))


def run_cell(cell: str, space: dict[str, Any]) -> object:
    """Run a cell; the value of its last line if that is an expression."""
    tree = ast.parse(cell)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), space)
    return (
        eval(compile(ast.Expression(last.value), "cell", "eval"), space)
        if isinstance(last, ast.Expr)
        else None
    )
