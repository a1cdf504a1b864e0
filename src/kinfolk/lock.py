"""One writer for a folder: a lock that the system holds for a process, and lets go of when the process ends.

The lock is on the file `.lock` in the folder, and its text says who holds it. Nothing has to be tidied up
after a kill. Whoever only reads can ask whether somebody writes, and who.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from kinfolk.errors import KinfolkError
from kinfolk.private import private_file, private_folder

NAME = ".lock"
# Somebody who asks whether a folder is written holds its lock for a moment: so often, and so many seconds
# apart, a writer tries before it takes the holder for another writer.
TRIES, PAUSE = 10, 0.05
# What a file system says that has no locks.
_NONE = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}

if sys.platform == "win32":
    import msvcrt

    # A locked byte cannot be read there, so that it must not be one of the text.
    _FAR = 1 << 30

    def _take(handle: int, alone: bool) -> None:
        os.lseek(handle, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError from error

else:
    import fcntl

    def _take(handle: int, alone: bool) -> None:
        fcntl.flock(handle, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)


@dataclass(frozen=True)
class Holder:
    """Who writes a folder, and since when.

    >>> str(Holder(4711, "ada", "2026-01-31 12:00:00 UTC"))
    'process 4711 on ada, since 2026-01-31 12:00:00 UTC'
    """

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def writing(folder: Path) -> Iterator[str]:
    """Be the one process that writes a folder, which is made if need be; another one is refused.

    What is given is empty, or says that the file system knows no locks. A folder that this has made goes
    again if nothing was written into it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as room, writing(Path(room)):
    ...     is_written(Path(room))
    True
    """
    folder, made = Path(folder), list[Path]()
    try:
        made += _make(folder)
        handle, lack = _locked(folder)
    except OSError as error:
        remedy = f"cannot be written ({error.strerror or error}); choose another folder"
        raise KinfolkError("folder", str(folder), remedy) from error
    except BaseException:
        _remove(made)
        raise
    _HELD.add(handle)
    try:
        yield lack
    finally:
        _HELD.discard(handle)
        with suppress(OSError):
            if made and os.listdir(folder) == [NAME]:
                (folder / NAME).unlink()
            os.ftruncate(handle, 0)  # nobody is named who has left
        os.close(handle)
        _remove(made)


def is_written(folder: Path) -> bool | None:
    """Whether a process writes this folder just now; None where nobody can tell, as no lock was ever taken.

    >>> is_written(Path("nowhere")) is None
    True
    """
    try:
        handle = os.open(Path(folder) / NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        _take(handle, alone=False)
    except BlockingIOError:
        return True
    except OSError:
        return None
    finally:
        os.close(handle)
    return False


def holder(folder: Path) -> Holder | None:
    """Who holds the lock of a folder, or held it when it was killed.

    >>> holder(Path("nowhere")) is None
    True
    """
    try:
        facts = json.loads((Path(folder) / NAME).read_text(encoding="utf-8"))
        return Holder(int(facts["pid"]), str(facts["host"]), str(facts["since"]))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None  # just taken, and not yet signed


def _locked(folder: Path) -> tuple[int, str]:
    """An open file that holds the lock, and what is wrong with it."""
    for tried in range(TRIES):
        handle = private_file(str(folder / NAME), os.O_RDWR | os.O_CREAT)
        try:
            _take(handle, alone=True)
            if _is_there(handle, folder):
                _sign(handle)
                return handle, ""
        except BlockingIOError:
            if tried < TRIES - 1:
                time.sleep(PAUSE)
        except OSError as error:
            if error.errno not in _NONE:
                os.close(handle)
                raise
            (folder / NAME).unlink(missing_ok=True)  # a lock that nobody can hold would tell lies
            return handle, f"{folder}: this file system has no locks; nothing keeps a second run out of it"
        os.close(handle)
    who = holder(folder)
    told = f"is being written by {who}" if who else "is being written by another process"
    raise KinfolkError("folder", str(folder), f"{told}; wait for it, or choose another folder")


def _is_there(handle: int, folder: Path) -> bool:
    """Whether this is still the file of that name: whoever had it before may have removed it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(folder / NAME))
    except FileNotFoundError:
        return False


def _sign(handle: int) -> None:
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = json.dumps(asdict(Holder(os.getpid(), socket.gethostname(), since)))
    os.ftruncate(handle, 0)
    os.lseek(handle, 0, os.SEEK_SET)
    os.write(handle, text.encode() + b"\n")


def _make(folder: Path) -> list[Path]:
    """Make a folder; those that were not there before, the innermost first."""
    new = [one for one in (folder, *folder.parents) if not one.exists()]
    private_folder(folder)
    return new


def _remove(made: list[Path]) -> None:
    with suppress(OSError):  # what is in use stays
        for one in made:
            one.rmdir()


# Files of this process that hold a lock. A process forked from it would hold them too, and may outlive it.
_HELD = set[int]()


def _let_go() -> None:
    for handle in _HELD:
        os.close(handle)
    _HELD.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)
