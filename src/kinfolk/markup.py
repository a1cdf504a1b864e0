"""Tables for other places than the terminal: Rich tables and text as HTML, Markdown or LaTeX.

Whatever is in a cell is text: names of clients and algorithms are escaped, never interpreted.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}


def as_html(*parts: Any) -> str:
    """Tables and lines of text as HTML, for notebooks.

    >>> table = Table("client", title="Scores")
    >>> table.add_row(Text("<b>ann</b>"))
    >>> as_html(table)
    '<table><caption>Scores</caption><thead><tr><th>client</th></tr></thead><tbody><tr><td>&lt;b&gt;ann&lt;/b&gt;</td></tr></tbody></table>'
    """
    return "\n".join(
        _html_table(part) if isinstance(part, Table) else f"<p>{_html(part)}</p>" for part in _flat(parts)
    )


def as_markdown(*parts: Any) -> str:
    """Tables and lines of text as Markdown.

    >>> table = Table("client", "score")
    >>> table.add_row("a|b", "1.0")
    >>> print(as_markdown(table))
    | client | score |
    | --- | --- |
    | a\\|b | 1.0 |
    """
    return "\n\n".join(
        _markdown_table(part) if isinstance(part, Table) else _markdown(part) for part in _flat(parts)
    )


def as_latex(*parts: Any) -> str:
    """Tables as LaTeX with the rules of booktabs; lines of text are comments.

    >>> table = Table("client", "score", title="10 %")
    >>> table.add_row("a_b", "1.0 ± 0.5")
    >>> print(as_latex(table))
    % 10 %
    \\begin{tabular}{ll}
    \\toprule
    client & score \\\\
    \\midrule
    a\\_b & 1.0 $\\pm$ 0.5 \\\\
    \\bottomrule
    \\end{tabular}
    """
    return "\n".join(
        _latex_table(part) if isinstance(part, Table) else f"% {_plain(part)}" for part in _flat(parts)
    )


def _flat(parts: Iterable[Any]) -> Iterator[Any]:
    """Tables and texts, in order, without what is empty; what stands below a table comes after it."""
    for part in parts:
        if isinstance(part, Group):
            yield from _flat(part.renderables)
        elif isinstance(part, Table):
            yield part
            if part.caption:
                yield part.caption
        elif _plain(part):
            yield part


def _plain(cell: Any) -> str:
    """The letters of a cell on one line."""
    text = cell.plain if isinstance(cell, Text) else Text.from_markup(str(cell or "")).plain
    return " ".join(text.split())


def _heads(table: Table) -> list[str]:
    return [_plain(column.header) for column in table.columns]


def _rows(table: Table) -> list[tuple[Any, ...]]:
    return list(zip(*(column.cells for column in table.columns), strict=True))


def _html(cell: Any) -> str:
    return html.escape(_plain(cell))


def _html_table(table: Table) -> str:
    title = f"<caption>{_html(table.title)}</caption>" if table.title else ""
    heads = "".join(f"<th>{html.escape(head)}</th>" for head in _heads(table))
    above = f"<thead><tr>{heads}</tr></thead>" if table.show_header else ""
    rows = ("".join(f"<td>{_html(cell)}</td>" for cell in row) for row in _rows(table))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>{title}{above}<tbody>{body}</tbody></table>"


def _markdown(cell: Any) -> str:
    return re.sub(r"([\\`*|<\[])", r"\\\1", _plain(cell))


def _markdown_table(table: Table) -> str:
    heads = _heads(table) if table.show_header else [""] * len(table.columns)
    rules = ["---:" if column.justify == "right" else "---" for column in table.columns]
    rows = [[_markdown(cell) for cell in row] for row in _rows(table)]
    lines = [f"| {' | '.join(row)} |" for row in ([_markdown(head) for head in heads], rules, *rows)]
    title = [f"**{_markdown(table.title)}**", ""] if table.title else []
    return "\n".join([*title, *lines])


def _latex(cell: Any) -> str:
    return "".join(_LATEX.get(letter, letter) for letter in _plain(cell))


def _latex_table(table: Table) -> str:
    sides = "".join("r" if column.justify == "right" else "l" for column in table.columns)
    rows = [" & ".join(map(_latex, row)) + r" \\" for row in _rows(table)]
    heads = [" & ".join(map(_latex, _heads(table))) + r" \\", r"\midrule"] if table.show_header else []
    title = [f"% {_plain(table.title)}"] if table.title else []
    begin = rf"\begin{{tabular}}{{{sides}}}"
    return "\n".join([*title, begin, r"\toprule", *heads, *rows, r"\bottomrule", r"\end{tabular}"])
