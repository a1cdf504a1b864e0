"""A process that kills itself just before it touches a folder for the n-th time."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

WRITES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"}


def arm(folder: Path, count: int) -> list[int]:
    """From now on this process may touch the folder so many times; how many are left, kept up to date."""
    left = [count]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        writes = event in WRITES or (event == "open" and isinstance(args[2], int) and args[2] & 3)
        if writes and str(folder) in str(args[0]):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return left
