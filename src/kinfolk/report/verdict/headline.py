"""The one sentence on top: no conclusion and why, or who serves best and whether there are groups."""

from __future__ import annotations

from collections.abc import Sequence

from kinfolk.report.read import human_bytes
from kinfolk.report.verdict.blocks import Block, reasons
from kinfolk.report.verdict.groups import GroupFindings
from kinfolk.report.verdict.ranking import Ranking, too_few_clients
from kinfolk.report.verdict.sentence import better_by, gap, level, listed


def headline(ranking: Ranking, found: GroupFindings, stop: Sequence[Block]) -> str:
    """One sentence that somebody understands who reads nothing else."""
    known = ranking.known
    if not known.rows:
        return f"No result can be used: {_gone(ranking) or 'no client has a score'}."
    if stop:
        return f"No conclusion yet: {reasons(stop)}."
    parts = [_one(ranking) if len(known.titles) == 1 else _ranks(ranking), _groups(found)]
    gone = _gone(ranking)
    return "; ".join(filter(None, [*parts, gone and f"not ranked: {gone}"])) + "."


def _ranks(ranking: Ranking) -> str:
    known, best = ranking.known, ranking.leader
    if not ranking.below and (clients := too_few_clients(known)):
        return f"No conclusion: {clients} clients are too few to tell {len(known.titles)} methods apart"
    if not ranking.below:
        return f"No method is clearly better than another{_take(ranking)}"
    other = ranking.below[0]
    lead = better_by(known.gain(best, other).difference, known.score)
    if len(ranking.names) == 1:
        name = ranking.names[0]
        mean = level(best["macro"], known.score)
        return f"{name} serves best: {mean} on average over the clients, {lead} than {ranking.name(other)}"
    return f"{listed(ranking.names)} serve best and cannot be told apart{_take(ranking)}"


def _take(ranking: Ranking) -> str:
    """The cheapest of equals, where costs differ at all."""
    sent = [float(row["bytes_per_client_round"]) for row in ranking.top]
    if not any(one != sent[0] for one in sent) or sent[0] != sent[0]:
        return ""
    row = ranking.cheapest
    cost = float(row["bytes_per_client_round"])
    told = f"{human_bytes(cost)} per client and round" if cost else "it sends nothing"
    return f", so take the cheapest, {row['algorithm']} ({told})"


def _one(ranking: Ranking) -> str:
    known, row = ranking.known, ranking.leader
    worst = level(row["worst"], known.score)
    name, mean = known.label(row), level(row["macro"], known.score)
    return f"{name} has {mean} on average, {worst} for the worst client, and no other method to compare with"


def _groups(found: GroupFindings) -> str:
    """What is known of groups, in a few words; nothing where nothing is."""
    gain = gap(found.gain.difference, found.known.score) if found.gain else ""
    told = {
        "groups": f"there are groups, and a model for each gains {gain} over one model for all",
        "unsettled": "models of groups gain, but the seeds do not agree on the groups",
        "one": "one group is enough",
        "unclear": "whether there are groups is unclear",
    }
    return told.get(found.answer, "")


def _gone(ranking: Ranking) -> str:
    known = ranking.known
    out = [f"{title} diverged" for title in dict.fromkeys(str(row["algorithm"]) for row in known.gone)]
    out += [
        f"{t} lost clients"
        for t in dict.fromkeys(title for title, _ in known.partial)
        if t not in known.titles
    ]
    return listed(out)
