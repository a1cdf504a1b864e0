"""Tables for the terminal: one run in full, or several side by side with what their seeds can tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kinfolk.errors import KinfolkError, near, visible
from kinfolk.experiment.record import plain
from kinfolk.report.against import against_best, has_scores, mark, marks_told, pair_notes
from kinfolk.report.conduct import conduct_lines
from kinfolk.report.convergence import convergence_note
from kinfolk.report.diverged import divergences, has_diverged, is_ranked, scored_clients
from kinfolk.report.groups import doubtful, named, switches
from kinfolk.report.read import (
    Run,
    by_title,
    check_score,
    epochs_per_client,
    extra_rounds,
    human_bytes,
    is_training,
    last,
    power,
    privacy,
    sample_std,
    shown,
    training_seconds,
)
from kinfolk.report.unlike import unlike
from kinfolk.report.whole import WholeTable
from kinfolk.scores import about, summary

COMPARED = ("macro", "micro", "worst", "p10")
_HEADS = {"macro": "macro", "micro": "micro", "worst": "worst\nclient", "p10": "10th\npercentile"}
_COST_HEADS = ("vs\nbest", "MB per\nclient,\nround", "s per\nround", "rounds", "seeds")
# Clients of a group that `show` names.
NAMED = 8


def comparison_frame(runs: Iterable[Run], score: str | None = None, over: str = "macro") -> pd.DataFrame:
    """Algorithms side by side, a row for each title and scored model, the best first.

    Means and sample standard deviations (`_std`) over seeds of the last evaluated round. `difference` is
    to the best row, paired over the clients and seeds that both have, with a 95 % `interval`; `p` is
    corrected for all pairs of rows, `n` counts the units of the test (`unit`: client or seed). `apart` says
    whether the two are distinguishable, and is None if that cannot be said; `.attrs["ranks"]`, which ranks
    hold. Bytes and seconds are those of training, a start's included: scoring and checkpoints do not count.
    `extra_rounds` are rounds' worth of training beyond the rounds; `epochs` how often a client went over its
    training rows, a mean over rows and seeds; NaN where that was not recorded. `diverged` is the
    number of runs (of `runs`) whose models had diverged, `lost` of those that had clients who could not be
    scored at the end: such a row comes last and is not compared. Its means are over `clients` of `everyone`,
    the fewest of any seed.

    >>> def run(title, seed, value):
    ...     return Run.of({"title": title, "seed": seed}, {"client": ["a", "b"], "value": value, "rows": 10})
    >>> runs = [run("local", 0, [0.5, 0.7]), run("fedavg", 0, [0.8, 1.0]), run("fedavg", 1, [0.9, 0.9])]
    >>> comparison_frame(runs)[["algorithm", "seeds", "macro", "worst"]].round(2).values.tolist()
    [['fedavg', 2, 0.9, 0.85], ['local', 1, 0.6, 0.5]]
    """
    runs = list(runs)
    rows = ranked_rows(runs, score, over)
    differences, ranks = against_best(rows, runs, over)
    frame = pd.DataFrame([row | more for row, more in zip(rows, differences, strict=True)])
    frame.attrs["ranks"] = ranks
    return frame


def ranked_rows(runs: Sequence[Run], score: str | None = None, over: str = "macro") -> list[dict[str, Any]]:
    """What `comparison_frame` says of each title and scored model by itself, the best first."""
    if over not in COMPARED:
        raise KinfolkError("over", over, near(over, COMPARED))
    score = check_score(runs, score)
    rows = [
        _compared(title, model, score, same)
        for title, same in by_title(runs).items()
        for model in dict.fromkeys(kind for run in same for kind in run.models)
        if any(has_scores(run, model, score) for run in same)
    ]
    worse = 1 if about(score).lower_is_better else -1
    return sorted(rows, key=lambda row: (not is_ranked(row), math.isnan(row[over]), worse * row[over]))


def comparison_rows(
    runs: Iterable[Run], score: str | None = None, over: str = "macro"
) -> list[dict[str, Any]]:
    """The rows of `comparison_frame` in JSON's own types.

    >>> scores = {"client": ["a", "b"], "value": [0.5, 0.75], "rows": [1, 3]}
    >>> run = Run.of({"title": "local", "seed": 0}, scores)
    >>> row = comparison_rows([run])[0]
    >>> row["macro"], row["macro_std"], row["micro"], row["apart"]
    (0.625, None, 0.6875, None)
    """
    rows: list[dict[str, Any]] = plain(comparison_frame(runs, score, over).to_dict("records"))
    return rows


def _compared(title: str, model: str, score: str, runs: Sequence[Run]) -> dict[str, Any]:
    """One row: every number over clients at each seed's end, then mean and deviation over seeds."""
    held = [run for run in runs if has_scores(run, model, score)]
    counts = [scored_clients(run, model, score) for run in held]
    # Nothing to score on is not a seed, nor is a score of rounds ago, since when all clients were lost.
    ends = [last(run, model, score) for run, (heard, _) in zip(held, counts, strict=True) if heard]
    views = [summary(end["value"], end["rows"], about(score).lower_is_better) for end in ends]
    rounds = [int(end["round"].max()) for end in ends]
    row: dict[str, Any] = {"algorithm": title, "model": model, "score": score, "seeds": len(ends)}
    row |= {"runs": len(runs), "diverged": sum(has_diverged(run, model) for run in runs)}
    row |= {"lost": sum(heard < of for heard, of in counts)}
    row |= {"clients": min(heard for heard, _ in counts), "everyone": max(of for _, of in counts)}
    row |= {"rounds": min(rounds, default=0), "rounds_most": max(rounds, default=0)}
    for name in COMPARED:
        values = [view[name] for view in views]
        row |= {name: float(np.mean(values)) if values else math.nan, f"{name}_std": sample_std(values)}
    facts = [fact for run in runs for fact in run.rounds if not fact.get("lost")]
    sent = sum(sum(ways.values()) for kind, ways in _parts(facts, "bytes") if is_training(kind))
    # Of choices before scoring the last counts: without it nobody could be served.
    chosen = [(run.rounds[-1].get("chosen") or {}) if run.rounds else {} for run in runs]
    sent += sum(sum(ways.values()) for _, ways in _parts(chosen, "bytes"))
    spent = sum(map(training_seconds, facts))
    asked = sum(fact.get("cohort") or 0 for fact in facts)
    row["bytes_per_client_round"] = sent / asked if asked else math.nan
    for name, number in (("extra_rounds", extra_rounds), ("epochs", epochs_per_client)):
        row[name] = float(np.mean([number(run) for run in runs]))
    row["seconds_per_round"] = spent / len(facts) if facts else math.nan
    return row


