"""Several runs that go on, as a table: a row for each method, its seeds together."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from kinfolk.live.standing import RUNNING, WAITING, Standing, groups_text
from kinfolk.live.text import BLOCKS, PLAIN, clock, score_text, sparkline
from kinfolk.scores import about

CURVE = 10  # letters of a curve
# No narrower, so that columns stay where they are while numbers change.
LEAST = {"curve": CURVE, "worst": 6, "left": 7, "round": 7}
# Where a terminal is too narrow for all columns, these go one after the other; names keep so many letters.
DROPPED = ("s/round", "worst", "curve", "seeds", "left")
NAME = 12
# Lines of the terminal that are not for rows: heads, what is below the table, and the next prompt.
BESIDE = 6


class RunsTable:
    """Where runs stand; Rich prints it in any width.

    >>> one, two = Standing("local", 0, rounds=20), Standing("fedavg", 0, rounds=20)
    >>> table = RunsTable([one, two])
    >>> one.hear("engine", {"rounds": 20})
    >>> one.evaluated(0, {"personal": {"accuracy": {"macro": 0.25, "worst": 0.1}}})
    >>> console = Console(width=80)
    >>> with console.capture() as text:
    ...     console.print(table)
    >>> [line.split() for line in text.get().splitlines()[:3]]  # doctest: +NORMALIZE_WHITESPACE
    [['method', 'seeds', 'round', 'accuracy', '%', 'worst', 'curve', 's/round', 'left'],
     ['local', '0/1', '0/20', '25.0', '10.0', '▁', '-', '-'],
     ['fedavg', '0/1', '-', '-', '-', '-', 'waiting']]
    """

    def __init__(self, runs: Iterable[Standing]) -> None:
        self.runs = list(runs)
        self.lock = Lock()  # runs are told of in one thread and drawn in another

    def listener(self) -> Callable[[str, Mapping[str, Any]], None]:
        """What hears the events of one run, whichever of these it turns out to be."""
        mine: list[Standing] = []

        def hear(event: str, facts: Mapping[str, Any]) -> None:
            with self.lock:
                if event == "engine":
                    mine[:] = [
                        one for one in self.runs if (one.title, one.seed) == (facts["title"], facts["seed"])
                    ]
                    for one in self.runs:
                        if one.status == RUNNING:  # it has ended without a word
                            one.status = "broke down"
                for one in mine:
                    one.hear(event, facts)

        return hear

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if not self.runs:
            return
        with self.lock:
            methods = [_Method(title, runs) for title, runs in by_title(self.runs).items()]
            low, high = _ends(self.runs)
            shown, above, below = _window(methods, (options.max_height or console.height) - BESIDE)
            marks = PLAIN if options.ascii_only else BLOCKS
            cells = [one.cells(low, high, marks) for one in shown]
            styles = [one.style for one in shown]
            under = self._under()
            score = next((one.score for one in self.runs if one.score), "score")
        heads = {name: name for name in cells[0]} | {"score": score + " %" * about(score).percent}
        yield _fitted(heads, cells, styles, options.max_width)
        hidden = [f"{many} more {what}" for many, what in ((above, "above"), (below, "below")) if many]
        for line in [*([", ".join(hidden)] if hidden else []), under]:
            yield Text(line, style="dim")

    def _under(self) -> str:
        """What is below the table: how many runs are done, the time left, and the run that is going on."""
        done, left = sum(one.ended for one in self.runs), time_left(self.runs)
        said = [f"{done} of {len(self.runs)} runs done"] + [f"about {clock(left)} left"] * (left > 0)
        running = [one for one in self.runs if one.status == RUNNING]
        for one in running[:1]:
            groups = groups_text(one.groups)
            more = f" and {len(running) - 1} more" if running[1:] else ""
            said.append(f"now {one.title} seed {one.seed}{more}" + f": {groups}" * bool(groups))
        return "; ".join(said)


@dataclass
class _Method:
    """One row: the runs of a method, which differ by their seeds."""

    title: str
    runs: Sequence[Standing]

    @property
    def ended(self) -> bool:
        return all(one.ended for one in self.runs)

    @property
    def begun(self) -> Sequence[Standing]:
        return [one for one in self.runs if one.status != WAITING]

    @property
    def style(self) -> str:
        if any(one.status == RUNNING for one in self.runs):
            return "bold"
        return "" if self.begun else "dim"

    def cells(self, low: float, high: float, marks: str) -> dict[str, str]:
        """The row by the names of its columns: means over seeds that have ended, else the first one's."""
        last = self.begun[-1] if self.begun else self.runs[0]
        score = next((one.score for one in self.runs if one.score), "")
        whole = [one for one in self.runs if one.status == "finished" and one.curve] or [last]
        return {
            "method": self.title,
            "seeds": f"{sum(one.ended for one in self.runs)}/{len(self.runs)}",
            "round": f"{last.done}/{last.rounds}" if self.begun else "-",
            "score": score_text(_mean(one.value for one in whole), score, unit=False),
            "worst": score_text(_mean(one.worst for one in whole), score, unit=False),
            "curve": sparkline([value for value, _ in last.curve.values()], CURVE, low, high, marks),
            "s/round": _short(_mean(one.seconds_per_round for one in self.begun)),
            "left": self._left(),
        }

    def _left(self) -> str:
        if not self.begun:
            return WAITING
        if not self.ended:
            return clock(time_left(self.runs))
        wrong = [one.status for one in self.runs if one.status != "finished"]
        return wrong[0] if wrong else "done"


