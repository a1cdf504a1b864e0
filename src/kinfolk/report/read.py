"""Run folders read back: what was run, how each client was scored, and means over clients.

Needs no torch, so that tables and figures open at once, on any machine.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.forms import RUN, misfit
from kinfolk.experiment.record import (
    read_audit,
    read_client_facts,
    read_rounds,
    read_scores,
    readable,
    readable_json,
)
from kinfolk.privacy.told import promise
from kinfolk.report.scored import Held, Scored, Stored
from kinfolk.report.status import as_it_is
from kinfolk.scores import SCORES, about, learn, plus_minus


def read_facts(folder: str | Path, command: str) -> dict[str, Any]:
    """What a command other than `run` (`choose-k`, `pseudo`) wrote into a folder, in the file of its name.

    >>> read_facts("nowhere", "pseudo")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: pseudo = 'nowhere': has no pseudo.json; name a folder of `kinfolk pseudo`
    """
    try:
        facts: dict[str, Any] = readable_json((Path(folder) / f"{command}.json").read_text("utf-8"))
        if not isinstance(facts, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        remedy = f"has no {command}.json; name a folder of `kinfolk {command}`"
        raise KinfolkError(command, str(folder), remedy) from error
    readable(Path(folder), facts)
    return facts


@dataclass(frozen=True, eq=False)
class Run:
    """One run folder. Facts are read at once, the records when they are first needed."""

    path: Path
    facts: Mapping[str, Any]
    score: str | None = None  # the only one that it holds; all if there is none

    @staticmethod
    def of(facts: Mapping[str, Any], scores: Mapping[str, Any], rounds: Sequence[Any] = ()) -> Run:
        """A run held in memory, for results that have no folder; columns left out get the usual value.

        >>> run = Run.of({"title": "fedavg", "seed": 3}, {"client": ["ann"], "value": [0.5], "rows": [10]})
        >>> run.title, run.seed, run.models, run.metrics
        ('fedavg', 3, ('centre',), ('accuracy',))
        """
        run = Run(Path(f"{facts['title']}-seed{facts['seed']}"), facts)
        usual = {"round": 0, "client": "", "model": "centre", "split": "test", "score": "accuracy", "rows": 1}
        usual |= {"group": None, "margin": math.nan}
        run.__dict__.update(scores=pd.DataFrame({**usual, **scores}), rounds=list(rounds), audit=[], spec={})
        run.__dict__.update(client_facts=pd.DataFrame())
        return run

    @property
    def title(self) -> str:
        """The algorithm and those of its options that are not at their defaults."""
        return str(self.facts.get("title") or self.facts["algorithm"])

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.facts["seed"])

    @cached_property
    def scores(self) -> pd.DataFrame:
        """Every score of every client; a row each. Validation rows that only judged rounds are not in it.

        Of a large run it takes gigabytes; `scored` reads the part that is asked for.
        """
        frame = read_scores(self.path, self.score)
        known = frame["split"].unique()
        return (
            frame[frame["split"] == self._split].reset_index(drop=True)
            if {self._split} < set(known)
            else frame
        )

    @cached_property
    def scored(self) -> Scored:
        """The same scores round by round, and what was asked of them before."""
        if "scores" in self.__dict__:
            return Held(self.scores)
        return Stored(self.path, self._split, self.score)

    @property
    def _split(self) -> str | None:
        return (self.spec.get("run") or {}).get("split")

    def only(self, score: str) -> Run:
        """The same run with one of its scores, which takes a part of the memory.

        >>> run = Run.of({"title": "local", "seed": 0}, {"value": [1.0, 2.0], "score": ["loss", "mse"]})
        >>> run.only("mse").metrics, run.only("mae").metrics
        (('mse',), ())
        """
        run = Run(self.path, self.facts, score)
        for name in ("rounds", "audit", "client_facts", "spec"):
            if name in self.__dict__:
                run.__dict__[name] = self.__dict__[name]
        if "scores" in self.__dict__:
            run.__dict__["scores"] = self.scores[self.scores["score"] == score].reset_index(drop=True)
        return run

    @cached_property
    def rounds(self) -> list[dict[str, Any]]:
        """The facts of every finished round."""
        return read_rounds(self.path)

    @cached_property
    def audit(self) -> list[dict[str, Any]]:
        """What was rejected, absent or otherwise amiss."""
        return read_audit(self.path)

    @cached_property
    def client_facts(self) -> pd.DataFrame:
        """What was recorded of the clients' data: a row for each client, a column for each fact."""
        return read_client_facts(self.path)

    @property
    def has_groups(self) -> bool:
        """Whether the method puts clients into groups."""
        return self.scored.grouped

    @property
    def groups(self) -> pd.DataFrame:
        """The group of every client, and how sure that is; see `kinfolk groups`.

        >>> scores = {"client": ["ann", "bob"], "value": [0.5, 1.0], "group": [0, 1]}
        >>> Run.of({"title": "ifca", "seed": 0}, scores).groups["group"].to_dict()
        {'ann': 0, 'bob': 1}
        """
        from kinfolk.report.groups import members

        return members(self)

    @property
    def conduct(self) -> pd.DataFrame:
        """The clients that look like free riders or outliers, and why; see docs/privacy/attackers.md."""
        from kinfolk.report.conduct import conduct

        return conduct(self)

    @cached_property
    def spec(self) -> dict[str, Any]:
        """The resolved experiment file, or nothing if the folder has none."""
        path = self.path / "spec.toml"
        try:
            return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        except (OSError, ValueError) as error:
            raise KinfolkError("run", str(path), f"cannot be read ({error})") from error

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The kinds of model that were scored, the main one first."""
        told = [kind for fact in self.rounds for kind in fact.get("summary") or {}]
        here = list(self.scored.seen.rows["model"].unique())
        return tuple(dict.fromkeys([kind for kind in told if kind in here] + here))

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        """The scores that were recorded, the most telling first."""
        here = list(self.scored.seen.rows["score"].unique())
        found = dict.fromkeys([name for name in SCORES if name in here] + here)
        return tuple(sorted(found, key=lambda name: name == "loss"))  # which tells least


def load_run(path: str | Path) -> Run:
    """The run in a folder.

    >>> load_run("nowhere")
    Traceback (most recent call last):
    ...
    kinfolk.errors.KinfolkError: run = 'nowhere': is not a run folder (it has no run.json)
    """
    folder = Path(path)
    if not (folder / "run.json").is_file():
        runs = sorted(found.parent.name for found in folder.glob("*/run.json"))
        remedy = f"holds several runs; name one of them: {', '.join(runs[:6])}" + ", ..." * (len(runs) > 6)
        raise KinfolkError("run", str(folder), remedy if runs else "is not a run folder (it has no run.json)")
    facts = as_it_is(folder, _json(folder / "run.json"), lambda: _json(folder / "run.json"))
    readable(folder, facts)
    for name, kind in (("algorithm", str), ("seed", int)):
        if not isinstance(facts.get(name), kind):
            raise KinfolkError("run", str(folder / "run.json"), f"does not name its {name}")
    if wrong := misfit(facts, RUN):
        raise KinfolkError("run", str(folder / "run.json"), f"says {wrong} in a form that no run writes")
    scores = facts.get("scores")
    if isinstance(scores, Mapping):
        learn({name: about for name, about in scores.items() if isinstance(about, Mapping)})
    return Run(folder, facts)


def load_runs(folder: str | Path) -> list[Run]:
    """The runs in a folder: of a comparison, of a folder of run folders, or the run that it is itself.

    A run that a comparison names but has not begun is left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for seed in (0, 1):
    ...         sub = Path(folder) / f"fedavg-seed{seed}"
    ...         sub.mkdir()
    ...         _ = (sub / "run.json").write_text(f'{{"algorithm": "fedavg", "seed": {seed}}}')
    ...     [(run.title, run.seed) for run in load_runs(folder)]
    [('fedavg', 0), ('fedavg', 1)]
    """
    folder = Path(folder)
    if (folder / "run.json").is_file():
        return [load_run(folder)]
    if (folder / "compare.json").is_file():
        names = compared(folder)
    else:
        names = sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []
    runs = [load_run(folder / name) for name in names if (folder / name / "run.json").is_file()]
    if not runs:
        raise KinfolkError("run", str(folder), "holds no run; name a run folder or a comparison folder")
    return runs


def compared(folder: Path) -> list[str]:
    """The names of the runs of a comparison.

    >>> compared(Path("nowhere"))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere/compare.json': cannot be read (...)
    """
    facts = _json(folder / "compare.json")
    readable(folder, facts)
    names = facts.get("runs")
    if not isinstance(names, list) or not all(is_name(name) for name in names):
        raise KinfolkError("runs", str(folder / "compare.json"), "must list the names of run folders")
    return names


def is_name(name: object) -> bool:
    """Whether this names something directly inside a folder, and not a way out of it.

    >>> [is_name(name) for name in ("fedavg-seed0", "../other", "", None)]
    [True, False, False, False]
    """
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & set("/\\\0")


def _json(path: Path) -> dict[str, Any]:
    try:
        value = readable_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise KinfolkError("run", str(path), f"cannot be read ({error})") from error
    if not isinstance(value, dict):
        raise KinfolkError("run", str(path), "must hold a JSON object")
    return value


def by_title(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs by the title of their algorithm, in the order met; those of one title differ by their seed.

    >>> a, b = (Run.of({"title": "local", "seed": seed}, {"value": []}) for seed in (0, 1))
    >>> {title: [run.seed for run in runs] for title, runs in by_title([a, b]).items()}
    {'local': [0, 1]}
    """
    found: dict[str, list[Run]] = {}
    for run in runs:
        same = found.setdefault(run.title, [])
        if any(run.seed == other.seed for other in same):
            # A repeat is no second seed: counting it as one would make the deviation too small.
            raise KinfolkError("runs", f"{run.title} seed {run.seed}", "occurs twice; give each seed once")
        same.append(run)
    return found


