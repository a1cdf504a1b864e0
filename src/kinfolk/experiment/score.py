"""Scores on all clients, not only the sampled ones: one row per client and score, and their summary."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np
from torch import Tensor

from kinfolk.clustering.agreement import agreement, sizes, switch_fraction
from kinfolk.engines.stage import Stage
from kinfolk.learning import metrics
from kinfolk.script import Algorithm, Ask, Groups
from kinfolk.streams import Turn
from kinfolk.types import Client, Stack

Columns = dict[str, list[Any]]


def score_everyone(
    algorithm: Algorithm[Any],
    state: Any,
    stage: Stage,
    turn: Turn,
    split: str,
    without: Container[Client] = (),
    models: str = "all",
) -> tuple[Columns, dict[str, Any]]:
    """(tidy columns for the records, summary by kind of model and score); drop-outs are scored too.

    Those of `without` are left out: how well attackers are served is nobody's concern. An algorithm may
    have several models for a client, some of which cost as much as a round; `models` = "first" takes one.
    """
    columns: Columns = {name: [] for name in ("client", "model", "split", "score", "value", "rows")}
    summary: dict[str, Any] = {}
    who = tuple(c for c in turn.clients if c not in without)
    shared, each = algorithm.serve(state, who)
    for kind in list(algorithm.scored())[: 1 if models == "first" else None]:
        got: Stack = stage.perform(Ask(f"score.{kind}", who, shared, each), turn, rehearse=False)
        if not got.clients:
            continue
        rows = got.tensor("rows").cpu().numpy()
        summary[kind] = {}
        for score, values in metrics.scores(got.body).items():
            _add(columns, got.clients, kind, split, score, values, rows)
            summary[kind][score] = metrics.summary(values, rows, score in metrics.LOWER_IS_BETTER)
        if "hit" in got.body:
            summary[kind]["macro_f1"]["pooled"] = metrics.pooled_macro_f1(got.body)
    return columns, summary


def _add(
    columns: Columns, clients: tuple[Client, ...], kind: str, split: str, score: str, values: Any, rows: Any
) -> None:
    columns["client"].extend(clients)
    columns["model"].extend([kind] * len(clients))
    columns["split"].extend([split] * len(clients))
    columns["score"].extend([score] * len(clients))
    columns["value"].extend(np.asarray(values, dtype=np.float64).tolist())
    columns["rows"].extend(np.asarray(rows, dtype=np.int64).tolist())


def score_groups(
    algorithm: Algorithm[Any],
    before: Any,
    after: Any,
    cohort: tuple[Client, ...],
    turn: Turn,
    truth: Tensor | None,
    without: Container[Client] = (),
) -> dict[str, Any]:
    """Cluster sizes, how many of the cohort switched, and agreement with the truth where it is known.

    Sizes count everyone; agreement is about all but those of `without`.
    """
    if not isinstance(algorithm, Groups):
        return {}
    old, new = algorithm.groups(before).tolist(), algorithm.groups(after).tolist()
    was, now = (dict(zip(turn.clients, labels, strict=True)) for labels in (old, new))
    found: dict[str, Any] = {"sizes": sizes(new), "switch": switch_fraction(was, now, cohort)}
    kept = [i for i, c in enumerate(turn.clients) if c not in without]
    return found if truth is None else found | agreement([new[i] for i in kept], truth[kept])
