"""One run: rounds, scores, records and checkpoints, from a spec to a run folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinfolk.engines.choose import Choice, arithmetic, make
from kinfolk.engines.distributed import Distributed, serve
from kinfolk.engines.link import Link, linked
from kinfolk.engines.stage import Engine, Stage, drop_outs
from kinfolk.engines.tune import tuned
from kinfolk.errors import BrokeDown, KinfolkError
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.checkpoint import Loaded, load_latest, save
from kinfolk.experiment.choice import chosen, kept, work
from kinfolk.experiment.client_memory import make_memories
from kinfolk.experiment.complaints import complaints
from kinfolk.experiment.describe import description
from kinfolk.experiment.record import Records, read_rounds, write_json, write_text
from kinfolk.experiment.score import score_everyone, score_groups
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.settled import settled, unsettled
from kinfolk.experiment.spec import dump, run_id
from kinfolk.experiment.state import from_message, memories_from_message, memories_to_message, to_message
from kinfolk.federation.federation import Federation
from kinfolk.learning.metrics import LOWER_IS_BETTER
from kinfolk.script import Script, Settles, Stops, installed, play
from kinfolk.streams import Seed, Turn
from kinfolk.task import Info, Table
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


def sample(seed: Seed, round: int, clients: tuple[Client, ...], participation: float) -> tuple[Client, ...]:
    """The cohort of a round: max(1, round(R N)) clients; the same for every algorithm of one seed.

    >>> sample(Seed(0), 3, (Client("a"), Client("b"), Client("c")), 0.5) == sample(
    ...     Seed(0), 3, (Client("a"), Client("b"), Client("c")), 0.5)
    True
    """
    count = max(1, round_half_up(participation * len(clients)))
    drawn = seed.numpy("sample", round).permutation(len(clients))[:count]
    return tuple(clients[i] for i in sorted(drawn.tolist()))


def round_half_up(value: float) -> int:
    """Ordinary rounding; Python's own would make half of three clients two and half of five two as well."""
    return int(value + 0.5)


def run(
    spec: Experiment,
    folder: Path | None = None,
    *,
    federation: Federation | None = None,
    network: Network | None = None,
    resume: bool = False,
    watch: Watch = lambda event, facts: None,
) -> Result:
    """Run an experiment into its folder; with `resume`, go on from the last checkpoint to the same end.

    Of the ranks of the distributed engine all but the first serve it, and return when it has finished.
    """

    def lead(link: Link | None) -> Result:
        return _lead(spec, folder, federation, network, resume, watch, link)

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
        _follow(lambda: build_parts(spec, federation, network), link)
        return Result(Path(folder or "runs"), "", 0, f"rank {link.rank} has served", {}, None, {})


def _follow(build: Callable[[], Parts], link: Link) -> None:
    """Serve rank 0 with the same parts, which are built here from the same spec."""
    with ExitStack() as held:

        def engine() -> tuple[Engine, Federation]:
            parts = build()
            choice = chosen(parts, link)
            held.enter_context(arithmetic(choice.device, parts.spec.engine.precision))
            memories = make_memories(parts, choice.device)
            return make(choice, parts.federation, _table(parts), memories), parts.federation

        serve(engine, link)


def _lead(
    spec: Experiment,
    folder: Path | None,
    federation: Federation | None,
    network: Network | None,
    resume: bool,
    watch: Watch,
    link: Link | None,
) -> Result:
    parts = build_parts(spec, federation, network)
    folder = Path(folder or Path("runs") / f"{parts.title.replace(' ', '-')}-{run_id(spec)}")
    if not resume and (folder / "run.json").exists():
        raise KinfolkError(
            "run folder", str(folder), "a run is there already; add --resume or choose another folder"
        )
    choice = chosen(parts, link)
    with arithmetic(choice.device, spec.engine.precision):
        # What the user has set is not tried out.
        if spec.engine.name == "auto" and link is None and not (spec.engine.chunk or spec.engine.lanes):
            choice = (
                kept(choice, folder)
                if resume
                else tuned(choice, parts.federation, parts.learner, work(parts))
            )
        running = Running(parts, folder, choice, watch, link)
        try:
            return running.go(resume)
        finally:
            running.stage.engine.close()


def _table(parts: Parts) -> Table:
    table = installed(parts.algorithm)
    return table if parts.attack is None else parts.attack.arm(table)


