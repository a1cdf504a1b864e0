"""What a run does when training goes wrong: tell, stop, go back with a smaller rate, or leave clients out.

Rounds are never played again under the same number: a run that goes back takes the models and memories of its
last sound evaluation and goes on with the next round. What clients have answered (SLFed) stays answered.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from kinfolk.algorithms import build_algorithm
from kinfolk.engines.choose import make
from kinfolk.errors import KinfolkError
from kinfolk.experiment.attack import overstating
from kinfolk.experiment.build import Parts
from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.health import Evaluation, Trace, brief, look, message, odd_starts, outliers
from kinfolk.experiment.privacy import after_void
from kinfolk.experiment.ranks import table_of
from kinfolk.experiment.record import read_round
from kinfolk.experiment.spec import dump
from kinfolk.types import Client

if TYPE_CHECKING:
    from kinfolk.experiment.run import Running

# A run goes back this often; rates below an eighth of what was asked for are another experiment.
ROLLBACKS = 3
# Where more than this part of a round's replies, or of all clients, went wrong, it is the training and not
# a few clients.
MANY = 0.5
# A client is to blame if its norm grew by this factor, and is as far above the cohort's median.
BLAMED = 10.0


@dataclass
class Health:
    """What a run knows of its own health. All but the start, which is in the records, is saved."""

    constant: float  # loss of a constant answer
    classes: int
    traces: dict[str, Trace] = field(default_factory=dict)  # by kind of model
    start: dict[str, dict[str, float]] = field(default_factory=dict)  # every client's loss before training
    exploded: dict[str, str] = field(default_factory=dict)  # clients, and what their replies were, so far
    suspects: dict[str, float] = field(default_factory=dict)  # norms since the last sound evaluation
    excluded: list[str] = field(default_factory=list)
    rollbacks: int = 0
    stopped: str = ""  # why the run may not go on
    events: list[dict[str, Any]] = field(default_factory=list)  # what was done about it, in order

    @staticmethod
    def of(parts: Parts) -> Health:
        """The health of a run that has not begun."""
        return Health(constant_loss(parts), parts.federation.classes)

    @property
    def diverged(self) -> dict[str, dict[str, Any]]:
        """What stands against each kind of model that has diverged."""
        return {kind: trace.diverged for kind, trace in self.traces.items() if trace.diverged}

    @property
    def told(self) -> str:
        """The first divergence in one line; empty if all is well."""
        first = min(self.diverged.values(), key=lambda d: int(d["round"]), default=None)
        return message(first) if first else ""

    def saved(self) -> dict[str, Any]:
        """What a checkpoint holds of it, in JSON's own types."""
        facts = {name: value for name, value in asdict(self).items() if name not in _NOT_SAVED}
        for trace in facts["traces"].values():
            trace |= {name: None for name in ("lowest", "last") if not math.isfinite(trace[name])}
        return facts

    def take(self, facts: Mapping[str, Any], folder: Path) -> None:
        """Know again what a checkpoint holds; the start is read from the records of its run."""
        if strange := set(facts) - set(self.saved()):
            raise ValueError(f"health.{min(strange)} is not known")
        for name, value in facts.items():
            setattr(self, name, value)
        self.traces = {}
        for kind, one in facts.get("traces", {}).items():
            known: dict[str, Any] = {
                name: math.inf if value is None else value for name, value in one.items()
            }
            self.traces[kind] = Trace(**known)
        self.start = start_losses(folder)

    def look(self, round: int, seen: Mapping[str, Evaluation]) -> None:
        """Take an evaluation of all kinds of models into account."""
        for kind, now in seen.items():
            if kind not in self.traces:
                self.start.setdefault(kind, dict(zip(now.clients, now.loss.tolist(), strict=True)))
        for kind, now in seen.items():
            trace, start = self.traces.setdefault(kind, Trace()), self.before_training(kind)
            # Targets that do not vary, or that are made when they are asked for, leave the start to go by.
            known = [value for value in start.values() if math.isfinite(value)]
            usual = self.constant if self.constant > 0 else float(np.mean(known)) if known else math.inf
            look(trace, round, now, start, usual, self.classes)
            if trace.diverged.get("round") == round and self.suspects:
                worst = max(self.suspects, key=lambda c: self.suspects[c])
                trace.diverged["largest"] = [worst, self.suspects[worst]]

    def before_training(self, kind: str) -> dict[str, float]:
        """Every client's loss before training: the lowest of all kinds of models.

        Fine-tuned models are trained before they are scored even at the start, and may be broken by then.
        """
        own, all_kinds = self.start.get(kind, {}), self.start.values()
        return {who: min(known.get(who, value) for known in all_kinds) for who, value in own.items()}

    def described(self) -> dict[str, Any]:
        """What `run.json` says of it: nothing of a run that is well."""
        models = {kind: {**one, "text": brief(one)} for kind, one in self.diverged.items()}
        facts = {
            "diverged": {"text": self.told, "models": models} if models else None,
            "exploded": self.exploded,
            "excluded": self.excluded,
            "events": self.events,
        }
        return {name: value for name, value in facts.items() if value}


