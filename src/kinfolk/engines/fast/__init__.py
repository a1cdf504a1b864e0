"""Speed: what an engine may call. Everything else in this package is its own affair; nobody imports it.

- `prepare` exchanges a network's layers for ones that serve many clients in one call; a `Learner` takes it.
  `accelerated` gives a learner that network, tried on a few rows.
- `Passes` runs one pass over rows for a chunk of clients: recorded as a CUDA graph, traced on a CPU, or step
  by step. `lanes_on` gives the queues of a CUDA device that chunks run in side by side.
- `KERNELS` holds which kernels were found fastest on this device, so that a run can save and follow it.
- `warm` and `keep_large_blocks` are for a process before it begins; `large_blocks_given_back` is for many
  clients who each open much and hold little.

None of it changes a result beyond rounding, and what it chooses by timing is recorded.
"""

from kinfolk.engines.fast.choices import KERNELS
from kinfolk.engines.fast.heap import keep_large_blocks, large_blocks_given_back
from kinfolk.engines.fast.lanes import CudaLane, lanes_on
from kinfolk.engines.fast.networks import accelerated, prepare
from kinfolk.engines.fast.passes import Passes
from kinfolk.engines.fast.trace import warm

__all__ = [
    "KERNELS",
    "CudaLane",
    "Passes",
    "accelerated",
    "keep_large_blocks",
    "lanes_on",
    "large_blocks_given_back",
    "prepare",
    "warm",
]
