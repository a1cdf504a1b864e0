"""Work recorded as a CUDA graph: the one place where graphs are made."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


def recorded(body: Callable[[], None], **where: Any) -> torch.cuda.CUDAGraph:
    """What a body would do; while it is recorded, nothing runs and nothing changes.

    `where` goes to `torch.cuda.graph`: a pool of memory, a stream.
    """
    graph = torch.cuda.CUDAGraph()
    with no_collection(), torch.cuda.graph(graph, **where):
        body()
    return graph


def warm_up(body: Callable[[], None], times: int = 1, stream: torch.cuda.Stream | None = None) -> None:
    """Run a body some times before it is recorded, since libraries choose and load their kernels then.

    On a stream of its own, or on one that is given: libraries hold room to work in for each stream, and two
    recordings that are replayed at the same time must not share it.
    """
    side = stream or torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(times):
            body()
    torch.cuda.current_stream().wait_stream(side)


@contextmanager
def no_collection() -> Iterator[None]:
    """No garbage is collected meanwhile.

    Graphs of an earlier run in the same process lie in cycles until they are collected, and to free one while
    another is recorded makes that one invalid.

    >>> with no_collection():
    ...     gc.isenabled()
    False
    >>> gc.isenabled()
    True
    """
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
