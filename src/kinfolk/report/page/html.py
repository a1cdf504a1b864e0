"""Charts and tables as HTML. Whatever comes from records is text, and never markup."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any

import pandas as pd

from kinfolk.errors import visible
from kinfolk.report.page.chart import Chart
from kinfolk.report.page.sections import Filled
from kinfolk.report.page.store import Store, as_json

# Rows of a table that stand in the page as they are; a script shows others, and the file has all.
ROWS = 100
# What stands in a column of numbers: signs, ranges and deviations too, and the words of a comparison.
_NUMERIC, _WORDS = frozenset("0123456789.,+-−±–=<%e "), frozenset(("", "-", "=", "best", "inf", "diverged"))


def text(value: object) -> str:
    """Text that can stand anywhere in a page, between quotes too.

    >>> text("<b> & 'c'")
    '&lt;b&gt; &amp; &#x27;c&#x27;'
    """
    return html.escape(visible(str(value)))


def with_code(value: object) -> str:
    """Text in which `commands` stand as such, and break between words alone.

    >>> with_code("Try `a < b`.")
    'Try <code><span>a</span> <span>&lt;</span> <span>b</span></code>.'
    """

    def code(found: re.Match[str]) -> str:
        return f"<code>{' '.join(f'<span>{word}</span>' for word in found[1].split())}</code>"

    return re.sub(r"`([^`]+)`", code, text(value))


def number(value: Any) -> str:
    """A cell of a table.

    >>> number(0.123456), number(1234567.8), number(1440), number(float("nan")), number("ann"), number(True)
    ('0.1235', '1,234,568', '1,440', '', 'ann', 'yes')
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}"
    return str(value)


def table(frame: pd.DataFrame, label: str) -> str:
    """A table that a reader can scroll; `assets/tables.js` makes it sortable.

    >>> table(pd.DataFrame({"client": ["<ann>"], "score": [0.5]}), "Scores").count("&lt;ann&gt;")
    1
    """
    shown = frame.head(ROWS)
    columns = [[number(value) for value in frame[name].head(ROWS)] for name in shown]
    right = [any(cells) and all(map(_numeric, cells)) for cells in columns]
    classes = [' class="number"' if one else "" for one in right]
    heads = "".join(
        f'<th scope="col"{kind}>{text(name)}</th>' for name, kind in zip(shown, classes, strict=True)
    )
    lines = zip(*columns, strict=True)
    rows = (
        "".join(f"<td{kind}>{text(cell)}</td>" for cell, kind in zip(line, classes, strict=True))
        for line in lines
    )
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _numeric(cell: str) -> bool:
    return cell in _WORDS or (not set(cell) - _NUMERIC and any(letter.isdigit() for letter in cell))


def figure(chart: Chart, store: Store) -> str:
    """A chart with the words in its place, its notes, its table, and what the script draws it from."""
    name, has_picture = text(chart.name), bool(chart.spec)
    parts = [
        f'<figure class="chart" id="{name}" data-chart="{name}" aria-labelledby="{name}-title">',
        f'<h3 id="{name}-title">{text(chart.title)}</h3>',
        f'<div class="controls" id="{name}-controls"></div>' if chart.rounds else "",
        f'<div class="picture" role="img" aria-label="{text(chart.title)}" aria-describedby="{name}-says">'
        "<noscript>Pictures need a browser that runs the script of this page.</noscript></div>"
        if has_picture
        else "",
        f'<figcaption><p id="{name}-says">{text(chart.says)}</p>',
        listed(chart.notes, "notes"),
        "</figcaption>",
        _data(chart, has_picture),
        "</figure>",
        _packed(chart, store),
    ]
    return "\n".join(part for part in parts if part)


def _data(chart: Chart, folded: bool) -> str:
    """The table below a picture; where there is no picture it is open."""
    rows = len(chart.table)
    if not rows:
        return ""
    told = f"The first {ROWS:,} of {rows:,} rows; the file has all." if rows > ROWS else f"{rows:,} rows."
    told = "One row." if rows == 1 else told
    inner = (
        f'<div class="table" data-table="{text(chart.name)}">{table(chart.table, f"{chart.title}: table")}'
        f'<p class="under"><span class="told">{told}</span></p></div>'
    )
    return f"<details><summary>Table</summary>{inner}</details>" if folded else inner


