"""A table that loses nothing: where it is too wide for its place, names fold first, then everything."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

# A column of words that is narrower than this can hardly be read.
LEAST = 10


class WholeTable(Table):
    """A table whose cells are never cut.

    Rich keeps columns that do not wrap as wide as they are and cuts them, with an ellipsis, once the others
    cannot shrink any more.

    >>> table = WholeTable("name", "a number that must not wrap")
    >>> table.columns[1].no_wrap = True
    >>> table.add_row("n" * 30, "1.23e+09 ± 4e+08")
    >>> console = Console(width=30)
    >>> with console.capture() as text:
    ...     console.print(table)
    >>> "…" in text.get(), text.get().count("n" * 5) > 0
    (False, True)
    """

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for column in self.columns:
            column.overflow = "fold"
        if self._needs(console, options) > options.max_width:
            for column in self.columns:
                column.no_wrap = False
        yield from super().__rich_console__(console, options)

    def _needs(self, console: Console, options: ConsoleOptions) -> int:
        """The width at which every number is on one line and names have some room."""
        wide = options.update_width(10_000)
        most = [self._measure_column(console, wide, column).maximum for column in self.columns]
        least = [
            one if column.no_wrap else min(one, LEAST) for one, column in zip(most, self.columns, strict=True)
        ]
        return sum(least) + self._extra_width
