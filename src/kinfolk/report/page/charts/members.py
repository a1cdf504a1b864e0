"""What charts of clients and groups share: which runs are drawn, who is in which group when, and colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.experiment.record import readable_json
from kinfolk.report.page.chart import IS_PICKED
from kinfolk.report.read import Run, by_title

# Methods that have charts of their own models and groups.
MOST_METHODS = 6
# A client of no group; one that attacks, which is not scored, so that no record has its group; and the others
# where nobody has one.
NO_GROUP, ATTACKER, HONEST = "none", "attacker", "honest"
# Groups that a legend names; colours repeat long before.
LEGEND = 16
# Shapes that are told apart; known groups beyond these have none.
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "cross",
    "triangle-down",
    "triangle-right",
    "triangle-left",
)
KNOWN = "known "
# Apart from those of groups, readable on light and dark pages alike.
BETWEEN, HUE, FAR = "#8a8a8a", "#0072B2", "#D55E00"


def firsts(runs: Sequence[Run]) -> list[Run]:
    """The run of lowest seed of each method, in the order met; of MOST_METHODS.

    >>> a, b, c = (Run.of({"title": t, "seed": s}, {"value": []}) for t, s in (("x", 1), ("y", 0), ("x", 0)))
    >>> [(run.title, run.seed) for run in firsts([a, b, c])]
    [('x', 0), ('y', 0)]
    """
    return [min(same, key=lambda run: run.seed) for same in by_title(runs).values()][:MOST_METHODS]


def known_groups(run: Run) -> pd.Series:
    """The known group of every client, as text; empty where none or only one is known.

    >>> known_groups(Run.of({"title": "x", "seed": 0}, {"value": []})).empty
    True
    """
    facts = run.client_facts
    if "known group" not in facts:
        return pd.Series(dtype=object)
    known = facts["known group"].dropna().astype(int).astype(str)
    return known if known.nunique() > 1 else known[:0]


def names_of(run: Run, what: str) -> list[str]:
    """What the data call their classes ("class_names") or columns ("feature_names"); none if they do not say.

    >>> names_of(Run.of({"title": "x", "seed": 0}, {"value": []}), "class_names")
    []
    """
    try:
        found = readable_json((run.path / "federation.json").read_text(encoding="utf-8"))[what]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [str(name) for name in found] if isinstance(found, list) else []


def named_fact(fact: str, classes: Sequence[str], columns: Sequence[str]) -> str:
    """A fact of `clients.parquet` by the names that the data have for it.

    >>> [named_fact(fact, ["cat", "dog"], ["age"]) for fact in ("label 1", "column 0", "rows")]
    ['label dog', 'age', 'rows']
    """
    kind, _, number = fact.partition(" ")
    names = {"label": classes, "column": columns}.get(kind, ())
    if not number.isdigit() or int(number) >= len(names):
        return fact
    return f"label {names[int(number)]}" if kind == "label" else names[int(number)]


def attackers(run: Run) -> set[str]:
    """The clients that attack in a run."""
    return {str(name) for name in run.facts.get("attackers") or ()}


def group_of(run: Run, rounds: Sequence[int], clients: Sequence[str]) -> list[str]:
    """The group of each of some clients after a round of its own, as text.

    >>> scores = {"round": [1, 2], "client": "ann", "value": 0.5, "group": [0, 1]}
    >>> group_of(Run.of({"title": "x", "seed": 0}, scores), [2, 1, 2], ["ann", "ann", "bob"])
    ['1', '0', 'none']
    """
    bad = attackers(run)
    if not run.has_groups:
        return [ATTACKER if c in bad else HONEST if bad else NO_GROUP for c in clients]
    known: dict[tuple[int, str], int] = {}
    for number, part in run.scored.parts(("client", "group"), set(rounds)):
        once = part[part["group"].notna()].drop_duplicates("client")
        known |= {(number, who): int(g) for who, g in zip(once["client"], once["group"], strict=True)}
    pairs = zip(rounds, clients, strict=True)
    return [ATTACKER if pair[1] in bad else str(known.get(pair, NO_GROUP)) for pair in pairs]


def counted(number: int, word: str) -> str:
    """A number of things.

    >>> counted(1, "client"), counted(2000, "group")
    ('1 client', '2,000 groups')
    """
    return f"{number:,} {word}{'s' * (number != 1)}"


def numbered(groups: Iterable[str]) -> list[str]:
    """Those that are groups of the method.

    >>> numbered(["1", "none", "0", "attacker"])
    ['0', '1']
    """
    return [g for g in in_order(groups) if g.isdigit()]


def in_order(groups: Iterable[str]) -> list[str]:
    """Every group once: numbers first in their order, then words.

    >>> in_order(["10", "none", "2", "2"])
    ['2', '10', 'none']
    """
    return sorted(set(groups), key=lambda g: (not g.isdigit(), int(g) if g.isdigit() else 0, g))


def coloured(groups: Sequence[str], title: str = "group") -> dict[str, Any]:
    """The colour of marks that have a field `group`: the same in every chart of a run.

    >>> coloured(["0", "1"])["scale"]
    {'domain': ['0', '1']}
    """
    legend = {"symbolType": "circle"} if len(groups) <= LEGEND else None
    return {
        "field": "group",
        "type": "nominal",
        "title": title,
        "scale": {"domain": list(groups)},
        "legend": legend,
    }


def heat(field: str, title: str) -> dict[str, Any]:
    """The colour of cells by a number that is 0 or more.

    >>> heat("distance", "distance")["legend"]["title"]
    'distance'
    """
    legend = {"title": title, "gradientLength": 160}
    scale = {"range": "heatmap", "zero": True}
    return {"field": field, "type": "quantitative", "scale": scale, "legend": legend}


def either_picked(shown: float = 1, faded: float = 0.2) -> dict[str, Any]:
    """The opacity of marks that are about two clients, `client` and `other`: if neither is picked they fade.

    >>> either_picked()["value"]
    0.2
    """
    test = f"{IS_PICKED} || indexof(picked, datum.other) >= 0"
    return {"condition": {"test": test, "value": shown}, "value": faded}


def shaped(kinds: Sequence[str], grey: bool = True) -> dict[str, Any]:
    """The shape of marks that have a field `known`: `KNOWN` and their known group.

    That word keeps the legend apart from that of found groups, which have numbers too.
    """
    legend = {"labelExpr": f"replace(datum.label, '{KNOWN}', '')"}
    # Two legends above one another fit on a telephone, beside one another they do not.
    legend |= {"symbolFillColor": BETWEEN, "symbolStrokeColor": BETWEEN, "orient": "bottom"} if grey else {}
    scale = {"domain": [KNOWN + kind for kind in kinds], "range": list(SHAPES[: len(kinds)])}
    return {"field": "known", "type": "nominal", "title": "known group", "scale": scale, "legend": legend}


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of some values, evenly, the last and, if it is not the only one, the first among them.

    >>> evenly(range(10), 4), evenly([1, 2], 4), evenly([1, 2], 1)
    ([0, 3, 6, 9], [1, 2], [2])
    """
    if len(values) <= most:
        return list(values)
    if most == 1:
        return [values[-1]]
    return [values[i] for i in np.unique(np.linspace(0, len(values) - 1, most).round().astype(int))]


def short(values: Any, digits: int = 4) -> list[float]:
    """Numbers with a few digits, as they go into a page.

    >>> short([1234.5678, 0.00012345678, float("nan")])
    [1235.0, 0.0001235, nan]
    """
    return [float(f"{value:.{digits}g}") for value in np.asarray(values, dtype=float).ravel()]


def percent(value: float) -> str:
    """A share in a sentence.

    >>> percent(0.1234)
    '12 %'
    """
    return f"{100 * value:.0f} %"
