"""What a report shows, in order. To add a chart is one line here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinfolk.errors import KinfolkError
from kinfolk.report.page import facts
from kinfolk.report.page.chart import Chart
from kinfolk.report.page.charts import (
    asking,
    attackers,
    choice,
    clients,
    conduct,
    convergence,
    costs,
    data,
    distances,
    images,
    membership,
    projection,
    pseudo,
    trust,
)
from kinfolk.report.page.load import Material

# From the runs of a report, or from its choices of K: see `Entry`.
Maker = Callable[[Any], Chart | Sequence[Chart] | None]


@dataclass(frozen=True)
class Entry:
    """Functions that make charts; what none of them can make is left out."""

    makers: tuple[Maker, ...]
    choose: str = ""  # beside a switch that shows one of the charts at a time; empty: all of them are shown
    narrow: bool = False  # they stand side by side where there is room
    of: str = "runs"  # what the functions are given: "runs" or "choices"


@dataclass(frozen=True)
class Section:
    """A part of the page with a heading of its own; without any chart it is left out."""

    title: str
    entries: tuple[Entry, ...]


SECTIONS = (
    Section("Comparison", (Entry((facts.comparison,)),)),
    Section(
        "Training",
        (Entry((convergence.by_costs,), choose="By"),),
    ),
    Section(
        "Clients",
        (
            Entry((clients.sorted_scores,)),
            Entry((clients.gains_over_all, clients.gains_over_alone), choose="Over"),
            Entry((clients.everyone,)),
        ),
    ),
    Section(
        "Groups",
        (
            Entry((membership.over_rounds,), choose="Method"),
            Entry((membership.agreement, membership.switching), narrow=True),
        ),
    ),
    Section(
        "Models of clients",
        (
            Entry((projection.projection, projection.umap_projection), choose="Method"),
            Entry((distances.distances,), choose="Method"),
        ),
    ),
    Section(
        "Data of the groups",
        (
            Entry((data.labels,), choose="Method"),
            Entry((data.differences,), choose="Method"),
            Entry((images.samples,)),
        ),
    ),
    Section("How many groups", (Entry((choice.choices,), narrow=True, of="choices"),)),
    Section(
        "Pseudo data",
        (Entry((pseudo.pseudo_images,), choose="Method"), Entry((pseudo.confidences,), choose="Method")),
    ),
    Section(
        "Trust among clients",
        (
            Entry((trust.uncertainty,), choose="Method"),
            Entry((trust.lists,), choose="Method"),
            Entry((trust.similarity,), choose="Method"),
            Entry((asking.graph,), choose="Method"),
        ),
    ),
    Section("Attackers", (Entry((attackers.honest, attackers.rejected)),)),
    Section("Conduct of clients", (Entry((conduct.updates,), choose="Method"),)),
    Section("Costs", (Entry((costs.ledger, costs.time)),)),
    Section("About the runs", (Entry((facts.every_run, facts.settings)),)),
)


@dataclass(frozen=True)
class Filled:
    """The charts of an entry."""

    entry: Entry
    charts: tuple[Chart, ...]


def fill(
    material: Material, sections: Sequence[Section] = SECTIONS
) -> Iterator[tuple[Section, list[Filled]]]:
    """Every section that has something to show, with its charts; no two charts have one name."""
    taken: set[str] = set()
    for section in sections:
        found = [Filled(entry, tuple(_charts(entry, material))) for entry in section.entries]
        found = [
            replace(one, charts=tuple(replace(chart, name=_free(chart.name, taken)) for chart in one.charts))
            for one in found
            if one.charts
        ]
        if found:
            yield section, found


def _charts(entry: Entry, material: Material) -> Iterator[Chart]:
    given = material.runs if entry.of == "runs" else material.choices
    for maker in entry.makers if given else ():
        try:
            made = maker(given)
        except KinfolkError:
            if material.score or entry.of != "runs":
                raise
            continue  # before the first score there is little to see
        yield from [made] if isinstance(made, Chart) else made or ()


def _free(name: str, taken: set[str]) -> str:
    """A name that can be a file's, and that no other chart has.

    >>> _free("membership-fesem k=4 <x>", set()), _free("a", {"a", "a-2"})
    ('membership-fesem-k-4-x', 'a-3')
    """
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "chart"
    found, number = plain, 1
    while found in taken:
        number += 1
        found = f"{plain}-{number}"
    taken.add(found)
    return found
