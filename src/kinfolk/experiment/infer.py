"""What others can infer about rows from what a method shows them: membership, and the rows themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.attacks.attack import given
from kinfolk.attacks.inference.inversion import analytic, gradient_of, optimised, recovery
from kinfolk.attacks.inference.membership import attack_scores, confidence, pooled, row_losses
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import Parts, build_parts
from kinfolk.experiment.compare import parse_methods
from kinfolk.experiment.run import run
from kinfolk.experiment.sections import Experiment
from kinfolk.federation.federation import Federation, pack
from kinfolk.learning.learner import Learner, ScoreTask
from kinfolk.script import Ask, Groups, client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client, Rows, Stack, Tree, plain_rows

# One client's model: the server of a method without secret shares sees it, and a peer of SLFed's `plain`.
SINGLE = "one model"
# The model of a group, of all, or a sum of models: members see it, and with secret shares nobody sees more.
SHARED = "shared model"
# Rows of a client, and models of others, that an attack looks at.
MOST_ROWS, MOST_OTHERS = 200, 8
# Members of a sum where the method does not say.
SUM = 4


@dataclass(frozen=True)
class Views:
    """What can be seen of each client: before a round, in it, and after it; empty where nothing can."""

    before: Mapping[Client, Tree]
    single: Mapping[Client, Tree]
    shared: Mapping[Client, Tree]
    group: Mapping[Client, int]


class Listening(Loop):
    """The loop engine, which keeps every model that is sent to the coordinator, as a curious server does."""

    heard: dict[Client, Tree]

    def replies(self, request: Ask[Any], context: RoundContext) -> Iterator[Stack]:
        """The replies to a request."""
        for chunk in super().replies(request, context):
            trees = [key for key, value in chunk.body.items() if isinstance(value, dict)]
            for who in chunk.clients if trees else ():
                self.heard[who] = chunk.row(who)[trees[0]]
            yield chunk


def views(spec: Experiment, folder: Path) -> tuple[Parts, Views]:
    """Run an experiment, then one more round under observation, on the CPU and client by client."""
    parts = build_parts(spec)
    result = run(spec, folder)
    memories = Memories(lambda who: result.memories.get(who, {}))
    engine = Listening(parts.federation, client_tasks(parts.algorithm), memories)
    engine.heard = {}
    clients, state = parts.federation.clients, result.state
    before = _served(parts, state, memories)
    context = RoundContext(parts.seed, result.rounds, clients)
    stage = Coordinator(engine)
    after, _ = play(parts.algorithm.round(state, clients, context), lambda one: stage.perform(one, context))
    shared, single = _served(parts, after, memories), dict(engine.heard)
    keys = given(engine.table)
    if keys:  # between peers; what a client was served before, nobody else has seen
        before = {}
        single = {c: memories[c][keys[0]] for c in clients}
        shared = _sums(parts, single)
    labels = [0] * len(clients)
    if isinstance(parts.algorithm, Groups):
        labels = parts.algorithm.groups(after).tolist()
    return parts, Views(before, single, shared, dict(zip(clients, labels, strict=True)))


def _served(parts: Parts, state: Any, memories: Memories) -> dict[Client, Tree]:
    """The model that each client is served, before any fine-tuning."""
    clients = parts.federation.clients
    for task in parts.algorithm.eval_tasks().values():
        if isinstance(task, ScoreTask) and len(task.passes) == 1:
            shared, each = parts.algorithm.eval_inputs(state, clients)
            engine = Loop(parts.federation, {"give": task.giving()}, memories)
            chunks = engine.replies(Ask("give", clients, shared, each), RoundContext(parts.seed, 0, clients))
            return {c: chunk.row(c)["model"] for chunk in chunks for c in chunk.clients}
    return {}


def _sums(parts: Parts, single: Mapping[Client, Tree]) -> dict[Client, Tree]:
    """The mean of each client's model and the next ones', as few as a sum may have: all that shares tell."""
    shares = getattr(parts.algorithm, "shares", None)
    members = 1 + (shares.limits.min_members if shares is not None else SUM - 1)
    names = sorted(single)
    found = {}
    for i, who in enumerate(names):
        some = [single[names[(i + k) % len(names)]] for k in range(min(members, len(names)))]
        found[who] = {
            n: torch.stack([one[n] for one in some]).mean(0) if t.is_floating_point() else t
            for n, t in single[who].items()
        }
    return found


def membership(parts: Parts, seen: Views) -> list[dict[str, Any]]:
    """A row for each view and attack: area under the curve, members found at 1 % false alarms."""
    learner, rows = parts.learner, _rows_of(parts.federation)
    found = []
    for view, models in ((SINGLE, seen.single), (SHARED, seen.shared)):
        scores = []
        for who, model in models.items():
            sides = [
                _scored(learner, model, seen.before.get(who), _others(seen, models, who), *rows(who, split))
                for split in ("train", "test")
            ]
            scores.append({name: (sides[0][name], sides[1][name]) for name in sides[0]})
        for attack, one in pooled(scores).items():
            found.append({"view": view, "attack": attack, **asdict(one)})
    return found


def _scored(
    learner: Learner, model: Tree, before: Tree | None, others: Sequence[Tree], x: Rows, y: Rows
) -> Any:
    def sure(one: Tree) -> Tensor:
        return confidence(row_losses(learner, one, x, y), learner.loss.name)

    return attack_scores(sure(model), None if before is None else sure(before), [sure(one) for one in others])


def _others(seen: Views, models: Mapping[Client, Tree], who: Client) -> list[Tree]:
    """Models of others of the same group, which were not trained on this client's rows."""
    if models is not seen.single:
        return []
    return [models[c] for c in models if c != who and seen.group[c] == seen.group[who]][:MOST_OTHERS]


