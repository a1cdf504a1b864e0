"""Every method at settings of its own: searched on validation rows, with the same budget for each.

Test rows play no part: trials are scored on validation rows alone. A budget is rounds' worth of training over
all trials of a method: starts count ("Budgets" in docs/results/run-folders.md), and so do trials of
fine-tuning.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from kinfolk.errors import BrokeDown, KinfolkError, at_least, near
from kinfolk.experiment.asking import one_process
from kinfolk.experiment.budget import Budget, head_start
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.choose_k import validated
from kinfolk.experiment.compare import DEFAULT, parse_methods
from kinfolk.experiment.halving import affordable, ask_optuna, cost, halve, rungs
from kinfolk.experiment.method import Method
from kinfolk.experiment.record import FORMAT, check_format, plain, read_rounds, write_json, write_text
from kinfolk.experiment.run import Result, run
from kinfolk.experiment.score_again import read_run, score_again
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.space import Point, Space, check_names, fine_space, grid, points, space_of
from kinfolk.experiment.spec import dump, values
from kinfolk.federation.federation import Federation
from kinfolk.learning.plan import row_visits
from kinfolk.lock import writing
from kinfolk.scores import about, of_all
from kinfolk.streams import Seed

BACKENDS = ("halving", "optuna")
# Whole runs that a method may spend, if nobody says otherwise.
RUNS = 6
FINE_TUNED = "fine-tuned"

Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class Search:
    """How much is tried, and of what; a budget of 0 is six whole runs for each seed."""

    budget: float = 0.0
    seeds: int = 1
    space: Space = field(default_factory=dict)
    backend: str = "halving"

    def __post_init__(self) -> None:
        at_least("--budget", self.budget, 0)
        at_least("--seeds", self.seeds, 1)
        if self.backend not in BACKENDS:
            raise KinfolkError("--backend", self.backend, near(self.backend, BACKENDS))


def tune(
    spec: Experiment,
    algorithms: Sequence[str],
    folder: Path,
    search: Search = Search(),  # noqa: B008 - a Search never changes
    *,
    federation: Callable[[Seed], Federation] | None = None,
    network: Network | None = None,
    resume: bool = False,
    tell: Tell = lambda title, spent: None,
) -> dict[str, Any]:
    """Search settings for every method; all of it is in `tune.json`, the chosen ones in `<method>.toml` too.

    With `resume`, trials that have finished are not repeated. `tell` hears of each trial that has.
    """
    one_process(spec.engine.name)
    with writing(folder):
        if not resume and ((folder / "tune.json").exists() or (folder / "trials.json").exists()):
            remedy = "a search is there already; add --resume or choose another"
            raise KinfolkError("--out", str(folder), remedy)
        check_format(folder, "tune.json")
        methods = list(parse_methods(spec, algorithms or DEFAULT).values())
        check_names(search.space, methods)
        bench = _Bench.of(spec, folder, search, federation, network, tell)
        least = 1 + max(head_start(bench.parts(one)) for one in methods)
        steps = rungs(spec.run.rounds, least)
        tasks = [_Task(bench, one, steps) for one in methods]  # all are checked before the first trial
        facts: dict[str, Any] = {
            "format": FORMAT,
            "score": bench.score,
            "budget": bench.budget,
            "rounds": spec.run.rounds,
            "rungs": steps,
            "seeds": bench.seeds,
            "backend": search.backend,
            "notes": bench.notes,
            "methods": [task.search() for task in tasks],
        }
        for one in facts["methods"]:
            write_text(folder / one["file"], one.pop("toml"))
        write_json(folder / "tune.json", facts)
    told: dict[str, Any] = plain(facts)
    return told


def _trials(path: Path) -> dict[str, dict[str, Any]]:
    """What earlier trials came to."""
    try:
        done: dict[str, dict[str, Any]] = json.loads(path.read_text())
        if isinstance(done, dict) and all(isinstance(facts, dict) for facts in done.values()):
            return done
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError):
        pass
    raise KinfolkError("tune", str(path), "cannot be read; remove it, and all trials are made again")


@dataclass(frozen=True)
class _Bench:
    """What the trials of all methods share: rows, budget, and the records of what was tried."""

    spec: Experiment  # with validation rows, as trials are run
    rows: Mapping[int, Federation]  # by seed
    folder: Path
    how: Search
    network: Network | None
    tell: Tell
    notes: list[str]
    done: dict[str, dict[str, Any]]  # what trials that have finished came to
    original: Experiment  # as it was given

    @staticmethod
    def of(
        spec: Experiment,
        folder: Path,
        how: Search,
        federation: Callable[[Seed], Federation] | None,
        network: Network | None,
        tell: Tell,
    ) -> _Bench:
        rows, notes, data = {}, dict[str, None](), spec.data
        for k in range(spec.run.seed, spec.run.seed + how.seeds):
            given = federation(Seed(k)) if federation else None
            rows[k], held, told = validated(spec, given, Seed(k))
            data = replace(held.data, seed=spec.data.seed)
            notes |= dict.fromkeys(told)
        length: dict[str, Any] = dict.fromkeys(("evaluate_every", "checkpoint_every"), spec.run.rounds)
        rules = replace(spec.run, **length, split="valid", target=0.0)
        done = _trials(folder / "trials.json")
        trial = replace(spec, data=data, run=rules)
        return _Bench(trial, rows, folder, how, network, tell, list(notes), done, spec)

    @property
    def seeds(self) -> list[int]:
        return list(self.rows)

    @property
    def budget(self) -> float:
        return self.how.budget or float(RUNS * self.spec.run.rounds * len(self.rows))

    @cached_property
    def score(self) -> str:
        return build_parts(self.spec, next(iter(self.rows.values())), self.network).monitor

    @property
    def sign(self) -> float:
        return -1.0 if about(self.score).lower_is_better else 1.0

    def of_trial(self, method: Method, seed: int) -> Experiment:
        """The spec of a trial: the method's, with this search's rows and rules."""
        return replace(method.spec, data=self.spec.data, run=replace(self.spec.run, seed=seed))

    def parts(self, method: Method) -> Parts:
        """The parts of a trial; what is wrong with its settings is an error."""
        return build_parts(self.of_trial(method, self.seeds[0]), self.rows[self.seeds[0]], self.network)

    def record(self, key: str, facts: dict[str, Any]) -> dict[str, Any]:
        """Keep what a trial came to, on disk at once."""
        self.done[key] = plain(facts)
        write_json(self.folder / "trials.json", self.done)
        return self.done[key]


class _Task:
    """The search for one method."""

    def __init__(self, bench: _Bench, method: Method, steps: list[int]) -> None:
        self.bench, self.method, self.steps, self.seeds = bench, method, steps, len(bench.seeds)
        self.space = space_of(method, bench.how.space)
        self.left_out: list[str] = []
        self.trials: dict[str, dict[str, Any]] = {}  # by their settings
        self.fine_tried: list[dict[str, Any]] = []
        self.spent = 0.0
        kinds = list(bench.parts(method).algorithm.eval_tasks())  # what a line sets itself must be right
        self.kinds = kinds[:1] if method.spec.run.models == "first" else kinds
        fine = grid(fine_space(method, bench.how.space)) if FINE_TUNED in self.kinds else []
        self.fine = self._valid(iter(fine), len(fine))
        self.reserved = self.seeds * sum(map(self._fine_cost, self.fine))
        many = math.prod(map(len, self.space.values())) if self.space else 0
        most = affordable((bench.budget - self.reserved) / self.seeds, steps, many)
        if most < 1 <= many:
            need = self.reserved + self.seeds * (steps[-1] + cost(1, steps))
            why = f"to try one other than its own settings for {steps[-1]} rounds"
            raise KinfolkError("--budget", bench.budget, f"{method.title} needs {need:g} or more {why}")
        self.points = self._valid(points(method, self.space, Seed(bench.spec.run.seed)), most)

    def _valid(self, offered: Iterator[Point], most: int) -> list[Point]:
        """The first points that can be run; those that cannot are noted, and if none can that is an error."""
        found: list[Point] = []
        wrong: list[str] = []
        while len(found) < most and (point := next(offered, None)) is not None:
            problem = self._problem(point)
            wrong += [f"{_told(point)}: {problem}"] if problem else []
            found += [] if problem else [point]
        if wrong and not found:
            remedy = f"has no point that {self.method.title} can be run with; the first is {wrong[0]}"
            raise KinfolkError("--space", None, remedy)
        self.left_out += wrong
        return found

    def _problem(self, point: Mapping[str, Any]) -> str:
        """Why some settings cannot be run; empty if they can."""
        try:
            parts = self.bench.parts(self.method.having(point))
            # What does not suit these clients, as more groups than there are, is found at the start alone.
            parts.algorithm.init(parts.learner.first, parts.federation.clients, parts.seed)
        except KinfolkError as error:
            return str(error)
        tight = head_start(parts) >= self.steps[0]
        return f"its start takes {self.steps[0]} rounds or more" if tight else ""

    def search(self) -> dict[str, Any]:
        """Try everything that fits; what was tried, what it cost, and what to use."""
        last = self.steps[-1]
        default = self._measure({}, last)
        if self.bench.how.backend == "optuna":
            ask_optuna(self.space, self.bench.spec.run.seed, self.steps, self._measure, self._affords)
        else:
            halve(self.points, self.steps, self._measure)
        whole = [one for one in self.trials.values() if one["rounds"] == last]
        best = max(whole, key=lambda one: float(one["score"]))  # of equals the first: what it has anyway
        fine = self._fine_tuned(best)
        for one in self.trials.values():  # what is known of a trial is recorded: its models are not needed
            for where in one["folders"]:
                shutil.rmtree(where / "checkpoints", ignore_errors=True)
        models = best["kinds"] | ({FINE_TUNED: fine["score"]} if fine else {})
        model = max(models, key=lambda kind: (models[kind], kind == best["model"]))
        return {
            **self._chosen({**best["settings"], **fine.get("settings", {})}),
            "model": model,
            "score": self.bench.sign * models[model],
            "models": self._signed(models),
            "default": self.bench.sign * default,
            "default_models": self._signed(self.trials[_told({})]["kinds"]),
            "tried": len(self.trials) + len(self.fine_tried),
            "failed": sum(math.isinf(one["score"]) for one in self.trials.values()),
            "spent": self.spent,
            "left_out": self.left_out,
            "space": self.space,
            "trials": [
                {name: one[name] for name in ("settings", "rounds", "model", "spent", "why")}
                | {"models": self._signed(one["kinds"])}
                for one in self.trials.values()
            ],
            "fine": [one | {"score": self.bench.sign * one["score"]} for one in self.fine_tried],
        }

    def _chosen(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """What to use: settings, a line for `-a`, and a spec with data and rules as they were given."""
        chosen, given = self.method.having(settings), self.bench.original
        return {
            "algorithm": self.method.title,
            "given": self.method.line,
            "chosen": chosen.line,
            "settings": dict(settings),
            "file": f"{self.method.folder}.toml",
            "toml": dump(replace(chosen.spec, data=given.data, run=given.run)),
        }

    def _signed(self, models: Mapping[str, float]) -> dict[str, float]:
        return {kind: self.bench.sign * value for kind, value in models.items()}

    def _affords(self, point: Mapping[str, Any], rounds: int) -> bool:
        """Whether a trial can go on so far."""
        at = self.trials.get(_told(point), {}).get("rounds", 0)
        more = self.seeds * (rounds - at)
        return bool(more <= 0 or self.spent + self.reserved + more <= self.bench.budget)

    def _measure(self, point: Mapping[str, Any], rounds: int) -> float:
        """The validation score of some settings after so many rounds; minus infinity if they failed."""
        key = _told(point)
        before = self.trials.get(key, {"rounds": 0, "spent": 0.0})
        if before["rounds"] >= rounds:
            return float(before["score"])
        problem = self._problem(point)
        if problem:  # proposed by a backend that does not ask
            self.left_out += [] if f"{key}: {problem}" in self.left_out else [f"{key}: {problem}"]
            return -math.inf
        method = self.method.having(point)
        ran = [self._trial(method, seed, rounds) for seed in self.bench.seeds]
        means = {
            kind: sum(one["kinds"].get(kind, -math.inf) for one in ran) / len(ran) for kind in self.kinds
        }
        model = max(means, key=lambda kind: means[kind])
        spent = sum(float(one["spent"]) for one in ran)
        self.spent += spent - before["spent"]
        self.trials[key] = {
            "settings": {name: values(method.spec)[name] for name in point},
            "rounds": rounds,
            "score": means[model],
            "model": model,
            "kinds": means,
            "spent": spent,
            "why": next((one["why"] for one in ran if one["why"]), ""),
            "folders": [self.bench.folder / one["folder"] for one in ran],
        }
        self.bench.tell(self.method.title, self.spent)
        return float(means[model])

    def _trial(self, method: Method, seed: int, rounds: int) -> dict[str, Any]:
        """One run of so many rounds, or what is known of it; it goes on from an earlier rung."""
        bench = self.bench
        spec = bench.of_trial(method, seed)
        where = f"trials/{self.method.folder}/{_name(spec, bench.rows[seed])}"
        key = f"{where} {rounds}"
        if key in bench.done:
            return _read(bench.done[key])
        spec = replace(spec, run=replace(spec.run, rounds=rounds))
        facts: dict[str, Any] = {"folder": where, "why": "", "kinds": {}, "spent": float(rounds)}
        try:
            given: dict[str, Any] = {"federation": bench.rows[seed], "network": bench.network}
            result = run(spec, bench.folder / where, resume=True, **given)
            facts |= {"kinds": self._kinds(result), "spent": _spent(bench.folder / where, result.rounds)}
            diverged = read_run(bench.folder / where).get("diverged")
            facts |= {"why": f"diverged: {diverged}", "kinds": {}} if diverged else {}
        except BrokeDown as problem:
            facts["why"] = str(problem)
        return _read(bench.record(key, facts))

    def _kinds(self, result: Result) -> dict[str, float]:
        """The mean over clients of each scored model, larger is better; one that is not a number is worst."""
        found = {}
        for kind, scores in result.summary.items():
            value = of_all(scores.get(self.bench.score, {}))
            known = value is not None and math.isfinite(value)
            found[kind] = self.bench.sign * value if value is not None and known else -math.inf
        return found

    def _fine_cost(self, point: Mapping[str, Any]) -> float:
        """Rounds' worth of training that fine-tuning every client once takes."""
        parts = self.bench.parts(self.method.having(point))
        plan = parts.algorithm.eval_tasks()[FINE_TUNED].passes[0].plan
        counts = parts.federation.splits["train"].counts().tolist()
        return float(sum(row_visits(plan, n) for n in counts) / Budget.of(parts).usual)

    def _fine_tuned(self, best: Mapping[str, Any]) -> dict[str, Any]:
        """The best settings of fine-tuning for the chosen models; nothing if those they have are the best."""
        if not self.fine or math.isinf(best["score"]):
            return {}
        base = self.method.having(best["settings"])
        offered = grid(fine_space(base, self.bench.how.space))
        for point in (one for one in offered if not self._problem(one)):
            method = base.having(point)
            ran = [self._scored(method, base, seed) for seed in self.bench.seeds]
            spent = self.seeds * self._fine_cost(point)
            self.spent += spent
            typed = {name: values(method.spec)[name] for name in point}
            self.fine_tried.append({"settings": typed, "score": sum(ran) / len(ran), "spent": spent})
            self.bench.tell(self.method.title, self.spent)
        tried = max(self.fine_tried, key=lambda one: float(one["score"]))
        return tried if tried["score"] > best["kinds"][FINE_TUNED] else {}

    def _scored(self, method: Method, base: Method, seed: int) -> float:
        """The fine-tuned models of a finished trial under other settings of fine-tuning."""
        bench = self.bench
        spec, trained = bench.of_trial(method, seed), bench.of_trial(base, seed)
        home = f"trials/{self.method.folder}"
        key = f"{home}/{_name(spec, bench.rows[seed])}-fine"
        if key not in bench.done:
            source = bench.folder / home / _name(trained, bench.rows[seed])
            given: dict[str, Any] = {"federation": bench.rows[seed], "network": bench.network}
            if not (source / "checkpoints").is_dir():  # of an earlier search that had ended
                run(trained, source, resume=True, **given)
            bench.record(key, {"kinds": self._kinds(score_again(source, spec, bench.folder / key, **given))})
        return float(_read(bench.done[key])["kinds"][FINE_TUNED])


def _name(spec: Experiment, rows: Federation) -> str:
    """A name for a trial that follows from its settings and rows, however many rounds it is run for."""
    text = dump(spec) + rows.fingerprint()
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _spent(folder: Path, rounds: int) -> float:
    """Rounds' worth of training that a run has taken, its start included."""
    return rounds + float(sum(line.get("extra") or 0.0 for line in read_rounds(folder)))


def _read(facts: Mapping[str, Any]) -> dict[str, Any]:
    """What was recorded; JSON has no infinity, so that a failure is None there."""
    kinds = {kind: -math.inf if value is None else value for kind, value in facts["kinds"].items()}
    return {**facts, "kinds": kinds}


def _told(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.items()) or "as given"
