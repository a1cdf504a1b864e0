"""What every algorithm must do, as checks that anybody's algorithm can be put through.

A check takes something that makes the algorithm from a learner. It says nothing if all is well, raises
AssertionError with one sentence if not, and Skip if it cannot apply.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.codec import decode, encode
from kinfolk.contract import toy
from kinfolk.contract.compare import (
    ENGINE_TOLERANCE,
    copied,
    message_difference,
    outcome_difference,
    score_difference,
    state_difference,
    unsound,
)
from kinfolk.contract.spoil import HARMS, QUESTIONS, Misled, spoil
from kinfolk.engines.choose import ENGINES
from kinfolk.engines.coordinator import Coordinator, drop_outs
from kinfolk.errors import KinfolkError
from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.record import MODELS, plain, read_rounds, read_scores
from kinfolk.experiment.spec import dump
from kinfolk.experiment.state import from_message, to_message
from kinfolk.federation.federation import Federation
from kinfolk.script import Algorithm, Ask, Groups, Request, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Fit, PeerTask, Task
from kinfolk.types import Client, IndexedMessages, Message

Make = toy.Make
METHODS = ("init", "tasks", "round", "eval_inputs", "eval_tasks")


class Skip(Exception):
    """This check does not apply; the text says why."""


def require(good: object, sentence: str) -> None:
    """Fail with a sentence unless something holds, under `python -O` as well.

    >>> require(1 < 2, "one is less than two")
    """
    if not good:
        raise AssertionError(sentence)


def _no(difference: str, sentence: str) -> None:
    require(not difference, f"{sentence}: {difference}")


def _toy(make: Make, network: str = "mlp") -> tuple[Algorithm[Any], Federation]:
    """The algorithm with a small network, and the ragged federation."""
    federation = toy.ragged()
    return make(toy.learner(network, federation)), federation


def check_is_an_algorithm(make: Make) -> None:
    """It is a frozen dataclass with the methods of `script.Algorithm`, and names what it scores."""
    algorithm, _ = _toy(make)
    name = type(algorithm).__name__
    require(_frozen(algorithm), f"{name} must be a frozen dataclass: what changes belongs in its state")
    require(hasattr(algorithm, "learner"), f"{name} must have a field 'learner'")
    for method in METHODS:
        require(callable(getattr(algorithm, method, None)), f"{name} has no method '{method}'")
    for task, what in algorithm.tasks().items():
        kind = type(what).__name__
        require(isinstance(what, Task | PeerTask), f"tasks()['{task}'] is a {kind}, not a Task or a PeerTask")
    require(algorithm.eval_tasks(), "eval_tasks() is empty: there is nothing to compare")
    for scored in algorithm.eval_tasks():
        require(scored in MODELS, f"eval_tasks() names {scored!r}; use one of {', '.join(MODELS)}")


def _frozen(thing: object) -> bool:
    how = getattr(type(thing), "__dataclass_params__", None)
    return bool(getattr(how, "frozen", False))


def check_replies_as_declared(make: Make) -> None:
    """In a healthy run no reply is refused: each task sends what it declares."""
    for network in ("mlp", "tiny_cnn"):
        outcome = toy.play_rounds(*_toy(make, network), "batched", rounds=1)
        for event, facts in outcome.log:
            sentence = f"task '{facts.get('task')}' does not reply what it declares: {facts.get('reason')}"
            require(event != "rejected", sentence)


def check_learns_something(make: Make) -> None:
    """Where everybody holds the same easy task, a few rounds lower the loss."""
    federation = toy.alike()
    algorithm = make(toy.learner("mlp", federation))
    tasks = [task for task in algorithm.tasks().values() if isinstance(task, Task)]
    if not any(isinstance(one, Fit) for task in tasks for one in task.passes):
        raise Skip("it trains nothing")
    before, after = (toy.play_rounds(algorithm, federation, "batched", rounds=r).scores for r in (0, 4))
    for kind in algorithm.eval_tasks():
        was, now = (float(np.mean([loss for _, loss in s[kind].values()])) for s in (before, after))
        fell = f"went from {was:.3f} to {now:.3f}"
        require(now < was, f"the loss of the {kind} model {fell} on an easy task")


def check_engines_agree(make: Make, network: str = "tiny_cnn", apart: bool = False) -> None:
    """All engines of one process give the same states, memories, scores, groups and bytes as the loop."""
    large = network == "lenet"
    federation = toy.images28() if large else toy.ragged()
    algorithm = make(toy.learner(network, federation))
    rounds, share = (1, 1.0) if large else (2, 0.8)
    loop = toy.play_rounds(algorithm, federation, "loop", rounds, 0, share)
    for name in (name for name in ENGINES if (name == "workers") == apart):
        found = toy.play_rounds(algorithm, federation, name, rounds, 0, share)
        differs = outcome_difference(found, loop, ENGINE_TOLERANCE)
        _no(differs, f"engine '{name}' does not agree with 'loop' on {network}")


def check_processes_agree(make: Make) -> None:
    """Worker processes give the same as the loop, on both networks."""
    for network in ("tiny_cnn", "lenet"):
        check_engines_agree(make, network, apart=True)


def check_engines_agree_on_lenet(make: Make) -> None:
    """The engines agree on a network without BatchNorm as well, and on larger images."""
    check_engines_agree(make, "lenet")


def check_same_seed_same_bits(make: Make) -> None:
    """Twice the same seed gives twice the same bits, and no global generator is touched."""
    algorithm, federation = _toy(make)
    for name, rounds in (("loop", 2), ("batched", 2), ("workers", 1)):
        before = _generators()
        first, second = (toy.play_rounds(algorithm, federation, name, rounds) for _ in range(2))
        _no(outcome_difference(second, first, 0), f"the same seed gave other bits the second time ({name})")
        for library, was, now in zip(("torch", "numpy", "random"), before, _generators(), strict=True):
            require(was == now, f"it draws from the global generator of {library}; draw from turn.seed")


def _generators() -> tuple[bytes, str, str]:
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate())


def check_order_of_clients(make: Make) -> None:
    """Clients handed over in another order give the same bits."""
    algorithm, _ = _toy(make)
    both = toy.ragged(), toy.ragged(backwards=True)
    one, other = (toy.play_rounds(algorithm, rows, "batched", participation=0.8) for rows in both)
    _no(outcome_difference(other, one, 0), "the order in which clients were handed over matters")


def check_renamed_clients(make: Make) -> None:
    """Clients under other names, sorted the other way round, have the scores that belong to their rows.

    Batches hold all rows, so shuffles do not matter; some are missing, so positions taken for names show.
    """
    new = dict(zip(toy.NAMES, reversed(toy.NAMES), strict=True))
    old, renamed = (_played_by_name(make, names) for names in (toy.NAMES, toy.NAMES[::-1]))
    back = {kind: {new[c]: score for c, score in by.items()} for kind, by in renamed.items()}
    differs = score_difference(back, old, 1e-4)
    if differs and score_difference(_played_by_name(make, toy.NAMES, seed=1), old, 1e-4):
        raise Skip("it draws for each client by itself, so that a new name is a new draw")
    _no(differs, "a client's result depends on where its name sorts")


def _played_by_name(make: Make, names: Sequence[Client], seed: int = 0) -> toy.Scores:
    """The scores of clients of these names after rounds in which some are not asked or do not answer."""
    federation = toy.ragged(names)
    algorithm = make(toy.learner("mlp", toy.ragged(), batch=64))
    asked = [names, [names[i] for i in (1, 2, 4, 5, 7)], names]
    missing = [{names[0], names[3]}, {names[2]}, {names[1]}]
    outcome = toy.play_rounds(
        algorithm,
        federation,
        rounds=3,
        seed=seed,
        absent=lambda context, who: who in missing[context.round],
        cohort=lambda number: sorted(asked[number]),
    )
    return outcome.scores


def check_state_not_mutated(make: Make) -> None:
    """A round writes into nothing it was given: not into the state, a memory or a message."""
    for name, network in (("loop", "tiny_cnn"), ("batched", "mlp")):
        algorithm, federation = _toy(make, network)
        with toy.coordinated(algorithm, federation, name) as coordinator:
            state = algorithm.init(toy.first_model(algorithm), federation.clients, Seed(0))
            for number in range(2):
                context = RoundContext(Seed(0), number, federation.clients)
                before = copied(to_message(state)[0])
                script = algorithm.round(state, federation.clients, context)
                after, _ = play(script, partial(_watched, coordinator, context))
                differs = message_difference(to_message(state)[0], before, 0)
                _no(differs, f"a round ({name}) changed the state it was given")
                state = after


def _watched(coordinator: Coordinator, context: RoundContext, request: Request) -> Any:
    """Perform a request and see that what it finds stays as it was."""
    given = {f"the memory of {who}": memory for who, memory in coordinator.engine.memories.items()}
    if isinstance(request, Ask):
        given["the message to everyone"], each = request.shared, request.each
        held = each.table if isinstance(each, IndexedMessages) else each.body if each else {}
        given["the messages to each"] = held
    before = {what: copied(message) for what, message in given.items()}
    answer = coordinator.perform(request, context)
    task = request.task if isinstance(request, Ask) else request.swap
    for what, message in given.items():
        differs = message_difference(message, before[what], 0)
        _no(differs, f"'{task}' ({coordinator.engine.name}) wrote into {what}")
    return answer


def check_state_is_plain(make: Make) -> None:
    """The state survives the way to disk and back: tensors, trees, numbers and text."""
    algorithm, federation = _toy(make, "tiny_cnn")
    for rounds in (0, 1):
        state = toy.play_rounds(algorithm, federation, rounds=rounds, score=False).state
        require(_frozen(state), f"the state, a {type(state).__name__}, must be a frozen dataclass")
        tensors, facts = to_message(state)
        back = from_message(state, decode(encode(tensors))[0], plain(facts), toy.CPU)
        _no(state_difference(back, state, 0), "the state does not survive the way to disk")


def check_scores_everyone(make: Make) -> None:
    """Everybody can be scored, those never asked as well; groups, if any, cover everybody."""
    algorithm, federation = _toy(make)
    for rounds in (0, 1):
        outcome = toy.play_rounds(algorithm, federation, rounds=rounds, participation=0.3)
        _sound(outcome, federation.clients, f"after {rounds} rounds")
        silent = sorted(set(algorithm.eval_tasks()) - set(outcome.scores))
        require(not silent, f"the {', '.join(silent)} model could not be scored")
        if isinstance(algorithm, Groups):
            labels = algorithm.groups(outcome.state)
            fits = labels.shape == (len(federation.clients),) and labels.dtype == torch.int64
            require(fits, f"groups() gives {labels.dtype} {list(labels.shape)}, not one number per client")


def check_serves_any_subset(make: Make) -> None:
    """What a client is served does not depend on who else is."""
    algorithm, federation = _toy(make)
    with toy.coordinated(algorithm, federation) as coordinator:
        everybody = federation.clients
        state = algorithm.init(toy.first_model(algorithm), everybody, Seed(0))
        first, context = (RoundContext(Seed(0), number, everybody) for number in (0, 1))
        state = toy.play_one(algorithm, state, everybody, coordinator, first)
        everyone = _served(algorithm, state, everybody)
        scores = toy.scores_of(algorithm, state, coordinator, context, everybody)
        for who in (toy.NAMES[4:5], toy.NAMES[::3], tuple(reversed(toy.NAMES[1:4]))):
            for client, message in _served(algorithm, state, who).items():
                differs = message_difference(message, everyone[client], 0)
                _no(differs, f"what {client} is served depends on who else is served")
            for kind, some in toy.scores_of(algorithm, state, coordinator, context, who).items():
                wanted = {kind: {c: scores[kind][c] for c in who}}
                _no(score_difference({kind: some}, wanted, 0), "scores depend on who else is scored")


def _served(algorithm: Algorithm[Any], state: Any, who: tuple[Client, ...]) -> dict[Client, Message]:
    shared, each = algorithm.eval_inputs(state, who)
    if each is not None:
        fits = each.clients == tuple(sorted(who))
        require(fits, f"serve() for {sorted(who)} answers for {list(each.clients)}")
    return {c: {**shared, **(each.row(c) if each is not None else {})} for c in who}


def check_survives_drop_outs(make: Make) -> None:
    """Three in ten clients miss each round; everything stays finite and everybody can be scored."""
    for name, network, rounds in (("loop", "tiny_cnn", 4), ("batched", "mlp", 2)):
        algorithm, federation = _toy(make, network)
        outcome = toy.play_rounds(algorithm, federation, name, rounds, absent=drop_outs(0.3))
        _sound(outcome, federation.clients, f"after rounds with drop-outs ({name})")


def check_survives_cohort_of_one(make: Make) -> None:
    """One client a round is enough, in every engine the one with a single row as well."""
    algorithm, federation = _toy(make, "tiny_cnn")
    few = toy.play_rounds(algorithm, federation, rounds=3, participation=0.01)
    _sound(few, federation.clients, "with one client a round")
    single = toy.NAMES[toy.ROWS.index(1)]
    for engine in ENGINES:
        one = toy.play_rounds(algorithm, federation, engine, 1, cohort=lambda number: [single], score=False)
        _sound(one, federation.clients, f"with one client of one row ({engine})")


def check_survives_nobody(make: Make) -> None:
    """Rounds that nobody answers end a run with an error, and leave models and memories as they were."""
    algorithm, federation = _toy(make)
    _sound(
        toy.play_rounds(algorithm, federation, absent=lambda context, who: True),
        federation.clients,
        "after rounds that nobody answered",
    )
    settings = {"rounds": 4, "absent": 1 - 1e-12, "evaluate_every": 4}
    with tempfile.TemporaryDirectory() as folder:
        ended = ""
        try:
            toy.run_toy(make, Path(folder), settings)
        except KinfolkError as error:
            ended = error.field
        require(ended in ("", "run"), f"a run that nobody answered ends with an error about {ended}")
        loaded, _ = load_latest(Path(folder) / "checkpoints", dump(toy.spec_of(algorithm, settings)))
        if loaded is None:
            raise AssertionError("a run that nobody answered left no checkpoint")
    start = algorithm.init(toy.first_model(algorithm), federation.clients, Seed(0))
    end = from_message(start, loaded.tensors["state"], loaded.facts["state"], toy.CPU)
    _no(state_difference(end, start, 0), "a round that nobody answered changed the state")
    require(not loaded.tensors["memory"], "a round that nobody answered changed a memory")


def _sound(outcome: toy.Outcome, clients: Sequence[Client], when: str) -> None:
    """Everything is finite and everybody has a score of every kind."""
    _no(unsound(to_message(outcome.state)[0]), f"{when}, the state")
    for who, memory in outcome.memories.items():
        _no(unsound(memory), f"{when}, the memory of {who}")
    for kind, by_client in outcome.scores.items():
        lost = sorted(set(clients) - set(by_client))
        require(not lost, f"{when}, {kind} scores are missing for {lost}")
        wild = [who for who, (_, loss) in by_client.items() if not math.isfinite(loss)]
        require(not wild, f"{when}, the {kind} model has no finite loss for {wild}")


def check_bad_replies(make: Make) -> None:
    """A damaged reply is refused by name and counts as missing; the others' replies count."""
    algorithm, federation = _toy(make)
    tasks = algorithm.tasks().values()
    if not any(task.reply for task in tasks if isinstance(task, Task)):
        raise Skip("its clients reply with nothing")
    bad = [toy.NAMES[i] for i in (0, 2, 5, 7)]
    without = toy.play_rounds(algorithm, federation, absent=lambda context, who: who in bad, score=False)
    for first in range(0, len(HARMS), len(bad)):
        ways = [*HARMS, *HARMS][first : first + len(bad)]
        how = dict(zip(bad, ways, strict=True))
        outcome = toy.play_rounds(algorithm, federation, wrap=spoil(how), score=False)
        refused = outcome.named("rejected")
        for who, way in how.items():
            require(who in refused, f"a reply with {way} was not refused")
        require(refused == set(bad), f"sound replies were refused: {sorted(refused - set(bad))}")
        _no(unsound(to_message(outcome.state)[0]), "after refused replies, the state")
        # Whoever is refused by the coordinator still writes to its peers; who is absent does not.
        if not any(isinstance(task, PeerTask) for task in tasks):
            differs = state_difference(outcome.state, without.state, 0)
            _no(differs, "a refused reply is not the same as a missing one")


