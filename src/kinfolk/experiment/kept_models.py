"""The models of a run, out of its checkpoints: those that were kept, and those that are made again.

A kind of model is what its scoring task would score: the same task, ended before it scores. Where that trains
(fine-tuning), it needs the rows of the client and asks the same clients together as the run did, so that the
model has the same bits.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kinfolk.algorithms.blocks.many_models import in_use
from kinfolk.engines.choose import ENGINES, Choice, arithmetic, make, reply_room
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.fast import KERNELS
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.build import Network, Parts, build_parts
from kinfolk.experiment.checkpoint import Loaded, load_round, saved_facts, saved_rounds
from kinfolk.experiment.choice import chosen, kept
from kinfolk.experiment.client_memory import make_memories
from kinfolk.experiment.outline import read_first, read_outline
from kinfolk.experiment.spec import dump, load
from kinfolk.experiment.state import from_message, memories_from_message
from kinfolk.federation.federation import Federation
from kinfolk.federation.scaling import standardized
from kinfolk.federation.sources import build
from kinfolk.learning.learner import ScoreTask
from kinfolk.learning.lora import merge_lora
from kinfolk.learning.pretrained import fill
from kinfolk.script import Ask, Groups
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Tree, map_leaves

CPU = torch.device("cpu")


class KeptModels:
    """The models that a run folder holds, by client, kind and round.

    `network` is for networks of the user's own that cannot be imported by name, `federation` for rows that
    were given in Python and are needed again.
    """

    def __init__(
        self, folder: Path, network: Network | None = None, federation: Federation | None = None
    ) -> None:
        self.folder, self._network, self._given = Path(folder), network, federation
        self.spec, self.outline = load(self.folder / "spec.toml"), read_outline(self.folder)
        self._held: Loaded | None = None

    # What there is

    @cached_property
    def _tasks(self) -> Mapping[str, ScoreTask]:
        tasks = self._parts.algorithm.eval_tasks()
        return {kind: task for kind, task in tasks.items() if isinstance(task, ScoreTask) and task.network}

    def kinds(self) -> tuple[str, ...]:
        """All kinds of models that there are, the main one first."""
        return tuple(self._tasks)

    def kind(self, name: str | None) -> str:
        """The kind of model that is meant; the main one if none is named."""
        known = self.kinds()
        if not known:
            remedy = "scores by tasks of its own, which do not say what model it is; use Learner.score"
            raise KinfolkError("algorithm.name", self.spec.algorithm.name, remedy)
        if name is not None and name not in known:
            remedy = f"{self._parts.title} has no such model; it has {', '.join(known)}"
            raise KinfolkError("kind", name, remedy)
        return name or known[0]

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds whose models are kept."""
        return saved_rounds(self.folder / "checkpoints")

    def round(self, word: str | int) -> int:
        """The number of a round that is kept: `"last"`, `"best"` or a number."""
        rounds = self.rounds
        if not rounds:
            raise KinfolkError("run", str(self.folder), "has no checkpoint, so no models; run it again")
        if word == "last":
            return rounds[-1]
        number: Any = word
        if word == "best":
            number = saved_facts(self.folder / "checkpoints").get("best", {}).get("round")
            if number is None:
                remedy = (
                    "no round was judged on validation rows; run with run.keep=best and data.valid above 0"
                )
                raise KinfolkError("round", word, remedy)
        if not isinstance(number, int) or isinstance(number, bool):
            raise KinfolkError("round", word, "give 'last', 'best' or a number")
        if number not in rounds:
            remedy = (
                f"is not kept; there are {_few(rounds)} (run.keep={self.spec.run.keep}; 'all' keeps every)"
            )
            raise KinfolkError("round", number, remedy)
        return number

    def client(self, name: str) -> Client:
        """The client of that name."""
        if name not in set(self.outline.clients):
            raise KinfolkError("client", name, f"no such client; {_hint(name, self.outline.clients)}")
        if name in self._attackers:
            raise KinfolkError("client", name, "is an attacker in this run: its models are not scored")
        return Client(name)

    def groups(self, round: int) -> dict[int, list[Client]]:
        """The members of each group that has any, as clients were scored; nothing without groups."""
        algorithm = self._parts.algorithm
        if not isinstance(algorithm, Groups):
            return {}
        found: dict[int, list[Client]] = {}
        labels = algorithm.groups(self._state(self._parts, round, CPU)).tolist()
        for who, group in zip(self.outline.clients, labels, strict=True):
            found.setdefault(int(group), []).append(who)
        return dict(sorted(found.items()))

    def member(self, group: int, kind: str, round: int) -> Client:
        """Somebody who is served the model of a group."""
        groups = self.groups(round)
        if not groups:
            remedy = f"{self._parts.title} has no groups; name a client"
            raise KinfolkError("group", group, remedy)
        if not self._tasks[kind].common:
            alone = [name for name, task in self._tasks.items() if task.common]
            remedy = f"a {kind} model is one client's; name a client" + (
                f", or take {alone[0]!r}" if alone else ""
            )
            raise KinfolkError("group", group, remedy)
        if group not in groups:
            remedy = f"no such group, or nobody is in it; there are {_few(tuple(groups))}"
            raise KinfolkError("group", group, remedy)
        honest = [who for who in groups[group] if who not in self._attackers]
        if not honest:
            raise KinfolkError("group", group, "has attackers alone; name another")
        return honest[0]

    def anybody(self, kind: str, round: int) -> Client:
        """Somebody who has the model of everyone, where one model is all there is."""
        state = self._state(self._parts, round, CPU)
        each = self._parts.algorithm.eval_inputs(state, self.outline.clients)[1]
        if each is not None or not self._tasks[kind].common:
            groups = " or group=..." if isinstance(self._parts.algorithm, Groups) else ""
            remedy = f"clients of {self._parts.title} have models of their own; say whose: client=...{groups}"
            raise KinfolkError("client", None, remedy)
        return self.outline.clients[0]

    def common(self, round: int) -> tuple[Tree, tuple[int, ...]]:
        """The models that somebody new may be served, every leaf [K, ...], and the numbers of their groups.

        One that is everyone's has no number.
        """
        centres, groups = in_use(self._checkpoint(round).tensors["state"])
        if groups:
            return centres, groups
        kind = next((name for name, task in self._tasks.items() if task.common), None)
        state = self._state(self._parts, round, CPU)
        if kind is None or self._parts.algorithm.eval_inputs(state, self.outline.clients)[1] is not None:
            remedy = "has a model for each of its clients and none for others; begin a run with them"
            raise KinfolkError("run", str(self.folder), remedy)
        who = self.anybody(kind, round)
        return {name: t[None] for name, t in self.trees([who], kind, round)[who].items()}, ()

    def owners(self, kind: str, round: int) -> dict[tuple[str | None, int | None], Client]:
        """Every model there is, as (client, group): somebody who has it. Both are None for everyone's."""
        honest = [c for c in self.outline.clients if c not in self._attackers]
        if not self._tasks[kind].common:
            return {(c, None): c for c in honest}
        groups = self.groups(round)
        if groups:
            return {
                (None, g): self.member(g, kind, round) for g, who in groups.items() if set(who) & set(honest)
            }
        return {(None, None): self.anybody(kind, round)}

    @property
    def _attackers(self) -> frozenset[Client]:
        return self._parts.attack.who if self._parts.attack else frozenset()

    # What they are

    def trees(self, who: Sequence[Client], kind: str, round: int) -> dict[Client, Tree]:
        """The models of some clients, on the CPU."""
        task = self._tasks[kind]
        if len(task.passes) == 1:  # nothing but the scoring itself: no rows are needed
            memories, state = self._memories(self._parts, round, CPU), self._state(self._parts, round, CPU)
            engine: Engine = Loop(self._parts.federation, {"give": task.giving()}, memories)
            return self._asked(engine, self._parts, state, round, who, set(who))
        parts = self._parts_with_rows(kind)
        trained = parts.algorithm.eval_tasks()[kind]
        assert isinstance(trained, ScoreTask)
        choice = self._choice(parts)
        with arithmetic(choice.device, parts.spec.engine.precision):
            KERNELS.follow(self._checkpoint(round).facts.get("kernels", {}))
            memories = self._memories(parts, round, choice.device)
            engine = make(choice.engine, parts.federation, {"give": trained.giving()}, memories)
            with closing(engine):
                memories.restore(dict(memories))  # engines of several processes hand them out
                state = self._state(parts, round, choice.device)
                # In one call for many clients, each depends on the others in its last bits.
                alone = not ENGINES[choice.name].chunked
                everyone = [c for c in self.outline.clients if c not in self._attackers]
                return self._asked(engine, parts, state, round, who if alone else everyone, set(who))

    def network(self, kind: str, model: Tree) -> nn.Module:
        """A plain network in scoring mode that holds a model and shares nothing with the run."""
        make_network = self._tasks[kind].network
        assert make_network is not None
        network = make_network().eval()
        fill(network, model)
        return merge_lora(network)

    def _asked(
        self, engine: Engine, parts: Parts, state: Any, round: int, who: Sequence[Client], wanted: set[Client]
    ) -> dict[Client, Tree]:
        shared, each = parts.algorithm.eval_inputs(state, tuple(who))
        room = reply_room(engine.device)
        context = RoundContext(parts.seed, round, self.outline.clients, parts.spec.run.participation, room)
        found: dict[Client, Tree] = {}
        for chunk in engine.replies(Ask("give", tuple(who), shared, each), context):
            for c in chunk.clients:
                if c in wanted:
                    found[c] = map_leaves(lambda t: t.detach().cpu().clone(), chunk.row(c)["model"])
        return found

    # What they are made of

    @cached_property
    def _parts(self) -> Parts:
        """The run around rows that are not there."""
        engine = replace(self.spec.engine, name="loop", device="cpu")
        return self._built(replace(self.spec, engine=engine), self.outline.without_rows())

    def _parts_with_rows(self, kind: str) -> Parts:
        if "_whole" not in self.__dict__:
            why = f"{kind!r} models are trained again on each client's rows"
            try:
                data = self.spec.data
                rows = self._given or build(data, Seed(self.spec.run.seed))
                rows = standardized(rows, data.standardize, data.standardize_target)
            except KinfolkError as error:
                remedy = f"{why}, which are not here ({error}); give them as kinfolk.load(..., clients=...)"
                raise KinfolkError("kind", kind, remedy) from error
            parts = self._built(self.spec, rows)
            if parts.federation.fingerprint() != self._checkpoint(self.rounds[-1]).facts["federation"]:
                remedy = f"{why}, and these are not the rows of the run; give those that it began with"
                raise KinfolkError("clients", rows.name, remedy)
            self.__dict__["_whole"] = parts
        whole: Parts = self.__dict__["_whole"]
        return whole

    def _built(self, spec: Any, rows: Federation) -> Parts:
        network = self._network
        if isinstance(network, nn.Module):
            network = copy.deepcopy(network)  # the user's own stays as it is
        try:
            return build_parts(spec, rows, network, first=read_first(self.folder))
        except KinfolkError as error:
            if network is None and error.field in ("model.name", "model") and ":" in spec.model.name:
                remedy = f"cannot be built again ({error.remedy}); give it as kinfolk.load(..., network=...)"
                raise KinfolkError("network", spec.model.name, remedy) from error
            raise

    def _choice(self, parts: Parts) -> Choice:
        """The engine that the run had, as far as this machine has it."""
        spec = self.spec.engine
        if spec.name == "distributed":
            spec = replace(spec, name=spec.inner, processes=1)
        if spec.device == "cuda" and not torch.cuda.is_available():
            spec = replace(spec, device="cpu")
        return kept(chosen(replace(parts, spec=replace(parts.spec, engine=spec)), None), spec, self.folder)

    def _checkpoint(self, round: int) -> Loaded:
        if self._held is None or self._held.number != round:
            self._held = load_round(self.folder / "checkpoints", round, dump(self.spec))
        return self._held

    def _state(self, parts: Parts, round: int, device: torch.device) -> Any:
        """The state by which clients were scored; where they were not, as training has left it."""
        loaded = self._checkpoint(round)
        first = map_leaves(lambda t: t.to(device), parts.learner.first)
        like = parts.algorithm.init(first, self.outline.clients, parts.seed)
        tensors = {**loaded.tensors["state"], **loaded.tensors.get("served", {})}
        return from_message(
            like, tensors, {**loaded.facts["state"], **loaded.facts.get("served", {})}, device
        )

    def _memories(self, parts: Parts, round: int, device: torch.device) -> Memories:
        memories = make_memories(parts, device)
        held = map_leaves(lambda t: t.to(device), self._checkpoint(round).tensors["memory"])
        memories.restore(memories_from_message(held, self.outline.clients))
        return memories


def _few(numbers: Sequence[int], most: int = 8) -> str:
    if len(numbers) <= most:
        return ", ".join(map(str, numbers))
    return f"{', '.join(map(str, numbers[: most - 1]))}, ... {numbers[-1]}"


def _hint(name: str, clients: Sequence[str], most: int = 12) -> str:
    """The nearest name; of thousands, one that begins alike, and never all of them."""
    likely = clients if len(clients) <= 2000 else [c for c in clients if c[:1] == name[:1]][:2000]
    hint = near(name, likely) if likely else ""
    return (
        hint
        if hint.startswith("did") or len(clients) <= most
        else f"there are {len(clients)}, as {clients[0]!r}"
    )
