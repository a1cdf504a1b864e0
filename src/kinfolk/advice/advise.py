"""Advice on a federation: look at the data, run short trials, decide, write it down.

The folder is a comparison folder as `kinfolk compare` writes it. Beside the runs are `advice.json`
(everything), `advice.toml` (an experiment that is ready to run), `tune/` (the search for settings) and
`choose-k/` (how many groups).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from kinfolk.advice.evidence import Candidate, candidates
from kinfolk.advice.look import Look, check_clients, constant_scores, look
from kinfolk.advice.plan import Effort, Pace, Plan
from kinfolk.advice.rules import Grouping, Verdict, as_facts, decide
from kinfolk.advice.trials import Bench, Listen, lines_for, settled
from kinfolk.errors import KinfolkError
from kinfolk.experiment.asking import one_process
from kinfolk.experiment.build import Network, build_parts
from kinfolk.experiment.method import parse_method
from kinfolk.experiment.record import plain, readable_json, write_json, write_text
from kinfolk.experiment.sections import AlgorithmSpec, Experiment
from kinfolk.experiment.spec import differences, dump, parse
from kinfolk.federation.federation import Federation
from kinfolk.streams import Seed

FILE, SPEC = "advice.json", "advice.toml"
FORMAT = 1
# Methods in the words of a specification.
ALGORITHM = {"local": "local", "fedavg": "fedavg", "fine-tuned": "fedavg_tuned"}


@dataclass(frozen=True)
class Advisor:
    """Everything is checked and planned; nothing is trained yet but a few rounds, to see how fast it goes."""

    given: Experiment
    bench: Bench
    plan: Plan
    look: Look
    pace: Pace
    folder: Path
    resume: bool

    def go(
        self,
        listen: Listen = lambda name, rounds: lambda event, facts: None,
        shorter: Callable[[int], None] = lambda rounds: None,
    ) -> dict[str, Any]:
        """Run the trials and say what they say; `shorter` hears of it when less than planned is to do."""
        began = time.perf_counter()
        try:
            facts = self._go(listen, shorter, began)
        except KeyboardInterrupt:
            self._write("stopped", "told to stop: no advice yet, but it can be resumed")
            raise
        except Exception as error:
            self._write("stopped", f"no advice: {error}")
            raise
        return facts

    def _go(self, listen: Listen, shorter: Callable[[int], None], began: float) -> dict[str, Any]:
        if self.look.too_little:
            verdict = Verdict("unclear", "low", f"Cannot say: too little data: {self.look.too_little}.")
            return self._finish(verdict, [], self.bench.spec, "", began, {})
        self._write("running", "searching settings")
        found = self.bench.search(self.folder / "tune", self.plan, self.resume, listen)
        spent: dict[str, float] = {"search": sum(float(one["spent"]) for one in found["methods"])}
        if all(one["score"] is None for one in found["methods"]):
            return self._finish(decide([], ""), [], self.bench.spec, "", began, spent)
        spec, local = settled(self.bench.spec, found)
        grouping, ks, named = Grouping(), list[int](), dict[str, Any]()
        if self.plan.most_groups > 1:
            self._write("running", "counting groups")
            try:
                named = self.bench.count(spec, self.folder / "choose-k", self.plan, self.resume, listen)
                grouping, ks = _grouping(named)
            except KinfolkError as error:  # as clients that diverge when they train alone
                grouping = Grouping(problem=f"groups could not be counted: {error}")
            spent["count"] = float(self.plan.count)
        lines = lines_for(local, ks)
        spent["trials"] = float(self.plan.seeds * self.plan.rounds * len(lines))
        shorter(self.plan.search + self.plan.count + int(spent["trials"]))
        self._write("running", "comparing methods")
        self.bench.compare(spec, lines, self.folder, self.plan, self.resume, listen)
        score = str(found["score"])
        there = candidates(self.folder, score)
        common = float(self.look.facts.get("largest class", 0.0))
        verdict = decide(there, score, self._constant(score), grouping, common)
        return self._finish(verdict, there, spec, local, began, spent, score, named)

    def _constant(self, score: str) -> pd.DataFrame | None:
        """What a constant answer scores, larger is better, on the validation rows of every seed."""
        first, sign = self.bench.spec.run.seed, -1.0 if score == "mse" else 1.0
        seeds = range(first, first + self.plan.seeds)
        found = {seed: constant_scores(self.bench.rows(Seed(seed)), score) for seed in seeds}
        known = {seed: sign * one for seed, one in found.items() if one is not None}
        return pd.DataFrame(known) if known else None

    def _finish(
        self,
        verdict: Verdict,
        there: list[Candidate],
        spec: Experiment,
        local: str,
        began: float,
        spent: Mapping[str, float],
        score: str = "",
        counted: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Write `advice.toml` and `advice.json`; what the second says."""
        ready = self._ready(verdict, spec, local)
        why = " ".join(verdict.reason.split())
        head = f"# kinfolk advise: {verdict.answer}, confidence {verdict.confidence}. {why}"
        write_text(self.folder / SPEC, f"{head}\n{dump(ready)}")
        facts = {
            "advice": as_facts(verdict),
            "score": score,
            "evidence": [_evidence(one, verdict) for one in there],
            "groups": {n: v for n, v in (counted or {}).items() if n not in ("groups", "rows")},
            "settings": {
                name: getattr(ready.local, name) for name in ("lr", "clip", "tune_lr", "tune_epochs")
            },
            "rounds": ready.run.rounds,
            "spent": dict(spent),
            "seconds": time.perf_counter() - began,
        }
        return self._write("finished", verdict.reason, **facts)

    def _ready(self, verdict: Verdict, spec: Experiment, local: str) -> Experiment:
        """The advised experiment, with data and rules as they were given; FedAvg where nothing is advised."""
        chosen = verdict.chosen
        rounds = max(self.given.run.rounds, self.plan.rounds) if chosen else self.given.run.rounds
        ready = replace(spec, data=self.given.data, run=replace(self.given.run, rounds=rounds))
        if chosen is None:
            return replace(ready, algorithm=AlgorithmSpec("fedavg"))
        if chosen.answer == "local":
            mine = parse_method(local, spec)
            return replace(ready, local=mine.spec.local, algorithm=AlgorithmSpec("local"))
        if chosen.answer == "groups":
            return replace(ready, algorithm=AlgorithmSpec(chosen.title.split()[0], {"k": chosen.k}))
        return replace(ready, algorithm=AlgorithmSpec(ALGORITHM[chosen.answer]))

    def _write(self, status: str, told: str, **facts: Any) -> dict[str, Any]:
        """Write `advice.json` as it stands."""
        whole = {"status": status, "told": told, **self.described(), **facts}
        write_json(self.folder / FILE, whole)
        found: dict[str, Any] = plain(whole)
        return found

    def described(self) -> dict[str, Any]:
        """What is known before anything is trained, for `advice.json` and for people."""
        return {
            "format": FORMAT,
            "federation": self.bench.whole.name,
            "look": self.look.described(),
            "validation": self.bench.note,
            "plan": self.plan.described(),
            "estimate": self.plan.seconds(self.pace),
            "spec": dump(self.given),
        }