def default_score(runs: Iterable[Run]) -> str:
    """The score by which runs are judged if none is named: accuracy, or the squared error.

    >>> run = Run.of({"title": "local", "seed": 0}, {"value": [1.0, 2.0], "score": ["loss", "mse"]})
    >>> default_score([run])
    'mse'
    """
    runs = list(runs)
    for run in runs:
        if run.metrics:
            return run.metrics[0]
    raise KinfolkError("run", ", ".join(str(run.path) for run in runs), "has no scores yet")


def check_score(runs: Iterable[Run], score: str | None) -> str:
    """The score to show: the one asked for, if any run has it, or the default."""
    runs = list(runs)
    known = {name for run in runs for name in run.metrics}
    if score is not None and known and score not in known:
        raise KinfolkError("score", score, near(score, known))
    return default_score(runs) if score is None or not known else score


def _check_chosen(run: Run, model: str, score: str) -> None:
    for field, wanted, known in (("model", model, run.models), ("score", score, run.metrics)):
        if wanted not in known:
            remedy = near(wanted, known) if known else "there are no scores yet"
            raise KinfolkError(f"{run.path.name}: {field}", wanted, remedy)


def last(run: Run, model: str, score: str) -> pd.DataFrame:
    """The rows of the last round in which this model's score was recorded, by client; may be none.

    >>> run = Run.of({"title": "local", "seed": 0},
    ...     {"round": [0, 5, 5], "client": ["a", "b", "a"], "value": [0.1, 0.9, 0.8], "rows": 10})
    >>> last(run, "centre", "accuracy")["value"].to_dict()
    {'a': 0.8, 'b': 0.9}
    """
    _check_chosen(run, model, score)
    return run.scored.last(model, score)


