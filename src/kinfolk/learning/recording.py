"""Work recorded as a CUDA graph."""

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
