"""Memory that a process keeps for its next step instead of giving it back and asking again."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache

# Of glibc's <malloc.h>.
_TRIM, _MMAP = -1, -3


@lru_cache(maxsize=1)
def keep_large_blocks() -> bool:
    """Let glibc reuse large blocks; True if it will.

    A step of training allocates gradients of some megabytes. glibc would fetch each from the system, page
    by page, and give it back after the step; on a CPU that takes as long as the arithmetic.

    >>> keep_large_blocks() in (True, False)
    True
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        libc = ctypes.CDLL("libc.so.6")
        return bool(libc.mallopt(_MMAP, 1 << 30)) and bool(libc.mallopt(_TRIM, 1 << 30))
    except (OSError, AttributeError):  # another C library
        return False
