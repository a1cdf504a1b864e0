"""Scores on all clients, not only the sampled ones: one row per client and score, and their summary."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kinfolk.clustering.agreement import agreement, sizes, switch_fraction
from kinfolk.engines.coordinator import Coordinator
from kinfolk.experiment.build import Parts
from kinfolk.experiment.health import Evaluation
from kinfolk.federation.federation import Split
from kinfolk.learning import metrics
from kinfolk.learning.network import run
from kinfolk.learning.row_metrics import METRICS, metric_value
from kinfolk.scores import about, of_all, summary
from kinfolk.script import Algorithm, Ask, Groups, Margins
from kinfolk.streams import RoundContext
from kinfolk.task import Task
from kinfolk.types import Client, Message, PerClient, Stack, map_leaves, tensor_of

# Rows that a user's metric is tried on.
FEW = 256
Columns = dict[str, list[Any]]
COLUMNS = ("client", "model", "split", "score", "value", "rows")
Groupings = dict[str, Any]


def try_metrics(parts: Parts) -> None:
    """Call a user's metrics once, with a few rows of a client, before anything is written.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> try_metrics(build_parts(Experiment()))
    """
    own = [metric for metric in parts.learner.metrics if metric.name not in METRICS]
    if not own:
        return
    federation, split = parts.federation, parts.spec.run.split
    who = next(c for i, c in enumerate(federation.clients) if federation.splits[split].count(i))
    held = federation.among([who])
    x, y = held.take(held.splits[split].rows(held.place(who))[:FEW])
    with torch.no_grad():
        out = run(parts.learner.plain_network().eval(), x, parts.spec.model.output).float()
    if isinstance(y, Tensor):
        out, y = parts.learner.in_units(out), parts.learner.in_units(y)
    for metric in own:
        metric_value(metric, out, y)


def score_everyone(
    algorithm: Algorithm[Any],
    state: Any,
    coordinator: Coordinator,
    context: RoundContext,
    split: str,
    without: Container[Client] = (),
    models: str = "all",
    rows: Split | None = None,
    *,
    tasks: Mapping[str, Task] | None = None,
    suffix: str = "",
    seen: dict[str, Evaluation] | None = None,
    lost: dict[str, list[Client]] | None = None,
) -> tuple[Columns, dict[str, Any]]:
    """(tidy columns for the records, summary by kind of model and score); drop-outs are scored too.

    Those of `without` are left out: how well attackers are served is nobody's concern. An algorithm may
    have several models for a client, some of which cost as much as a round; `models` = "first" takes one.
    With `rows`, the split that is scored, clients with the same model and the same rows are scored once.
    `tasks` are what `eval_tasks` gave before; a run builds them once. `suffix` ends the names of tasks that
    go over the rows of another split. What the watch on training needs of every kind of model goes into
    `seen`; whose scores could not be used, as of a model that is no number, into `lost`.
    """
    columns: Columns = {name: [] for name in COLUMNS}
    over_all: dict[str, Any] = {}
    who = tuple(c for c in context.clients if c not in without)
    shared, each = algorithm.eval_inputs(state, who)
    for kind, task in list((tasks or algorithm.eval_tasks()).items())[: 1 if models == "first" else None]:
        instead = stand_ins(
            task, each, who, rows.of.tolist() if rows else range(len(context.clients)), context
        )
        asked = tuple(sorted(set(instead.values())))
        got: Stack = coordinator.perform(
            Ask(f"score.{kind}{suffix}", asked, shared, each), context, rehearse=False
        )
        scored, body = _for_all(got, instead)
        without_score = sorted(set(who) - set(scored))
        if without_score and lost is not None:
            lost[kind] = without_score
        if seen is not None:
            exploded = {c for c in without_score if instead[c] in coordinator.exploded}
            seen[kind] = _evaluation(scored, body, exploded)
        over_all[kind] = {}
        if not scored:
            continue
        count = tensor_of(body, "rows").cpu().numpy()
        for score, values in metrics.scores(body).items():
            _add(columns, scored, kind, split, score, values, count)
            one = summary(values, count, about(score).lower_is_better)
            told = {"lost": len(without_score)} if without_score else {}
            counted = {"clients": int((~np.isnan(np.asarray(values, dtype=np.float64))).sum())}
            over_all[kind][score] = one | metrics.pooled(score, body) | counted | told
    return columns | _membership(algorithm, state, context.clients, columns["client"]), over_all


def _membership(
    algorithm: Algorithm[Any], state: Any, clients: Sequence[Client], who: Sequence[Client]
) -> Columns:
    """The group of each of `who` and how clearly it belongs there, as far as that is known."""
    known: dict[str, list[Any]] = {}
    if isinstance(algorithm, Groups):
        known["group"] = algorithm.groups(state).tolist()
    if isinstance(algorithm, Margins):
        known["margin"] = algorithm.margins(state).tolist()
    by_client = {name: dict(zip(clients, values, strict=True)) for name, values in known.items()}
    return {name: [found[c] for c in who] for name, found in by_client.items()}


def stand_ins(
    task: Task, each: PerClient | None, who: Sequence[Client], sets: Sequence[int], context: RoundContext
) -> dict[Client, Client]:
    """Who is scored in place of each: the first who is sent the same and has the same set of rows.

    `sets` says which set of rows every client of the turn has. Where more than these counts (a client's
    memory, what it trains), or where messages are not told apart by number, everyone stands for itself.

    >>> from kinfolk.streams import Seed
    >>> from kinfolk.types import IndexedMessages
    >>> task = Task(lambda message, memory, facts: {}, lambda carry: ({}, None), common=True)
    >>> who = tuple(map(Client, "abcd"))
    >>> two = IndexedMessages(who, torch.tensor([0, 0, 0, 1]), {"model": torch.zeros(2)})
    >>> stand_ins(task, two, who, [5, 6, 5, 5], RoundContext(Seed(0), 0, who))
    {'a': 'a', 'b': 'b', 'c': 'a', 'd': 'd'}
    """
    if not task.common or isinstance(each, Stack):
        return {c: c for c in who}
    own = dict(zip(context.clients, sets, strict=True))
    sent = dict(zip(each.clients, each.which.tolist(), strict=True)) if each else dict.fromkeys(who, 0)
    first: dict[tuple[int, int], Client] = {}
    return {c: first.setdefault((own[c], sent[c]), c) for c in who}


def _for_all(got: Stack, instead: Mapping[Client, Client]) -> tuple[tuple[Client, ...], Message]:
    """(clients, scores) of everyone, from the replies of those who stood for them."""
    place = {c: i for i, c in enumerate(got.clients)}
    who = tuple(c for c in sorted(instead) if instead[c] in place)
    at = torch.tensor([place[instead[c]] for c in who], dtype=torch.int64)
    return who, map_leaves(lambda t: t[at.to(t.device)], got.body)


def _evaluation(scored: tuple[Client, ...], body: Message, missing: set[Client]) -> Evaluation:
    values = metrics.scores(body)
    # What is said of accuracy and classes is about one class per row.
    one = "correct" in body and not tensor_of(body, "correct").is_floating_point()
    by_class = {n: tensor_of(body, n).cpu().numpy() for n in ("said", "true") if one and n in body}
    accuracy = values.get("accuracy") if one else None
    return Evaluation(scored, values["loss"], accuracy, **by_class, missing=tuple(sorted(missing)))


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
    context: RoundContext,
    truth: Tensor | None,
    without: Container[Client] = (),
) -> Groupings:
    """Cluster sizes, who of the cohort switched, and agreement with the truth where it is known.

    Sizes count everyone; agreement is about all but those of `without`, of whom so many are "mixed": in a
    group with others.
    """
    if not isinstance(algorithm, Groups):
        return {}
    old, new = algorithm.groups(before).tolist(), algorithm.groups(after).tolist()
    was, now = (dict(zip(context.clients, labels, strict=True)) for labels in (old, new))
    found: Groupings = {"sizes": sizes(new), "switch": switch_fraction(was, now, cohort)}
    found["moved"] = {c: [was[c], now[c]] for c in cohort if was[c] != now[c]}
    kept = [i for i, c in enumerate(context.clients) if c not in without]
    if len(kept) < len(new):
        honest = {new[i] for i in kept}
        found["mixed"] = sum(now[c] in honest for c in context.clients if c in without)
    return found if truth is None else found | agreement([new[i] for i in kept], truth[kept])


def reached(summary: Mapping[str, Any], score: str, target: float) -> bool:
    """Whether the main model's mean over all clients is as good as a target.

    >>> reached({"centre": {"accuracy": {"macro": 0.9}}}, "accuracy", 0.8)
    True
    """
    main: dict[str, Any] = next(iter(summary.values()), {})
    value = of_all(main.get(score, {}))
    if value is None:
        return False
    return bool(value <= target if about(score).lower_is_better else value >= target)
