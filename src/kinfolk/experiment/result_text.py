"""What a finished run looks like in Python: a line, and in notebooks a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from kinfolk.markup import as_html
from kinfolk.progress import headline
from kinfolk.scores import about, over

if TYPE_CHECKING:
    from kinfolk.experiment.run import Result

OVER = {"macro": "mean over clients", "micro": "over all rows", "worst": "worst client"}


def result_line(result: Result) -> str:
    """The run in a line; the models themselves would fill pages."""
    said = [result.title, result.reason, headline(result.summary), f"folder {str(result.folder)!r}"]
    return ", ".join(filter(None, said))


def result_html(result: Result) -> str:
    """A row for each scored model and score."""
    table = Table("model", "score", *OVER.values(), title=Text(f"{result.title}: {result.reason}"))
    for model, scores in result.summary.items():
        for score, by in scores.items():
            cells = (_shown(by.get(over), score) for over in OVER)
            whose = ", ".join(filter(None, (model, over(by))))
            table.add_row(Text(whose), Text(about(score).title), *map(Text, cells))
    return as_html(table, Text(f"folder: {result.folder}"))


def _shown(value: Any, score: str) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:.1%}" if about(score).percent else f"{value:.4g}"
