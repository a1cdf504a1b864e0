"""A table that loses nothing: where it is too wide for its place, names wrap first, then numbers."""

from __future__ import annotations

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

# Columns of names get room for their longest word up to the first of these, the space beside it included, or
# else up to the next: the narrower, the harder to read.
LEAST = (16, 12, 9, 6)


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
        before, edge = [(column.width, column.no_wrap) for column in self.columns], self.show_edge
        for column in self.columns:
            column.overflow = "fold"
        self._fit(console, options)
        yield from super().__rich_console__(console, options)
        for column, (width, no_wrap) in zip(self.columns, before, strict=True):
            column.width, column.no_wrap = width, no_wrap  # another place may be wider
        self.show_edge = edge

    def _fit(self, console: Console, options: ConsoleOptions) -> None:
        """Give each column its width: numbers stay on one line, then at least whole, as long as that fits."""
        wide = options.update_width(10_000)
        most = [self._measure_column(console, wide, column).maximum for column in self.columns]
        if sum(most) <= options.max_width - self._extra_width:
            return
        self.show_edge = self.show_edge and self.box is not box.SIMPLE_HEAD  # there it is two blanks
        room = options.max_width - self._extra_width
        if sum(most) <= room:
            return
        fixed = [column.no_wrap for column in self.columns]
        for column in self.columns:
            column.no_wrap = False
        words = [self._measure_column(console, wide, column).minimum for column in self.columns]
        number = [f or c.justify == "right" for f, c in zip(fixed, self.columns, strict=True)]
        whole = [[w if n else min(w, least) for w, n in zip(words, number, strict=True)] for least in LEAST]
        one_line = [m if f else w for m, f, w in zip(most, fixed, whole[0], strict=True)]
        least = next((widths for widths in (one_line, *whole) if sum(widths) <= room), whole[-1])
        while sum(least) > room and max(least) > 1:  # Rich would let go of the names altogether
            least[least.index(max(least))] -= 1
        self._spread(least, most, number, room)

    def _spread(self, least: list[int], most: list[int], number: list[bool], room: int) -> None:
        """What is left goes to numbers that then stay on one line, and to the names that lack most."""
        widths = list(least)
        lack = sorted((most[i] - least[i], i) for i, is_number in enumerate(number) if is_number)
        for more, i in lack:
            widths[i] += more if more <= room - sum(widths) else 0
        names = [i for i, is_number in enumerate(number) if not is_number]
        for _ in range(room - sum(widths) if names else 0):
            widths[max(names, key=lambda i: most[i] - widths[i])] += 1
        for i, column in enumerate(self.columns):
            column.width = min(widths[i], most[i]) - self._get_padding_width(i)
