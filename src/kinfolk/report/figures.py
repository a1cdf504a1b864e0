"""The figure of a comparison: how the mean over clients grew, and where every client ended."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_bytes
from kinfolk.report.read import (
    LOWER_IS_BETTER,
    METRICS,
    PERCENT,
    Run,
    by_title,
    check_score,
    final,
    mean_history,
)

# Okabe and Ito (2008), told apart by people with any colour vision; without yellow, too pale on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
STYLES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))  # a new one each time the colours run out
INK, PALE = "#222222", "#8a8a8a"
FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Strand:
    """What is drawn of one algorithm: its curve over rounds and its clients at the end."""

    label: str
    curve: pd.DataFrame  # by round: mean, std over seeds
    clients: pd.Series  # by client: the mean over seeds of the final score
    seeds: int
    colour: str
    style: str | tuple[int, tuple[float, ...]]

    @property
    def end(self) -> float:
        """Where the clients stand in the mean; what the strands are ordered by."""
        return float(self.clients.mean()) if len(self.clients) else float("nan")


def strands(runs: Iterable[Run], score: str) -> list[Strand]:
    """One strand per algorithm (its main model), or one per scored model if there is a single algorithm.

    >>> run = Run.of({"title": "local", "seed": 0}, {"client": ["a", "b"], "value": [0.5, 0.75], "rows": 9})
    >>> [(strand.label, strand.end) for strand in strands([run], "accuracy")]
    [('local', 0.625)]
    """
    groups = {t: [r for r in same if score in r.metrics] for t, same in by_title(runs).items()}
    groups = {title: same for title, same in groups.items() if same}
    kinds = [(title, model) for title, same in groups.items() for model in same[0].models]
    if len(groups) > 1:
        kinds = [(title, same[0].models[0]) for title, same in groups.items()]
    # The kind of model is worth its place in the label only where it tells two strands apart.
    named = len({model for _, model in kinds}) > 1
    found = []
    for title, model in kinds:
        same = [run for run in groups[title] if model in run.models and len(final(run, model, score))]
        if not same:
            continue
        label = model if named and len(groups) == 1 else f"{title} ({model})" if named else title
        ends = pd.concat([final(run, model, score) for run in same], axis=1)
        # Not skipping: a client that diverged under one seed must not look fine.
        finite = ends.replace([np.inf, -np.inf], np.nan)
        broken = np.isinf(ends).any(axis=1)
        mean = finite.mean(axis=1).where(~broken, np.inf).dropna()
        turn, place = divmod(len(found), len(COLOURS))
        look = (COLOURS[place], STYLES[turn % len(STYLES)])
        found.append(Strand(label, mean_history(same, model, score), mean, len(same), *look))
    return found
