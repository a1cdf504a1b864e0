"""A paper to be reproduced, as a TOML file: its tables, which run stands for each row, what was reported."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.spec import read_toml

# What a row may have cost: megabytes to and from a participant in a round, the server's seconds in a round;
# and how many of its clusters differ in the end.
COSTS = {"down": "MB down", "up": "MB up", "server": "server s", "effective": "differ"}


# Tables and figures have a folder of their name each; none may lead out of the one they are in.
_FOLDER = re.compile(r"[\w-][\w.-]{0,99}")


@dataclass(frozen=True)
class Row:
    """One row of a table."""

    label: str
    # The algorithm, as `kinfolk compare -a` takes it.
    run: str
    # Which of its models is scored; empty: the main one.
    model: str = ""
    # What the paper prints, column by column, as it is printed.
    reported: list[Any] = field(default_factory=list)
    # Why the two differ.
    why: str = ""
    # Settings of this row alone.
    set: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class PaperTable:
    """One table: a federation, and the runs on it."""

    name: str
    title: str
    # An experiment file beside this one.
    spec: str
    columns: list[list[str]]
    rows: list[Row]
    # Why all its rows differ from what was reported.
    why: str = ""
    # Settings that all its runs change; and those that only runs at full size do.
    set: list[str] = field(default_factory=list)
    set_full: list[str] = field(default_factory=list)
    # The labels of the rows whose curves are drawn; empty: all.
    curves: list[str] = field(default_factory=list)
    # What the runs have cost, names of COSTS; papers seldom print it.
    costs: list[str] = field(default_factory=list)
    # The label of a row whose clients' models are drawn, and how many of them; 0: none.
    picture: str = ""
    pictured: int = 400
    # The label of a row of mdicfl whose pseudo rows are drawn, by both samplers; empty: none.
    pseudo: str = ""
    # The name of another table whose runs are scored again on this one's rows; empty: it has its own.
    again: str = ""


@dataclass(frozen=True)
class Trust:
    """A figure of SLFed's opinions: uncertainty, lists and who trusts whom, for some numbers of partners."""

    name: str
    title: str
    # An experiment file beside this one.
    spec: str
    # SLFed with its options, as `kinfolk compare -a` takes it.
    run: str = "slfed"
    direct: list[int] = field(default_factory=lambda: [1, 2])
    # What the paper says of it.
    reported: str = ""
    set: list[str] = field(default_factory=list)
    set_full: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Paper:
    """What is to be run, and what was reported."""

    title: str
    tables: list[PaperTable]
    trust: list[Trust] = field(default_factory=list)
    # Tables that nobody asked for, with the rows whose runs are scored again for one that was.
    behind: list[PaperTable] = field(default_factory=list)

    def trained(self, table: PaperTable) -> PaperTable:
        """The table whose runs are trained for this one: itself, unless they are scored again."""
        name = table.again or table.name
        return next(one for one in [*self.tables, *self.behind] if one.name == name)

    def rows(self, labels: Sequence[str]) -> tuple[str, ...]:
        """The labels, if each is that of a row; no label: all.

        >>> Paper("mine", [PaperTable("a", "A", "a.toml", [], [Row("Local", "local")])]).rows(["Locl"])
        Traceback (most recent call last):
        kinfolk.errors.KinfolkError: --row = 'Locl': did you mean 'Local'?
        """
        return _among("--row", labels, [row.label for table in self.tables for row in table.rows])

    def only(self, names: Sequence[str]) -> Paper:
        """With the named tables alone; no name: all."""
        known = [one.name for one in self.tables] + [one.name for one in self.trust]
        chosen = _among("--table", names, known)
        tables = [one for one in self.tables if one.name in chosen]
        trust = [one for one in self.trust if one.name in chosen]
        behind = {one.again: self._behind(one) for one in tables if one.again and one.again not in chosen}
        return Paper(self.title, tables, trust, list(behind.values()))

    def _behind(self, table: PaperTable) -> PaperTable:
        """The table whose runs this one scores again, with their rows alone."""
        labels, base = [row.label for row in table.rows], self.trained(table)
        rows = [row for row in base.rows if row.label in labels]
        return replace(base, rows=rows, picture="", pseudo="")


def _among(option: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The names, if each is known; no name: all."""
    for name in names:
        if name not in known:
            raise KinfolkError(option, name, near(name, dict.fromkeys(known)))
    return tuple(names or dict.fromkeys(known))


def load_paper(path: Path) -> Paper:
    """Read a paper's file; what is wrong with it is one line.

    >>> load_paper(Path("nowhere.toml"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: spec = 'nowhere.toml': no such file; ...
    """
    held, where = read_toml(path), f"{path.name}: table"
    tables = [
        _made(PaperTable, {**one, "rows": [_made(Row, row, f"{path.name}: row") for row in rows]}, where)
        for one, rows in ((one, one.get("rows", [])) for one in held.get("tables", []))
    ]
    if not tables:
        raise KinfolkError("tables", str(path), "has none; write [[tables]] and their [[tables.rows]]")
    for table in tables:
        _among(f"{table.name}: costs", table.costs, list(COSTS))
        for row in table.rows:
            if row.reported and len(row.reported) != len(table.columns):
                remedy = f"give {len(table.columns)} numbers, one for each column of {table.name}"
                raise KinfolkError(f"{row.label}: reported", row.reported, remedy)
        if table.again:
            _check_again(table, {one.name: one for one in tables})
    trust = [_made(Trust, one, f"{path.name}: trust") for one in held.get("trust", [])]
    for name in (one.name for one in (*tables, *trust)):
        if not isinstance(name, str) or not _FOLDER.fullmatch(name):
            raise KinfolkError(f"{path.name}: name", name, "names a folder: use letters, digits, . _ and -")
    return Paper(str(held.get("title", path.stem)), tables, trust)


def _check_again(table: PaperTable, known: Mapping[str, PaperTable]) -> None:
    """Runs that are scored again are those of another table, row by row."""
    field, others = f"{table.name}: again", {name: one for name, one in known.items() if one is not table}
    if table.again not in others:
        raise KinfolkError(field, table.again, near(table.again, others))
    base = others[table.again]
    if base.again:
        raise KinfolkError(field, table.again, f"trains nothing itself; name {base.again}")
    if table.picture or table.pseudo or table.costs:
        remedy = f"picture, pseudo and costs are about training; give them to {table.again}"
        raise KinfolkError(field, table.again, remedy)
    runs = {row.label: row.run for row in base.rows}
    for row in table.rows:
        if runs.get(row.label) != row.run:
            remedy = f"{table.again} has no row of this label with the run {row.run!r}"
            raise KinfolkError(f"{table.name}: row", row.label, f"{remedy}; make them the same")


def _made(kind: type[Any], table: Mapping[str, Any], where: str) -> Any:
    known = [f.name for f in fields(kind)]
    for key in table:
        if key not in known:
            raise KinfolkError(where, key, f"no such key; {near(key, known)}")
    try:
        return kind(**table)
    except TypeError as bad:
        raise KinfolkError(where, table.get("name") or table.get("label"), str(bad)) from bad
