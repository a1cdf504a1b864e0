"""A table that loses nothing: where it is too wide for its place, names fold first, then numbers wrap."""

from __future__ import annotations

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

# A column of names that is narrower than this, the space beside it included, can hardly be read.
LEAST = 12


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
        before = [(column.width, column.no_wrap) for column in self.columns]
        for column in self.columns:
            column.overflow = "fold"
        self._fit(console, options)
        yield from super().__rich_console__(console, options)
        for column, (width, no_wrap) in zip(self.columns, before, strict=True):
            column.width, column.no_wrap = width, no_wrap  # another place may be wider

    def _fit(self, console: Console, options: ConsoleOptions) -> None:
        """Give each column its width: numbers stay on one line, then at least whole, as long as that fits."""
        room, wide = options.max_width - self._extra_width, options.update_width(10_000)
        most = [self._measure_column(console, wide, column).maximum for column in self.columns]
        if sum(most) <= room:
            return
        fixed = [column.no_wrap for column in self.columns]
        for column in self.columns:
            column.no_wrap = False
        words = [self._measure_column(console, wide, column).minimum for column in self.columns]
        whole = [
            word if no_wrap or column.justify == "right" else min(word, LEAST)
            for column, no_wrap, word in zip(self.columns, fixed, words, strict=True)
        ]
        one_line = [most[i] if fixed[i] else whole[i] for i in range(len(most))]
        for least in (one_line, whole):
            if sum(least) <= room:
                self._spread(least, most, room)
                return
        # Not even that: Rich folds what is widest.

    def _spread(self, least: list[int], most: list[int], room: int) -> None:
        """What is left goes, column by column, to the one that lacks most."""
        widths = list(least)
        for _ in range(room - sum(widths)):
            widths[max(range(len(widths)), key=lambda i: most[i] - widths[i])] += 1
        for i, column in enumerate(self.columns):
            column.width = widths[i] - self._get_padding_width(i)
