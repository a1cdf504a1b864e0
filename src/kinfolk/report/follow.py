"""Run folders that another process writes, read again and again for little: only what is new.

`rounds.jsonl` and `audit.jsonl` only grow; what was read of them is not read again, unless a run has gone
back and written one anew. Small files are read when they have changed. Records of clients are never opened:
means over clients stand in `rounds.jsonl`. Of a thousand rounds, a look that finds nothing new asks the
system about four files.
"""

from __future__ import annotations

import math
import os
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import readable, readable_json
from kinfolk.live.standing import RUNNING, WAITING, Standing, named
from kinfolk.lock import is_written
from kinfolk.report.read import is_name
from kinfolk.report.status import as_it_is
from kinfolk.scores import learn

# What is told of the audit trail, in this order.
AMISS = ("rejected", "refused", "silent", "absent", "void", "warning", "unreadable")
# Bytes at the end of what was read by which a file that was written anew is told from one that has grown.
LAST = 256


class Tail:
    """The lines that have come to a file since it was last read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "rounds.jsonl"
    ...     tail = Tail(path)
    ...     _ = path.write_text('{"round": 1}\\n{"rou')
    ...     first = tail.new()
    ...     _ = path.write_text('{"round": 1}\\n{"round": 2}\\n')
    ...     first, tail.new(), tail.new()
    ((True, [b'{"round": 1}']), (False, [b'{"round": 2}']), (False, []))
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.at = 0  # how much was read, up to the end of a line
        self.seen: tuple[int, ...] | None = None
        self.end = b""

    def new(self) -> tuple[bool, list[bytes]]:
        """Whether the file is another one than before, so that all is to be forgotten, and its new lines."""
        try:
            now = os.stat(self.path)
            sign = (now.st_ino, now.st_size, now.st_mtime_ns)
            if sign == self.seen:
                return False, []
            with self.path.open("rb") as file:
                anew = not self._grown(file)
                file.seek(self.at)
                lines = file.read()
        except OSError:
            anew, self.at, self.end, self.seen = self.seen is not None, 0, b"", None
            return anew, []
        whole = lines.rfind(b"\n") + 1
        self.end = (self.end + lines[:whole])[-LAST:]
        self.at += whole
        self.seen = sign
        return anew, lines[:whole].split(b"\n")[:-1]

    def _grown(self, file: Any) -> bool:
        """Whether what was read still stands there; if not, reading begins at the start."""
        if self.seen is not None:
            file.seek(self.at - len(self.end))
            if file.read(len(self.end)) == self.end:
                return True
        self.at, self.end = 0, b""
        return False


class Changing:
    """A small file that is read when it has changed; what it held before, while it cannot be read."""

    def __init__(self, path: Path, parse: Callable[[str], dict[str, Any]]) -> None:
        self.path, self.parse = path, parse
        self.seen: tuple[int, ...] | None = None
        self.held: dict[str, Any] = {}

    def look(self, anyway: bool = False) -> dict[str, Any]:
        """What the file holds."""
        try:
            now = os.stat(self.path)
            sign = (now.st_ino, now.st_size, now.st_mtime_ns)
            if anyway or sign != self.seen:
                held = self.parse(self.path.read_text(encoding="utf-8"))
                self.held, self.seen = held if isinstance(held, dict) else {}, sign
        except (OSError, ValueError, RecursionError):
            pass
        return self.held


class FollowedRun:
    """One run folder, as far as it is written."""

    def __init__(self, folder: Path, title: str = "", seed: int = 0) -> None:
        self.folder = folder
        self.named = title, seed
        self.run = Changing(folder / "run.json", readable_json)
        self.spec = Changing(folder / "spec.toml", tomllib.loads)
        self.rounds, self.trail = Tail(folder / "rounds.jsonl"), Tail(folder / "audit.jsonl")
        self.facts: dict[str, Any] = {}
        self.standing = Standing(title, seed)
        self.amiss: Counter[str] = Counter()
        self.warning = ""  # the last one
        self.extra = 0.0  # rounds' worth of training beyond the rounds

    def look(self) -> bool:
        """Read what is new; whether anything was."""
        before = dict(self.facts)
        facts = self.run.look()
        self.facts = dict(as_it_is(self.folder, facts, lambda: self.run.look(anyway=True)))
        changed = self.facts != before
        if changed and self.facts:
            readable(self.folder, self.facts)
            learn({name: named(about) for name, about in named(self.facts.get("scores")).items()})
        changed |= self._rounds() | self._audit()
        if self.facts:
            self._tell()
        return changed

    def _rounds(self) -> bool:
        anew, lines = self.rounds.new()
        if anew:
            self.standing, self.extra = Standing(*self.named), 0.0
        for line in lines:
            fact = _parsed(line)
            if isinstance(fact.get("round"), int):
                self.standing.round(fact)
                if isinstance(fact.get("summary"), dict):
                    self.standing.evaluated(fact["round"], fact["summary"])
                self.extra += _number(fact.get("extra"))
        return anew or bool(lines)

    def _audit(self) -> bool:
        anew, lines = self.trail.new()
        if anew:
            self.amiss, self.warning = Counter(), ""
        for line in filter(None, lines):
            fact = _parsed(line)
            event = str(fact.get("event", "unreadable"))
            self.amiss[event] += 1
            if event == "warning":
                self.warning = str(fact.get("text", ""))
        return anew or bool(lines)

    def _tell(self) -> None:
        one, facts = self.standing, self.facts
        one.title, one.seed = (
            str(facts.get("title") or facts.get("algorithm") or self.named[0]),
            _whole(facts.get("seed")),
        )
        one.status, one.reason = str(facts.get("status", "finished")), str(facts.get("reason") or "")
        rounds = _whole(named(self.spec.look().get("run")).get("rounds"))
        left = math.floor(rounds - one.done - self.extra + 1e-9)
        one.rounds = one.done if one.ended else one.done + max(left, 0)


class Followed:
    """A run folder, a comparison or a folder of run folders, which may not be there yet.

    >>> Followed(Path("nowhere")).look(), Followed(Path("nowhere")).over
    (False, False)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.single = False
        self.runs: dict[str, FollowedRun] = {}
        self.compared = Changing(folder / "compare.json", readable_json)

    def look(self) -> bool:
        """Read what is new; whether anything was."""
        if not self.folder.exists():
            return False
        names = self._names()
        changed = names != list(self.runs)
        self.runs = {name: self.runs.get(name) or self._begin(name) for name in names}
        for run in self.runs.values():
            changed |= run.look()
        titles = {
            name.rpartition("-seed")[0]: run.standing.title for name, run in self.runs.items() if run.facts
        }
        for name, run in self.runs.items():
            if not run.facts:  # it has not begun; others of its method have a title
                run.standing.title = titles.get(name.rpartition("-seed")[0], run.standing.title)
        return changed

    @property
    def standings(self) -> list[Standing]:
        """Where the runs stand, in order."""
        return [run.standing for run in self.runs.values()]

    @property
    def over(self) -> bool:
        """Whether nothing more will come: nobody writes, and no run is running or yet to come."""
        if not self.runs:
            return False
        going = [one for one in self.standings if one.status == RUNNING]
        waiting = [one for one in self.standings if one.status == WAITING]
        written = is_written(self.folder)
        # Where a comparison has no lock to ask, runs that have not begun may still do so.
        return not going and not (waiting and written is None) and (self.single or not written)

    def _names(self) -> list[str]:
        if (self.folder / "run.json").is_file():
            self.single = True
            return [""]
        facts = self.compared.look()
        readable(self.folder, facts)
        if self.compared.seen is not None:
            names = facts.get("runs")
            found = [name for name in names if is_name(name)] if isinstance(names, list) else []
            if not found:  # nothing would ever come
                remedy = "must list the names of run folders"
                raise KinfolkError("runs", str(self.compared.path), remedy)
            return found
        return sorted(path.parent.name for path in self.folder.glob("*/run.json"))

    def _begin(self, name: str) -> FollowedRun:
        title, _, seed = name.rpartition("-seed")
        return FollowedRun(self.folder / name, title or name, int(seed) if seed.isdecimal() else 0)


def _parsed(line: bytes) -> dict[str, Any]:
    """One line; nothing of one that a crash has torn."""
    try:
        fact = readable_json(line.decode())
    except (ValueError, RecursionError):
        return {}
    return fact if isinstance(fact, dict) else {}


def _number(value: Any) -> float:
    return value if isinstance(value, int | float) and math.isfinite(value) else 0.0


def _whole(value: Any) -> int:
    return int(_number(value))
