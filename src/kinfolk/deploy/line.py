"""A session with the server that stays open; where the server was away, another is opened in its place.

A session costs a second or two, and a keeper looks every second.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from kinfolk.deploy.submit import session

Say = Callable[[str], None]


class Line:
    """Asks the server, as often as it takes; `pause` is called between two tries."""

    def __init__(self, kit: Path, patience: float, say: Say, pause: Callable[[], object]) -> None:
        self.kit, self.patience, self.say, self.pause = kit, patience, say, pause
        self._stack = ExitStack()
        self._opened: Any = None

    def ask(self, what: Callable[..., Any], *given: Any, patience: float | None = None) -> Any:
        """What `what` gets of an open session. An error stands after `patience` seconds."""
        until = time.monotonic() + (self.patience if patience is None else patience)
        told = ""
        while True:
            try:
                if self._opened is None:
                    self._opened = self._stack.enter_context(session(self.kit))
                return what(self._opened, *given)
            except Exception as error:
                self._hang_up()
                if time.monotonic() >= until:
                    raise
                if told != (told := type(error).__name__):
                    self.say(f"the server does not answer ({told}); trying again")
                self.pause()

    def _hang_up(self) -> None:
        self._opened = None
        with suppress(Exception):  # it has hung up itself
            self._stack.close()

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *error: object) -> None:
        self._hang_up()