_NOT_SAVED = ("constant", "classes", "start")


def constant_loss(parts: Parts) -> float:
    """The loss of an answer that is the same for all rows: log of the classes, or the targets' variance.

    NaN where that is not so simple.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> round(constant_loss(build_parts(Experiment())), 4)
    2.3026
    """
    federation, loss = parts.federation, parts.learner.loss
    if loss.name not in ("cross_entropy", "bce", "mse") or parts.spec.local.loss_options:
        return math.nan
    if loss.target in ("class", "soft", "positions"):
        return math.log(parts.learner.outputs)
    if loss.target in ("labels", "binary"):
        return math.log(2)
    rows = torch.unique(federation.splits["train"].row)
    if federation.maker is not None or len(rows) < 2 or isinstance(federation.y, dict):
        return math.nan
    return float(federation.y[rows].double().reshape(len(rows), -1).var(0, correction=0).mean())


def start_losses(folder: Path) -> dict[str, dict[str, float]]:
    """Every client's loss before training, by kind of model, from the records of a run."""
    path = folder / "records" / "round-000000.parquet"
    if not path.is_file():
        return {}
    found: dict[str, dict[str, float]] = {}
    try:
        rows = read_round(path)
    except KinfolkError:  # that it is torn is said where records are mended
        return {}
    for row in rows[rows["score"] == "loss"].itertuples():
        found.setdefault(row.model, {})[row.client] = row.value
    return found


def slower(parts: Parts, times: int) -> Parts:
    """The same parts with the learning rates halved so many times."""
    by = 0.5**times
    learner = replace(parts.learner, lr=parts.learner.lr * by, tune_lr=parts.learner.tune_lr * by)
    chosen = parts.spec.algorithm
    return replace(parts, learner=learner, algorithm=build_algorithm(chosen.name, learner, chosen.options))


def equip(run: Running) -> None:
    """Let clients train at the rate, and without the clients, that a run's health asks for."""
    run.coordinator.excluded = {Client(name) for name in run.health.excluded}
    parts = slower(run.asked, run.health.rollbacks)
    if parts.learner.lr != run.parts.learner.lr:
        run.parts, run.algorithm, run.scored = parts, parts.algorithm, parts.algorithm.eval_tasks()
        run.coordinator.engine.close()
        engine = make(run.choice.engine, parts.federation, table_of(parts), run.memories)
        run.coordinator.engine = overstating(parts.attack, engine, parts.federation)


def check_answer(parts: Parts, linked: bool) -> None:
    """Refuse what the distributed engine cannot do: its ranks keep the rate that they began with."""
    if linked and parts.spec.run.on_divergence == "rollback":
        remedy = "ranks of the distributed engine cannot change their rate; use stop or exclude"
        raise KinfolkError("run.on_divergence", "rollback", remedy)


