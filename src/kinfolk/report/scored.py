"""The scores of a run, read round by round and in the columns that are wanted: all of them may be too many.

What is asked of them again is kept: who was ever scored, means over clients by round, the last scores.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from kinfolk.errors import KinfolkError, visible
from kinfolk.experiment.record import TEXTS, is_empty, round_files, score_table
from kinfolk.scores import about, summary

Part = tuple[int, pd.DataFrame]
# By kind of model and round, one number over all clients by each of the words of `summary`.
Curves = dict[str, dict[int, dict[str, float]]]


@dataclass(frozen=True)
class Seen:
    """What was ever scored: who by which model and score (`known` where that gave a number), and when."""

    rows: pd.DataFrame  # client, model, score, known: each once, in the order met
    rounds: tuple[int, ...]


class Scored(ABC):
    """The scores of one run."""

    def __init__(self) -> None:
        self._curves: dict[str, Curves] = {}
        self._served: dict[tuple[str, int], set[str]] = {}
        self._ends: dict[tuple[str, str], pd.DataFrame] = {}

    @abstractmethod
    def parts(
        self, columns: Sequence[str], rounds: Collection[int] | None = None, *, backwards: bool = False
    ) -> Iterator[Part]:
        """Round by round some columns of its rows; all rounds that have any rows, or some of these."""

    def _rounds_with(self, column: str) -> Collection[int] | None:
        """The rounds in which a column may hold anything, where that is known without reading it."""
        return None

    @cached_property
    def seen(self) -> Seen:
        """What was ever scored, and when."""
        texts = ("client", "model", "score")
        rounds, found, before = [], [], None
        for number, part in self.parts((*texts, "value")):
            rounds.append(number)
            now = {name: part[name] for name in texts} | {"known": part["value"].notna()}
            if before is None or not all(_same(before[name], now[name]) for name in now):
                found.append(pd.DataFrame(now).drop_duplicates().astype(dict.fromkeys(texts, "str")))
            before = now
        if not found:
            return Seen(pd.DataFrame(columns=["client", "model", "score", "known"]), ())
        return Seen(pd.concat(found).drop_duplicates(ignore_index=True), tuple(rounds))

    @cached_property
    def grouped(self) -> bool:
        """Whether any client was ever in a group."""
        parts = self.parts(("group",), self._rounds_with("group"), backwards=True)
        return any(bool(part["group"].notna().any()) for _, part in parts)

    def end(self, columns: Sequence[str]) -> pd.DataFrame:
        """The rows of the last round that has any."""
        empty = pd.DataFrame(columns=list(columns))
        return next((part for _, part in self.parts(columns, backwards=True)), empty)

    def served(self, model: str, round: int) -> set[str]:
        """The clients for whom this model was scored in a round."""
        if (model, round) not in self._served:
            parts = self.parts(("client", "model"), (round,))
            found = {who for _, part in parts for who in part.loc[part["model"] == model, "client"].unique()}
            self._served[model, round] = found
        return self._served[model, round]

    def last(self, model: str, score: str) -> pd.DataFrame:
        """The rows of the last round in which this model was scored so: round, value and rows, by client."""
        if (model, score) not in self._ends:
            self._ends[model, score] = self._last(model, score)
        return self._ends[model, score]

    def _last(self, model: str, score: str) -> pd.DataFrame:
        ever = self.seen.rows
        if ((ever["model"] == model) & (ever["score"] == score)).any():
            for _, part in self.parts(("round", "client", "model", "score", "value", "rows"), backwards=True):
                here = part[(part["model"] == model) & (part["score"] == score)]
                if len(here):
                    found = here.astype({"client": "str"}).set_index("client").sort_index()
                    return found[["round", "value", "rows"]]
        nobody = pd.Index([], dtype="str", name="client")
        return pd.DataFrame(columns=["round", "value", "rows"], index=nobody, dtype=np.float64)

    def curves(self, score: str) -> Curves:
        """Of every kind of model that was scored so, a summary over clients for each round."""
        if score not in self._curves:
            found: Curves = {}
            for number, part in self.parts(("model", "score", "value", "rows")):
                so, values, rows = part["score"] == score, part["value"].to_numpy(), part["rows"].to_numpy()
                for model in part["model"].unique():
                    mine = (so & (part["model"] == model)).to_numpy()
                    if mine.any():
                        one = summary(values[mine], rows[mine], about(score).lower_is_better)
                        found.setdefault(str(model), {})[number] = one
            self._curves[score] = found
        return self._curves[score]

    @cached_property
    def groups(self) -> pd.DataFrame:
        """The group of every client (a column) at every scored round (a row); NaN where it had none."""
        lines: dict[int, pd.Series] = {}
        before: pd.Series | None = None
        once, names = np.empty(0, bool), pd.Index([])
        for number, part in self.parts(("client", "group")):
            if before is None or not _same(before, part["client"]):
                once = ~part["client"].duplicated().to_numpy()
                names = pd.Index(part["client"].astype("str"))[once]
            before = part["client"]
            lines[number] = pd.Series(part["group"].to_numpy(dtype=np.float64, na_value=np.nan)[once], names)
        table = pd.DataFrame(lines, dtype=np.float64).sort_index().T
        return table.rename_axis(index="round", columns="client")


class Held(Scored):
    """Scores that are in memory, in a frame with the columns of records.

    >>> frame = pd.DataFrame({"round": [0, 5], "client": "ann", "model": "centre", "score": "accuracy",
    ...     "value": [0.25, 0.5], "rows": 10})
    >>> Held(frame).curves("accuracy")["centre"][5]["macro"], Held(frame).seen.rounds
    (0.5, (0, 5))
    """

    def __init__(self, frame: pd.DataFrame) -> None:
        super().__init__()
        self.frame = frame

    def parts(
        self, columns: Sequence[str], rounds: Collection[int] | None = None, *, backwards: bool = False
    ) -> Iterator[Part]:
        """Round by round some columns of its rows."""
        found = [(int(number), part[list(columns)]) for number, part in self.frame.groupby("round")]
        for number, part in found[::-1] if backwards else found:
            if rounds is None or number in rounds:
                yield number, part


class Stored(Scored):
    """Scores in a run folder: those of one name, or all; rows of validation that only judged rounds left out.

    >>> list(Stored(Path("nowhere"), split="test").parts(("value",)))
    []
    """

    def __init__(self, folder: Path, split: str | None, score: str | None = None) -> None:
        super().__init__()
        self.files = round_files(folder, "records")
        self.split, self.score = split, score
        self._names: dict[str, tuple[pa.Array, pd.CategoricalDtype, Any]] = {}

    def parts(
        self, columns: Sequence[str], rounds: Collection[int] | None = None, *, backwards: bool = False
    ) -> Iterator[Part]:
        """Round by round some columns of its rows; texts are categories."""
        files = self.files[::-1] if backwards else self.files
        for number, path in files:
            if rounds is None or number in rounds:
                part = self._read(number, path, columns, self._own_split)
                if len(part):
                    yield number, part[list(columns)]

    def _rounds_with(self, column: str) -> set[int]:
        return {number for number, path in self.files if not is_empty(path, column)}

    @cached_property
    def _own_split(self) -> str | None:
        """The split whose rows count, where there are any of it."""
        for number, path in self.files[::-1] if self.split is not None else ():
            if (self._read(number, path, ("split",), None)["split"] == self.split).any():
                return self.split
        return None

    def _read(self, number: int, path: Path, columns: Sequence[str], split: str | None) -> pd.DataFrame:
        wanted = {"split": split, "score": self.score}
        only = {name: value for name, value in wanted.items() if value is not None}
        table = score_table(path, {"round", *columns, *only}, coded=True)
        found = {name: table[name].to_numpy() for name in table.column_names if name not in TEXTS}
        if (found["round"] != number).any():
            raise KinfolkError("records", str(path), "holds rows of another round")
        found |= {name: self._coded(name, table[name]) for name in table.column_names if name in TEXTS}
        frame = pd.DataFrame(found, copy=False)
        for name, value in only.items():
            if list(frame[name].array.categories) != [value]:
                frame = frame[frame[name] == value]
        return frame

    def _coded(self, name: str, column: pa.ChunkedArray) -> pd.Categorical:
        """Texts that a terminal can show as categories, the same for as long as files hold the same."""
        texts = column.unify_dictionaries().combine_chunks()
        held = self._names.get(name)
        if held is None or not texts.dictionary.equals(held[0]):
            shown = np.array([visible(text) for text in texts.dictionary.to_pylist()], dtype=object)
            place, names = pd.factorize(shown)
            self._names[name] = held = (texts.dictionary, pd.CategoricalDtype(names), place)
        return pd.Categorical.from_codes(held[2][texts.indices.to_numpy()], dtype=held[1])


def _same(one: pd.Series, other: pd.Series) -> bool:
    """Whether two columns are known to be equal; of texts only where they share their categories."""
    if len(one) != len(other) or one.dtype is not other.dtype:
        return False
    a, b = (column.array.codes if hasattr(column, "cat") else column.to_numpy() for column in (one, other))
    return np.array_equal(a, b)
