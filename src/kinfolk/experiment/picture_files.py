"""What a run folder holds to look at besides scores: sketches of models, a method's own arrays, sample rows.

Only a simulation has them: it sees what no server of a deployment is ever sent. Reading needs no torch.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import round_files, write_bytes
from kinfolk.unpack import read_parquet

SAMPLES = "samples.parquet"
KINDS = ("personal", "update")  # the model that a client keeps, or the one it sent in this round
# A method's arrays of one round take no more bytes than this.
MOST_BYTES = 1 << 20
_SKETCH = pa.schema([("client", pa.string()), ("kind", pa.string()), ("sketch", pa.list_(pa.float32()))])
_SAMPLE = pa.schema(
    [
        ("client", pa.string()),
        ("label", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
        ("colours", pa.int32()),  # 1 or 3
        ("pixels", pa.binary()),  # height x width x colours bytes
    ]
)


def write_sketches(run: Path, round: int, clients: Sequence[str], kind: str, rows: NDArray[Any]) -> Path:
    """Write the sketches [clients, numbers] of one round.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     _ = write_sketches(Path(run), 3, ["ann"], "update", np.ones((1, 2)))
    ...     read_sketches(Path(run))[["round", "client", "kind"]].values.tolist()
    [[3, 'ann', 'update']]
    """
    if kind not in KINDS:
        raise KinfolkError("kind", kind, f"give one of {', '.join(KINDS)}")
    columns = [list(clients), [kind] * len(clients), np.asarray(rows, dtype=np.float32).tolist()]
    path = Path(run) / "sketches" / f"round-{round:06d}.parquet"
    return _write(path, pa.table(dict(zip(_SKETCH.names, columns, strict=True)), schema=_SKETCH))


def read_sketches(run: Path) -> pd.DataFrame:
    """All sketches of a run: columns round, client, kind and sketch (an array each), rounds in order.

    >>> read_sketches(Path("nowhere")).empty
    True
    """
    frames = [pd.DataFrame({"round": pd.Series(dtype="int64"), **_SKETCH.empty_table().to_pandas()})]
    for number, path in round_files(Path(run), "sketches"):
        frame = _read(path, _SKETCH).to_pandas()
        frame.insert(0, "round", number)
        frames.append(frame)
    found = [frame for frame in frames if len(frame)] or frames
    return pd.concat(found, ignore_index=True)


def write_arrays(run: Path, round: int, arrays: Mapping[str, NDArray[Any]]) -> Path:
    """Write what a method shows of one round; more than MOST_BYTES is refused.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     _ = write_arrays(Path(run), 3, {"u": np.ones(2)})
    ...     {number: list(arrays) for number, arrays in read_arrays(Path(run)).items()}
    {3: ['u']}
    """
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    size = sum(array.nbytes for array in plain.values())
    if size > MOST_BYTES:
        raise KinfolkError("pictures", size, f"a method may show up to {MOST_BYTES} bytes a round; show less")
    path = Path(run) / "pictures" / f"round-{round:06d}.safetensors"
    write_bytes(path, save(plain))
    return path


def read_arrays(run: Path) -> dict[int, dict[str, NDArray[Any]]]:
    """What a method has shown, by round and name.

    >>> read_arrays(Path("nowhere"))
    {}
    """
    found: dict[int, dict[str, NDArray[Any]]] = {}
    for number, path in round_files(Path(run), "pictures"):
        try:
            arrays = load(path.read_bytes())
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise KinfolkError("pictures", str(path), f"cannot be read ({error})") from error
        found[number] = {name: arrays[name] for name in sorted(arrays)}
    return found


def write_samples(run: Path, rows: Sequence[tuple[str, int, NDArray[np.uint8]]]) -> Path:
    """Write some training rows that are images: (client, label, image [height, width] or [.., .., 3]).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     _ = write_samples(Path(run), [("ann", 7, np.zeros((2, 3), dtype=np.uint8))])
    ...     [(who, label, image.shape) for who, label, image in read_samples(Path(run))]
    [('ann', 7, (2, 3))]
    """
    columns: dict[str, list[Any]] = {name: [] for name in _SAMPLE.names}
    for who, label, image in rows:
        colours = image.shape[2] if image.ndim == 3 else 1
        line = (who, label, *image.shape[:2], colours, np.asarray(image, dtype=np.uint8).tobytes())
        for name, value in zip(columns, line, strict=True):
            columns[name].append(value)
    return _write(Path(run) / SAMPLES, pa.table(columns, schema=_SAMPLE))


def read_samples(run: Path) -> list[tuple[str, int, NDArray[np.uint8]]]:
    """The sample rows of a run; none if it was not asked for any.

    >>> read_samples(Path("nowhere"))
    []
    """
    path = Path(run) / SAMPLES
    if not path.is_file():
        return []
    found = []
    for row in _read(path, _SAMPLE).to_pylist():
        shape = (row["height"], row["width"], row["colours"])
        if row["colours"] not in (1, 3) or min(shape) < 1 or len(row["pixels"]) != np.prod(shape):
            raise KinfolkError("samples", str(path), "holds an image of another size than it says")
        image = np.frombuffer(row["pixels"], dtype=np.uint8).reshape(shape)
        found.append((row["client"], row["label"], image[:, :, 0] if shape[2] == 1 else image))
    return found


def _write(path: Path, table: pa.Table) -> Path:
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_bytes(path, buffer.getvalue())
    return path


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    try:
        table = read_parquet(path)
        if table.schema.names != schema.names:
            raise ValueError(f"its columns are not {', '.join(schema.names)}")
        if any(column.null_count for column in table.columns):
            raise ValueError("it has holes")
        return table.cast(schema)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise KinfolkError("pictures", str(path), f"cannot be read ({str(error).splitlines()[0]})") from error
