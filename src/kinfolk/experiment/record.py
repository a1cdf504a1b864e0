"""What a run writes down and how it is read back: scores per client, facts per round, an audit trail.

Reading needs no torch: figures and tables are rebuilt from the run folder alone.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from kinfolk.errors import KinfolkError, visible
from kinfolk.experiment.forms import ROUND, misfit
from kinfolk.private import private_file, private_folder
from kinfolk.unpack import read_parquet

SCHEMA = pa.schema(
    [
        ("round", pa.int32()),
        ("client", pa.string()),
        ("model", pa.string()),  # which model was scored: one of MODELS
        ("split", pa.string()),
        ("score", pa.string()),
        ("value", pa.float64()),
        ("rows", pa.int64()),
        ("group", pa.int32()),  # of the client, where the method has groups
        ("margin", pa.float64()),  # how clearly it belongs there, where that is known
    ]
)
# Columns of SCHEMA whose texts repeat.
TEXTS = ("client", "model", "split", "score")
# Columns of SCHEMA that may be left out, and hold nothing then; records of before have none of them.
OPTIONAL = ("group", "margin")
# What is known of the clients' data, in a run folder: columns client, fact, value.
CLIENT_FACTS = "clients.parquet"
MODELS = ("centre", "personal", "fine-tuned")
FORMAT = 1  # of a run folder; a newer one is refused
# Folders with a file for every round that is recorded there, and the end of these files' names.
BY_ROUND = {"records": "parquet", "conduct": "parquet", "sketches": "parquet", "pictures": "safetensors"}
_FILE = re.compile(r"round-(\d{6,})\.(\w+)")


def readable(folder: Path, facts: Mapping[str, Any]) -> None:
    """Refuse a run that a newer version has written.

    >>> readable(Path("runs/a"), {"format": 2, "versions": {"kinfolk": "9.1"}})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'runs/a': is of format 2, this version reads 1; use kinfolk 9.1
    """
    form = facts.get("format", FORMAT)  # what older versions wrote has none
    if type(form) is not int or form > FORMAT:
        versions = facts.get("versions")
        written = versions.get("kinfolk") if isinstance(versions, dict) else "of a newer version"
        remedy = f"is of format {form}, this version reads {FORMAT}; use kinfolk {written}"
        raise KinfolkError("run", str(folder), remedy)


def check_place(folder: Path, resume: bool) -> None:
    """Refuse to begin a run where there is one, and to go on with one that a newer version has written.

    >>> check_place(Path("nowhere"), resume=False)
    """
    if not (folder / "run.json").exists():
        return
    if not resume:
        remedy = "a run is there already; add resume=True or choose another folder"
        raise KinfolkError("run folder", str(folder), remedy)
    check_format(folder, "run.json")


def check_format(folder: Path, file: str) -> None:
    """Refuse to write a file of a folder anew that a newer version has written.

    >>> check_format(Path("nowhere"), "compare.json")
    """
    with suppress(OSError, ValueError, AttributeError):  # what cannot be read says nothing of its format
        readable(folder, json.loads((folder / file).read_text("utf-8")))


@contextmanager
def disk_errors(field: str, folder: Path) -> Iterator[None]:
    """Turn a full or unwritable disk into an error that names the folder and the remedy.

    >>> with disk_errors("run", Path("runs")):
    ...     raise OSError(28, "Full")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'runs': cannot be written (Full); free space or choose another folder
    """
    try:
        yield
    except OSError as error:
        remedy = f"cannot be written ({error.strerror or error}); free space or choose another folder"
        raise KinfolkError(field, str(folder), remedy) from error


def readable_json(text: str) -> Any:
    """A JSON value, in whose texts a terminal finds no commands: a folder may be a stranger's.

    >>> print(readable_json(r'{"client": "ann\\u001b[2J"}')["client"])
    ann\\x1b[2J
    """
    value = json.loads(text)
    return _shown(value) if visible(text) != text or "\\u" in text else value


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(key): _shown(inner) for key, inner in value.items()}
    return [_shown(inner) for inner in value] if isinstance(value, list) else value


def plain(value: Any) -> Any:
    """The same value in JSON's own types; what JSON cannot say of a number (nan, inf) becomes None.

    >>> plain({"loss": float("nan"), "group": np.array([0, 1]), "size": (3, np.float32(0.5))})
    {'loss': None, 'group': [0, 1], 'size': [3, 0.5]}
    """
    if hasattr(value, "tolist"):  # arrays, NumPy's scalars, tensors: without importing their libraries
        value = value.tolist()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    raise KinfolkError(
        "record", value, f"a {type(value).__name__} has no place in JSON; give numbers or text"
    )


def write_bytes(path: Path, data: bytes, field: str = "run", lasting: bool = True) -> None:
    """Write a whole file or nothing: into a sibling first, then renamed; only its owner can read it.

    Unless it is `lasting`, nobody waits for the disk: a power cut may take it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_bytes(Path(folder) / "file", b"whole")
    ...     (Path(folder) / "file").read_bytes()
    b'whole'
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors(field, path.parent):
        try:
            private_folder(path.parent)
            with open(temporary, "wb", opener=private_file) as file:
                file.write(data)
                file.flush()
                if lasting:
                    os.fsync(file.fileno())  # a rename may reach the disk before the bytes do
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_text(Path(folder) / "spec.toml", "seed = 1")
    ...     (Path(folder) / "spec.toml").read_text()
    'seed = 1'
    """
    write_bytes(Path(path), text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "facts.json", {"best": float("inf")})
    ...     json.loads((Path(folder) / "facts.json").read_text())
    {'best': None}
    """
    write_text(path, json.dumps(plain(value), indent=2, allow_nan=False) + "\n")


class Records:
    """The records of one run, under its folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     records = Records(Path(run))
    ...     records.append_round(1, {"seconds": {"train": 0.5}})
    ...     records.append_round(2, {"seconds": {"train": 0.4}})
    ...     records.rewind(1)
    ...     read_rounds(Path(run))
    [{'round': 1, 'seconds': {'train': 0.5}}]
    """

    def __init__(self, run: Path) -> None:
        self.run = Path(run)
        self._waiting: list[Path] = []  # files of scores that may not be on the disk yet

    def settle(self) -> None:
        """Wait until scores and rounds are on the disk: before a checkpoint, up to which nothing comes again.

        For one file a round the wait was longer than all other work on records. A power cut may take records
        of rounds after the last checkpoint, which a resumed run plays again; a kill takes none.
        """
        with disk_errors("run", self.run):
            for path in (*self._waiting, self.run / "rounds.jsonl"):
                if path.exists():  # a rewind may have taken it
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
        self._waiting = []

    def write_scores(self, round: int, rows: pd.DataFrame | Mapping[str, Any]) -> Path:
        """Write the scores of one round: the columns of SCHEMA; `round` itself may be left out."""
        columns = {str(name): rows[name] for name in rows}
        many = len(next(iter(columns.values()), []))
        columns.setdefault("round", np.full(many, round))
        for name in OPTIONAL:
            columns.setdefault(name, [None] * many)
        if set(columns) != set(SCHEMA.names):
            wrong = sorted(set(columns) ^ set(SCHEMA.names))
            raise KinfolkError("scores", wrong, f"give exactly the columns {', '.join(SCHEMA.names)}")
        try:
            table = pa.table([_column(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)
        except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
            raise KinfolkError(
                "scores", round, f"a column is of the wrong type or length ({error})"
            ) from error
        _check_scores(table, round)
        buffer = io.BytesIO()
        pq.write_table(table, buffer)
        path = self.run / "records" / f"round-{round:06d}.parquet"
        write_bytes(path, buffer.getvalue(), lasting=False)
        self._waiting.append(path)
        return path

    def append_round(self, round: int, facts: Mapping[str, Any]) -> None:
        """Add one line about a finished round to rounds.jsonl."""
        _append(self.run / "rounds.jsonl", {"round": round}, facts)

    def amend_round(self, round: int, facts: Mapping[str, Any]) -> None:
        """Write the line about the last round anew; a kill leaves one of the two."""
        path = self.run / "rounds.jsonl"
        kept = [line for line, fact in _lines(path) if fact["round"] < round]
        write_text(path, "".join(line + "\n" for line in [*kept, _line({"round": round}, facts)]))

    def write_rounds(self, lines: Mapping[int, Mapping[str, Any]]) -> None:
        """Write all lines anew, in order of their rounds."""
        text = "".join(_line({"round": number}, lines[number]) + "\n" for number in sorted(lines))
        write_text(self.run / "rounds.jsonl", text)

    def audit(self, event: str, **facts: Any) -> None:
        """Add one line to audit.jsonl: what happened, when (UTC), and the facts."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        _append(self.run / "audit.jsonl", {"time": now, "event": event}, facts)

    def rewind(self, last: int) -> None:
        """Forget everything after round `last`, and a line that was torn. The audit trail stays."""
        with disk_errors("run", self.run):
            for kind in BY_ROUND:
                for number, path in round_files(self.run, kind):
                    if number > last:
                        path.unlink()
                for leftover in (self.run / kind).glob(".round-*.tmp"):
                    leftover.unlink()
        path = self.run / "rounds.jsonl"
        if path.exists():
            kept = [line for line, fact in _lines(path) if fact["round"] <= last]
            write_text(path, "".join(line + "\n" for line in kept))


def read_scores(run: Path, score: str | None = None) -> pd.DataFrame:
    """All scores of a run in one frame, the columns of SCHEMA, rounds in order; or those of one name.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     row = {"client": ["ann"], "model": ["centre"], "split": ["test"], "score": ["accuracy"]}
    ...     _ = Records(Path(run)).write_scores(3, {**row, "value": [0.5], "rows": [10]})
    ...     read_scores(Path(run))[["round", "client", "value"]].values.tolist()
    [[3, 'ann', 0.5]]
    """
    every = (score_table(path) for _, path in round_files(_folder(run), "records"))
    tables = [
        SCHEMA.empty_table(),
        *(table if score is None else table.filter(pc.equal(table["score"], score)) for table in every),
    ]
    return _frame(pa.concat_tables(tables))


def read_round(path: Path) -> pd.DataFrame:
    """The scores in one file of `round_files`.

    >>> read_round(Path("nowhere.parquet"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: records = 'nowhere.parquet': cannot be read (...
    """
    return _frame(score_table(path))


def is_cut(path: Path) -> bool:
    """Whether the end of a file of scores is missing; the rows are not read for that.

    >>> is_cut(Path("nowhere.parquet"))
    True
    """
    try:
        pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return True
    return False


def is_empty(path: Path, column: str) -> bool:
    """Whether a column of a file of scores holds nothing, as far as the file says so by itself.

    >>> is_empty(Path("nowhere.parquet"), "group")
    False
    """
    try:
        facts = pq.read_metadata(path)
    except (pa.ArrowException, OSError):
        return False
    place = facts.schema.names.index(column) if column in facts.schema.names else None
    groups = (facts.row_group(i) for i in range(facts.num_row_groups)) if place is not None else ()
    told = [(group.column(place).statistics, group.num_rows) for group in groups]
    return all(known is not None and known.null_count == rows for known, rows in told)


def _frame(table: pa.Table) -> pd.DataFrame:
    """Scores as a frame, whose names a terminal can show: a folder may be a stranger's."""
    frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
    for name in TEXTS:
        shown = {text: visible(text) for text in frame[name].unique()}
        if any(text != seen for text, seen in shown.items()):
            frame[name] = frame[name].map(shown)
    return frame


def score_table(path: Path, columns: Collection[str] = tuple(SCHEMA.names), coded: bool = False) -> pa.Table:
    """Some columns of the scores in one file, of which nothing else is read; `coded` holds a text once.

    >>> score_table(Path("nowhere.parquet"), ["value"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: records = 'nowhere.parquet': cannot be read (...
    """
    try:
        schema = pq.read_schema(path)
        table = read_parquet(path, columns, TEXTS if coded else ())
    except (pa.ArrowException, OSError, ValueError) as error:
        remedy = f"cannot be read ({_first(error)}); going on with resume=True sets it aside"
        raise KinfolkError("records", str(path), remedy) from error
    for name in OPTIONAL:
        if name not in schema.names:
            schema = schema.append(SCHEMA.field(name))
            if name in columns:
                table = table.append_column(SCHEMA.field(name), pa.nulls(len(table), SCHEMA.field(name).type))
    if not schema.equals(SCHEMA):
        raise KinfolkError("records", str(path), f"must have the columns {', '.join(SCHEMA.names)}")
    try:
        table.validate(full=True)  # of text that it is text, for one
    except pa.ArrowException as error:
        raise KinfolkError("records", str(path), f"cannot be read ({_first(error)})") from error
    if holes := [name for name in table.schema.names if table[name].null_count and name not in OPTIONAL]:
        raise KinfolkError("records", str(path), f"has holes in the column {holes[0]}")
    return table


def read_client_facts(run: Path) -> pd.DataFrame:
    """What is known of the clients' data: a row for each client, a column for each fact; empty if nothing is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     read_client_facts(Path(run)).empty
    True
    """
    path = _folder(run) / CLIENT_FACTS
    if not path.exists():
        return pd.DataFrame()
    try:
        tidy = read_parquet(path).to_pandas()
        tidy["client"] = [visible(str(name)) for name in tidy["client"]]
        return tidy.pivot(index="client", columns="fact", values="value")
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise KinfolkError("run", str(path), f"cannot be read ({_first(error)})") from error


def read_rounds(run: Path) -> list[dict[str, Any]]:
    """The facts of every finished round, in order; the line being written just now is left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     _ = (Path(run) / "rounds.jsonl").write_text('{"round": 1}\\n{"rou')
    ...     read_rounds(Path(run))
    [{'round': 1}]
    """
    return [fact for _, fact in _lines(_folder(run) / "rounds.jsonl")]


def read_audit(run: Path) -> list[dict[str, Any]]:
    """The audit trail. A line that a crash has torn is shown as `unreadable`, not hidden.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as run:
    ...     Records(Path(run)).audit("rejected", client="ann", reason="nan")
    ...     [(line["event"], line["client"]) for line in read_audit(Path(run))]
    [('rejected', 'ann')]
    """
    trail = []
    for number, line in enumerate(_text(_folder(run) / "audit.jsonl").split("\n"), 1):
        if line:
            trail.append(_parse(line) or {"event": "unreadable", "line": number, "text": line})
    return trail


def round_files(run: Path, kind: str) -> list[tuple[int, Path]]:
    """(round, file) in order of rounds of one of BY_ROUND; anything else in the folder is not ours.

    >>> round_files(Path("nowhere"), "records")
    []
    """
    folder, ending = Path(run) / kind, BY_ROUND[kind]
    found = map(_FILE.fullmatch, os.listdir(folder) if folder.is_dir() else [])
    return sorted((int(m[1]), folder / m[0]) for m in found if m and m[2] == ending)


def _folder(run: Path) -> Path:
    if not Path(run).is_dir():
        raise KinfolkError("run", str(run), "is not a folder; name the folder of a run")
    return Path(run)


def _first(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _column(values: Any, kind: pa.DataType) -> pa.Array:
    if any(value is None for value in values):
        return pa.array(list(values), type=kind)  # holes: `_check_scores` says where there may be any
    if pa.types.is_floating(kind):
        return pa.array(np.asarray(values, dtype=np.float64))  # from NumPy: nan stays nan, not null
    if pa.types.is_integer(kind) and np.asarray(values).dtype.kind not in "iu" and len(values):
        raise TypeError("whole numbers are wanted")  # Arrow itself would cut 1.5 to 1
    return pa.array(list(values), type=kind)


def _check_scores(table: pa.Table, round: int) -> None:
    for name in SCHEMA.names:
        if table[name].null_count and name not in OPTIONAL:
            raise KinfolkError("scores", name, "has holes; give a value in every row")
    strange = set(table["model"].unique().to_pylist()) - set(MODELS)
    if strange:
        raise KinfolkError("scores", sorted(strange), f"a model is one of {', '.join(MODELS)}")
    if set(table["round"].unique().to_pylist()) - {round}:
        raise KinfolkError("scores", round, "holds rows of another round")


def _line(head: Mapping[str, Any], facts: Mapping[str, Any]) -> str:
    """One line; no fact can take the place of what stands at its head."""
    return json.dumps(plain({**head, **facts, **head}), allow_nan=False)


def _append(path: Path, head: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Add one line."""
    line = _line(head, facts).encode() + b"\n"
    with disk_errors("run", path.parent):
        private_folder(path.parent)
        with open(path, "ab+", opener=private_file) as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # half a line left by a crash must not swallow this one
                    line = b"\n" + line
            file.write(line)


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace") if path.exists() else ""
    except OSError as error:
        raise KinfolkError("run", str(path), f"cannot be read ({error.strerror or error})") from error


def _parse(line: str) -> dict[str, Any] | None:
    try:
        fact = readable_json(line)
    except (ValueError, RecursionError):
        return None
    return fact if isinstance(fact, dict) else None


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """(line, facts) of rounds.jsonl. Only what stands before a line's end counts as written."""
    whole = _text(path).split("\n")[:-1]
    found = [(line, _parse(line)) for line in whole]
    for number, (line, fact) in enumerate(found, 1):
        if fact is None or type(fact.get("round")) is not int or misfit(fact, ROUND):
            raise KinfolkError(f"{path}:{number}", line, "is not a line about a round; mend or remove it")
    return [(line, fact) for line, fact in found if fact is not None]
