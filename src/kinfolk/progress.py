"""Progress: on a terminal a bar with the time left, of several runs a table; in notebooks a changing line,
plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from kinfolk.live.standing import Standing, groups_text, main_score
from kinfolk.live.table import RunsTable
from kinfolk.live.text import score_text

# Plain lines come at most this often, in seconds.
PAUSE = 5.0


class ProgressReporter:
    """Tells how one or several runs go on."""

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self.quiet = total, quiet
        self.console = Console(stderr=True)
        self.done, self.began, self.spoke = 0, time.monotonic(), time.monotonic()
        self.bar: Progress | None = None
        self.task: Any = None
        self.table: RunsTable | None = None
        self.line = 0  # in a notebook, the length of the line that is written again and again
        self.said: set[str] = set()

    def watch(self, name: str, rounds: int = 0) -> Any:
        """A listener for the run called `name`; of all rounds so many are its own, else its `run.rounds`."""
        seen, own = [0], [rounds]
        hear = self.table.listener() if self.table is not None else None

        def listen(event: str, facts: dict[str, Any]) -> None:
            if hear is not None:
                hear(event, facts)
            if event == "engine":
                own[0] = own[0] or facts["rounds"]
                self._once(f"engine: {facts['note']} ({facts['why']})")
                if facts["warning"]:
                    self._once(f"warning: {facts['warning']}")
            elif event == "warning":
                self._say(f"warning: {facts['text']}")
            elif event == "resume":
                self._say(f"{name}: going on after round {facts['round']}")
                self._forward(facts["round"] - seen[0], name, {})
                seen[0] = facts["round"]
            elif event == "round":
                # A start takes of a run's budget: fewer rounds are left then.
                self.total += facts["rounds"] - own[0]
                own[0] = facts["rounds"]
                self._forward(facts["round"] - seen[0], name, facts)
                seen[0] = facts["round"]
            elif event == "end" and facts["reason"]:
                self._forward(0, name, {})

        return listen

    def _forward(self, rounds: int, name: str, facts: dict[str, Any]) -> None:
        self.done += rounds
        if self.table is not None:
            return
        told = headline(facts.get("summary") or {}, model=self.bar is None)  # which a bar has no room for
        score = ", ".join(filter(None, [told, groups_text(facts.get("groups") or {})]))
        if self.bar is not None:
            self.bar.update(self.task, completed=self.done, total=self.total, description=name, score=score)
            return
        now = time.monotonic()
        left = (now - self.began) / max(self.done, 1) * (self.total - self.done)
        if self.console.is_jupyter and not self.quiet:
            self._write_again(f"{name}: {_drawn(self.done, self.total)} {score}, {left:.0f} s left")
        elif now - self.spoke >= PAUSE and facts:
            self._say(f"{name}: round {facts['round']}/{facts['rounds']} {score}, {left:.0f} s left")
            self.spoke = now

    def _write_again(self, text: str) -> None:
        """Put a line in the place of the one before it."""
        print("\r" + text.ljust(self.line), end="", file=sys.stderr, flush=True)
        self.line = len(text)

    def _once(self, text: str) -> None:
        if text not in self.said:
            self.said.add(text)
            self._say(text)

    def _say(self, text: str) -> None:
        if self.quiet and not text.startswith("warning"):
            return
        if self.bar is not None or self.table is not None:
            self.console.print(text, markup=False, highlight=False)
        else:
            print("\n" * bool(self.line) + text, file=sys.stderr, flush=True)
            self.line = 0

    def close(self) -> None:
        """End the line that was written again and again."""
        if self.line:
            print(file=sys.stderr, flush=True)


def interactive() -> bool:
    """Whether somebody is watching: on a terminal, or in a notebook."""
    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


@contextmanager
def telling(
    total: int, quiet: bool = False, runs: Sequence[tuple[str, int]] = ()
) -> Iterator[ProgressReporter]:
    """Tell of `total` rounds; on a terminal by a bar, or by a table of `runs`, each a title and a seed."""
    teller = ProgressReporter(total, quiet)
    if quiet or not teller.console.is_terminal:
        with closing(teller):
            yield teller
    elif runs:
        teller.table = RunsTable(Standing(title, seed) for title, seed in runs)
        with Live(teller.table, console=teller.console, refresh_per_second=2, transient=True) as live:
            try:
                yield teller
            except BaseException:
                live.transient = False  # no better table will take its place
                raise
    else:
        with Progress(*_columns(teller.console.width), console=teller.console) as bar:
            teller.bar, teller.task = bar, bar.add_task("starting", total=total, score="")
            yield teller


def _columns(width: int) -> tuple[ProgressColumn, ...]:
    """A bar and what stands beside it; where it is narrow, the score is cut, and not the numbers."""
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20 if width >= 80 else 8),
        MofNCompleteColumn(table_column=Column(no_wrap=True, min_width=7)),
        TimeRemainingColumn(table_column=Column(no_wrap=True, min_width=7)),
        TextColumn("{task.fields[score]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
    )


def _drawn(done: int, total: int, width: int = 20) -> str:
    """A bar of letters.

    >>> _drawn(5, 20)
    '5/20 [#####...............]'
    """
    filled = min(width, width * done // max(total, 1))
    return f"{done}/{total} [{'#' * filled}{'.' * (width - filled)}]"


def headline(summary: dict[str, Any], model: bool = True) -> str:
    """The main score of the main model, in a few words; with its name, or without.

    >>> summary = {"centre": {"accuracy": {"macro": 0.871}}}
    >>> headline(summary), headline(summary, model=False)
    ('accuracy 87.1% (centre)', 'accuracy 87.1%')
    >>> headline({"centre": {"accuracy": {"macro": 0.871, "clients": 5, "lost": 7}}})
    'accuracy 87.1% (centre, 5 of 12 clients)'
    """
    found = main_score(summary)
    if found is None:
        return ""
    kind, score, over = found
    lost, heard = over.get("lost") or 0, over.get("clients") or 0
    whose = [kind] * model + [f"{heard} of {heard + lost} clients"] * bool(lost)
    told = f" ({', '.join(whose)})" if whose else ""
    return f"{score} {score_text(over['macro'], score)}{told}"
