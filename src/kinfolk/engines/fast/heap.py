"""Memory that a process keeps for its next step instead of giving it back and asking again."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

# Of glibc's <malloc.h>.
_TRIM, _MMAP = -1, -3
# Bytes up to which free blocks are kept: usually, and where many clients hold a little each.
_KEPT, _GIVEN = 1 << 30, 1 << 15


@lru_cache(maxsize=1)
def keep_large_blocks() -> bool:
    """Let glibc reuse large blocks; True if it will.

    A step of training allocates gradients of some megabytes. glibc would fetch each from the system, page
    by page, and give it back after the step; on a CPU that takes as long as the arithmetic.

    >>> keep_large_blocks() in (True, False)
    True
    """
    return _from(_KEPT)


@contextmanager
def large_blocks_given_back() -> Iterator[None]:
    """Within, large blocks come from the system and go back to it as soon as they are free.

    Where each of many clients opens large tensors and keeps small ones, a block that is kept for the next
    has lost some bytes to what the last one keeps, and does not fit: with 10,000 clients that took 11 GB.

    >>> with large_blocks_given_back():
    ...     pass
    """
    _from(_GIVEN)
    try:
        yield
    finally:
        _from(_KEPT)


def _from(size: int) -> bool:
    """Let glibc keep blocks below so many bytes; True if it will."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(_MMAP, size)) and bool(libc.mallopt(_TRIM, size))
    except (OSError, AttributeError):  # another C library
        return False