def final(run: Run, model: str, score: str) -> pd.Series:
    """Each client's score at the last evaluated round; NaN for a client without rows to be scored on.

    >>> run = Run.of({"title": "local", "seed": 0},
    ...     {"client": ["a", "b"], "value": [0.5, float("nan")], "rows": [10, 0]})
    >>> final(run, "centre", "accuracy").to_dict()
    {'a': 0.5, 'b': nan}
    """
    return last(run, model, score)["value"].rename(score)


def sample_std(values: ArrayLike) -> float:
    """The sample standard deviation (n - 1 below); NaN of one value, and of values that are not finite.

    >>> sample_std([0.0, 2.0, 4.0])
    2.0
    """
    array: NDArray[np.float64] = np.asarray(values, dtype=np.float64)
    return float(array.std(ddof=1)) if array.size > 1 and np.isfinite(array).all() else float("nan")


def shown(value: float, score: str, deviation: float = math.nan, unit: bool = False) -> str:
    """A score as text: percent with one decimal, or three digits; its deviation behind it if there is one.

    >>> shown(0.8712, "accuracy", 0.0123), shown(0.8712, "accuracy", unit=True), shown(0.01234, "mse", 0.0011)
    ('87.1 ± 1.2', '87.1%', '0.0123 ± 0.0011')
    """
    if math.isnan(value):
        return "-"
    if about(score).percent:
        text = [f"{100 * part:.1f}" for part in (value, deviation)]
    elif value == 0 or 1e-4 <= abs(value) < 1e5:
        decimals = 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
        text = [f"{part:.{decimals}f}" for part in (value, deviation)]
    else:
        text = [power(value, 2), power(deviation, 0)]
    mean = f"{text[0]}%" if unit and about(score).percent else text[0]
    return plus_minus(mean, text[1])


def power(value: float, decimals: int, sign: str = "") -> str:
    """A number that is very large or small, in few letters.

    >>> power(1.5e9, 2), power(2e-7, 0), power(3e12, 1, "+"), power(math.inf, 2)
    ('1.50e9', '2e-7', '+3.0e12', 'inf')
    """
    digits, e, exponent = f"{value:{sign}.{decimals}e}".partition("e")
    return f"{digits}e{int(exponent)}" if e else digits


