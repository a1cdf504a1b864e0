"""The report on somebody's own data: what it holds, what is unusual, what was left out."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kinfolk.federation.own_data.loaded import Array, Arrays, LoadedClients, MissingValue, array_rows
from kinfolk.federation.own_data.missing import listed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

# A table on the screen lists this many classes, or columns with gaps, and counts the others.
LISTED = 12
WIDTH = 100
NUMBERS = ("rows", "positions", "share", "clients", "classes", "values", "how many")
Cells = tuple[str, ...]
# A client is much larger than the rest beyond this many times the median.
LARGE = 10
# Below this many rows a constant column tells nothing.
ENOUGH = 10


@dataclass(frozen=True)
class Anomaly:
    """One finding: what, at which clients, and a line about it."""

    what: str
    clients: list[str]
    line: str


@dataclass(frozen=True)
class Report:
    """What there is to say about data before anything trains on it, in JSON's own types."""

    kind: str  # what it was read from
    shape: list[int]  # of one row of x
    types: dict[str, str]  # column -> type as given
    class_names: tuple[str, ...]  # empty: regression
    feature_names: tuple[str, ...]
    sizes: dict[str, int]  # client -> rows
    counts: dict[str, list[int]]  # client -> rows (positions) of each class; empty for regression
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
    labels = _labels(loaded)
    return Report(
        kind=loaded.kind,
        shape=[*loaded.shape],
        types={**loaded.types},
        class_names=loaded.class_names,
        feature_names=loaded.feature_names,
        sizes=_sizes(loaded),
        counts={who: np.bincount(y, minlength=classes).tolist() for who, y in labels.items() if classes},
        target=None if classes or not labels else _range([*labels.values()]),
        missing=[*loaded.missing],
        anomalies=anomalies(loaded),
        left_out={**loaded.left_out},
        notes=[*loaded.notes],
    )


def _sizes(loaded: LoadedClients) -> dict[str, int]:
    return {who: array_rows(y) for who, (_, y) in loaded.clients.items()}


def _labels(loaded: LoadedClients) -> dict[str, Array]:
    """Each client's labels, flat where they are classes; none where targets are several arrays."""
    plain = {who: y for who, (_, y) in loaded.clients.items() if not isinstance(y, dict)}
    if not loaded.class_names:
        return plain
    return {who: y if y.ndim == 1 else y[y >= 0] for who, y in plain.items()}


def _range(labels: Sequence[Array]) -> list[float]:
    """Least, mean and largest."""
    least, largest = min(float(y.min()) for y in labels), max(float(y.max()) for y in labels)
    mean = sum(float(y.sum(dtype=np.float64)) for y in labels) / sum(y.size for y in labels)
    return [least, mean, largest]


def anomalies(loaded: LoadedClients) -> list[Anomaly]:
    """Everything unusual about loaded rows, each kind once.

    >>> rows = np.arange(6.0).reshape(3, 2), np.array([0, 1, 1])
    >>> loaded = LoadedClients({"ann": rows, "bob": (np.ones((1, 2)), np.array([0]))}, ("no", "yes"))
    >>> [(one.what, one.clients) for one in anomalies(loaded)]
    [('single row', ['bob']), ('class at one client only', ['ann'])]
    """
    return [
        *_small(loaded),
        *_large(loaded),
        *_classes(loaded),
        *_targets(loaded),
        *_constant(loaded),
        *_copies(loaded),
    ]


def _small(loaded: LoadedClients) -> Iterator[Anomaly]:
    sizes = _sizes(loaded)
    if alone := [who for who, rows in sizes.items() if rows == 1]:
        yield Anomaly("single row", alone, f"{len(alone)} with one row: nothing is left to test them on")
    if not loaded.class_names:
        return
    one = [who for who, y in _labels(loaded).items() if len(y) > 1 and (y == y[0]).all()]
    if one:
        yield Anomaly("single class", one, f"{len(one)} with rows of one class only: {listed(one)}")


def _large(loaded: LoadedClients) -> Iterator[Anomaly]:
    sizes = _sizes(loaded)
    middle = float(np.median(list(sizes.values())))
    if large := [who for who, rows in sizes.items() if len(sizes) > 2 and rows > LARGE * middle]:
        most = max(sizes[who] for who in large)
        line = f"{listed(large)}: up to {most} rows, where half the clients have at most {middle:g}"
        yield Anomaly("much larger than the rest", large, line)


def _classes(loaded: LoadedClients) -> Iterator[Anomaly]:
    if not loaded.class_names:
        return
    there = {who: np.unique(y) for who, y in _labels(loaded).items()}
    owners = np.bincount(np.concatenate([*there.values()]), minlength=len(loaded.class_names))
    if len(there) > 1 and (lone := np.flatnonzero(owners == 1)).size:
        who = [name for name, own in there.items() if np.isin(lone, own).any()]
        names = listed(loaded.class_names[c] for c in lone.tolist())
        yield Anomaly("class at one client only", who, f"nobody else can learn or test it: class {names}")
    if (empty := np.flatnonzero(owners == 0)).size:
        names = listed(loaded.class_names[c] for c in empty.tolist())
        yield Anomaly(
            "class without rows", [], f"{len(empty)} of {len(owners)} classes have no rows: {names}"
        )


def _targets(loaded: LoadedClients) -> Iterator[Anomaly]:
    labels = _labels(loaded)
    if loaded.class_names or not labels:
        return
    if all((y == np.rint(y)).all() for y in labels.values()):
        line = "every label is a whole number stored as a float; store integers if classes are meant"
        yield Anomaly("whole numbers to predict", [], line)