def _packed(chart: Chart, store: Store) -> str:
    """The chart's specification and table, their numbers in the store."""
    columns = [[str(name), store.column(list(chart.table[name]))] for name in chart.table]
    packed: dict[str, Any] = {"table": {"rows": len(chart.table), "columns": columns}}
    if chart.spec:
        datasets: dict[str, Any] = {}
        spec = _without_data(dict(chart.spec), store, datasets)
        packed |= {"spec": {**spec, "datasets": datasets}, "rounds": list(chart.rounds)}
    return f'<script type="application/json" id="{text(chart.name)}-data">{as_json(plain(packed))}</script>'


def _without_data(node: Any, store: Store, datasets: dict[str, Any]) -> Any:
    """A specification whose rows are in the store, and their place in `datasets`."""
    if isinstance(node, Mapping):
        found = {}
        for key, value in node.items():
            if key == "data" and isinstance(value, Mapping) and _are_rows(value.get("values")):
                name = f"rows{len(datasets)}"
                datasets[name] = store.rows(value["values"])
                found[key] = {**{k: v for k, v in value.items() if k != "values"}, "name": name}
            elif key == "datasets" and isinstance(value, Mapping):
                datasets |= {name: store.rows(rows) for name, rows in value.items()}
            else:
                found[key] = _without_data(value, store, datasets)
        return found
    return [_without_data(one, store, datasets) for one in node] if isinstance(node, list | tuple) else node


def _are_rows(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(row, Mapping) for row in values)


def plain(value: Any) -> Any:
    """A specification in JSON's own types; a number that is none is null."""
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def listed(lines: Sequence[str], kind: str) -> str:
    """A list of lines, or nothing where there are none.

    >>> listed(["a < b"], "notes")
    '<ul class="notes"><li>a &lt; b</li></ul>'
    """
    items = "".join(f"<li>{text(line)}</li>" for line in lines if line)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def section(name: str, title: str, body: str) -> str:
    """A part of the page under a heading."""
    heading = f'<h2 id="{name}-h">{text(title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-h">{heading}{body}</section>'


def group(filled: Filled, name: str, store: Store) -> str:
    """The charts of an entry: below one another, side by side, or one at a time with a switch."""
    figures = [figure(chart, store) for chart in filled.charts]
    if filled.entry.choose and len(figures) > 1:
        titles = [chart.title for chart in filled.charts]
        options = "".join(
            f'<label><input type="radio" name="{name}" value="{text(chart.name)}"{" checked" * (not place)}>'
            f"<span>{text(short)}</span></label>"
            for place, (chart, short) in enumerate(zip(filled.charts, differing(titles), strict=True))
        )
        legend = f"<legend>{text(filled.entry.choose)}</legend>"
        switch = f'<fieldset class="switch" hidden>{legend}<div class="options">{options}</div></fieldset>'
        return f'<div class="one-of">{switch}{"".join(figures)}</div>'
    return f'<div class="{"narrow" if filled.entry.narrow else "wide"}">{"".join(figures)}</div>'


def differing(titles: Sequence[str]) -> list[str]:
    """What of some titles differs, in whole words.

    >>> differing(["Groups of ifca over time", "Groups of fesem k=4 over time"])
    ['ifca', 'fesem k=4']
    >>> differing(["Ann's work", "Bob's work"])
    ['Ann', 'Bob']
    """
    words = [title.split() for title in titles]
    front = len(list(takewhile(lambda same: len(set(same)) == 1, zip(*words, strict=False))))
    back = len(
        list(takewhile(lambda same: len(set(same)) == 1, zip(*(one[::-1] for one in words), strict=False)))
    )
    short = [" ".join(one[front : len(one) - back]) for one in words]
    if all(one.endswith("'s") for one in short):
        short = [one.removesuffix("'s") for one in short]
    return short if all(short) else list(titles)