def check_bad_requests(make: Make) -> None:
    """A client that is sent something else than its task declares does not answer, and the others go on."""
    algorithm, federation = _toy(make)
    tasks = [(name, task.sent) for name, task in algorithm.tasks().items() if isinstance(task, Task)]
    declared = {name: sent for name, sent in tasks if sent}
    if not declared:
        raise Skip("no task declares what it is sent")
    victim = toy.NAMES[3]
    for name, sent in declared.items():
        for how, harm in QUESTIONS.items():
            misled = Misled(victim, name, partial(harm, sent))
            outcome = toy.play_rounds(algorithm, federation, wrap=misled, score=False)
            if not misled.reached:  # it is not asked in these rounds, or is sent nothing of the kind
                continue
            told = [facts for event, facts in outcome.log if event == "silent" and facts["task"] == name]
            silent = {facts["client"] for facts in told}
            require(silent == {victim}, f"'{name}' sent {how} is answered by a client, or others are silent")
            _no(unsound(to_message(outcome.state)[0]), f"after '{name}' with {how}, the state")


def check_resume(make: Make) -> None:
    """Two rounds, a stop and two more give the same bits and records as four at once."""
    usual = {"participation": 0.5, "absent": 0.2, "evaluate_every": 1}
    with tempfile.TemporaryDirectory() as folder:
        whole, halves = Path(folder) / "whole", Path(folder) / "halves"
        once = toy.run_toy(make, whole, {**usual, "rounds": 4})
        toy.run_toy(make, halves, {**usual, "rounds": 2})
        twice = toy.run_toy(make, halves, {**usual, "rounds": 4}, resume=True)
        _no(state_difference(twice.state, once.state, 0), "a resumed run ends elsewhere")
        for who in sorted(set(once.memories) | set(twice.memories)):
            differs = message_difference(twice.memories.get(who, {}), once.memories.get(who, {}), 0)
            _no(differs, f"a resumed run leaves {who} with another memory")
        same = read_scores(halves).equals(read_scores(whole))
        require(same, "a resumed run has other scores on record")
        for there, here in zip(read_rounds(whole), read_rounds(halves), strict=True):
            del there["seconds"], here["seconds"]
            require(here == there, f"a resumed run has other facts on record: {here}, not {there}")


# In the order in which they stand here: what is simple and quick to see comes first.
CHECKS: dict[str, Callable[[Make], None]] = {
    name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")
}
