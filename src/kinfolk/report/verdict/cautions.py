"""What a reader must know before believing the rest: failures, uneven runs, few rows, attackers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kinfolk.report.diverged import divergence_rounds
from kinfolk.report.read import Run
from kinfolk.report.unlike import unlike
from kinfolk.report.verdict.blocks import FEWEST_SEEDS
from kinfolk.report.verdict.evidence import Evidence
from kinfolk.report.verdict.sentence import Sentence, count, listed, say
from kinfolk.scores import about

# Runs end when no whole round is left of their budget, so a start may leave up to a round untrained: one in
# twenty is the usual shortest budget. More is another budget.
UNEVEN = 1.05
# A client's own score that is known no better than this says little about it: twice what matters to a client.
ROUGH = 0.10
# Half of a 95 % interval, in standard errors.
REACH = 1.96


def cautions(known: Evidence) -> list[Sentence]:
    """All that hold, the gravest first."""
    rules: list[Callable[[Evidence], list[Sentence]]] = [
        diverged, lost, edge, one_seed, settings, epochs, rounds, seeds,
        attackers, unheard, rejected, few_rows,
    ]  # fmt: skip
    return [sentence for rule in rules for sentence in rule(known)]


def diverged(known: Evidence) -> list[Sentence]:
    """Methods whose models were of no use at the end."""
    said = []
    for row in known.gone:
        name, many = f"{row['algorithm']} ({row['model']})", int(row["diverged"])
        first = min(divergence_rounds(known.of[row["algorithm"]], row["model"]), default=0)
        text = (
            f"{name} diverged in {many} of {count(int(row['runs']), 'run')}, first at round {first}: "
            "it is not ranked, whatever its score."
        )
        said.append(say("diverged", text, "warning", diverged=many, runs=row["runs"], round=first))
    return said


def lost(known: Evidence) -> list[Sentence]:
    """Methods that have no score for some clients, or no mean: a mean over the others would flatter them."""
    said = []
    for (title, model), many in known.partial.items():
        name = f"{title} ({model})"
        what = f"has no score for {count(many, 'client')}" if many else "has no finite mean"
        text = f"{name} {what} at the end: it is not ranked, since the others alone would flatter it."
        said.append(say("lost", text, "warning", clients=many))
    without = [run for run in known.runs if run.facts.get("excluded")]
    if without:
        most = max(len(run.facts["excluded"]) for run in without)
        text = (
            f"{without[0].title} went on without {count(most, 'client')} in {len(without)} of "
            f"{count(len(known.runs), 'run')}: they keep an earlier model, which counts in its means."
        )
        said.append(say("excluded", text, "warning", clients=most, runs=len(without)))
    return said


def edge(known: Evidence) -> list[Sentence]:
    """Runs that came close to diverging: they recovered, went back, or had replies out of bounds."""
    near = [run for run in known.runs if near_the_edge(run) and not run.facts.get("diverged")]
    if not near:
        return []
    names = list(dict.fromkeys(run.title for run in near))
    clients = sorted({str(who) for run in near for who in run.facts.get("exploded") or {}})
    who = f" (replies out of bounds: {listed(clients)})" if clients else ""
    text = (
        f"{listed(names)} came close to diverging in {len(near)} of {count(len(known.runs), 'run')}{who}: "
        "the learning rate is at the edge of what works, or these clients' rows are of another scale."
    )
    return [say("edge", text, "warning", runs=len(near), clients=len(clients))]


def near_the_edge(run: Run) -> bool:
    """Whether a run recovered, went back, or had replies far out of bounds."""
    events = {line.get("event") for line in run.audit}
    return bool(run.facts.get("exploded") or run.facts.get("events") or events & {"recovered", "rollback"})


def one_seed(known: Evidence) -> list[Sentence]:
    """A single method with few seeds: nothing is ranked, but its numbers may be luck as well."""
    many = len({run.seed for run in known.runs})
    if many >= FEWEST_SEEDS or len(known.titles) > 1:
        return []
    have = f"There {'is' if many == 1 else 'are'} {count(many, 'seed')}"
    text = f"{have}: how much another seed would change is not known."
    return [say("few-seeds", text, "warning", seeds=many, needed=FEWEST_SEEDS)]


def settings(known: Evidence) -> list[Sentence]:
    """Settings in which the runs differ, besides algorithm and seed."""
    found, said = unlike(known.runs), []
    if found.settings:
        text = f"The runs also differ in {listed(found.settings, 4)}: a difference may come from that."
        said.append(say("settings", text, "warning", settings=len(found.settings)))
    if found.own:
        text = f"By intention, methods have settings of their own: {listed(found.own, 4)}."
        said.append(say("own-settings", text, "plain", settings=len(found.own)))
    return said


def epochs(known: Evidence) -> list[Sentence]:
    """Methods that went over their training rows clearly more often than others."""
    each = {str(row["algorithm"]): float(row["epochs"]) for row in known.rows}
    if not each or any(math.isnan(n) or n <= 0 for n in each.values()):
        return []
    least, most = min(each, key=lambda who: each[who]), max(each, key=lambda who: each[who])
    if each[most] <= UNEVEN * each[least]:
        return []
    text = (
        f"The budgets differ: {most} trained {each[most]:.4g} epochs per client, {least} {each[least]:.4g}. "
        "More training may be all that is better."
    )
    return [say("epochs", text, "warning", most=each[most], least=each[least])]


def rounds(known: Evidence) -> list[Sentence]:
    """Runs that were scored at different rounds; a start that is paid for is no difference."""
    if not known.rows:
        return []
    least = min(row["rounds"] + row["extra_rounds"] for row in known.rows)
    most = max(row["rounds_most"] + row["extra_rounds"] for row in known.rows)
    if most < least + 1:
        return []
    text = (
        f"The runs were scored after different numbers of rounds, starts included: {least:.4g} to {most:.4g}."
    )
    return [say("rounds", text, "warning", least=least, most=most)]


def seeds(known: Evidence) -> list[Sentence]:
    """Methods that have not all the same seeds."""
    each = {title: len(runs) for title, runs in known.of.items()}
    if len(set(each.values())) < 2:
        return []
    fewest = min(each, key=lambda title: each[title])
    most = max(each.values())
    text = f"Not all methods have as many seeds: {fewest} has {each[fewest]}, others have up to {most}."
    return [say("uneven-seeds", text, "warning", fewest=each[fewest], most=most)]


def attackers(known: Evidence) -> list[Sentence]:
    """Runs in which some clients sent wrong updates on purpose."""
    many = [len(run.facts["attackers"]) for run in known.runs if run.facts.get("attackers")]
    if not many:
        return []
    of = (known.runs[0].facts.get("federation") or {}).get("clients")
    share = f" of {count(int(of), 'client')}" if of else " clients"
    runs = f"{len(many)} of {count(len(known.runs), 'run')}"
    text = f"In {runs} {max(many)}{share} attacked: all scores are of the others."
    return [say("attackers", text, "warning", attackers=max(many), runs=len(many))]


def unheard(known: Evidence) -> list[Sentence]:
    """Clients that had no part in any round."""
    many = max((int(run.rounds[-1].get("unheard") or 0) for run in known.runs if run.rounds), default=0)
    if not many:
        return []
    text = f"In a run up to {count(many, 'client')} had no part in any round: no model has seen their rows."
    return [say("unheard", text, "warning", clients=many)]


def rejected(known: Evidence) -> list[Sentence]:
    """Replies that the guard did not let in."""
    lines = [line for run in known.runs for line in run.audit if line.get("event") == "rejected"]
    if not lines:
        return []
    clients = len({str(line["client"]) for line in lines if "client" in line})
    many = f"{len(lines):,} replies were" if lines[1:] else "1 reply was"
    text = f"{many} rejected ({count(clients, 'client')}): their training is in no model."
    return [say("rejected", text, "warning", replies=len(lines), clients=clients)]


def few_rows(known: Evidence) -> list[Sentence]:
    """Too few test rows to know a single client's score well; shares of rows only."""
    if not known.rows or not about(known.score).percent:
        return []
    row = known.rows[0]
    counts = [end.loc[end["value"].notna(), "rows"].median() for end in known.ends(row).values()]
    rows, mean = float(np.median(counts)), min(max(float(row["macro"]), 0.0), 1.0)
    near = (mean * rows + 2) / (rows + 4)
    reach = REACH * math.sqrt(near * (1 - near) / (rows + 4))
    if reach <= ROUGH:
        return []
    text = (
        f"A client has {count(rows, 'test row')} in the median: its own score is known to "
        f"±{100 * reach:.0f} points only. Means over clients are surer."
    )
    return [say("few-test-rows", text, "warning", rows=rows, reach=reach)]