def _rows_of(federation: Federation) -> Any:
    def rows(who: Client, split: str) -> tuple[Rows, Rows]:
        return federation.take(federation.splits[split].rows(federation.place(who))[:MOST_ROWS])

    return rows


@dataclass(frozen=True)
class Inverted:
    """How one inversion went, beside rows that an attacker would have guessed."""

    attack: str
    rows: int
    steps: int
    psnr: float
    found: float
    chance_psnr: float
    chance_found: float
    true: Tensor
    made: Tensor


def invert(parts: Parts, who: Client, rows: int, steps: int) -> list[Inverted]:
    """Both attacks on the update of one client of so many rows after so many steps on all of them."""
    learner, federation = _plain(parts), parts.federation
    own = federation.splits["train"].rows(federation.place(who))
    if len(own) < rows:
        raise KinfolkError("--rows", rows, f"{who} has {len(own)} training rows; give no more")
    x, y = (plain_rows(part) for part in federation.take(own[:rows]))
    pool = plain_rows(federation.take(_unused(federation, own[:rows]))[0])
    span = float(pool.min()), float(pool.max())
    first, after = learner.first, _updated(learner, federation, who, own[:rows], steps, parts.seed)
    gradient = gradient_of(first, after, learner.names, learner.lr, steps)
    shape, draw = tuple(x.shape[1:]), parts.seed.torch("invert", rows, steps)
    guess = recovery(x, pool[torch.randperm(len(pool), generator=draw)[:rows]], pool, span)
    tries = {
        "analytic": analytic(learner, gradient, shape, rows),
        "optimised": optimised(learner, first, gradient, y, shape, span, draw),
    }
    found = []
    for name, made in tries.items():
        if made is not None:
            one = recovery(x, made.clamp(*span), pool, span)
            facts = one.psnr, one.found, guess.psnr, guess.found
            found.append(Inverted(name, rows, steps, *facts, x, one.rows))
    return found


def _plain(parts: Parts) -> Learner:
    """The learner, if its updates are such as the attacks on gradients understand."""
    learner = parts.learner
    if learner.loss.target != "class" or isinstance(parts.federation.x, dict):
        remedy = "rows are made again for classes and rows of one tensor only; add --no-inversion"
        raise KinfolkError("local.loss", learner.loss.name, remedy)
    return replace(learner, decay=1.0, clip=0.0, by_round=None, by_step=None)


def _unused(federation: Federation, used: Tensor) -> Tensor:
    """Rows of the pool that the update was not made of, at most two thousand."""
    known = torch.unique(federation.splits["test"].row)
    unused: Tensor = known[~torch.isin(known, used)][:2000]
    return unused


def _updated(
    learner: Learner, federation: Federation, who: Client, rows: Tensor, steps: int, seed: Seed
) -> Tree:
    """The client's model after so many steps on all of these rows, by the library's own training."""
    plan = replace(learner.plan, batch=len(rows), epochs=steps, steps=0, augment=None)
    alone = {**federation.splits, "train": pack([rows.cpu()])}
    one = replace(federation, clients=(who,), splits=alone, truth=None)
    task = replace(learner, plan=plan).train()
    engine = Loop(one, {"update": task}, Memories(lambda who: {}))
    ask: Ask[Any] = Ask("update", (who,), {"model": learner.first})
    (chunk,) = engine.replies(ask, RoundContext(seed, 0, (who,)))
    model: Tree = chunk.row(who)["model"]
    return model


def study(
    spec: Experiment,
    methods: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    watch: Callable[[str, int], None] = lambda method, seed: None,
) -> list[dict[str, Any]]:
    """Membership for every method and seed, a run folder each; `watch` is told what begins."""
    found = []
    for one in parse_methods(spec, methods).values():
        for seed in seeds:
            watch(one.title, seed)
            mine = replace(one.spec, run=replace(one.spec.run, seed=seed))
            parts, seen = views(mine, folder / f"{one.folder}-seed{seed}")
            found += [{"method": one.title, "seed": seed, **row} for row in membership(parts, seen)]
    return found


def inversions(
    spec: Experiment, rows: Sequence[int], steps: Sequence[int], seeds: Sequence[int]
) -> list[Inverted]:
    """Rows made again from updates of the first client, from the common initial model."""
    found = []
    for seed in seeds:
        parts = build_parts(replace(spec, run=replace(spec.run, seed=seed)))
        who = parts.federation.clients[0]
        found += [one for n in rows for k in steps for one in invert(parts, who, n, k)]
    return found
