"""What `kinfolk groups` prints: a table of groups, the clients on demand, and what seeds agree on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from kinfolk.experiment.record import plain
from kinfolk.report.groups import Profile, between_seeds, doubtful, named, profiles, switches
from kinfolk.report.read import Run, by_title, check_score, final, shown
from kinfolk.report.tables import empty_table
from kinfolk.scores import about


def groups_table(run: Run, score: str | None = None, clients: bool = False) -> RenderableType:
    """The groups of a run: how large, how well served, which labels, what members share; clients if asked.

    >>> from rich.console import Console
    >>> scores = {"client": ["a", "b"], "value": [0.5, 1.0], "group": [0, 1]}
    >>> console = Console(width=80)
    >>> with console.capture() as text:
    ...     console.print(groups_table(Run.of({"title": "ifca", "seed": 0}, scores)))
    >>> [line.split()[:3] for line in text.get().splitlines() if line.strip()[:1].isdigit()]
    [['0', '1', '50.0%'], ['1', '1', '100.0%']]
    """
    score = check_score([run], score)
    frame, found = run.groups, profiles(run, score)
    table = empty_table(f"Groups of {run.title}, seed {run.seed}", [])
    title = about(score).title.lower()
    for head in ("group", "clients", f"{title}\nmean", "\nworst", "margin"):
        table.add_column(head, justify="right")
    table.add_column("labels", overflow="fold")
    table.add_column("members differ\nfrom others in", overflow="fold")
    for one in found:
        values = [shown(value, score, unit=True) for value in (one.score, one.worst)]
        labels = ", ".join(f"{name} {100 * share:.0f}%" for name, share in one.labels)
        cells = [str(one.group), str(len(one.clients)), *values, _number(one.margin), labels]
        table.add_row(*map(Text, [*cells, ", ".join(one.shares) or "-"]))
    table.caption = Text(_caption(found), style="dim")
    parts: list[RenderableType] = [table, Text(switches(frame))]
    unsure = doubtful(frame)
    parts += [Text(f"in doubt: {named(unsure, 12)}")] if unsure else []
    return Group(*parts, *([_clients(run, score)] if clients else []))


def _caption(found: Sequence[Profile]) -> str:
    said = ["labels: the most frequent ones and their share of members' rows."]
    if any(not math.isnan(one.margin) for one in found):
        said.append("margin: 1 where only the own group is near, 0 where another is as near.")
    if any(one.shares for one in found):
        said.append("sd: standard deviations over clients; beyond chance (5 % over all groups and facts).")
    return " ".join(said)


def _number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def _clients(run: Run, score: str) -> RenderableType:
    frame = run.groups
    values = final(run, run.models[0], score)
    table = empty_table("Clients", ["client"])
    for head in ("group", "margin", "steady", "switches", "since\nround", about(score).title.lower()):
        table.add_column(head, justify="right")
    for client, row in frame.sort_values(["group", "margin"], kind="stable").iterrows():
        numbers = [_number(row["margin"]), _number(row["steady"])]
        moved = [str(int(row["switches"])), str(int(row["since"]))]
        value = shown(float(values.get(client, math.nan)), score, unit=True)
        table.add_row(*map(Text, [str(client), str(int(row["group"])), *numbers, *moved, value]))
    table.caption = Text(
        "steady: share of evaluated rounds since the split in this group; switches: moves after it.",
        style="dim",
    )
    return table


def seeds_agree(runs: Sequence[Run]) -> list[str]:
    """A line for each method whose groups can be compared between seeds.

    >>> def run(seed, groups):
    ...     scores = {"client": ["a", "b", "c", "d"], "value": 0.5, "group": groups}
    ...     return Run.of({"title": "ifca", "seed": seed}, scores)
    >>> seeds_agree([run(0, [0, 0, 1, 1]), run(1, [1, 1, 0, 0])])
    ['ifca: groups of 2 seeds agree with ARI 1.00']
    """
    lines = []
    agreed = between_seeds(runs)
    for title, same in by_title(runs).items():
        if title not in agreed and len(same) > 1:
            ends = [run.rounds[-1].get("groups") or {} for run in same if run.rounds]
            told = [facts["ari"] for facts in ends if "ari" in facts]
            known = f"; ARI with known groups {', '.join(f'{ari:.2f}' for ari in told)}" if told else ""
            lines.append(f"{title}: a client has other rows in each seed, so seeds cannot agree{known}")
    for title, found in agreed.items():
        many = 1 + round((math.sqrt(1 + 8 * len(found)) - 1) / 2)
        span = f"{min(found):.2f}" + (f" to {max(found):.2f}" if max(found) - min(found) > 0.005 else "")
        lines.append(f"{title}: groups of {many} seeds agree with ARI {span}")
    return lines


def groups_json(run: Run, score: str | None = None) -> dict[str, Any]:
    """The same in JSON's own types.

    >>> scores = {"client": ["a"], "value": [0.5], "group": [0]}
    >>> list(groups_json(Run.of({"title": "ifca", "seed": 0}, scores)))
    ['title', 'seed', 'clients', 'groups']
    """
    frame = run.groups.reset_index()
    found = [vars(one) for one in profiles(run, score)]
    told: dict[str, Any] = plain(
        {"title": run.title, "seed": run.seed, "clients": frame.to_dict("records"), "groups": found}
    )
    return told
