"""The report on somebody's own data: what it holds, what is unusual, what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from kinfolk.federation.own_data.anomalies import Anomaly, anomalies
from kinfolk.federation.own_data.loaded import LoadedClients, MissingValue

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# A table on the screen lists this many classes, or columns with gaps, and counts the others.
LISTED = 12
WIDTH = 100
NUMBERS = ("rows", "share", "clients", "classes", "values", "how many")
Cells = tuple[str, ...]


@dataclass(frozen=True)
class Report:
    """What there is to say about data before anything trains on it, in JSON's own types."""

    kind: str  # what it was read from
    shape: list[int]  # of one row of x
    types: dict[str, str]  # column -> type as given
    class_names: tuple[str, ...]  # empty: regression
    feature_names: tuple[str, ...]
    sizes: dict[str, int]  # client -> rows
    counts: dict[str, list[int]]  # client -> rows of each class; empty for regression
    target: list[float] | None  # regression: least, mean and largest y
    missing: list[MissingValue]  # what was missing before it was dropped or filled
    anomalies: list[Anomaly]
    left_out: dict[str, int]  # reason -> how many
    notes: list[str]

    @property
    def rows(self) -> int:
        """Rows of all clients together."""
        return sum(self.sizes.values())

    @property
    def balance(self) -> dict[str, int]:
        """Rows of each class over all clients."""
        by_class = zip(*self.counts.values(), strict=True)
        return {name: sum(own) for name, own in zip(self.class_names, by_class, strict=False)}

    def as_dict(self) -> dict[str, Any]:
        """The same as JSON has it; `Report.from_dict` reads it back."""
        return {
            "clients": len(self.sizes),
            "rows": self.rows,
            "class_balance": self.balance,
            **asdict(self),
        }

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> Report:
        """A report out of what `as_dict` gave; KeyError or TypeError where it is not that."""
        own = {field.name: plain[field.name] for field in fields(Report)}
        own["missing"] = [MissingValue(**gap) for gap in own["missing"]]
        own["anomalies"] = [Anomaly(**one) for one in own["anomalies"]]
        for name in ("class_names", "feature_names"):
            own[name] = tuple(own[name])
        return Report(**own)


def inspect(loaded: LoadedClients) -> Report:
    """Look through loaded rows: shapes, types, class balance, missing values, unusual clients.

    >>> rows = np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 1])
    >>> report = inspect(LoadedClients({"ann": rows}, class_names=("no", "yes")))
    >>> report.rows, report.balance, report.as_dict()["counts"]
    (4, {'no': 1, 'yes': 3}, {'ann': [1, 3]})
    """
    classes = len(loaded.class_names)
    labels = [y for _, y in loaded.clients.values()]
    least, largest = min(float(y.min()) for y in labels), max(float(y.max()) for y in labels)
    mean = sum(float(y.sum(dtype=np.float64)) for y in labels) / sum(y.size for y in labels)
    return Report(
        kind=loaded.kind,
        shape=[*loaded.shape],
        types={**loaded.types},
        class_names=loaded.class_names,
        feature_names=loaded.feature_names,
        sizes={who: len(y) for who, (_, y) in loaded.clients.items()},
        counts={
            who: np.bincount(y, minlength=classes).tolist()
            for who, (_, y) in (loaded.clients.items() if classes else ())
        },
        target=None if classes else [least, mean, largest],
        missing=[*loaded.missing],
        anomalies=anomalies(loaded),
        left_out={**loaded.left_out},
        notes=[*loaded.notes],
    )


def report_table(report: Report) -> RenderableType:
    """The report for the terminal, at most 100 columns wide.

    >>> from rich.console import Console
    >>> loaded = LoadedClients({"ann": (np.zeros((2, 1)), np.array([0, 0]))}, class_names=("no",))
    >>> with (console := Console(width=200)).capture() as capture:
    ...     console.print(report_table(inspect(loaded)))
    >>> lines = capture.get().splitlines()
    >>> max(map(len, lines)) <= 100, sum("single class" in line for line in lines)
    (True, 1)
    """
    from rich.console import Group
    from rich.constrain import Constrain

    return Constrain(Group(*_blocks(report)), WIDTH)


def _blocks(report: Report) -> Iterator[RenderableType]:
    yield _table("Data", (), _facts(report))
    if report.counts:
        yield _table("Classes", ("class", "rows", "share", "clients"), _short(_class_rows(report)))
        heads = ("client", "rows", "classes", "most frequent class", "share")
        yield _table("Clients, by rows", heads, _short(_client_rows(report)))
    if report.missing:
        gaps = [(h.column, f"{h.values}", f"{h.client}, row {h.row}") for h in report.missing]
        yield _table("Missing values", ("column", "values", "first"), _short(gaps))
    if report.anomalies:
        rows = [(one.what, f"{len(one.clients) or '-'}", one.line) for one in report.anomalies]
        yield _table("Anomalies", ("what", "clients", ""), rows)
    if report.left_out:
        yield _table("Left out", ("what", "how many"), [(why, str(n)) for why, n in report.left_out.items()])
    if report.notes:
        yield _table("Notes", (), [(note,) for note in report.notes])


def _facts(report: Report) -> list[Cells]:
    sizes = [*report.sizes.values()]
    types = Counter(report.types.values())
    facts: list[Cells] = [
        ("read from", report.kind),
        ("clients", str(len(sizes))),
        ("rows", f"{report.rows} (per client {min(sizes)} to {max(sizes)}, median {np.median(sizes):g})"),
        ("one row of x", f"{list(report.shape)}"),
        ("types", ", ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in types.items())),
    ]
    if report.target is not None:
        least, mean, largest = report.target
        facts.append(("to predict", f"{least:.6g} to {largest:.6g}, mean {mean:.6g}"))
    return facts


def _class_rows(report: Report) -> list[Cells]:
    table = np.array([*report.counts.values()])
    each = zip(report.class_names, table.sum(0), (table > 0).sum(0), strict=True)
    return [(name, str(n), f"{n / report.rows:.1%}", str(who)) for name, n, who in each]


def _client_rows(report: Report) -> list[Cells]:
    order = sorted(report.sizes, key=lambda who: (-report.sizes[who], who))
    rows: list[Cells] = []
    for who in order[: LISTED + 1]:  # one more, to be counted among the others
        own, size = report.counts[who], report.sizes[who]
        name = report.class_names[int(np.argmax(own))]
        rows.append((who, str(size), str(np.count_nonzero(own)), name, f"{max(own) / size:.1%}"))
    return rows + [("", "", "", "", "")] * (len(order) - len(rows))


def _short(rows: Sequence[Cells]) -> list[Cells]:
    """The first rows, and how many there are besides."""
    if len(rows) <= LISTED:
        return list(rows)
    return [*rows[:LISTED], (f"and {len(rows) - LISTED} more", *[""] * (len(rows[0]) - 1))]


def _table(title: str, heads: Cells, rows: Sequence[Cells]) -> Table:
    """Plain columns; texts are never read as markup, as they may be anybody's."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=None, show_header=bool(heads), title_justify="left", padding=(0, 2))
    for i in range(len(rows[0])):
        number = bool(heads) and heads[i] in NUMBERS
        table.add_column(heads[i] if heads else "", overflow="fold", justify="right" if number else "left")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
