"""How much memory a packed file may take: a few bytes that unpack to gigabytes are refused before they do.

What sound files unpack to is bounded by their own size; small ones may take `FREE` whatever their size is.
"""

from __future__ import annotations

import zipfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq

# Bytes that any file may unpack to, and how many times its own size a larger one may. Deflate packs zeros
# 1,030 to 1; photographs, tables and text stay below 20, drawings below 100.
FREE, RATIO = 256 << 20, 200
_PIECE = 1 << 20
# The only ways of packing that give as little at a time as is asked for.
_STEADY = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Readable(Protocol):
    """What gives some bytes at a time."""

    def read(self, size: int, /) -> bytes:
        """The next bytes, none at the end."""
        ...


def check_unpacked(size: int, packed: int) -> None:
    """Refuse what takes more memory than a file of `packed` bytes may.

    >>> check_unpacked(2 << 30, 200_000)
    Traceback (most recent call last):
    ValueError: 200,000 bytes unpack to 2,147,483,648 or more; if they are sound, store them unpacked
    """
    if size > max(FREE, RATIO * packed):
        raise ValueError(
            f"{packed:,} bytes unpack to {size:,} or more; if they are sound, store them unpacked"
        )


def unpacked(file: Readable, packed: int) -> bytes:
    """All that a file of `packed` bytes unpacks to, if it is no more than it may be.

    >>> import gzip, io
    >>> unpacked(gzip.GzipFile(fileobj=io.BytesIO(gzip.compress(b"text"))), 24)
    b'text'
    """
    return b"".join(iter(Bounded(file, packed).read, b""))


class Bounded:
    """A file that is being unpacked, and ends with an error where it unpacks to too much.

    >>> import io
    >>> Bounded(io.BytesIO(b"text"), 4).read(3)
    b'tex'
    """

    def __init__(self, file: Readable, packed: int) -> None:
        self.file, self.packed, self.size = file, packed, 0

    def read(self, size: int = _PIECE) -> bytes:
        """The next bytes, of which there may be fewer than asked for."""
        piece = self.file.read(min(size, _PIECE))
        self.size += len(piece)
        check_unpacked(self.size, self.packed)
        return piece


def member(archive: zipfile.ZipFile, name: str, packed: int) -> bytes:
    """A file inside a zip archive of `packed` bytes; its checksum is compared.

    >>> import io
    >>> with zipfile.ZipFile(io.BytesIO(), "w") as archive:
    ...     archive.writestr("a.txt", "text")
    ...     member(archive, "a.txt", 100)
    b'text'
    """
    info = archive.getinfo(name)
    if info.compress_type not in _STEADY:
        raise ValueError(f"{name!r} is packed in a way that is not read; pack it by deflate")
    check_unpacked(info.file_size, packed)
    with archive.open(info) as file:
        return unpacked(file, packed)


def read_parquet(
    path: str | Path, columns: Collection[str] | None = None, coded: Sequence[str] = ()
) -> pa.Table:
    """The table in a Parquet file, or some of its columns; of `coded` ones every text is held once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pq.write_table(pa.table({"a": [1, 2]}), f"{folder}/a.parquet")
    ...     read_parquet(f"{folder}/a.parquet")["a"].to_pylist()
    [1, 2]
    """
    packed = Path(path).stat().st_size
    with pq.ParquetFile(path, read_dictionary=list(coded)) as file:
        fields = [f for f in file.schema_arrow if columns is None or f.name in columns]
        schema = pa.schema(fields, file.schema_arrow.metadata)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        check_unpacked(file.metadata.num_rows, packed)
        # A value that repeats is stored once, and none is longer than its group; numbers and codes are short.
        longest = max((group.total_byte_size for group in groups), default=1)
        if all(pa.types.is_primitive(f.type) or pa.types.is_dictionary(f.type) for f in fields):
            longest = 8
        at_once = max(1, min(1 << 16, max(FREE, RATIO * packed) // max(1, longest)))
        batches, size = [], 0
        for batch in file.iter_batches(at_once, columns=None if columns is None else schema.names):
            size += batch.nbytes
            check_unpacked(size, packed)
            batches.append(batch)
        return pa.Table.from_batches(batches, schema)