def by_title(runs: Iterable[Standing]) -> dict[str, list[Standing]]:
    """Runs by their title, in the order met.

    >>> found = by_title([Standing("a", 0), Standing("b", 0), Standing("a", 1)])
    >>> {title: [one.seed for one in runs] for title, runs in found.items()}
    {'a': [0, 1], 'b': [0]}
    """
    found: dict[str, list[Standing]] = {}
    for one in runs:
        found.setdefault(one.title, []).append(one)
    return found


def time_left(runs: Sequence[Standing]) -> float:
    """Seconds until all have ended; what has not begun takes as long as others did, of its title first.

    >>> one, two = Standing("local", 0, rounds=20), Standing("local", 1)
    >>> one.hear("engine", {"rounds": 20})
    >>> one.round({"round": 10, "seconds": {"update": 2.0}})
    >>> time_left([one]), time_left([one, two])
    (20.0, 60.0)
    """
    rounds = max((one.rounds for one in runs), default=0)
    usual = {title: _mean(one.pace for one in same) for title, same in by_title(runs).items()}
    anyone = _mean(usual.values())
    left = 0.0
    for one in runs:
        pace = next((p for p in (one.pace, usual[one.title], anyone) if math.isfinite(p)), math.nan)
        left += 0.0 if one.ended else pace * ((one.rounds or rounds) - one.done)
    return left


def _window(methods: list[_Method], room: int) -> tuple[list[_Method], int, int]:
    """The rows there is room for, around the one that is going on; how many are above and below them."""
    room = max(room, 3)
    first = next((i for i, one in enumerate(methods) if not one.ended), len(methods))
    above = max(0, min(first - room // 2, len(methods) - room))
    return methods[above : above + room], above, max(0, len(methods) - above - room)


def _fitted(heads: Mapping[str, str], cells: list[dict[str, str]], styles: list[str], width: int) -> Table:
    """The columns for which there is room, each as wide as it must be."""
    names = list(heads)
    most = {name: max(cell_len(row[name]) for row in [dict(heads), *cells]) for name in names}
    least = {name: max(most[name], LEAST.get(name, 0)) for name in names}
    least["method"] = min(most["method"], NAME)
    for name in DROPPED:
        if sum(least[one] + 1 for one in names) - 1 > width and name in names:
            names.remove(name)
    spare = max(width - sum(least[one] + 1 for one in names) + 1, 0)
    least["method"] = min(most["method"], least["method"] + spare)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for name in names:
        left = name in ("method", "curve")
        head = Text(heads[name], style="dim")
        table.add_column(
            head, width=least[name], no_wrap=True, overflow="ellipsis", justify="left" if left else "right"
        )
    for row, style in zip(cells, styles, strict=True):
        table.add_row(*(Text(row[name]) for name in names), style=style)
    return table


def _ends(runs: Iterable[Standing]) -> tuple[float, float]:
    """The ends of all curves, so that they can be compared."""
    values = [value for one in runs for value, _ in one.curve.values() if math.isfinite(value)]
    return min(values, default=0.0), max(values, default=0.0)


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return sum(known) / len(known) if known else math.nan


def _short(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "-"
    return f"{seconds:.0f}" if 100 <= seconds < 1e5 else f"{seconds:.2g}"
