"""`kinfolk show RUN --follow`: how runs go on that another process may be performing."""

from __future__ import annotations

import time
from pathlib import Path

from rich.console import Console
from rich.constrain import Constrain
from rich.live import Live

from kinfolk.cli.shared import out
from kinfolk.errors import KinfolkError
from kinfolk.live.standing import RUNNING, WAITING
from kinfolk.report.follow import Followed
from kinfolk.report.follow_view import line, view

# Seconds between two looks, and at least between two lines about a run where there is no terminal.
LOOK, PAUSE = 1.0, 5.0


def follow(folder: Path, quiet: bool = False) -> None:
    """Show how the runs in a folder go on until they have ended; it may not be there yet."""
    if folder.exists() and not folder.is_dir():
        raise KinfolkError("run", str(folder), "is not a folder; name a run folder or a comparison folder")
    console, followed = out(), Followed(folder)
    if quiet:
        while not _ended(followed):
            time.sleep(LOOK)
    elif console.is_terminal:
        _draw(followed, console)
    else:
        _print_lines(followed)


def _ended(followed: Followed) -> bool:
    followed.look()
    return followed.over


def _draw(followed: Followed, console: Console) -> None:
    """On a terminal: drawn again when something has changed, the terminal's size for instance."""
    with Live(view(followed), console=console, auto_refresh=False, transient=True) as live:
        try:
            size = console.size
            while True:
                if followed.look() or console.size != size:
                    size = console.size
                    # The ^C that a terminal shows would wrap at its edge, and push the picture down.
                    live.update(Constrain(view(followed), console.width - 2), refresh=True)
                if followed.over:
                    return
                time.sleep(LOOK)
        except BaseException:
            live.transient = False  # the last picture stays: no table comes after it
            raise


def _print_lines(followed: Followed) -> None:
    """Elsewhere, for a log: line by line."""
    if not followed.look() and not followed.runs:
        print(view(followed), flush=True)
    lines = Lines()
    while True:
        for text in lines.new(followed):
            print(text, flush=True)
        if followed.over:
            return
        time.sleep(LOOK)
        followed.look()


class Lines:
    """A line about every run whose status has changed, and now and then about those that go on."""

    def __init__(self) -> None:
        self.status: dict[tuple[str, int], str] = {}
        self.spoke = float("-inf")

    def new(self, followed: Followed) -> list[str]:
        """What there is to say now."""
        now, found = time.monotonic(), []
        due = now - self.spoke >= PAUSE
        for one in followed.standings:
            key = (one.title, one.seed)
            changed = self.status.get(key, WAITING) != one.status
            if changed or (due and one.status == RUNNING):
                found.append(line(one))
                self.spoke, self.status[key] = now, one.status
        return found