def note_replies(run: Running, asked: int) -> dict[str, Any]:
    """Look at the norms of a round's replies: whose is absurd is told at once, and stands in the line."""
    health, stage = run.health, run.coordinator
    median = float(torch.cat(stage.norms).median()) if stage.norms else 0.0
    for grown, (norm, _) in stage.grown.items():
        if norm > BLAMED * median:
            health.suspects[grown] = max(norm, health.suspects.get(grown, 0.0))
    large = outliers({str(c): pair for c, pair in stage.grown.items()}, median)
    now = {who: f"norm {norm:.2g}, the cohort's median is {median:.2g}" for who, norm in large.items()}
    now |= {str(who): reason for who, reason in stage.exploded.items()}
    _tell_of_clients(run, run.done + 1, now)
    if len(stage.exploded) > MANY * asked:
        _all_rejected(run, len(stage.exploded), asked)
    return {"exploded": now} if now else {}


def _tell_of_clients(run: Running, round: int, now: Mapping[str, str]) -> None:
    """Clients that went wrong, each once."""
    fresh = sorted(set(now) - set(run.health.exploded))
    for who in fresh:
        run.records.audit("diverged", round=round, client=who, text=now[who])
    run.health.exploded |= {who: now[who] for who in fresh}
    if fresh:
        more = f" and {len(fresh) - 1} other clients" if fresh[1:] else ""
        run.watch("warning", {"text": f"round {round}: client {fresh[0]}{more}: {now[fresh[0]]}"})


def _all_rejected(run: Running, lost: int, asked: int) -> None:
    """So many replies were absurd that no kind of model can be trusted."""
    text = f"{lost} of {asked} replies rejected ({next(iter(run.coordinator.exploded.values()))})"
    told = {"round": run.done + 1, "kind": "rejected", "text": text, "clients": []}
    fresh = [trace for trace in run.health.traces.values() if not trace.diverged]
    for trace in fresh:
        trace.diverged = dict(told)
    if fresh:
        _tell(run, "all", told)


def note_scores(run: Running, seen: Mapping[str, Evaluation]) -> None:
    """Look at an evaluation, and tell at once what went wrong or is well again."""
    before, health = dict(run.health.diverged), run.health
    health.look(run.done, seen)
    if not run.done and seen:
        odd = odd_starts(next(iter(seen.values())), health.constant)
        _tell_of_clients(
            run, 0, {c: f"loss {v:.2g} before training, look at its rows" for c, v in odd.items()}
        )
    for kind, facts in health.diverged.items():
        if kind not in before:
            _tell(run, kind, facts)
    for kind in before:
        if kind not in health.diverged:
            run.records.audit("recovered", round=run.done, model=kind)
            run.watch("warning", {"text": f"{kind} models have recovered at round {run.done}"})
            health.events.append({"round": run.done, "text": brief(before[kind]), "did": "recovered"})
    if not health.diverged:
        health.suspects = {}


def _tell(run: Running, kind: str, facts: Mapping[str, Any]) -> None:
    run.records.audit("diverged", model=kind, **{**facts, "clients": facts["clients"][:20]})
    run.watch("warning", {"text": f"{kind} models {message(facts)}"})
    run.describe("running", "")


def react(run: Running) -> dict[str, Any]:
    """Do what `run.on_divergence` says; what the round's line says of it."""
    health, answer = run.health, run.spec.run.on_divergence
    if not health.diverged and not (answer == "exclude" and _new_suspects(run)):
        return {}
    line: dict[str, Any] = {kind: brief(one) for kind, one in health.diverged.items()}
    facts = {"diverged": line} if line else {}
    if answer == "warn" or run.ended or not run.budget.left(run.done):
        return facts
    if answer == "rollback":
        done = _slow_down(run)
    elif answer == "exclude":
        done = _leave_out(run)
    else:
        done = _stop(run, "")
    run.records.audit(answer, round=run.done, **done)
    text = next(iter(line.values()), "")
    health.events.append({"round": run.done, "text": text, **done})
    run.watch("warning", {"text": f"round {run.done}: {done['did']}"})
    return {**facts, answer: done}


