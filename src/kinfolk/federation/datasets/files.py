"""Files of a data set, in a folder or inside the archives that lie there; a bad one is named, never used."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from types import TracebackType

from kinfolk.errors import KinfolkError
from kinfolk.unpack import Bounded, member, unpacked

_TARS = (".tar.gz", ".tgz", ".tar")
# What readers of archives, arrays, tables and images are known to raise, by kind of file and of damage.
UNREADABLE = (
    *(OSError, EOFError, ValueError, TypeError, KeyError, IndexError, SyntaxError, NotImplementedError),
    *(zlib.error, struct.error, zipfile.BadZipFile, tarfile.TarError),
    *(MemoryError, OverflowError, RuntimeError, AttributeError, tokenize.TokenError),
)


def short(path: object) -> str:
    """A path that an error can show whole: its end, where the names are.

    >>> short(Path("data/ann.csv")), len(short("x" * 300 + "/ann.csv"))
    ('data/ann.csv', 72)
    """
    shown = str(path)
    return shown if len(shown) <= 72 else "..." + shown[-69:]


def bad_file(path: Path | str, remedy: str) -> KinfolkError:
    """An error about one file.

    >>> str(bad_file(Path("mnist/train-images"), "is cut short"))
    "data.file = 'mnist/train-images': is cut short"
    """
    return KinfolkError("data.file", short(path), remedy)


def missing_file(path: Path | str) -> KinfolkError:
    """An error about a file that is not there.

    >>> str(missing_file(Path("mnist/train-images")))
    "data.file = 'mnist/train-images': is missing; fetch it or add it"
    """
    return bad_file(path, "is missing; fetch it or add it")


def corrupt(path: Path | str, wrong: str, remedy: str = "replace it") -> KinfolkError:
    """An error about a file that is there and cannot be used.

    >>> str(corrupt("mnist/train-images", "it is empty"))
    "data.file = 'mnist/train-images': not used: it is empty; replace it"
    """
    return bad_file(path, f"not used: {wrong}; {remedy}")


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn whatever a truncated, corrupt or foreign file sets off into an error that names it.

    >>> with reading("mnist/t10k-labels.gz"):
    ...     raise EOFError("ended early")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: data.file = 'mnist/t10k-labels.gz': not used: ended early; replace it
    """
    try:
        yield
    except FileNotFoundError as error:
        raise missing_file(path) from error
    except UNREADABLE as error:
        said = str(getattr(error, "strerror", None) or error)
        reason = said.splitlines()[0][:120] if said else type(error).__name__
        reason = f"it has no {reason}" if isinstance(error, KeyError) else reason
        raise corrupt(path, reason) from error


def checksum(path: Path, algorithm: str) -> str:
    """The digest of a file in hexadecimal.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "a"
    ...     _ = path.write_bytes(b"")
    ...     checksum(path, "md5")
    'd41d8cd98f00b204e9800998ecf8427e'
    """
    with reading(path), path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


class Archive:
    """The files under a folder by relative path; archives are opened only when something is not beside them.

    >>> with Archive(Path("none")) as archive:
    ...     archive.find("wnids.txt")
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self._open = ExitStack()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.close()

    @cached_property
    def plain(self) -> dict[str, Path]:
        """Files on disk, sorted by path."""
        found = (p for p in self.folder.rglob("*") if p.is_file() and not p.name.startswith("."))
        return {p.relative_to(self.folder).as_posix(): p for p in sorted(found)}

    @cached_property
    def _zipped(self) -> dict[str, zipfile.ZipFile]:
        members: dict[str, zipfile.ZipFile] = {}
        for name, path in self.plain.items():
            if name.endswith(".zip"):
                with reading(path):
                    archive = self._open.enter_context(zipfile.ZipFile(path))
                members |= {m: archive for m in archive.namelist() if not m.endswith("/")}
        return members

    @cached_property
    def _tarred(self) -> dict[str, bytes]:
        # Kept in memory: a compressed tar can only be read from its start, so one pass takes all.
        members: dict[str, bytes] = {}
        for name, path in self.plain.items():
            if name.endswith(_TARS):
                with reading(path), self._tar(path) as archive:
                    for entry in archive:
                        inner = archive.extractfile(entry) if entry.isfile() else None
                        members |= {entry.name: inner.read()} if inner else {}
        return members

    @contextmanager
    def _tar(self, path: Path) -> Iterator[tarfile.TarFile]:
        with path.open("rb") if path.suffix == ".tar" else gzip.GzipFile(path) as file:
            bounded = Bounded(file, path.stat().st_size)
            with tarfile.open(fileobj=bounded, mode="r|") as archive:  # type: ignore[call-overload]
                yield archive

    @cached_property
    def names(self) -> list[str]:
        """Every file by path, sorted: on disk and inside archives."""
        return sorted({*self.plain, *self._zipped, *self._tarred})

    def find(self, *patterns: str) -> str | None:
        """The first file whose name fits the first pattern that fits any; files on disk go first."""
        for pattern in patterns:
            for name in self.plain:
                if fnmatch(name.rpartition("/")[2], pattern):
                    return name
        packed = any(name.endswith((".zip", *_TARS)) for name in self.plain)
        inside = self.names if packed else []
        return next((n for p in patterns for n in inside if fnmatch(n.rpartition("/")[2], p)), None)

    def need(self, *patterns: str) -> str:
        """As `find`; that there is none is an error naming the first pattern."""
        found = self.find(*patterns)
        if found is None:
            raise missing_file(self.folder / patterns[0])
        return found

    def read(self, name: str) -> bytes:
        """The bytes of a file, .gz and .bz2 unpacked."""
        with reading(self.folder / name):
            if name in self.plain:
                data = self.plain[name].read_bytes()
            else:
                if name not in self.names:
                    raise FileNotFoundError(name)
                data = self._unzipped(name) if name in self._zipped else self._tarred[name]
            if name.endswith(".gz"):
                return unpacked(gzip.GzipFile(fileobj=io.BytesIO(data)), len(data))
            return unpacked(bz2.BZ2File(io.BytesIO(data)), len(data)) if name.endswith(".bz2") else data

    def _unzipped(self, name: str) -> bytes:
        archive = self._zipped[name]
        return member(archive, name, Path(str(archive.filename)).stat().st_size)

    def text(self, name: str) -> str:
        """A text file, UTF-8."""
        data = self.read(name)
        with reading(self.folder / name):
            return data.decode()

    def file(self, name: str) -> io.BytesIO | Path:
        """What a reader of its own format takes: the path on disk, or the bytes out of an archive."""
        return self.plain[name] if name in self.plain else io.BytesIO(self.read(name))