def _parts(facts: Iterable[Mapping[str, Any]], name: str) -> list[tuple[str, Any]]:
    return [(kind, value) for fact in facts for kind, value in (fact.get(name) or {}).items()]


def comparison_table(
    runs: Iterable[Run], score: str | None = None, over: str = "macro"
) -> tuple[Table, list[str]]:
    """The comparison as a table, which fits 80 columns, and notes on what a reader must know.

    >>> scores = {"client": ["a", "b"], "value": [0.5, 0.75], "rows": [1, 3]}
    >>> run = Run.of({"title": "local", "seed": 0}, scores)
    >>> comparison_table([run])[1]
    ['one seed: no comparison']
    """
    runs = list(runs)
    frame = comparison_frame(runs, score, over)
    score = str(frame["score"].iloc[0])
    unit = " in %" if about(score).percent else ", lower is better" if about(score).lower_is_better else ""
    seeds = sorted(set(frame["seeds"]))
    told = f", {seeds[0]} seed{'s' if seeds[0] != 1 else ''}" if len(seeds) == 1 else ""
    heads = _COST_HEADS if len(seeds) > 1 else _COST_HEADS[:-1]
    table = empty_table(
        f"{about(score).title}{unit}, at the last evaluated round{told}", ["algorithm", "model"]
    )
    table.padding = (0, 0, 0, 0)
    table.columns[1].no_wrap = True
    means = [over, *(name for name in ("macro", "micro", "worst") if name != over)]
    for head in [*(_HEADS[name] for name in means), *heads]:
        table.add_column(head, justify="right", no_wrap=True)
    for place, row in enumerate(frame.to_dict("records")):
        exact = (over,) if is_ranked(row) else ()  # no deviation of what is not compared
        cells = [shown(row[n], score, row[f"{n}_std"] if n in exact else math.nan) for n in means]
        cells += [mark(row, score, place), *_costs(row)[: len(heads) - 1]]
        name = Text(row["algorithm"], style="bold" if place == 0 and is_ranked(row) else "")
        table.add_row(name, Text(row["model"]), *map(Text, cells))
    table.caption = _caption(over, frame)
    settled = convergence_note(runs, score)
    return table, [*([settled] if settled else []), *_notes(runs, frame)]


