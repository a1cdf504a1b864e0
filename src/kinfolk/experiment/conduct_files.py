"""What is on record of each client's updates, round by round: the facts behind the report on conduct.

Reading needs no torch.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from kinfolk.errors import KinfolkError, visible
from kinfolk.experiment.record import round_files, write_bytes

KIND = "conduct"
_SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("client", pa.string()),
        ("group", pa.int32()),  # after the round; -1: the method has no groups
        ("rows", pa.int64()),  # that it counts for
        ("length", pa.float64()),  # of the update
        ("sent", pa.float64()),  # norm of what the client was sent, one at least
        ("cosine", pa.float32()),  # to what the others of its group have sent; NaN: not known
        # By these an update (0, 1) and a reply (2, 3) are known again: sums under random signs.
        ("mark0", pa.float64()),
        ("mark1", pa.float64()),
        ("mark2", pa.float64()),
        ("mark3", pa.float64()),
    ]
)
MARKS = ("mark0", "mark1", "mark2", "mark3")


def write_conduct(run: Path, round: int, columns: Mapping[str, Any]) -> Path:
    """Write the facts of one round: the columns of the schema, of equal length.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     one = {"task": ["train"], "client": ["ann"], "group": [0], "rows": [9]}
    ...     one = dict.fromkeys(_SCHEMA.names, [0.0]) | one
    ...     _ = write_conduct(Path(run), 3, one)
    ...     [(round, list(frame["client"])) for round, frame in read_conduct(Path(run))]
    [(3, ['ann'])]
    """
    buffer = io.BytesIO()
    table = pa.table({name: columns[name] for name in _SCHEMA.names}, schema=_SCHEMA)
    # Numbers hardly repeat, and nobody skips rows by their range: a third of the time, and smaller.
    pq.write_table(table, buffer, use_dictionary=["task", "client"], write_statistics=False)
    path = Path(run) / KIND / f"round-{round:06d}.parquet"
    write_bytes(path, buffer.getvalue(), lasting=False)
    return path


def read_conduct(run: Path, last: int = 0) -> Iterator[tuple[int, pd.DataFrame]]:
    """(round, facts) of all rounds on record in order, or of the `last` ones; of older runs there are none.

    >>> list(read_conduct(Path("nowhere")))
    []
    """
    for number, path in round_files(Path(run), KIND)[-last:]:
        try:
            table = pq.read_table(path, partitioning=None)
        except (pa.ArrowException, OSError) as error:
            raise KinfolkError(KIND, str(path), f"cannot be read ({error}); remove it") from error
        if not table.schema.equals(_SCHEMA):
            raise KinfolkError(
                KIND, str(path), f"must have the columns {', '.join(_SCHEMA.names)}; remove it"
            )
        frame = table.to_pandas()
        if visible(together := "".join(table["client"].to_pylist())) != together:
            frame["client"] = frame["client"].map(visible)
        yield number, frame
