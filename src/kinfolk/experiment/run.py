"""One run: rounds, scores, records and checkpoints, from a spec to a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kinfolk.attacks.rows import TRIGGERED
from kinfolk.engines.choose import Choice, arithmetic, make, reply_room
from kinfolk.engines.cohort import Usual
from kinfolk.engines.coordinator import Coordinator, Engine, drop_outs
from kinfolk.engines.distributed import Distributed
from kinfolk.engines.fast import KERNELS
from kinfolk.engines.link import Link, linked
from kinfolk.engines.memory import Memories
from kinfolk.engines.tune import tuned
from kinfolk.engines.work import Work
from kinfolk.errors import BrokeDown
from kinfolk.experiment import divergence
from kinfolk.experiment.attack import overstating, with_success
from kinfolk.experiment.best import VALID, Best, check_rows, judged
from kinfolk.experiment.budget import Budget, Spent, too_short
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.cautions import uneven_rows
from kinfolk.experiment.checkpoint import Loaded, load_latest
from kinfolk.experiment.choice import at_sites, chosen, kept, work
from kinfolk.experiment.choosing import choose_now, with_choices
from kinfolk.experiment.client_facts import write_client_facts
from kinfolk.experiment.client_memory import make_memories
from kinfolk.experiment.complaints import complaints
from kinfolk.experiment.conduct import record_conduct
from kinfolk.experiment.describe import description
from kinfolk.experiment.finalize import finalize, go_on
from kinfolk.experiment.health import Evaluation
from kinfolk.experiment.mend import mend, warn_of_a_new_start
from kinfolk.experiment.outline import FILE as OUTLINE
from kinfolk.experiment.outline import write_outline
from kinfolk.experiment.pace import Pace
from kinfolk.experiment.pictures import Pictures
from kinfolk.experiment.privacy import after_void, prepare, tell_spending, tell_statistics
from kinfolk.experiment.ranks import follow, table_of
from kinfolk.experiment.record import Records, check_place, read_rounds, write_json, write_text
from kinfolk.experiment.result_text import result_html, result_line
from kinfolk.experiment.saving import stand, told, write_checkpoint
from kinfolk.experiment.score import COLUMNS, Columns, reached, score_everyone, score_groups, try_metrics
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.secure_sums import asking
from kinfolk.experiment.segments import Segments
from kinfolk.experiment.spec import dump, run_id
from kinfolk.experiment.spending import Spending
from kinfolk.experiment.state import from_message, memories_from_message
from kinfolk.experiment.stopping import Stop, at_once, left_resumable, undone_if_stopped
from kinfolk.federation.federation import Federation
from kinfolk.lock import writing
from kinfolk.script import Script, Stops, play
from kinfolk.streams import RoundContext
from kinfolk.task import Info
from kinfolk.types import Client, Message, map_leaves

# A run whose rounds bring no usable reply this often in a row is not going to recover.
VOID_LIMIT = 3

# What makes the engine of a run whose clients are elsewhere.
Deployed = Callable[[Parts, Memories], Engine]

# Told of events with their facts. "stop" for an answer ends a run after the round, "pause" as a signal does.
Watch = Callable[[str, dict[str, Any]], Any]


@dataclass(frozen=True)
class Result:
    """What a run left behind."""

    folder: Path
    title: str
    rounds: int
    reason: str  # why it ended
    summary: dict[str, Any]  # of the last evaluation: model -> score -> micro, macro, worst, ...
    state: Any
    memories: dict[Client, Message] = field(repr=False)
    diverged: str = ""  # what went wrong in training, if its models are no use at the end
    stopped: bool = False  # whether the run ended for that reason

    def __repr__(self) -> str:
        return f"<Result: {result_line(self)}>"

    def _repr_html_(self) -> str:
        return result_html(self)


def run(
    spec: Experiment,
    folder: Path | None = None,
    *,
    federation: Federation | None = None,
    network: Network | None = None,
    resume: bool = False,
    watch: Watch = lambda event, facts: None,
    own: Mapping[str, Any] | None = None,
    deployed: Deployed | None = None,
) -> Result:
    """Run an experiment into its folder; with `resume`, go on from the last checkpoint to the same end.

    `own` are the settings that the method has otherwise than those it is compared with: for its title.
    `deployed` makes the engine where clients are at sites of their own; `federation` then holds no rows.
    Of the ranks of the distributed engine all but the first serve it, and return when it has finished.
    """

    def lead(link: Link | None) -> Result:
        parts = build_parts(spec, federation, network, own)
        check_rows(parts)
        where = Path(folder or Path("runs") / f"{parts.title.replace(' ', '-')}-{run_id(spec)}")
        with writing(where) as lack:
            if lack:
                watch("warning", {"text": lack})
            check_place(where, resume)
            if not resume:
                try_metrics(parts)
            return _led(parts, where, resume, watch, link, deployed)

    return together(spec, folder, federation, network, lead)


def _led(
    parts: Parts, where: Path, resume: bool, watch: Watch, link: Link | None, deployed: Deployed | None
) -> Result:
    """The run itself, in a folder that nobody else writes."""
    spec, choice = parts.spec, chosen(parts, link) if deployed is None else at_sites(parts)
    with arithmetic(choice.device, spec.engine.precision):
        # What the user has set is not tried out.
        here = link is None and deployed is None
        if spec.engine.name == "auto" and here and not (spec.engine.chunk or spec.engine.lanes):
            choice = (
                kept(choice, spec.engine, where)
                if resume
                else tuned(choice, parts.federation, parts.learner, work(parts))
            )
        with closing(Running(parts, where, choice, watch, link, deployed)) as running:
            return running.go(resume)


def together(
    spec: Experiment,
    folder: Path | None,
    federation: Federation | None,
    network: Network | None,
    lead: Callable[[Link | None], Result],
) -> Result:
    """What `lead` gives; of the ranks of the distributed engine only the first leads, the others serve it."""
    if spec.engine.name != "distributed":
        return lead(None)
    with linked(spec.engine.timeout, spec.engine.device) as link:
        if link.rank == 0:
            return lead(link)
        follow(lambda: build_parts(spec, federation, network), link)
        return Result(Path(folder or "runs"), "", 0, f"rank {link.rank} has served", {}, None, {})


class Running:
    """A run in progress: where it stands, and what it writes."""

    def __init__(
        self,
        parts: Parts,
        folder: Path,
        choice: Choice,
        watch: Watch,
        link: Link | None,
        deployed: Deployed | None = None,
    ) -> None:
        self.parts, self.folder, self.choice, self.watch = parts, folder, choice, watch
        self.spec, self.algorithm, self.clients = parts.spec, parts.algorithm, parts.federation.clients
        divergence.check_answer(parts, link is not None)
        self.records, self.health = Records(folder), divergence.Health.of(parts)
        self.asked = parts  # as the spec has it; after a rollback, `parts` have a smaller rate
        self.status = ""
        # Other ranks are in the middle of a round; and an exception in Python code that autograd calls, as
        # with `batched`, may abort the process.
        self.stop = Stop(patient=link is not None or choice.engine.name == "batched")
        self.memories = make_memories(parts, choice.device, folder)
        if deployed is not None:
            engine = deployed(parts, self.memories)
        else:
            engine = make(choice.engine, parts.federation, table_of(parts), self.memories)
        engine = engine if link is None else Distributed(engine, link, parts.federation)
        engine = overstating(parts.attack, engine, parts.federation)
        rows, absent = parts.federation, drop_outs(self.spec.run.absent)
        told = self.records.audit, absent, rows, self._afford, self._warn
        # A reply is clipped where noise is, and refused for nobody's sake: one client would weigh on another.
        guard = replace(self.spec.guard, norm=0.0) if parts.privacy else self.spec.guard
        self.coordinator = Coordinator(engine, *told, guard=guard)
        self.spending = Spending(parts.privacy, self.algorithm.tasks(), folder)
        self.asking = asking(parts, self.coordinator, self.records.audit)
        self.budget, self.ended = Budget.of(parts, self._warn), ""
        self.state = self.algorithm.init(self._here(parts.learner.first), self.clients, parts.seed)
        self.scored = self.algorithm.eval_tasks()
        self.attackers = parts.attack.who if parts.attack else frozenset[Client]()
        self.done = self.saved = 0
        self.pace, self.segments = Pace.of(self.spec.run), Segments()
        self.voids = 0
        self.summary: dict[str, Any] = {}
        self.lost: dict[str, list[Client]] = {}  # whose last scores could not be used, by kind of model
        self.served: Any = None  # by what clients were scored last
        self.served_at = -1  # after how many rounds that was
        self.best, self.valid = Best(), dict[str, Any]()  # by validation rows
        self.unheard = set(self.clients)  # who has had no part in any round
        self.pictures = Pictures(self)

    def _here(self, message: Message) -> Message:
        return map_leaves(lambda t: t.to(self.choice.device), message)

    def go(self, resume: bool) -> Result:
        """Rounds until the end, each finished in the records before the next begins."""
        self.announce()
        with left_resumable(self):
            return self._go(resume)

    def _go(self, resume: bool) -> Result:
        if not (resume and self._restore()):
            self.memories.restore({})  # what the journal of a run without a checkpoint holds
            self.open_folder()
            with self.stop.at_once():
                prepare(self.algorithm, self.coordinator, self.context())
            self._finish_round({}, evaluate=True)
        reason = self._end()
        while not reason:
            with undone_if_stopped(self):
                self._round()
            reason = self._end()
        self._score_the_end()
        if self.saved != self.done:  # the end came between two checkpoints
            self.save()
        finalize(self)
        self.records.settle()
        tell_spending(self.algorithm, self.state, self.records, self.done)
        self.describe("diverged" if self.health.stopped else "finished", reason)
        self.watch("end", {"reason": reason, "folder": self.folder, "status": self.status})
        if self.served is None:  # a run that had ended before
            self.served, _ = self._chosen()
        held = self.memories.everyones()
        ill = self.health.told, bool(self.health.stopped)
        return Result(self.folder, self.parts.title, self.done, reason, self.summary, self.served, held, *ill)

    def close(self) -> None:
        """End what the engine has started."""
        self.coordinator.engine.close()

    def announce(self) -> None:
        """Tell which engine it is."""
        note, choice = self.coordinator.engine.note, self.choice
        told = {"note": note, "why": choice.why, "warning": choice.warning}
        which = {"title": self.parts.title, "seed": self.spec.run.seed, "folder": self.folder}
        self.watch("engine", {**told, **which, "rounds": self.spec.run.rounds})

    def tell(self, event: str, **facts: Any) -> None:
        """Tell whoever watches, who may answer that it is enough."""
        answer = self.watch(event, {"round": self.done, **facts})
        if answer == "pause":
            self.stop.ask()
        elif answer == "stop":
            self.ended = f"{self.done} rounds done; a callback said stop"

    def _round(self) -> None:
        spec = self.spec.run
        context = self.context()
        cohort = tuple(c for c in context.cohort if c not in self.coordinator.excluded)
        before, extra = self.state, self.budget.extra
        self.memories.snapshot()
        try:
            with self.pictures.watching():
                after, info = self.played(self.algorithm.round(before, cohort, context), context)
        except Spent as spent:
            self._stop_short(spent, extra)
            return
        for facts in complaints(self.algorithm, self.memories, self.clients):
            self.records.audit("refused", round=context.round, **facts)
        answered = len(self.coordinator.answered)
        noted = divergence.note_replies(self, len(cohort))
        void = answered < max(1, spec.quorum * len(cohort))
        if void:
            self.state = after_void(self.algorithm, before, after)
            self._void(answered, len(cohort))
        else:
            self.state, self.voids = after, 0
            self.unheard -= self.coordinator.answered
        self.done += 1
        if not void:
            seen = self.coordinator.looks
            record_conduct(self.folder, self.done, seen, self.algorithm, self.state, self.clients)
        facts = {"cohort": len(cohort), "answered": answered, "void": void, "info": info, **noted}
        facts["unheard"] = len(self.unheard)
        facts |= self.spending.facts()
        groups = self.groups(before, self.state, cohort)
        if groups:
            facts["groups"] = groups
        if self.budget.extra > extra:
            facts["extra"] = float(self.budget.worth() - self.budget.worth(extra - self.budget.extra))
        self._finish_round(facts, evaluate=bool(self._end()) or self.done % spec.evaluate_every == 0)

    def _afford(self, work: Work) -> None:
        self.budget.take(self.done, work)

    def _warn(self, text: str) -> None:
        self.records.audit("warning", text=text)
        self.watch("warning", {"text": text})

    def _stop_short(self, spent: Spent, extra: int) -> None:
        """A round asks for more than is left: it is not played, and the run ends before it."""
        self.memories.rollback()
        self.coordinator.forget()
        self.budget.extra = extra
        self.spent()
        if not self.done:
            error = too_short(self.budget, spent)
            self.describe("stopped", str(error))
            raise error
        self.ended = f"{self.done} rounds done, and no room for another: {spent}"

    def _score_the_end(self) -> None:
        """Score everybody if the last round was not known to be it."""
        line = read_rounds(self.folder)[-1]
        if "summary" not in line:
            chosen = self.score()
            line = with_choices(line, chosen, self.groups(self.state, self.served, self.clients))
            line |= self.judged()
            self.pictures.draw(ends=True)
            line |= divergence.react(self)
            self.records.amend_round(self.done, line)
            self.saved = -1
            self.tell("evaluate", **{**line, "rounds": self.done})

    def context(self) -> RoundContext:
        """The round that comes next."""
        share, room = self.spec.run.participation, reply_room(self.choice.device)
        return RoundContext(self.parts.seed, self.done, self.clients, share, room)

    @at_once
    def played(self, script: Script[Any], context: RoundContext) -> tuple[Any, Info]:
        """What a script ends with; time that was not spent on requests is the server's."""
        self.coordinator.begin()
        began = time.perf_counter()
        asked_before = sum(self.coordinator.ledger.seconds.values())
        plain = self.spending.performing(self.coordinator, context)
        found = play(script, self.asking.around(plain, context))
        self.pictures.note(found[1])
        waited = sum(self.coordinator.ledger.seconds.values()) - asked_before
        self.coordinator.ledger.add_seconds("server", time.perf_counter() - began - waited)
        return found

    def _void(self, answered: int, asked: int) -> None:
        """Too few usable replies: models and memories stay as they were."""
        self.memories.rollback()
        self.voids += 1
        self.records.audit("void", round=self.done, answered=answered, asked=asked)
        if self.voids >= VOID_LIMIT:
            remedy = (
                f"{self.voids} rounds in a row brought {answered} usable replies of {asked}; see audit.jsonl"
            )
            self.describe("diverged" if self.health.diverged else "stopped", remedy)
            why = uneven_rows(self.parts) or "a smaller local.lr helps if models diverged"
            raise BrokeDown("run", str(self.folder), f"{remedy} ({why})")

    def spent(self) -> tuple[dict[str, Any], dict[str, float], dict[str, int]]:
        """Bytes, seconds and rows trained since the last call."""
        return *self.coordinator.ledger.take(), self.coordinator.ledger.take_trained()

    def record(self, facts: dict[str, Any], evaluate: bool) -> dict[str, Any]:
        """Write down where the run stands, with everybody's scores if that is wanted."""
        if evaluate:
            chosen = self.score()
            now = self.groups(self.state, self.served, self.clients)
            facts = {**with_choices(facts, chosen, now), **self.judged()}
            self.pictures.draw(ends=bool(self._end()))
        facts |= divergence.react(self)
        sent, seconds, trained = self.spent()
        for name, spent in (("bytes", sent), ("trained", trained)):
            facts[name] = {kind: much for kind, much in spent.items() if not kind.startswith("score.")}
        facts["seconds"] = seconds
        self.records.append_round(self.done, facts)
        return facts

    def judged(self) -> dict[str, Any]:
        """The summary of an evaluation; by validation rows it is also told how good the round was."""
        found = {"summary": self.summary} | ({"lost": self.lost} if self.lost else {})
        if not judged(self.spec.run):
            return found
        self.best = self.best.after(self.done, self.valid, self.spec.run.monitor)
        return found | {"valid": self.valid}

    def _finish_round(self, facts: dict[str, Any], evaluate: bool) -> None:
        facts = self.record(facts, evaluate)
        left = self.budget.left(self.done)
        due = divergence.is_due(self, evaluate, self.pace.is_due(self.done))
        if due or not left or self.best.round == self.done:
            began = time.perf_counter()
            self.save()
            self.pace.note(time.perf_counter() - began)
            self.coordinator.ledger.add_seconds("checkpoint", self.pace.last)
        told = {"rounds": self.done + left, "memories": self.memories, "summary": self.summary}
        self.tell("round", **{**told, **facts})
        if evaluate:
            self.tell("evaluate", **{**facts, "rounds": self.done + left})

    @at_once
    def score(self) -> dict[str, Any]:
        """Score everybody, by choices made now where clients choose; what that took."""
        run = self.spec.run
        self.served, chosen = self._chosen()
        seen, self.lost = dict[str, Evaluation](), {}
        columns, self.summary = self._scored(run.split, run.models, seen=seen, lost=self.lost)
        if self.parts.attack and self.parts.attack.trigger:
            triggered, _ = self._scored(run.split, run.models, TRIGGERED)
            columns, self.summary = with_success(columns, self.summary, triggered)
        if judged(run):
            self.valid = self.summary
        if judged(run) and run.split != "valid":
            more, self.valid = self._scored("valid", "first", VALID)
            columns = {name: columns[name] + more[name] for name in columns}
        self.served_at = self.done
        self.records.write_scores(self.done, columns)
        divergence.note_scores(self, seen)
        return chosen

    def _scored(
        self,
        split: str,
        models: str,
        suffix: str = "",
        seen: dict[str, Evaluation] | None = None,
        lost: dict[str, list[Client]] | None = None,
    ) -> tuple[Columns, dict[str, Any]]:
        if self.spec.run.reveal == "none":
            return {name: [] for name in COLUMNS}, {}
        rows, context = self.parts.federation.splits[split], self.context()
        by = self.algorithm, self.served, self.coordinator, context, split, self.attackers, models, rows
        return score_everyone(*by, tasks=self.scored, suffix=suffix, seen=seen, lost=lost)

    def _chosen(self) -> tuple[Any, dict[str, Any]]:
        return choose_now(self.algorithm, self.state, self.coordinator, self.memories, self.context())

    def groups(self, before: Any, after: Any, who: tuple[Client, ...]) -> dict[str, Any]:
        """How the groups agree with the known ones, and how many of `who` have switched."""
        truth = self.parts.federation.truth
        return score_groups(self.algorithm, before, after, who, self.context(), truth, self.attackers)

    def _end(self) -> str:
        """Why the run is over; empty to go on."""
        spec = self.spec.run
        if self.ended:
            return self.ended
        if not self.budget.left(self.done):
            return self.budget.told(self.done)
        if spec.target and self.done and reached(self.summary, spec.target_score, spec.target):
            return f"{spec.target_score} reached {spec.target:g}"
        if spec.patience and self.best.since >= spec.patience:
            return self.best.told()
        return self.algorithm.finished(self.state) if isinstance(self.algorithm, Stops) else ""

    def open_folder(self, **more: Any) -> None:
        """Begin a new folder: the spec first, so that a run without a checkpoint still says what it is."""
        self.records.rewind(-1)
        write_text(self.folder / "spec.toml", dump(self.spec))
        write_outline(self.folder, self.parts.federation, self.parts.learner)
        write_client_facts(self.parts.federation, self.folder)
        self.pictures.begin_folder()
        self.describe("running", "", **more)
        note = self.coordinator.engine.note
        self.records.audit("start", engine=note, why=self.choice.why, kept=told(self))
        tell_statistics(self.parts.federation.scaling, self.records, self.coordinator.ledger)
        if self.choice.warning:
            self.records.audit("warning", text=self.choice.warning)

    def describe(self, status: str, reason: str, **more: Any) -> None:
        """Write `run.json`."""
        self.status = status
        how = {
            "status": status,
            "reason": reason,
            "rounds": self.done,
            "engine": self.coordinator.engine.note,
        }
        facts = description(self.parts, self.choice, how) | {"kept": told(self)} | self.health.described()
        facts |= self.spending.described()
        write_json(self.folder / "run.json", facts | more)

    def save(self, state: Any = None, summary: dict[str, Any] | None = None) -> None:
        """Write a checkpoint; with a `state` and its summary, from which a run goes on instead of its own."""
        self.records.settle()
        path = write_checkpoint(self, self.state if state is None else state, summary or self.summary)
        self.saved = self.done
        self.tell("checkpoint", path=path)

    def take(self, loaded: Loaded) -> None:
        """Stand where a checkpoint stands."""
        device = self.coordinator.engine.device
        self.state = from_message(self.state, loaded.tensors["state"], loaded.facts["state"], device)
        self.memories.restore(memories_from_message(self._here(loaded.tensors["memory"]), self.clients))
        self.done = self.saved = loaded.number
        self.voids, self.summary = loaded.facts["voids"], loaded.facts["summary"]
        self.budget.extra = loaded.facts.get("extra", 0)
        self.spending.take(loaded.facts.get("privacy", {}))
        self.unheard = {self.clients[i] for i in loaded.facts.get("unheard", ())}
        self.best = Best.of(loaded.facts.get("best", {}))
        self.health.take(loaded.facts.get("health", {}), self.folder)
        self.coordinator.usual = Usual(loaded.facts.get("usual"))
        KERNELS.follow(loaded.facts.get("kernels", {}))

    def _restore(self) -> bool:
        """Go back to the newest sound checkpoint; whatever was recorded after it is forgotten."""
        where, here = self.folder / "checkpoints", dump(self.spec)
        loaded, complaints = load_latest(where, here, lambda loaded: stand(self, loaded))
        for line in complaints:
            self._warn(line)
        if loaded is None:
            warn_of_a_new_start(self)
            return False
        divergence.equip(self)
        self.ended = self.health.stopped
        self.records.rewind(self.done)
        mend(self)
        write_text(self.folder / "spec.toml", dump(self.spec))
        self.describe("running", "")
        self.records.audit("resume", round=self.done, engine=self.coordinator.engine.note)
        self.watch("resume", {"round": self.done, "memories": self.memories, "summary": self.summary})
        if not self._end():
            if not (self.folder / OUTLINE).exists():  # an older version began it
                write_outline(self.folder, self.parts.federation, self.parts.learner)
            go_on(self)
        return True