def _costs(row: Mapping[str, Any]) -> list[str]:
    sent, spent = row["bytes_per_client_round"] / 1e6, row["seconds_per_round"]
    span = f"{row['rounds']}" + (f"-{row['rounds_most']}" if row["rounds_most"] > row["rounds"] else "")
    space = " " if "-" in span else ""  # may wrap there
    span += f"{space}+{row['extra_rounds']:.3g}" if row["extra_rounds"] > 0 else ""
    return [_short(sent), _short(spent), span, str(row["seeds"])]


def _short(number: float) -> str:
    if math.isnan(number):
        return "-"
    return power(number, 1) if number >= 1e5 else f"{number:.1f}" if number >= 1 else f"{number:.2g}"


def _caption(over: str, frame: pd.DataFrame) -> Text:
    said = ["macro: mean over clients; micro: over their rows."]
    if (frame["seeds"] > 1).any():
        said.append("±: sample standard deviation over seeds.")
    said += marks_told(over, frame)
    if (frame["extra_rounds"] > 0).any():
        said.append("rounds a+b: a rounds, and a start that trained as much as b; MB are those of both.")
    said.append("MB and seconds: training only, without scoring.")
    return Text(" ".join(said), style="dim", justify="left")


def _notes(runs: Sequence[Run], frame: pd.DataFrame) -> list[str]:
    """What a reader must know before believing the table."""
    notes = pair_notes(runs, frame)
    single = list(dict.fromkeys(frame.loc[frame["seeds"] == 1, "algorithm"]))
    if single:
        who = "" if (frame["seeds"] == 1).all() else f" for {', '.join(single)}"
        known = frame.loc[frame["seeds"] == 1, "apart"].notna().any()
        what = "how much seeds differ is unknown" if known else "no comparison"
        notes.append(f"one seed{who}: {what}")
    elif frame["seeds"].nunique() > 1:
        notes.append("not all algorithms have the same number of seeds")
    # A start that is paid for is no difference; what is left of a budget is less than a round.
    extra = frame["extra_rounds"]
    if (frame["rounds_most"] + extra).max() >= (frame["rounds"] + extra).min() + 1:
        span = f"{frame['rounds'].min()} to {frame['rounds_most'].max()}"
        notes.append(f"the last evaluated round differs between runs: {span}")
    epochs = dict(zip(frame["algorithm"], frame["epochs"].round(2), strict=True))
    if len(set(epochs.values())) > 1 and not frame["epochs"].isna().any():
        usual = max(epochs.values(), key=list(epochs.values()).count)
        many = sum(n == usual for n in epochs.values()) > 2
        odd = [f"{n:g} {who}" for who, n in epochs.items() if not many or n != usual]
        notes.append("epochs per client: " + ", ".join(odd + [f"{usual:g} all others"] * many))
    score = frame["score"].iloc[0]
    for run in runs:
        if score not in run.metrics:
            notes.append(f"{run.title} seed {run.seed} has no {score} and is left out")
        elif run.facts.get("status", "finished") != "finished":
            reason = f": {run.facts['reason']}" if run.facts.get("reason") else ""
            notes.append(f"{run.title} seed {run.seed} is {run.facts['status']}{reason}")
        notes += [f"{run.title} seed {run.seed}: {line}" for line in divergences(run)]
        lost = sum(bool(fact.get("lost")) for fact in run.rounds)
        notes += [f"{run.title} seed {run.seed}: what {lost} rounds took is lost"] if lost else []
    return notes + unlike(runs).notes()


