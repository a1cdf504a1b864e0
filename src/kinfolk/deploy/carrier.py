"""What takes bytes to sites and back: a deployment engine, or threads of this process for trials."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from concurrent.futures import TimeoutError as OutOfTime
from threading import Lock
from typing import Protocol

from kinfolk.types import Client


class Carrier(Protocol):
    """Bytes to sites and back. It reads none of them, and promises neither order nor arrival."""

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """Each site's answer as it comes, or why there is none; after `seconds`, the rest are left out."""
        ...


# Seconds between two tries at a site that has failed.
PAUSE = 0.5
# Seconds that the first try may take; each later one may take twice as long. A message that is lost on a cut
# line is missed by nobody else, and asked twice a site answers the same.
TRY = 20.0


def patiently(
    carrier: Carrier,
    requests: Mapping[Client, bytes],
    seconds: float,
    again: Callable[[Client, bytes, float], bool] = lambda who, answer, left: False,
) -> Iterator[tuple[Client, bytes | None]]:
    """Everybody's answer as it comes, None for whoever has none in time: each exactly once.

    Whoever fails is asked again, as often as there is time; so is one whose answer says so by `again`.
    """
    until, still, longest = time.monotonic() + seconds, dict(requests), TRY
    while still and (left := until - time.monotonic()) > 0:
        began = time.monotonic()
        for who, answer in carrier.ask(dict(still), min(left, longest)):
            if who in still and not isinstance(answer, Exception) and not again(who, answer, left):
                del still[who]
                yield who, answer
        if time.monotonic() - began >= longest:
            longest *= 2
        if still:
            time.sleep(max(min(PAUSE, until - time.monotonic()), 0))
    for who in still:
        yield who, None


# PyTorch's global generator, which is lent to one client at a time, and its tracer are one for a process.
_ONE_AT_A_TIME = Lock()


class Threads:
    """A carrier to sites of this process, each of which answers in a thread of its own, when it is its turn.

    >>> dict(Threads({Client("ann"): lambda data: data.upper()}).ask({Client("ann"): b"hello"}, 5))
    {'ann': b'HELLO'}
    """

    def __init__(self, sites: Mapping[Client, Callable[[bytes], bytes]]) -> None:
        self.sites = dict(sites)
        self._pool = ThreadPoolExecutor(max(len(self.sites), 1))

    def ask(
        self, requests: Mapping[Client, bytes], seconds: float
    ) -> Iterator[tuple[Client, bytes | Exception]]:
        """As `Carrier.ask`."""
        asked = {self._pool.submit(self._answer, who, data): who for who, data in requests.items()}
        until = time.monotonic() + seconds
        try:
            for done in as_completed(asked, timeout=max(until - time.monotonic(), 0)):
                error = done.exception()
                yield asked[done], error if isinstance(error, Exception) else done.result()
        except OutOfTime:
            return

    def _answer(self, who: Client, data: bytes) -> bytes:
        with _ONE_AT_A_TIME:
            return self.sites[who](data)

    def close(self) -> None:
        """Let go of the threads."""
        self._pool.shutdown(wait=False, cancel_futures=True)