def human_bytes(count: float) -> str:
    """A number of bytes in the unit that suits it; 1 kB is 1000 bytes.

    >>> human_bytes(512), human_bytes(1500), human_bytes(999_999), human_bytes(2.5e9)
    ('512 B', '1.5 kB', '1 MB', '2.5 GB')
    """
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} PB"


def history(run: Run, model: str, score: str, over: str = "macro") -> pd.Series:
    """One number over all clients for each evaluated round, by round.

    >>> run = Run.of({"title": "local", "seed": 0},
    ...     {"round": [0, 0, 5, 5], "client": ["a", "b"] * 2, "value": [0.0, 0.2, 0.9, 0.8], "rows": 10})
    >>> history(run, "centre", "accuracy").round(3).to_dict()
    {0: 0.1, 5: 0.85}
    """
    _check_chosen(run, model, score)
    rounds = {number: by[over] for number, by in run.scored.curves(score).get(model, {}).items()}
    return pd.Series(rounds, dtype=np.float64, name=over)


def mean_history(runs: Sequence[Run], model: str, score: str, over: str = "macro") -> pd.DataFrame:
    """Mean and sample standard deviation over runs (seeds), by round: columns `mean` and `std`.

    Only rounds that all of them evaluated: were a seed to end early, the mean of the others would jump.

    >>> a, b = (Run.of({"title": "local", "seed": seed}, {"round": [0, 5][: 2 - seed], "client": "a",
    ...     "value": [0.5, 0.75][: 2 - seed], "rows": 9}) for seed in (0, 1))
    >>> mean_history([a, b], "centre", "accuracy").to_dict("index")
    {0: {'mean': 0.5, 'std': 0.0}}
    """
    curves = pd.concat([history(run, model, score, over) for run in runs], axis=1, join="inner").sort_index()
    values = curves.to_numpy(dtype=np.float64)
    return pd.DataFrame(
        {"mean": values.mean(axis=1), "std": [sample_std(row) for row in values]}, index=curves.index
    )


def training_seconds(fact: Mapping[str, Any]) -> float:
    """What a round took without scoring and checkpoints, the server's part included.

    >>> training_seconds({"seconds": {"update": 1.5, "server": 0.5, "score.centre": 9.0, "checkpoint": 3.0}})
    2.0
    """
    return float(sum(spent for kind, spent in (fact.get("seconds") or {}).items() if is_training(kind)))


def privacy(run: Run) -> str:
    """What a run promises its clients, in words, by its newest round; empty without noise.

    >>> said = {"epsilon": 1.0, "delta": 0.001, "budget": 0.0, "mode": "local", "clip": 1.0, "noise": 5.0}
    >>> facts = {"title": "fedavg", "seed": 0, "privacy": said}
    >>> privacy(Run.of(facts, {"value": []}, [{"round": 1, "privacy": {"epsilon": 2.0}}]))
    'epsilon 2 at delta 0.001 for what a client trains; noise by each client'
    """
    known = [fact["privacy"] for fact in run.rounds if fact.get("privacy")]
    said = run.facts.get("privacy") or {}
    return promise(said | known[-1] if said and known else said)


def extra_rounds(run: Run) -> float:
    """Rounds' worth of training beyond the rounds' own: a start's.

    >>> run = Run.of({"title": "fesem", "seed": 0}, {"value": []}, [{"round": 1, "extra": 2.5}, {"round": 2}])
    >>> extra_rounds(run)
    2.5
    """
    return float(sum(fact.get("extra") or 0.0 for fact in run.rounds))


def epochs_per_client(run: Run) -> float:
    """How often a training row was visited by a pass with gradients, a mean over rows; NaN if unknown.

    >>> facts = {"title": "fedavg", "seed": 0, "federation": {"rows": 100}}
    >>> run = Run.of(facts, {"value": []}, [{"round": 1, "trained": {"update": 250}}])
    >>> epochs_per_client(run)
    2.5
    """
    rows = (run.facts.get("federation") or {}).get("rows")
    told = [fact["trained"] for fact in run.rounds if "trained" in fact]
    if any(fact.get("lost") for fact in run.rounds):  # its line was, and what it took with it
        return math.nan
    return sum(sum(by.values()) for by in told) / rows if rows and told else math.nan


def is_training(kind: str) -> bool:
    """Whether a kind of message, or a phase of a round, belongs to training.

    >>> [is_training(kind) for kind in ("update", "server", "score.centre", "checkpoint", "pictures")]
    [True, True, False, False, False]
    """
    return not kind.startswith("score.") and kind not in ("checkpoint", "pictures")