def empty_table(title: str, wide: Sequence[str]) -> Table:
    """An empty table in the common style; the `wide` columns hold words and may fold."""
    table = WholeTable(
        title=Text(title, style="bold"), box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False
    )
    table.title_justify = table.caption_justify = "left"
    for name in wide:
        table.add_column(name, overflow="fold")
    return table


def run_table(run: Run) -> RenderableType:
    """Everything about one run: what it was, its scores, what it sent, where its time went, what was amiss.

    >>> from rich.console import Console
    >>> scores = {"client": ["a", "b"], "value": [0.5, 0.75], "rows": [1, 3]}
    >>> run = Run.of({"title": "local", "seed": 0}, scores)
    >>> console = Console(width=100)
    >>> with console.capture() as text:
    ...     console.print(run_table(run))
    >>> [line.split() for line in text.get().splitlines() if "accuracy" in line]
    [['centre', 'accuracy', '68.8%', '62.5%', '50.0%', 'a', '52.5%', '17.7%']]
    """
    parts: list[RenderableType] = [_facts(run), "", _scores(run)]
    ways = sorted({way for _, sent in _parts(run.rounds, "bytes") for way in sent}, key="down up across".find)
    if ways:
        sent = [(k, way, count) for k, by in _parts(run.rounds, "bytes") for way, count in by.items()]
        parts.append(_totals("Bytes sent, all rounds", "message", ways, sent, human_bytes))
    spent = [(phase, "seconds", seconds) for phase, seconds in _parts(run.rounds, "seconds")]
    if spent:
        parts.append(_totals("Time, all rounds", "phase", ["seconds"], spent, "{:.2f}".format))
    conduct = [Text(f"Conduct: {line}") for line in conduct_lines(run)]
    return Group(*parts, *_groups(run), *conduct, _amiss(run))


def _facts(run: Run) -> Table:
    facts = run.facts
    data, model = facts.get("federation") or {}, facts.get("model") or {}
    counted = [f"{data[key]:,} {key}" for key in ("clients", "rows", "classes", "groups") if data.get(key)]
    size = f", {model['parameters']:,} parameters" if model.get("parameters") else ""
    lines = {
        "algorithm": f"{run.title}, seed {run.seed}",
        "data": ": ".join(filter(None, [data.get("name"), ", ".join(counted)])),
        "model": f"{model.get('name')}{size}" if model else "",
        "engine": facts.get("engine"),
        "training": _training(run),
        "privacy": privacy(run),
        "status": ", ".join(str(facts[name]) for name in ("status", "reason") if facts.get(name)),
        "amiss": "\n".join(divergences(run)),
        "folder": visible(str(run.path)),
    }
    grid = WholeTable.grid(padding=(0, 2))
    for name, line in lines.items():
        if line:
            grid.add_row(Text(name, style="dim"), Text(str(line)))
    return grid


def _training(run: Run) -> str:
    """What was trained in all, and how much of it beyond the rounds."""
    epochs, extra = epochs_per_client(run), extra_rounds(run)
    if math.isnan(epochs):
        return ""
    more = f", {extra:.3g} rounds' worth of it beyond the rounds" if extra else ""
    return f"{_short(epochs)} epochs per client{more}"


def _scores(run: Run) -> RenderableType:
    """A row for each scored model and score, over the clients that have rows to be scored on."""
    if not run.models:
        return Text("no scores yet")
    table = empty_table("", ["model", "score"])
    for head in ("micro", "macro", "worst client", "", "10th percentile", "spread"):
        table.add_column(head, justify="left" if head == "" else "right")
    rounds, scored, everyone = set(), 0, 0
    for model in run.models:
        for score in run.metrics:
            end = last(run, model, score)
            if end.empty:
                continue
            lower = about(score).lower_is_better
            view = summary(end["value"], end["rows"], lower)
            rounds |= set(end["round"])
            heard, of = scored_clients(run, model, score)
            scored, everyone = max(scored, heard), max(everyone, len(end), of)
            whose = f"{model}\n{heard} of {of} clients" if heard < of else model
            cells = [shown(view[k], score, unit=True) for k in ("micro", "macro", "worst", "p10", "spread")]
            cells.insert(3, _who(end["value"], lower))
            table.add_row(Text(whose), Text(score), *map(Text, cells))
    told = f"{scored} of {everyone} clients" if scored < everyone else f"{everyone} clients"
    table.title = f"[bold]Scores of {told} after round {max(rounds)}"
    table.caption = "10th percentile: one client in ten does no better than this."
    return table


