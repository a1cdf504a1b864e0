"""Pseudo rows, from the facts in `pseudo.json` alone: the table and the figure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.table import Table

from kinfolk.report.figures import save

PSEUDO, HELD_OUT, INK, PALE = "#D55E00", "#0072B2", "#222222", "#555555"
NAMES = {"back_search": "back-searching (MD-ICFL-1)", "generator": "generator (MD-ICFL-2)"}
BARS = 40
Facts = Mapping[str, Any]


def pseudo_tables(facts: Facts) -> tuple[list[Table], list[str]]:
    """(tables, notes): for each sampler how sure models are, in %, and what was checked.

    >>> check = {"bound": 0.5, "share": 0.0}
    >>> one = {"confidence": [[0.9, 0.1], [0.2, 0.8]], "near": check, "alike": check}
    >>> one |= {"distance": [2.0], "correlation": [0.1]}
    >>> facts = {"samplers": {"back_search": one}, "members": [3, 3], "title": "mdicfl", "round": 9}
    >>> tables, notes = pseudo_tables({**facts, "test": {"rows": 5, "distance": [1.0]}, "training_rows": 7})
    >>> tables[0].row_count, notes[0][:57]
    (2, 'back-searching (MD-ICFL-1): own 85.0 %, others 15.0 %; 0.')
    """
    tables, notes = [], []
    for name, one in facts["samplers"].items():
        title = f"Probability of the class asked for, %: {NAMES.get(name, name).split(' (')[0]}"
        table = Table(box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")
        table.add_column("model of")
        sure = np.asarray(one["confidence"], dtype=float)
        for k in range(len(sure)):
            table.add_column(f"rows of {k}", justify="right")
        for j, row in enumerate(sure):
            table.add_row(f"cluster {j} ({facts['members'][j]} clients)", *(f"{100 * v:.1f}" for v in row))
        tables.append(table)
        notes.append(f"{NAMES.get(name, name)}: {_sureness(sure, facts['members'])}; {_checked(one)}.")
    test = facts["test"]
    notes.append(
        f"{test['rows']:,} test rows and all pseudo rows against {facts['training_rows']:,} training rows; "
        "near and alike: beyond 99 of 100 test rows, by distance and by correlation."
    )
    return tables, [*notes, f"models: {facts['title']}, round {facts['round']}"]


def _sureness(sure: NDArray[np.float64], members: Sequence[int]) -> str:
    """Means over clusters that have members: the model of an empty one stands still."""
    held = np.flatnonzero(members)
    sure = sure[np.ix_(held, held)]
    own = float(np.diag(sure).mean())
    if len(sure) == 1:
        return f"own {100 * own:.1f} %"
    others = float(sure[~np.eye(len(sure), dtype=bool)].mean())
    return f"own {100 * own:.1f} %, others {100 * others:.1f} %"


def _checked(one: Facts) -> str:
    near, alike = (one[key] for key in ("near", "alike"))
    return (
        f"{100 * near['share']:.1f} % near a training row (under {near['bound']:.3g}; nearest "
        f"{min(one['distance']):.3g}), {100 * alike['share']:.1f} % alike (over {alike['bound']:.2f}; "
        f"highest {max(one['correlation']):.2f})"
    )


def pseudo_figure(facts: Facts, path: str | Path) -> Path:
    """Draw images, confidences and nearness, a row of panels for each sampler, into an image file.

    >>> import tempfile
    >>> check = {"bound": 0.5, "share": 0.0}
    >>> one = {"confidence": [[0.9]], "near": check, "alike": check, "images": []}
    >>> one |= {"distance": [2.0, 3.0], "correlation": [0.1, 0.2]}
    >>> test = {"rows": 2, "distance": [1.0, 2.0], "correlation": [0.5, 0.6]}
    >>> facts = dict(title="mdicfl", federation="two", round=9, test=test, samplers={"generator": one})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     pseudo_figure(facts, Path(folder) / "p.png").name
    'p.png'
    """
    path, samplers = Path(path), facts["samplers"]
    pictured = any(one["images"] for one in samplers.values())
    ratios = [*([2.5] if pictured else []), 1.15, 1.15, 1.15]
    size = (2.2 * sum(ratios), 2.9 * len(samplers) + 0.4)
    figure = Figure(figsize=size, dpi=150, facecolor="white", layout="constrained")
    head = f"{facts['title']} after {facts['round']} rounds; {facts['federation']}"
    figure.suptitle(head.replace("$", r"\$"), fontsize=9.5, x=0.01, ha="left", color=INK)
    grid = figure.subplots(len(samplers), len(ratios), width_ratios=ratios, squeeze=False)
    for line, (name, one) in zip(grid, samplers.items(), strict=True):
        panels = list(line)
        if pictured:
            _images(panels.pop(0), one["images"], NAMES.get(name, name))
        _matrix(panels[0], np.asarray(one["confidence"], dtype=float))
        _nearness(panels[1], one, facts["test"], "distance", "near")
        _nearness(panels[2], one, facts["test"], "correlation", "alike")
    panels[1].legend(frameon=False, fontsize=7, labelcolor=INK)
    return save(figure, path)


def _images(axes: Axes, images: Any, name: str) -> None:
    """The first image of each class, a row for each cluster."""
    axes.set_title(name, fontsize=9, color=INK, loc="left")
    if not images:
        axes.axis("off")
        return
    first = np.asarray([[some[0] for some in cluster] for cluster in images], dtype=np.uint8)
    clusters, classes, tall, wide = first.shape[:4]
    page = np.full((clusters * (tall + 1) - 1, classes * (wide + 1) - 1, *first.shape[4:]), 255, np.uint8)
    for k, c in np.ndindex(clusters, classes):
        page[k * (tall + 1) : k * (tall + 1) + tall, c * (wide + 1) : c * (wide + 1) + wide] = first[k, c]
    axes.imshow(page, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set_xticks((np.arange(classes) + 0.5) * (wide + 1), [str(c) for c in range(classes)])
    axes.set_yticks((np.arange(clusters) + 0.5) * (tall + 1), [str(k) for k in range(clusters)])
    _dress(axes, "class asked for", "cluster")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def _matrix(axes: Axes, sure: NDArray[np.float64]) -> None:
    axes.imshow(sure, cmap="Blues", vmin=0, vmax=1)
    size = 8 if len(sure) <= 6 else 5
    for (j, k), value in np.ndenumerate(sure):
        ink = "white" if value > 0.6 else INK
        axes.text(k, j, f"{100 * value:.0f}", ha="center", va="center", fontsize=size, color=ink)
    axes.set_title("probability of that class, %", fontsize=9, color=INK, loc="left")
    axes.set(xticks=range(len(sure)), yticks=range(len(sure)))
    _dress(axes, "rows made for cluster", "model of cluster")


def _nearness(axes: Axes, one: Facts, test: Facts, key: str, check: str) -> None:
    """Histograms of pseudo and held-out rows over the same bars, and the bound between near and far."""
    values = {"test rows": (test[key], HELD_OUT), "pseudo rows": (one[key], PSEUDO)}
    every = np.concatenate([np.asarray(v, dtype=float) for v, _ in values.values()])
    edges = np.histogram_bin_edges(every, BARS)
    for label, (found, colour) in values.items():
        share = np.full(len(found), 100 / len(found))
        axes.hist(found, edges.tolist(), weights=share, color=colour, alpha=0.6, label=label)
    axes.axvline(one[check]["bound"], color=INK, lw=1, ls="--")
    far = {"near": "nearest training row", "alike": "most similar training row"}[check]
    axes.set_title(f"{far}: {100 * one[check]['share']:.1f} % {check}", fontsize=9, color=INK, loc="left")
    _dress(axes, key, "rows, %")
    axes.spines[["top", "right"]].set_visible(False)


def _dress(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x, fontsize=8, color=INK)
    axes.set_ylabel(y, fontsize=8, color=INK)
    axes.tick_params(labelsize=7.5, colors=PALE)
