"""Progress: a bar with the time left on a terminal, a changing line in notebooks, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

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
        self.line = 0  # in a notebook, the length of the line that is written again and again
        self.said: set[str] = set()

    def watch(self, name: str, rounds: int = 0) -> Any:
        """A listener for the run called `name`; of all rounds so many are its own, else its `run.rounds`."""
        seen, own = [0], [rounds]

        def listen(event: str, facts: dict[str, Any]) -> None:
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
        score = headline(facts.get("summary") or {})
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
        if self.bar is not None:
            self.bar.console.print(text, markup=False, highlight=False)
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
def telling(total: int, quiet: bool = False) -> Iterator[ProgressReporter]:
    """Tell of `total` rounds; a bar appears only on a terminal."""
    teller = ProgressReporter(total, quiet)
    if quiet or not teller.console.is_terminal:
        with closing(teller):
            yield teller
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[score]}"),
    )
    with Progress(*columns, console=teller.console) as bar:
        teller.bar, teller.task = bar, bar.add_task("starting", total=total, score="")
        yield teller


def _drawn(done: int, total: int, width: int = 20) -> str:
    """A bar of letters.

    >>> _drawn(5, 20)
    '5/20 [#####...............]'
    """
    filled = min(width, width * done // max(total, 1))
    return f"{done}/{total} [{'#' * filled}{'.' * (width - filled)}]"


def headline(summary: dict[str, Any]) -> str:
    """The main score of the main model, in a few words.

    >>> headline({"centre": {"accuracy": {"macro": 0.871}}})
    'accuracy 87.1% (centre)'
    >>> headline({"centre": {"accuracy": {"macro": 0.871, "clients": 5, "lost": 7}}})
    'accuracy 87.1% (centre, 5 of 12 clients)'
    """
    for kind, scores in summary.items():
        for score in ("accuracy", "mse", "loss"):
            if score in scores and scores[score]["macro"] is not None:
                value, lost = scores[score]["macro"], scores[score].get("lost", 0)
                heard = scores[score].get("clients", 0)
                whose = f"{kind}, {heard} of {heard + lost} clients" if lost else kind
                told = f"{value:.1%}" if score == "accuracy" else f"{value:.4g}"
                return f"{score} {told} ({whose})"
    return ""
