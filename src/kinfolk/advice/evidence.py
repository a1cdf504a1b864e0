"""What the trials have left in their folder, as candidates that can be compared. Needs no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.report.convergence import last_quarter
from kinfolk.report.diverged import has_diverged
from kinfolk.report.groups import between_seeds
from kinfolk.report.read import Run, by_title, final, load_runs
from kinfolk.report.tables import comparison_frame
from kinfolk.scores import about

# Answers, the simplest and cheapest to run first.
ANSWERS = ("local", "fedavg", "fine-tuned", "groups")
# The answer that a scored model of a method without groups stands for.
MODELS = {("local", "personal"): "local", ("fedavg_tuned", "centre"): "fedavg"}
MODELS |= {("fedavg_tuned", "fine-tuned"): "fine-tuned"}


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method's model with its scores on validation rows, larger is better."""

    answer: str  # one of ANSWERS
    title: str  # of its runs
    model: str
    scores: pd.DataFrame  # rows: clients, columns: seeds; NaN: no row to score on
    rise: float = math.nan  # how much better it became in the last quarter of the rounds
    k: int = 1
    diverged: int = 0  # of its runs
    agree: float = math.nan  # how far seeds agree on the groups, the mean adjusted Rand index of two
    facts: Mapping[str, Any] | None = None  # its row of the comparison

    @property
    def mean(self) -> float:
        """The mean over seeds of the means over clients."""
        return float(self.scores.mean().mean())

    @property
    def simplicity(self) -> tuple[int, int, str]:
        """The smaller, the simpler to run: by answer, then fewer groups, then the common model itself."""
        return ANSWERS.index(self.answer), self.k, self.model


def candidates(folder: Path, score: str) -> list[Candidate]:
    """Every model that was scored and that could be advised, of the trials in a folder."""
    return of_runs(load_runs(folder), score)


def of_runs(runs: Sequence[Run], score: str) -> list[Candidate]:
    """The candidates among some runs.

    >>> scores = {"client": ["a", "b"], "value": [0.5, 0.7], "model": "personal"}
    >>> (one,) = of_runs([Run.of({"title": "local", "algorithm": "local", "seed": 0}, scores)], "accuracy")
    >>> one.answer, round(one.mean, 3)
    ('local', 0.6)
    """
    sign = -1.0 if about(score).lower_is_better else 1.0
    rows = {(r["algorithm"], r["model"]): r for r in comparison_frame(runs, score).to_dict("records")}
    rises, agreed = last_quarter(runs, score), between_seeds(runs)
    found = []
    for title, same in by_title(runs).items():
        name = str(same[0].facts["algorithm"])
        k = int((same[0].spec.get("algorithm") or {}).get("k", 1))
        for model in same[0].models:
            answer = MODELS.get((name, model)) or ("groups" if k > 1 and model != "personal" else None)
            ends = {run.seed: final(run, model, score) for run in same if model in run.models}
            if answer is None or not ends:
                continue
            rise = rises.get((title, model), (math.nan, math.nan))[1]
            broken = sum(has_diverged(run, model) for run in same)
            agree = float(np.mean(agreed.get(title, [math.nan])))
            row, frame = rows.get((title, model)), sign * pd.DataFrame(ends)
            found.append(Candidate(answer, title, model, frame, rise, k, broken, agree, row))
    return found


def is_finite(candidate: Candidate) -> bool:
    """Whether all of its scores are numbers, and it is sound."""
    values = candidate.scores.to_numpy(dtype=np.float64)
    return (
        not candidate.diverged
        and values.size > 0
        and not np.isinf(values).any()
        and not np.isnan(values).all()
    )
