"""One run: rounds, scores, records and checkpoints, from a spec to a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfolk.engines.choose import Choice, arithmetic, make, reply_room
from kinfolk.engines.coordinator import Coordinator, drop_outs
from kinfolk.engines.distributed import Distributed
from kinfolk.engines.fast import KERNELS
from kinfolk.engines.link import Link, linked
from kinfolk.engines.tune import tuned
from kinfolk.engines.work import Work
from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment.budget import Budget, Spent, too_short
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.checkpoint import Loaded, load_latest, save
from kinfolk.experiment.choice import chosen, kept, work
from kinfolk.experiment.choosing import choose_now, with_choices
from kinfolk.experiment.client_memory import make_memories
from kinfolk.experiment.complaints import complaints
from kinfolk.experiment.describe import description
from kinfolk.experiment.finalize import finalize, go_on
from kinfolk.experiment.privacy import after_void, prepare, tell_spending
from kinfolk.experiment.ranks import follow, table_of
from kinfolk.experiment.record import Records, read_rounds, write_json, write_text
from kinfolk.experiment.score import reached, score_everyone, score_groups
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.spec import dump, run_id
from kinfolk.experiment.state import from_message, memories_from_message, memories_to_message, to_message
from kinfolk.federation.federation import Federation
from kinfolk.script import Script, Stops, play
from kinfolk.streams import RoundContext
from kinfolk.task import Info
from kinfolk.types import Client, Message, map_leaves

# A run whose rounds bring no usable reply this often in a row is not going to recover.
VOID_LIMIT = 3

Watch = Callable[[str, dict[str, Any]], None]


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


def run(
    spec: Experiment,
    folder: Path | None = None,
    *,
    federation: Federation | None = None,
    network: Network | None = None,
    resume: bool = False,
    watch: Watch = lambda event, facts: None,
    own: Mapping[str, Any] | None = None,
) -> Result:
    """Run an experiment into its folder; with `resume`, go on from the last checkpoint to the same end.

    `own` are the settings that the method has otherwise than those it is compared with: for its title.
    Of the ranks of the distributed engine all but the first serve it, and return when it has finished.
    """

    def lead(link: Link | None) -> Result:
        parts = build_parts(spec, federation, network, own)
        where = Path(folder or Path("runs") / f"{parts.title.replace(' ', '-')}-{run_id(spec)}")
        if not resume and (where / "run.json").exists():
            remedy = "a run is there already; add --resume or choose another folder"
            raise KinfolkError("run folder", str(where), remedy)
        choice = chosen(parts, link)
        with arithmetic(choice.device, spec.engine.precision):
            # What the user has set is not tried out.
            if spec.engine.name == "auto" and link is None and not (spec.engine.chunk or spec.engine.lanes):
                choice = (
                    kept(choice, spec.engine, where)
                    if resume
                    else tuned(choice, parts.federation, parts.learner, work(parts))
                )
            with closing(Running(parts, where, choice, watch, link)) as running:
                return running.go(resume)

    return together(spec, folder, federation, network, lead)


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

    def __init__(self, parts: Parts, folder: Path, choice: Choice, watch: Watch, link: Link | None) -> None:
        self.parts, self.folder, self.choice, self.watch = parts, folder, choice, watch
        self.spec, self.algorithm, self.clients = parts.spec, parts.algorithm, parts.federation.clients
        self.records = Records(folder)
        self.memories = make_memories(parts, choice.device, folder)
        engine = make(choice.engine, parts.federation, table_of(parts), self.memories)
        engine = engine if link is None else Distributed(engine, link, parts.federation)
        rows, absent = parts.federation, drop_outs(self.spec.run.absent)
        self.coordinator = Coordinator(engine, self.records.audit, absent, rows, self._afford)
        self.budget, self.ended = Budget.of(parts, self._warn), ""
        self.state = self.algorithm.init(self._here(parts.learner.first), self.clients, parts.seed)
        self.scored = self.algorithm.eval_tasks()
        self.attackers = parts.attack.who if parts.attack else frozenset[Client]()
        self.done = self.saved = 0
        self.voids = 0
        self.summary: dict[str, Any] = {}
        self.served: Any = None  # by what clients were scored last
        self.unheard = set(self.clients)  # who has had no part in any round

    def _here(self, message: Message) -> Message:
        return map_leaves(lambda t: t.to(self.choice.device), message)

    def go(self, resume: bool) -> Result:
        """Rounds until the end, each finished in the records before the next begins."""
        self.announce()
        if not (resume and self._restore()):
            self.memories.restore({})  # what the journal of a run without a checkpoint holds
            self.open_folder()
            prepare(self.algorithm, self.coordinator, self.context())
            self._finish_round({}, evaluate=True)
        reason = self._end()
        while not reason:
            self._round()
            reason = self._end()
        self._score_the_end()
        if self.saved != self.done:  # the end came between two checkpoints
            self._save()
        finalize(self)
        tell_spending(self.algorithm, self.state, self.records, self.done)
        self.describe("finished", reason)
        self.watch("end", {"reason": reason, "folder": self.folder})
        if self.served is None:  # a run that had ended before
            self.served, _ = self._chosen()
        held = self.memories.everyones()
        return Result(self.folder, self.parts.title, self.done, reason, self.summary, self.served, held)

    def close(self) -> None:
        """End what the engine has started."""
        self.coordinator.engine.close()

    def announce(self) -> None:
        """Tell which engine it is."""
        note, choice = self.coordinator.engine.note, self.choice
        told = {"note": note, "why": choice.why, "warning": choice.warning}
        self.watch("engine", {**told, "rounds": self.spec.run.rounds})

    def _round(self) -> None:
        spec = self.spec.run
        context = self.context()
        cohort = context.cohort
        before, extra = self.state, self.budget.extra
        self.memories.snapshot()
        try:
            after, info = self.played(self.algorithm.round(before, cohort, context), context)
        except Spent as spent:
            self._stop_short(spent, extra)
            return
        for facts in complaints(self.algorithm, self.memories, self.clients):
            self.records.audit("refused", round=context.round, **facts)
        answered = len(self.coordinator.answered)
        void = answered < max(1, spec.quorum * len(cohort))
        if void:
            self.state = after_void(self.algorithm, before, after)
            self._void(answered, len(cohort))
        else:
            self.state, self.voids = after, 0
            self.unheard -= self.coordinator.answered
        self.done += 1
        facts = {"cohort": len(cohort), "answered": answered, "void": void, "info": info}
        facts["unheard"] = len(self.unheard)
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
            self.records.amend_round(self.done, {**line, "summary": self.summary})
            self.saved = -1

    def context(self) -> RoundContext:
        """The round that comes next."""
        share, room = self.spec.run.participation, reply_room(self.choice.device)
        return RoundContext(self.parts.seed, self.done, self.clients, share, room)

    def played(self, script: Script[Any], context: RoundContext) -> tuple[Any, Info]:
        """What a script ends with; time that was not spent on requests is the server's."""
        self.coordinator.begin()
        began = time.perf_counter()
        asked_before = sum(self.coordinator.ledger.seconds.values())
        found = play(script, lambda request: self.coordinator.perform(request, context))
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
            self.describe("stopped", remedy)
            raise BrokeDown(
                "run", str(self.folder), f"{remedy} (a smaller local.lr helps if models diverged)"
            )

    def spent(self) -> tuple[dict[str, Any], dict[str, float], dict[str, int]]:
        """Bytes, seconds and rows trained since the last call."""
        return *self.coordinator.ledger.take(), self.coordinator.ledger.take_trained()

    def record(self, facts: dict[str, Any], evaluate: bool) -> dict[str, Any]:
        """Write down where the run stands, with everybody's scores if that is wanted."""
        if evaluate:
            chosen = self.score()
            now = self.groups(self.state, self.served, self.clients)
            facts = {**with_choices(facts, chosen, now), "summary": self.summary}
        sent, seconds, trained = self.spent()
        for name, spent in (("bytes", sent), ("trained", trained)):
            facts[name] = {kind: much for kind, much in spent.items() if not kind.startswith("score.")}
        self.records.append_round(self.done, {**facts, "seconds": seconds})
        return facts

    def _finish_round(self, facts: dict[str, Any], evaluate: bool) -> None:
        spec, facts = self.spec.run, self.record(facts, evaluate)
        left = self.budget.left(self.done)
        if self.done % spec.checkpoint_every == 0 or not left:
            began = time.perf_counter()
            self._save()
            self.coordinator.ledger.add_seconds("checkpoint", time.perf_counter() - began)
        told = {"round": self.done, "rounds": self.done + left, "memories": self.memories}
        self.watch("round", {**told, "summary": self.summary, **facts})

    def score(self) -> dict[str, Any]:
        """Score everybody, by choices made now where clients choose; what that took."""
        run, context = self.spec.run, self.context()
        self.served, chosen = self._chosen()
        rows = self.parts.federation.splits[run.split]
        columns, self.summary = score_everyone(
            *(
                self.algorithm,
                self.served,
                self.coordinator,
                context,
                run.split,
                self.attackers,
                run.models,
                rows,
            ),
            tasks=self.scored,
        )
        self.records.write_scores(self.done, columns)
        return chosen

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
        return self.algorithm.finished(self.state) if isinstance(self.algorithm, Stops) else ""

    def open_folder(self, **more: Any) -> None:
        """Begin a new folder: the spec first, so that a run without a checkpoint still says what it is."""
        self.records.rewind(-1)
        write_text(self.folder / "spec.toml", dump(self.spec))
        self.describe("running", "", **more)
        self.records.audit("start", engine=self.coordinator.engine.note, why=self.choice.why)
        if self.choice.warning:
            self.records.audit("warning", text=self.choice.warning)

    def describe(self, status: str, reason: str, **more: Any) -> None:
        """Write `run.json`."""
        how = {
            "status": status,
            "reason": reason,
            "rounds": self.done,
            "engine": self.coordinator.engine.note,
        }
        write_json(self.folder / "run.json", description(self.parts, self.choice, how) | more)

    def _save(self) -> None:
        tensors, plain = to_message(self.state)
        held = memories_to_message(self.memories.everyones(), self.clients)
        facts = {
            "state": plain,
            "voids": self.voids,
            "extra": self.budget.extra,
            "unheard": [i for i, c in enumerate(self.clients) if c in self.unheard],
            "summary": self.summary,
            "federation": self.parts.federation.fingerprint(),
            "kernels": KERNELS.chosen,  # by timing, so that a resumed run might choose otherwise
        }
        save(
            self.folder / "checkpoints", self.done, {"state": tensors, "memory": held}, facts, dump(self.spec)
        )
        self.saved = self.done

    def take(self, loaded: Loaded) -> None:
        """Stand where a checkpoint stands."""
        device = self.coordinator.engine.device
        self.state = from_message(self.state, loaded.tensors["state"], loaded.facts["state"], device)
        self.memories.restore(memories_from_message(self._here(loaded.tensors["memory"]), self.clients))
        self.done = self.saved = loaded.number
        self.voids, self.summary = loaded.facts["voids"], loaded.facts["summary"]
        self.budget.extra = loaded.facts.get("extra", 0)
        self.unheard = {self.clients[i] for i in loaded.facts.get("unheard", ())}
        KERNELS.follow(loaded.facts.get("kernels", {}))

    def _restore(self) -> bool:
        """Go back to the newest sound checkpoint; whatever was recorded after it is forgotten."""
        loaded, complaints = load_latest(self.folder / "checkpoints", dump(self.spec))
        for line in complaints:
            self._warn(line)
        if loaded is None:
            return False
        if loaded.facts["federation"] != self.parts.federation.fingerprint():
            raise KinfolkError("checkpoint", str(self.folder), "the data are not those the run began with")
        self.take(loaded)
        self.records.rewind(self.done)
        write_text(self.folder / "spec.toml", dump(self.spec))
        self.records.audit("resume", round=self.done, engine=self.coordinator.engine.note)
        self.watch("resume", {"round": self.done, "memories": self.memories})
        if not self._end():
            go_on(self)
        return True