def prepare(
    spec: Experiment,
    folder: Path,
    effort: Effort = Effort(),  # noqa: B008 - an Effort never changes
    *,
    federation: Federation | None = None,
    network: Network | None = None,
    resume: bool = False,
) -> Advisor:
    """Check the data, see how fast rounds are, and plan; what cannot be advised on is refused here."""
    one_process(spec.engine.name)
    before = _before(spec, folder, resume)
    bench = Bench.open(spec, federation, network, effort.sample)
    check_clients(bench.whole)
    seed = Seed(bench.spec.run.seed)
    rows = bench.rows(seed)
    parts = build_parts(replace(bench.spec, algorithm=AlgorithmSpec("fedavg_tuned")), rows, network)
    seen = look(rows, bench.of, seed, parts.monitor)
    start = bench.start()
    if seen.too_little:
        return Advisor(spec, bench, Plan(0, 1, start), seen, Pace(0, 0), folder, resume)
    pace = Pace(0, 0) if before else bench.pace()
    plan = before or Plan.of(effort, len(rows.clients), start, pace)
    return Advisor(spec, bench, plan, seen, pace, folder, resume)


def advise(
    spec: Experiment,
    folder: Path,
    effort: Effort = Effort(),  # noqa: B008 - an Effort never changes
    *,
    federation: Federation | None = None,
    network: Network | None = None,
    resume: bool = False,
    listen: Listen = lambda name, rounds: lambda event, facts: None,
) -> dict[str, Any]:
    """Advice on the clients of an experiment; all of it is in `advice.json` of the folder.

    The same data, seed and budget give the same advice. With `minutes` in place of a budget the length of
    the trials depends on the machine; it is in the plan.
    """
    given: dict[str, Any] = {"federation": federation, "network": network, "resume": resume}
    return prepare(spec, folder, effort, **given).go(listen)