def _constant(loaded: LoadedClients) -> Iterator[Anomaly]:
    """Features that never change: anywhere, or at one client though they do elsewhere."""
    tables = {who: x.reshape(len(x), -1) for who, (x, _) in loaded.clients.items() if not isinstance(x, dict)}
    if not tables:  # what is constant in a sequence tells nothing
        return
    still = {who: (table == table[0]).all(0) for who, table in tables.items()}
    first = next(iter(tables.values()))[0]
    varies = np.any([~still[who] | (table[0] != first) for who, table in tables.items()], axis=0)
    if (never := np.flatnonzero(~varies)).size:
        which = f": {listed(loaded.feature_names[i] for i in never.tolist())}" if loaded.feature_names else ""
        yield Anomaly("constant features", [], f"{len(never)} of {len(first)} features never change{which}")
    if not varies.any():
        return
    still = {who: own[varies] for who, own in still.items()}
    # Most pixels of a small client are background; most columns of a table are not.
    share = 0.5 if loaded.feature_names else 0.999
    frozen = [who for who, own in still.items() if len(tables[who]) > 1 and own.mean() > share]
    if frozen:
        line = f"most features are constant here though not elsewhere: {listed(frozen)}"
        yield Anomaly("constant client", frozen, line)
    others = {w: own for w, own in still.items() if len(tables[w]) >= ENOUGH and w not in frozen}
    who = [name for name, own in others.items() if own.any()]
    if loaded.feature_names and who:
        times = zip(np.array(loaded.feature_names)[varies], np.sum([*others.values()], axis=0), strict=True)
        told = [f"{name} ({n} client{'s' * bool(n > 1)})" for name, n in times if n]
        yield Anomaly("constant columns", who, f"constant here though not elsewhere: {listed(told)}")


def _copies(loaded: LoadedClients) -> Iterator[Anomaly]:
    """Rows that occur more than once, features and label, to the bit."""
    digests = [_digests(x, y) for x, y in loaded.clients.values()]
    owner = np.repeat(np.arange(len(digests)), [len(own) for own in digests])
    _, row = np.unique(np.concatenate(digests), return_inverse=True)
    pairs, times = np.unique(row.reshape(-1) * len(digests) + owner, return_counts=True)
    copy, holder = np.divmod(pairs, len(digests))
    names = list(loaded.clients)
    shared = np.bincount(copy)[copy] > 1
    if shared.any():
        who = [names[i] for i in np.unique(holder[shared]).tolist()]
        distinct = len(np.unique(copy[shared]))
        line = (
            f"{times[shared].sum()} rows ({distinct} distinct) occur at more than one client: {listed(who)}"
        )
        yield Anomaly("rows at several clients", who, line)
    if (again := times > 1).any():
        who = [names[i] for i in np.unique(holder[again]).tolist()]
        line = f"{(times[again] - 1).sum()} rows repeat another of their client, maybe across its test split"
        yield Anomaly("copies within a client", who, f"{line}: {listed(who)}")


def _digests(x: Arrays, y: Arrays) -> NDArray[np.uint64]:
    """A 64-bit digest for each row: of a million rows, two that differ share one once in 10**7 cases."""
    inputs, targets = ([*rows.values()] if isinstance(rows, dict) else [rows] for rows in (x, y))
    # -0 is 0
    features = [
        np.asarray(a, dtype=np.float32, order="C").reshape(len(a), -1) + np.float32(0) for a in inputs
    ]
    labels = [np.ascontiguousarray(a).reshape(len(a), -1) for a in targets]
    whole = np.concatenate([a.view(np.uint8) for a in (*features, *labels)], axis=1)
    raw, width = whole.tobytes(), whole.shape[1]
    made = (hashlib.blake2b(raw[i : i + width], digest_size=8).digest() for i in range(0, len(raw), width))
    return np.frombuffer(b"".join(made), dtype=np.uint64)


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
        counted = "rows" if _labelled(report) == report.rows else "positions"
        yield _table("Classes", ("class", counted, "share", "clients"), _short(_class_rows(report)))
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
        ("one row of x", f"{list(report.shape)}" if report.shape else "several arrays"),
        ("types", ", ".join(f"{kind} ({n})" if n > 1 else kind for kind, n in types.items())),
    ]
    if report.target is not None:
        least, mean, largest = report.target
        facts.append(("to predict", f"{least:.6g} to {largest:.6g}, mean {mean:.6g}"))
    return facts


def _labelled(report: Report) -> int:
    """How many labels there are: one a row, or one a position that has one."""
    return sum(map(sum, report.counts.values()))


def _class_rows(report: Report) -> list[Cells]:
    table = np.array([*report.counts.values()])
    each = zip(report.class_names, table.sum(0), (table > 0).sum(0), strict=True)
    total = max(_labelled(report), 1)
    return [(name, str(n), f"{n / total:.1%}", str(who)) for name, n, who in each]


def _client_rows(report: Report) -> list[Cells]:
    order = sorted(report.sizes, key=lambda who: (-report.sizes[who], who))
    rows: list[Cells] = []
    for who in order[: LISTED + 1]:  # one more, to be counted among the others
        own, size = report.counts[who], report.sizes[who]
        name = report.class_names[int(np.argmax(own))]
        rows.append((who, str(size), str(np.count_nonzero(own)), name, f"{max(own) / max(sum(own), 1):.1%}"))
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
