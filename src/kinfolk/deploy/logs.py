"""Logs for machines: a line of JSON for each event, and nothing in it that could be private.

Only what stands in `KINDS` is written, as numbers or plain words: no text of an error, no row, no path.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from kinfolk.codec import head
from kinfolk.errors import KinfolkError
from kinfolk.experiment.run import Watch
from kinfolk.private import private_file

# Where the lead writes its log: in the environment of the server's start script.
VARIABLE = "KINFOLK_LOG"
# What a line may hold besides its time and event.
KINDS = {
    **dict.fromkeys(("site", "run", "do", "task", "error", "state", "late", "left", "back"), "word"),
    **dict.fromkeys(("round", "rounds", "answered", "asked", "code", "got", "sent", "seconds"), "number"),
    **dict.fromkeys(("heard", "void"), "number"),
    **dict.fromkeys(("bytes", "phases"), "numbers"),
    "sites": "words",
}
_WORD = re.compile(r"[A-Za-z0-9_. @-]{1,64}")


class Log(Protocol):
    """Takes an event and its facts."""

    def __call__(self, event: str, **facts: Any) -> None:
        """Write it down."""
        ...


def no_log(event: str, **facts: Any) -> None:
    """Write nothing."""


def log_to(path: str | Path | None) -> Log:
    """A log into a file, which several processes may write at once; nothing without one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     log_to(Path(folder) / "log")("request", site="north", got=12, row=[31, "no"], task="up\\ndate")
    ...     {k: v for k, v in json.loads((Path(folder) / "log").read_text()).items() if k != "time"}
    {'event': 'request', 'site': 'north', 'got': 12, 'task': '?'}
    """
    if path is None:
        return no_log
    file = str(path)

    def log(event: str, **facts: Any) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"time": now, "event": event, **_harmless(facts)}
        with open(file, "ab", buffering=0, opener=private_file) as out:
            out.write(json.dumps(line).encode() + b"\n")

    return log


def logged(answer: Callable[[bytes], bytes], log: Log) -> Callable[[bytes], bytes]:
    """A site's door with a line for each request: what was asked, bytes, seconds and the kind of error."""
    if log is no_log:
        return answer

    def told(data: bytes) -> bytes:
        began = time.monotonic()
        back = answer(data)
        seconds, asked, said = time.monotonic() - began, _head(data), _head(back)
        facts: dict[str, Any] = {"do": asked.get("do"), "round": asked.get("round")}
        facts["task"] = asked.get("task", asked.get("swap"))
        if "error" in said:  # of an agreement that is refused it says more, and perhaps what is here
            facts["error"] = (
                said["error"] if len(said["error"]) < 40 and "=" not in said["error"] else "refused"
            )
        log("request", got=len(data), sent=len(back), seconds=round(seconds, 4), **facts)
        return back

    return told


def events(run: str, log: Log) -> Watch:
    """Writes down what the lead hears of its run."""

    def watch(event: str, facts: Mapping[str, Any]) -> None:
        if event == "round":
            sent = {
                f"{kind}.{way}": n for kind, ways in facts.get("bytes", {}).items() for way, n in ways.items()
            }
            own = {"asked": facts.get("cohort"), "bytes": sent, "phases": facts.get("seconds")}
            same = ("round", "rounds", "answered", "void")
            log(event, run=run, **{key: facts[key] for key in same if key in facts}, **own)
        elif event == "warning":
            log("site", run=run, **{how: facts[how] for how in ("late", "left", "back") if how in facts})
        elif event == "end":
            log(event, run=run, state=facts.get("status"))
        elif event in ("engine", "resume", "checkpoint", "delivered"):
            log(event, run=run, **{key: facts[key] for key in ("round", "rounds", "sites") if key in facts})

    return watch


def _head(data: bytes) -> dict[str, str]:
    try:
        return head(data)
    except KinfolkError:
        return {}


def _harmless(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What of some facts may be written, each by its kind."""
    found = {key: _as(KINDS[key], value) for key, value in facts.items() if key in KINDS}
    return {key: value for key, value in found.items() if value is not None}


def _as(kind: str, value: Any) -> Any:
    if kind == "word":
        return value if isinstance(value, str) and _WORD.fullmatch(value) else None if value is None else "?"
    if kind == "words":
        return [_as("word", one) for one in value]
    if kind == "numbers":
        return {str(_as("word", key)): _as("number", n) for key, n in value.items()} if value else None
    if isinstance(value, str) and value.isdecimal() and len(value) < 16:
        return int(value)
    return value if isinstance(value, int | float) else None
