"""Work that Ctrl-C and SIGTERM wait for: a process is begun and known to its parent, or neither."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


@contextmanager
def held_back() -> Iterator[None]:
    """Within, Ctrl-C and SIGTERM are noted; afterwards this program's own handlers hear of them.

    A handler may raise anywhere. Between a fork and the note of it that would leave a process that nobody
    ends; and the process itself, which has the handlers too until it has set its own, would die of it with a
    traceback. What it notes in their place, nobody reads: whoever ends the parent's run ends it as well.

    >>> with held_back():
    ...     handler = signal.getsignal(signal.SIGINT)
    >>> handler is signal.getsignal(signal.SIGINT)
    False
    """
    heard: list[tuple[Any, int, Any]] = []
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with ExitStack() as after:
        after.callback(lambda: [handler(number, frame) for handler, number, frame in heard])
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number)
            if callable(handler):  # not the system's own, which raises nothing
                after.callback(signal.signal, number, handler)
                signal.signal(number, _noting(heard, handler))
        yield


def _noting(heard: list[tuple[Any, int, Any]], handler: Any) -> Callable[[int, Any], None]:
    return lambda number, frame: heard.append((handler, number, frame))
