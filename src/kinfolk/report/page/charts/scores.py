"""A score as charts show it, and which methods stand for what: alone, one model for all, and the best."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from kinfolk.report.diverged import has_diverged
from kinfolk.report.read import Run, by_title, check_score, final
from kinfolk.scores import about

# Above this many clients a chart shows how they are spread, and no longer each of them.
MOST_CLIENTS = 5_000


@dataclass(frozen=True)
class Shown:
    """A score with its name, its unit, and the direction in which it gets better."""

    name: str
    word: str  # in a sentence: "accuracy"
    title: str  # of an axis: "accuracy, %"
    factor: float  # from the recorded value to the shown one
    unit: str  # of a difference: " points", or nothing
    lower_is_better: bool

    def text(self, value: float) -> str:
        """A value in a sentence.

        >>> shown_score("accuracy").text(0.7123), shown_score("mse").text(0.01234)
        ('71.2 %', '0.0123')
        """
        return f"{100 * value:.1f} %" if self.factor == 100 else f"{value:.3g}"

    def gained(self, value: float) -> str:
        """A difference in a sentence, with its sign.

        >>> shown_score("accuracy").gained(-0.0312)
        '-3.1 points'
        """
        return f"{self.factor * value:+{'.1f' if self.factor == 100 else '.3g'}}{self.unit}"


def shown_score(score: str) -> Shown:
    """How a score is shown.

    >>> shown_score("accuracy").title, shown_score("mse").title
    ('accuracy, %', 'mean squared error (lower is better)')
    """
    known = about(score)
    word = known.title if known.title[:2].isupper() else known.title[:1].lower() + known.title[1:]
    title = f"{word}, %" if known.percent else f"{word} (lower is better)" if known.lower_is_better else word
    factor = 100 if known.percent else 1
    return Shown(score, word, title, factor, " points" * known.percent, known.lower_is_better)


def judged_by(runs: Sequence[Run]) -> Shown:
    """The score of a report; its runs hold no other.

    >>> judged_by([Run.of({"title": "local", "seed": 0}, {"value": [0.5]})]).name
    'accuracy'
    """
    return shown_score(check_score(runs, None))


def client_scores(runs: Sequence[Run], model: str, score: str) -> pd.Series:
    """Each client's score at the end, the mean over the runs that scored it.

    >>> a, b = (Run.of({"title": "local", "seed": s}, {"client": ["a"], "value": [s / 2]}) for s in (0, 1))
    >>> client_scores([a, b], "centre", "accuracy").to_dict()
    {'a': 0.25}
    """
    ends = [final(run, model, score) for run in runs if model in run.models and score in run.metrics]
    return pd.concat(ends, axis=1).mean(axis=1).dropna() if ends else pd.Series(dtype=float)


@dataclass(frozen=True)
class Role:
    """A method and the model of it that serves the clients, with what each client gets."""

    title: str
    model: str
    clients: pd.Series

    @property
    def label(self) -> str:
        """The method as charts name it."""
        return self.title


def best_models(runs: Sequence[Run], score: str) -> list[Role]:
    """Of every method the model with the best mean over clients, the best method first; who diverged is last.

    >>> run = Run.of({"title": "local", "seed": 0}, {"client": ["a", "b"], "value": [0.5, 0.75]})
    >>> [(one.title, one.model) for one in best_models([run], "accuracy")]
    [('local', 'centre')]
    """
    sign = -1 if about(score).lower_is_better else 1
    found: list[tuple[bool, float, Role]] = []
    for title, same in by_title(runs).items():
        kinds = dict.fromkeys(kind for run in same for kind in run.models)
        ends = [(kind, client_scores(same, kind, score)) for kind in kinds]
        ranked = [
            (
                any(has_diverged(run, kind) for run in same),
                -sign * float(values.mean()),
                Role(title, kind, values),
            )
            for kind, values in ends
            if len(values)
        ]
        found += [min(ranked, key=lambda one: one[:2])] if ranked else []
    return [role for _, _, role in sorted(found, key=lambda one: one[:2])]


def roles(runs: Sequence[Run], score: str) -> dict[str, Role]:
    """Who is `alone`, who is the one model for `all`, and which other method is the `best`.

    >>> def run(title, value):
    ...     facts = {"title": title, "algorithm": title.split()[0], "seed": 0}
    ...     return Run.of(facts, {"client": ["a"], "value": value})
    >>> runs = [run("local", 0.4), run("fedavg", 0.6), run("ifca k=2", 0.7), run("ifca k=3", 0.8)]
    >>> {role: one.title for role, one in roles(runs, "accuracy").items()}
    {'alone': 'local', 'all': 'fedavg', 'best': 'ifca k=3'}
    """
    names = {title: str(same[0].facts.get("algorithm", title)) for title, same in by_title(runs).items()}
    ranked, found = best_models(runs, score), dict[str, Role]()
    for role, algorithm in (("alone", "local"), ("all", "fedavg")):
        first = next((one for one in ranked if names[one.title] == algorithm), None)
        found |= {role: first} if first else {}
    taken = [one.title for one in found.values()]
    best = next((one for one in ranked if one.title not in taken), None)
    return found | ({"best": best} if best else {})
