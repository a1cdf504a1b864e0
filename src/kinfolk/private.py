"""Folders and files of runs are their owner's alone: models and what clients remember are private."""

from __future__ import annotations

import os
from pathlib import Path

# For `os.open`: what is opened must be the file itself, no link to one. Windows has no such flag.
NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def private_folder(path: Path) -> None:
    """Make a folder that only its owner can enter, those above it as usual; one that is there stays.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as room:
    ...     private_folder(Path(room) / "runs" / "first")
    ...     [oct(p.stat().st_mode & 0o077) for p in (Path(room) / "runs" / "first",) if os.name == "posix"]
    ['0o0']
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def private_file(path: str, flags: int) -> int:
    """Open a file that only its owner can read; what `open` takes as `opener`.

    A link is refused: in a folder that is a stranger's it may lead to a file of one's own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as room:
    ...     with open(f"{room}/key", "w", opener=private_file) as file:
    ...         (os.fstat(file.fileno()).st_mode & 0o077) if os.name == "posix" else 0
    0
    """
    return os.open(path, flags | NO_LINK, 0o600)