def _new_suspects(run: Running) -> set[str]:
    return set(run.health.exploded) - set(run.health.excluded)


def _stop(run: Running, why: str) -> dict[str, Any]:
    run.ended = run.health.stopped = f"{run.health.told or 'clients diverged'}{why}"
    return {"did": f"stopped{why}"}


def _slow_down(run: Running) -> dict[str, Any]:
    """Go on from the last sound evaluation with half the rate."""
    if run.health.rollbacks >= ROLLBACKS:
        return _stop(run, f" (after {ROLLBACKS} rollbacks)")
    times = run.health.rollbacks + 1
    found = _go_back(run)
    if found is None:
        return _stop(run, " (no sound checkpoint to go back to)")
    run.health.rollbacks = times
    equip(run)
    rate = run.parts.learner.lr
    return {"did": f"back to the models of round {found}, local.lr {rate:g}", "to": found, "lr": rate}


def _leave_out(run: Running) -> dict[str, Any]:
    """Go on from the last sound evaluation without the clients to blame."""
    health = run.health
    named = {c for one in health.diverged.values() for c in one["clients"]}
    blamed = (_new_suspects(run) | set(health.suspects) or named) - set(health.excluded)
    left = [*health.excluded, *sorted(blamed)]
    if not blamed or len(left) > MANY * len(run.clients):
        return _stop(run, " (not the doing of a few clients)")
    found = _go_back(run) if run.done else 0
    if found is None:
        return _stop(run, " (no sound checkpoint to go back to)")
    health = run.health
    health.excluded, health.exploded = left, dict.fromkeys(left, "excluded") | health.exploded
    equip(run)
    who = f"{len(blamed)} clients" if len(blamed) > 3 else ", ".join(sorted(blamed))
    return {"did": f"back to the models of round {found}, without {who}", "to": found, "clients": left}


def _go_back(run: Running) -> int | None:
    """Take the models and memories of the newest sound checkpoint; its round, or None if there is none."""
    loaded, _ = load_latest(
        run.folder / "checkpoints", dump(run.spec), lambda found: is_sound(found.facts.get("health", {}))
    )
    if loaded is None:
        return None
    done, spent, now, health = run.done, run.budget.extra, run.state, run.health
    kept = {name: getattr(health, name) for name in ("exploded", "excluded", "rollbacks", "events")}
    run.take(loaded)
    # Spent is spent: rounds, extra training, and what clients have given away of their privacy.
    run.done, run.budget.extra, run.voids = done, spent, 0
    run.state = after_void(run.algorithm, run.state, now)
    for name, value in kept.items():
        setattr(run.health, name, value)
    run.saved = -1  # where the run stands now must be saved before another round
    return loaded.number


def is_sound(health: Mapping[str, Any]) -> bool:
    """Whether a checkpoint was of models that had not diverged.

    >>> [is_sound({"traces": {"centre": {"diverged": facts}}}) for facts in ({}, {"round": 3})]
    [True, False]
    """
    return not any(trace["diverged"] for trace in health.get("traces", {}).values())


def is_due(run: Running, evaluated: bool, usual: bool) -> bool:
    """Whether to write a checkpoint now.

    Where a run may go back, its checkpoints are those of sound evaluations, so that a resumed run goes back
    to the same models; another one only right after it went back.
    """
    if run.spec.run.on_divergence not in ("rollback", "exclude"):
        return usual
    return run.saved < 0 or (evaluated and not run.health.diverged)
