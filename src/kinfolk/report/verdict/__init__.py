"""The verdict: what the records of one or many runs say, in sentences with numbers.

Every sentence comes from a rule with a name, a threshold and a test; docs/results/verdict.md lists them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kinfolk.report.read import Run, check_score
from kinfolk.report.verdict.advice import advice
from kinfolk.report.verdict.blocks import Block, blocks
from kinfolk.report.verdict.cautions import cautions
from kinfolk.report.verdict.cost import cost_sentences
from kinfolk.report.verdict.evidence import Evidence, gather
from kinfolk.report.verdict.groups import GroupFindings, group_sentences
from kinfolk.report.verdict.headline import headline
from kinfolk.report.verdict.ranking import Ranking, only_one, order_so_far, ranking_sentences
from kinfolk.report.verdict.sentence import Sentence, Verdict, say
from kinfolk.report.verdict.served import served_sentences

__all__ = ["Sentence", "Verdict", "verdict"]


def verdict(
    runs: Sequence[Run], score: str | None = None, choice: Mapping[str, Any] | None = None
) -> Verdict:
    """What the records of these runs say of methods, groups, clients and costs, and what to run next.

    `choice` are the facts of a search for the number of groups (`choose-k.json`), where there was one.

    >>> def run(title, seed, value):
    ...     scores = {"round": [0] * 8 + [3] * 8 + [4] * 8, "client": list("abcdefgh") * 3, "rows": 50}
    ...     end = [value + seed / 100 + i / 1000 for i in range(8)]
    ...     return Run.of({"title": title, "seed": seed}, {**scores, "value": [0.1] * 8 + end * 2})
    >>> runs = [run(title, s, v) for s in (0, 1, 2) for title, v in (("fedavg", 0.6), ("local", 0.8))]
    >>> print(verdict(runs).headline)
    local serves best: 81.3% on average over the clients, 20.0 points more than fedavg.
    """
    with np.errstate(all="ignore"):  # of scores beyond all bounds nothing is claimed
        return _judged(list(runs), score, choice)


def _judged(runs: Sequence[Run], score: str | None, choice: Mapping[str, Any] | None) -> Verdict:
    if any(run.metrics for run in runs):
        check_score(runs, score)  # one that no run has is an error, as everywhere
    scored = [run for run in runs if run.metrics and (score is None or score in run.metrics)]
    unscored = _unscored(runs, len(scored))
    if not scored:
        return Verdict("There is nothing to judge yet: no run has scores.", tuple(unscored))
    known = gather(scored, score, choice)
    ranking, stop = Ranking(known), blocks(known)
    found = GroupFindings(known, ranking, bool(stop))
    several = len(known.titles) > 1
    chosen = ranking.cheapest if several and not stop and ranking.told else None
    said = [one.sentence for one in stop]
    said += _ranks(known, ranking, stop)
    said += group_sentences(found)
    if known.rows:
        said += served_sentences(known, bool(stop)) + cost_sentences(known, chosen or known.rows[0])
    said += cautions(known) + unscored
    said += advice(known, {one.rule for one in said}, found, chosen)
    return Verdict(headline(ranking, found, stop), tuple(said))


def _unscored(runs: Sequence[Run], scored: int) -> list[Sentence]:
    missing = len(runs) - scored
    if not missing:
        return []
    text = (
        f"{missing} of {len(runs)} runs {'has' if missing == 1 else 'have'} no such scores and are left out."
    )
    return [say("no-scores", text, "warning", runs=missing, of=len(runs))]


def _ranks(known: Evidence, ranking: Ranking, stop: Sequence[Block]) -> list[Sentence]:
    """Who serves best, or how things stand where that may not be said."""
    if not known.rows:
        return []
    if stop:
        return order_so_far(known) if all(one.sentence.rule != "other-data" for one in stop) else []
    return ranking_sentences(ranking) if len(known.titles) > 1 else only_one(known)
