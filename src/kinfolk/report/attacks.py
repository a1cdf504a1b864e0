"""Who was hurt by how much, from the folder of `kinfolk attack` alone: rows, the table and the figure."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich.table import Table

from kinfolk.report.figures import COLOURS, INK, PALE, STYLES, dress, save
from kinfolk.report.read import Run, default_score, final, is_name, load_run, read_facts, sample_std, shown
from kinfolk.report.whole import WholeTable
from kinfolk.scores import about

SUCCESS = "attack_success"
Row = Mapping[str, Any]


def attack_rows(folder: str | Path) -> list[dict[str, Any]]:
    """A row for each cell: honest clients' score, the worst of them, what the attack achieved.

    Means and deviations are over seeds. `lost` is how many honest clients have no score at the end, in the
    seed where they are most: what stands beside it is about the others.

    >>> attack_rows("nowhere")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: attack = 'nowhere': has no attack.json; name a folder of `kinfolk attack`
    """
    return [_row(Path(folder), cell) for cell in read_facts(folder, "attack")["cells"]]


def _row(folder: Path, cell: Row) -> dict[str, Any]:
    names = [name for name in cell["runs"] if is_name(name) and (folder / name / "run.json").is_file()]
    seen = [_seen(load_run(folder / name), cell) for name in names]
    row = {key: cell[key] for key in ("method", "defence", "attack", "attackers", "clients", "refused")}
    score = seen[0]["name"] if seen else "accuracy"
    found = {key: _over([one[key] for one in seen]) for key in ("score", "worst", "success", "mixed")}
    states = {one["status"] for one in seen} - {"finished"}
    return {
        **row, "name": score, **found, "lost": max((one["lost"] for one in seen), default=0),
        "seeds": len(seen), "status": ", ".join(sorted(states)),
    }  # fmt: skip


def _seen(run: Run, cell: Row) -> dict[str, Any]:
    """What one run tells."""
    honest, has = int(cell["clients"]) - int(cell["attackers"]), run.models
    name = default_score([run]) if has else "accuracy"
    values = final(run, has[0], name).dropna() if has else np.zeros(0)
    fooled = final(run, has[0], SUCCESS).dropna() if has and SUCCESS in run.metrics else np.zeros(0)
    groups: Row = next((line["groups"] for line in reversed(run.rounds) if "groups" in line), {})
    lower = about(name).lower_is_better
    return {
        "name": name,
        "score": float(values.mean()) if len(values) else math.nan,
        "worst": float(values.max() if lower else values.min()) if len(values) else math.nan,
        "success": float(fooled.mean()) if len(fooled) else math.nan,
        "mixed": float(groups.get("mixed", math.nan)),
        "lost": honest - len(values),
        "status": str(run.facts.get("status")),
    }


def _over(values: Sequence[float]) -> dict[str, float]:
    return {"mean": float(np.mean(values)) if values else math.nan, "std": sample_std(values)}


def attack_table(rows: Sequence[Row]) -> tuple[Table, list[str]]:
    """(table, notes), 80 columns wide; cells that were refused stand in the notes.

    >>> row = {"method": "fedavg", "defence": "mean", "attack": "noise", "attackers": 1, "clients": 4}
    >>> row |= {"name": "accuracy", "refused": "too few", "lost": 0, "status": "", "seeds": 0}
    >>> attack_table([row])[1][0]
    'refused: fedavg, mean, f = 1: too few'
    """
    table = WholeTable(box=None, padding=(0, 1, 0, 0))
    for head in ("method", "defence", "attack"):
        table.add_column(head, overflow="fold")
    ran = [row for row in rows if not row["refused"]]
    score = ran[0]["name"] if ran else "accuracy"
    for head in ("f", f"honest\n{score}", "worst\nclient", "attack\nsuccess", "in honest\ngroups"):
        table.add_column(head, justify="right", no_wrap=True)
    before: tuple[str, ...] = ()
    for row in ran:
        first = tuple(str(row[key]) for key in ("method", "defence", "attack"))
        told = [word if first[: i + 1] != before[: i + 1] else "" for i, word in enumerate(first)]
        before = first
        table.add_row(*told, str(row["attackers"]), *_cells(row))
    return table, [*_refused(rows), *_notes(ran)]


def _cells(row: Row) -> Iterator[str]:
    mark = "*" if row["lost"] else "!" if row["status"] else ""
    yield shown(row["score"]["mean"], row["name"], row["score"]["std"]) + mark
    yield shown(row["worst"]["mean"], row["name"])
    yield shown(row["success"]["mean"], "accuracy")
    mixed = row["mixed"]["mean"]
    yield "-" if math.isnan(mixed) else f"{mixed:.1f}"


def _refused(rows: Sequence[Row]) -> list[str]:
    """Why some cells were not run: once for all attacks that it holds for."""
    found: dict[tuple[str, ...], dict[str, None]] = {}
    for row in rows:
        if row["refused"]:
            attack = row["attack"] if row["refused"].startswith("run.attack") else ""
            of = (row["method"], row["defence"], attack, row["refused"])
            found.setdefault(of, {})[str(row["attackers"])] = None
    return [
        f"refused: {', '.join(filter(None, of[:3]))}, f = {', '.join(counts)}: {of[3]}"
        for of, counts in found.items()
    ]


def _notes(rows: Sequence[Row]) -> list[str]:
    clients, seeds = {row["clients"] for row in rows}, {row["seeds"] for row in rows}
    notes = [
        f"f: attackers among {_few(clients)} clients; {_few(seeds)} seeds, mean ± sample standard deviation; "
        "scores are those of honest clients.",
        "Success: triggered rows of other classes that are taken for the target. In honest groups: attackers "
        "that share a group with an honest client.",
    ]
    lost = [row for row in rows if row["lost"]]
    if lost:
        most = max(row["lost"] for row in lost)
        notes.append(f"* honest clients without a score at the end (up to {most}) are not in the mean.")
    ill = sorted({row["status"] for row in rows if row["status"]})
    return notes + ([f"! a run has not finished: {'; '.join(ill)}."] if ill else [])


def _few(numbers: set[int]) -> str:
    return " or ".join(map(str, sorted(numbers)))


def attack_figure(rows: Sequence[Row], path: str | Path) -> Path:
    """Draw the score of honest clients against the number of attackers, a panel for each attack.

    >>> import tempfile
    >>> over = {"mean": 0.5, "std": 0.1}
    >>> row = {"method": "fedavg", "defence": "mean", "attackers": 1, "score": over, "name": "accuracy"}
    >>> row |= {"attack": "noise", "refused": "", "seeds": 3}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     attack_figure([row], Path(folder) / "attack.png").name
    'attack.png'
    """
    ran = [row for row in rows if not row["refused"] and row["seeds"]]
    attacks = [name for name in dict.fromkeys(row["attack"] for row in ran) if name != "none"] or ["none"]
    across = min(3, len(attacks))
    down = -(-len(attacks) // across)
    figure = Figure(
        figsize=(3.6 * across + 2.4, 3.0 * down), dpi=150, facecolor="white", layout="constrained"
    )
    panels = figure.subplots(down, across, squeeze=False).ravel()
    for axes, attack in zip(panels, attacks, strict=False):
        _panel(axes, [row for row in ran if row["attack"] in (attack, "none")], attack)
    for axes in panels[len(attacks) :]:
        axes.set_visible(False)
    handles = {
        label: line for axes in panels for line, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles, loc="outside right upper", frameon=False, fontsize=8, labelcolor=INK
    )
    return save(figure, Path(path))


def _panel(axes: Axes, rows: Sequence[Row], attack: str) -> None:
    methods = list(dict.fromkeys(row["method"] for row in rows))
    defences = list(dict.fromkeys(row["defence"] for row in rows))
    unit = 100 if rows and about(rows[0]["name"]).percent else 1
    for method in methods:
        for defence in defences:
            points = [row for row in rows if (row["method"], row["defence"]) == (method, defence)]
            points = [row for row in points if row["attack"] == attack or attack != "backdoor"]
            points.sort(key=lambda row: row["attackers"])
            if not points:
                continue
            x = [row["attackers"] for row in points]
            y = [unit * row["score"]["mean"] for row in points]
            colour = COLOURS[methods.index(method) % len(COLOURS)]
            style = STYLES[defences.index(defence) % len(STYLES)]
            marker = "osD^vPX"[defences.index(defence) % 7]
            label = "\n".join(textwrap.wrap(f"{method} {defence}", 28))
            axes.errorbar(
                x, y, [unit * np.nan_to_num(row["score"]["std"]) for row in points], color=colour, ls=style,
                marker=marker, ms=4, lw=1.4, capsize=2, label=label,
            )  # fmt: skip
    name = rows[0]["name"] if rows else ""
    dress(axes, attack.replace("_", " "), f"honest clients' {name}{', %' if unit == 100 else ''}")
    axes.set_xlabel("attackers", fontsize=8.5, color=INK)
    axes.grid(axis="y", color=PALE, alpha=0.2, lw=0.7)
