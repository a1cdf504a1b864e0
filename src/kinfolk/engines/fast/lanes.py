"""Lanes: queues of a CUDA device that work side by side, each with recordings and memory of its own.

PyTorch's allocator reuses memory as soon as the host lets go of it, ordered only within the queue that it was
made in. Two rules make that safe: a lane begins only after all that was queued before on the
engine's own queue, and whoever starts a lane holds on to what it reads until the engine's queue waits for
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kinfolk.engines.fast.capture import Recorded


class CudaLane:
    """A queue beside the engine's own; if it is `alone`, or on a CPU, that queue itself."""

    def __init__(self, device: torch.device, alone: bool) -> None:
        self.recordings: dict[Any, Recorded] = {}
        self._alone = alone
        self._outside: torch.cuda.Stream | None = None  # the queue that waits for this one
        on_cuda = device.type == "cuda"
        self.side = torch.cuda.Stream(device) if on_cuda else None  # type: ignore[no-untyped-call]
        # Recordings of a lane run one after another, so they may share the memory of what lies between.
        self.memory = torch.cuda.graph_pool_handle() if on_cuda else None

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Within: work is queued here, to begin after all that was queued before."""
        if self._alone or self.side is None:
            yield
            return
        self._outside = torch.cuda.current_stream()
        self.side.wait_stream(self._outside)
        try:
            with torch.cuda.stream(self.side):
                yield
        except BaseException:
            self.join()  # nobody else will, and what is read here is about to be let go
            raise

    def join(self) -> None:
        """Let all that is queued outside from now on wait for what is queued here."""
        if self._outside is not None and self.side is not None:
            self._outside.wait_stream(self.side)


def lanes_on(device: torch.device, count: int) -> list[CudaLane]:
    """So many lanes; of a CPU, which runs everything at once, one.

    >>> len(lanes_on(torch.device("cpu"), 4))
    1
    """
    count = max(1, count) if device.type == "cuda" else 1
    return [CudaLane(device, count == 1) for _ in range(count)]