class Running:
    """A run in progress: where it stands, and what it writes."""

    def __init__(self, parts: Parts, folder: Path, choice: Choice, watch: Watch, link: Link | None) -> None:
        self.parts, self.folder, self.choice, self.watch = parts, folder, choice, watch
        self.spec, self.algorithm, self.clients = parts.spec, parts.algorithm, parts.federation.clients
        self.records = Records(folder)
        self.memories = make_memories(parts, choice.device, folder)
        engine = make(choice, parts.federation, _table(parts), self.memories)
        engine = engine if link is None else Distributed(engine, link, parts.federation)
        self.stage = Stage(engine, self.records.audit, drop_outs(self.spec.run.absent))
        self.state = self.algorithm.init(self._here(parts.learner.first), self.clients, parts.seed)
        self.attackers = parts.attack.who if parts.attack else frozenset[Client]()
        self.done = self.saved = 0
        self.voids = 0
        self.summary: dict[str, Any] = {}

    def _here(self, message: Message) -> Message:
        return map_leaves(lambda t: t.to(self.choice.device), message)

    def go(self, resume: bool) -> Result:
        """Rounds until the end, each finished in the records before the next begins."""
        self.announce()
        if not (resume and self._restore()):
            self.memories.restore({})  # what the journal of a run without a checkpoint holds
            self.open_folder()
            self._finish_round({}, evaluate=True)
        reason = self._end()
        while not reason:
            self._round()
            reason = self._end()
        if self.saved != self.done:  # the end came between two checkpoints
            self._save()
        self._settle()
        self.describe("finished", reason)
        self.watch("end", {"reason": reason, "folder": self.folder})
        held = self.memories.everyones()
        return Result(self.folder, self.parts.title, self.done, reason, self.summary, self.state, held)

    def announce(self) -> None:
        """Tell which engine it is."""
        note, choice = self.stage.engine.note, self.choice
        self.watch("engine", {"note": note, "why": choice.why, "warning": choice.warning})

    def _round(self) -> None:
        spec = self.spec.run
        turn = self._turn()
        cohort = sample(self.parts.seed, self.done, self.clients, spec.participation)
        before = self.state
        self.memories.mark()
        after, info = self._played(self.algorithm.round(before, cohort, turn), turn)
        for facts in complaints(self.algorithm, self.memories, self.clients):
            self.records.audit("refused", round=turn.round, **facts)
        answered = len(self.stage.answered)
        void = answered < max(1, spec.quorum * len(cohort))
        if void:
            self._void(answered, len(cohort))
        else:
            self.state, self.voids = after, 0
        self.done += 1
        facts = {"cohort": len(cohort), "answered": answered, "void": void, "info": info}
        truth = self.parts.federation.truth
        groups = score_groups(self.algorithm, before, self.state, cohort, turn, truth, self.attackers)
        if groups:
            facts["groups"] = groups
        last = self.done >= spec.rounds
        self._finish_round(facts, evaluate=last or self.done % spec.evaluate_every == 0)

    def _turn(self) -> Turn:
        return Turn(self.parts.seed, self.done, self.clients)

    def _played(self, script: Script[Any], turn: Turn) -> tuple[Any, Info]:
        """What a script ends with; time that was not spent on requests is the server's."""
        self.stage.begin()
        began = time.perf_counter()
        asked_before = sum(self.stage.ledger.seconds.values())
        found = play(script, lambda request: self.stage.perform(request, turn))
        waited = sum(self.stage.ledger.seconds.values()) - asked_before
        self.stage.ledger.add_seconds("server", time.perf_counter() - began - waited)
        return found

    def _closing(self) -> Script[Any] | None:
        if not isinstance(self.algorithm, Settles):
            return None
        return self.algorithm.last_word(self.state, self._turn())

    def last_word(self) -> Info | None:
        """Play what the algorithm has to say last on who is served what, if it has.

        It is not saved: more rounds go on from what was before, and it comes to the same when repeated.
        """
        script = self._closing()
        if script is None:
            return None
        self.memories.mark()
        self.state, info = self._played(script, self._turn())
        self.memories.undo()
        return info

    def _settle(self) -> None:
        """The last round's line and scores by the algorithm's last word."""
        before, turn = self.state, self._turn()
        if self._closing() is None:
            return
        self.stage.ledger.take()  # the last checkpoint's, as in runs that do not settle
        info = self.last_word()
        truth = self.parts.federation.truth
        groups = score_groups(self.algorithm, before, self.state, self.clients, turn, truth, self.attackers)
        spent = self.stage.ledger.take()
        self._score()
        found = {"answered": len(self.stage.answered), "info": info}
        facts = settled(read_rounds(self.folder)[-1], found, groups, self.summary, *spent)
        self.records.amend_round(self.done, facts)
        self.watch("round", {**facts, "rounds": self.spec.run.rounds, "memories": self.memories})

    def _unsettle(self) -> None:
        """The last round's line and scores as they are in a run that goes on."""
        line = unsettled(read_rounds(self.folder)[-1])
        if "summary" in line:
            self._score()
        self.records.amend_round(self.done, line)

    def _void(self, answered: int, asked: int) -> None:
        """Too few usable replies: models and memories stay as they were."""
        self.memories.undo()
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

    def record(self, facts: dict[str, Any], evaluate: bool) -> dict[str, Any]:
        """Write down where the run stands, with everybody's scores if that is wanted."""
        if evaluate:
            self._score()
            facts = {**facts, "summary": self.summary}
        sent, seconds = self.stage.ledger.take()
        scored = [kind for kind in sent if kind.startswith("score.")]
        facts["bytes"] = {kind: ways for kind, ways in sent.items() if kind not in scored}
        self.records.append_round(self.done, {**facts, "seconds": seconds})
        return facts

    def _finish_round(self, facts: dict[str, Any], evaluate: bool) -> None:
        spec, facts = self.spec.run, self.record(facts, evaluate)
        if self.done % spec.checkpoint_every == 0 or self.done >= spec.rounds:
            began = time.perf_counter()
            self._save()
            self.stage.ledger.add_seconds("checkpoint", time.perf_counter() - began)
        told = {"round": self.done, "rounds": spec.rounds, "memories": self.memories}
        self.watch("round", {**told, "summary": self.summary, **facts})

    def _score(self) -> None:
        run, turn = self.spec.run, self._turn()
        rows = self.parts.federation.splits[run.split]
        columns, self.summary = score_everyone(
            self.algorithm, self.state, self.stage, turn, run.split, self.attackers, run.models, rows
        )
        self.records.write_scores(self.done, columns)

    def _end(self) -> str:
        """Why the run is over; empty to go on."""
        spec = self.spec.run
        if self.done >= spec.rounds:
            return f"{spec.rounds} rounds done"
        if spec.target and self.done and self._reached(spec.target_score, spec.target):
            return f"{spec.target_score} reached {spec.target:g}"
        return self.algorithm.finished(self.state) if isinstance(self.algorithm, Stops) else ""

    def _reached(self, score: str, target: float) -> bool:
        main: dict[str, Any] = next(iter(self.summary.values()), {})
        value = main.get(score, {}).get("macro")
        if value is None or value != value:  # nobody could be scored
            return False
        return bool(value <= target if score in LOWER_IS_BETTER else value >= target)

    def open_folder(self, **more: Any) -> None:
        """Begin a new folder: the spec first, so that a run without a checkpoint still says what it is."""
        self.records.rewind(-1)
        write_text(self.folder / "spec.toml", dump(self.spec))
        self.describe("running", "", **more)
        self.records.audit("start", engine=self.stage.engine.note, why=self.choice.why)
        if self.choice.warning:
            self.records.audit("warning", text=self.choice.warning)

    def describe(self, status: str, reason: str, **more: Any) -> None:
        """Write `run.json`."""
        how = {"status": status, "reason": reason, "rounds": self.done, "engine": self.stage.engine.note}
        write_json(self.folder / "run.json", description(self.parts, self.choice, how) | more)

    def _save(self) -> None:
        tensors, plain = to_message(self.state)
        held = memories_to_message(self.memories.everyones(), self.clients)
        facts = {
            "state": plain,
            "voids": self.voids,
            "summary": self.summary,
            "federation": self.parts.federation.fingerprint(),
        }
        save(
            self.folder / "checkpoints", self.done, {"state": tensors, "memory": held}, facts, dump(self.spec)
        )
        self.saved = self.done

    def take(self, loaded: Loaded) -> None:
        """Stand where a checkpoint stands."""
        device = self.stage.engine.device
        self.state = from_message(self.state, loaded.tensors["state"], loaded.facts["state"], device)
        self.memories.restore(memories_from_message(self._here(loaded.tensors["memory"]), self.clients))
        self.done = self.saved = loaded.number
        self.voids, self.summary = loaded.facts["voids"], loaded.facts["summary"]

    def _restore(self) -> bool:
        """Go back to the newest sound checkpoint; whatever was recorded after it is forgotten."""
        loaded, complaints = load_latest(self.folder / "checkpoints", dump(self.spec))
        for line in complaints:
            self.records.audit("warning", text=line)
            self.watch("warning", {"text": line})
        if loaded is None:
            return False
        if loaded.facts["federation"] != self.parts.federation.fingerprint():
            raise KinfolkError("checkpoint", str(self.folder), "the data are not those the run began with")
        self.take(loaded)
        self.records.rewind(self.done)
        write_text(self.folder / "spec.toml", dump(self.spec))
        self.records.audit("resume", round=self.done, engine=self.stage.engine.note)
        self.watch("resume", {"round": self.done, "memories": self.memories})
        if self._closing() is not None and not self._end():
            self._unsettle()
        return True