def _before(spec: Experiment, folder: Path, resume: bool) -> Plan | None:
    """The plan of an earlier start in this folder; a folder in use is refused."""
    folder = Path(folder)
    if not resume:
        if folder.is_dir() and any(folder.iterdir()):
            remedy = "is not empty; add resume=True or choose another folder"
            raise KinfolkError("folder", str(folder), remedy)
        return None
    try:
        facts = readable_json((folder / FILE).read_text(encoding="utf-8"))
        there, wanted = parse(facts["spec"]), facts["plan"]
        names = ("rounds", "most_groups", "start", "seeds")
        plan = Plan(**{name: int(wanted[name]) for name in names})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise KinfolkError("folder", str(folder / FILE), f"cannot be read ({error}); remove it") from error
    if changed := differences(there, spec):
        raise KinfolkError("folder", str(folder), f"was asked about something else: {changed[0]}")
    return plan


def _grouping(found: Mapping[str, Any]) -> tuple[Grouping, list[int]]:
    """(what counting said, numbers of groups to try, the likeliest first).

    >>> named = {"accuracy": 1, "silhouette": 3}
    >>> found = {"recommended": 1, "confidence": "low", "reason": "", "named": named}
    >>> _grouping(found)[1]
    [3]
    """
    k, sure = int(found["recommended"]), str(found["confidence"])
    named = [int(number) for number in found["named"].values()]
    # "...; stability 1.00. Confidence: high (all criteria name it)."
    why = str(found["reason"]).partition(f"Confidence: {sure} (")[2].rstrip(").")
    grouping = Grouping(k, sure, why, True, set(named) == {k})
    others = [] if sure == "high" else named
    return grouping, [number for number in dict.fromkeys([k, *others]) if number > 1][:2]


def _evidence(one: Candidate, verdict: Verdict) -> dict[str, Any]:
    """What is told of a candidate."""
    row = dict(one.facts or {})
    chosen, (rival, duel) = verdict.chosen, verdict.rivals.get(one.answer, (None, None))
    return {
        "answer": one.answer,
        "method": one.title,
        "model": one.model,
        "chosen": chosen is not None and (one.title, one.model) == (chosen.title, chosen.model),
        "mean": row.get("macro"),
        "std": row.get("macro_std"),
        "rise": one.rise,
        "diverged": one.diverged,
        "against": asdict(duel) if duel and rival is one else None,
        "bytes_per_client_round": row.get("bytes_per_client_round"),
        "seconds_per_round": row.get("seconds_per_round"),
        "rounds": row.get("rounds"),
        "extra_rounds": row.get("extra_rounds"),
    }