def _who(values: pd.Series, lower_is_better: bool) -> str:
    values = values.dropna()
    return "" if values.empty else str(values.idxmax() if lower_is_better else values.idxmin())


def _totals(
    title: str,
    first: str,
    ways: Sequence[str],
    entries: Iterable[tuple[str, str, float]],
    text: Callable[[float], str],
) -> Table:
    """Sums by kind (a row each) and way (a column each)."""
    sums: dict[str, dict[str, float]] = {}
    for kind, way, amount in entries:
        row = sums.setdefault(kind, {})
        row[way] = row.get(way, 0) + amount
    table = empty_table(title, [first])
    for way in ways:
        table.add_column(Text(way), justify="right")
    for kind, row in sums.items():
        table.add_row(Text(kind), *(text(row[way]) if way in row else "" for way in ways))
    return table


def _groups(run: Run) -> list[RenderableType]:
    """How the found groups agree with the true ones, at the last round that says so."""
    told = [fact for fact in run.rounds if fact.get("groups")]
    if not told:
        return []
    facts = told[-1]["groups"]
    words = {"ari": "ARI", "nmi": "NMI", "purity": "purity", "switch": "switched"}
    said = [f"{word} {facts[key]:.2f}" for key, word in words.items() if facts.get(key) is not None]
    if not run.has_groups:  # records from before each client's group was in them
        sizes = ", ".join(f"{group}: {number}" for group, number in (facts.get("sizes") or {}).items())
        said += [f"clients per group {sizes}"] if sizes else []
    head = f"Groups after round {told[-1]['round']}: {'; '.join(said)}"
    return [Text(head), *_who_is_where(run), *_choices(told[-1])]


def _who_is_where(run: Run) -> list[RenderableType]:
    """The clients of each group by name, and whose group is in doubt."""
    if not run.has_groups:
        return []
    frame = run.groups
    lines = [
        f"  group {group}, {len(part)} clients: {named(list(map(str, part.index)), NAMED)}"
        for group, part in frame.groupby("group")
    ]
    unsure = doubtful(frame)
    lines += [f"  in doubt: {named(unsure, NAMED)}"] if unsure else []
    return [
        Text("\n".join(lines)),
        Text(f"  {switches(frame)}; more: kinfolk groups {visible(str(run.path))}"),
    ]


def _choices(fact: Mapping[str, Any]) -> list[RenderableType]:
    """What choosing anew before scoring took, and how many it moved."""
    chosen = fact.get("chosen")
    if not chosen:
        return []
    sent = human_bytes(sum(sum(ways.values()) for _, ways in _parts([chosen], "bytes")))
    text = (
        f"Before scores {chosen['answered']} clients chose anew ({sent}): {chosen['switch']:.0%} of all moved"
    )
    return [Text(text)]


def _amiss(run: Run) -> Text:
    """Who had no part; how often a reply was rejected or a client absent, and how many that befell."""
    unheard = run.rounds[-1].get("unheard") if run.rounds else 0
    said = [f"{unheard} clients had no part in any round"] if unheard else []
    for event in ("rejected", "silent", "absent", "unreadable"):
        lines = [line for line in run.audit if line.get("event") == event]
        if lines:
            clients = len({str(line["client"]) for line in lines if "client" in line})
            said.append(f"{event} {len(lines)} times" + (f" ({clients} clients)" if clients else ""))
    for event, text in (("left_out", "left out of a secure sum"), ("no_sum", "a group without a secure sum")):
        count = sum(line.get("event") == event for line in run.audit)
        said += [f"{text} {count} times"] if count else []
    return Text("Audit: " + ("; ".join(said) if said else "nobody rejected or absent"))
