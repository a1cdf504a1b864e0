"""What every algorithm must do, as checks that anybody's algorithm can be put through.

A check takes something that makes the algorithm from a learner. It says nothing if all is well, raises
AssertionError with one sentence if not, and Skip if it can not apply.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
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
from kinfolk.contract.spoil import HARMS, spoil
from kinfolk.engines.choose import ENGINES
from kinfolk.engines.stage import drop_outs
from kinfolk.errors import KinfolkError
from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.record import MODELS, plain, read_rounds, read_scores
from kinfolk.experiment.run import Result, run
from kinfolk.experiment.sections import AlgorithmSpec, EngineSpec, Experiment, LocalSpec, RunSpec
from kinfolk.experiment.spec import dump
from kinfolk.experiment.state import from_message, to_message
from kinfolk.learning.learner import Learner
from kinfolk.script import Algorithm, Exchange, Groups, Request, play
from kinfolk.streams import Seed, Turn
from kinfolk.task import Swap, Task
from kinfolk.types import Client, Message

Make = Callable[[Learner], Algorithm[Any]]
METHODS = ("init", "tasks", "round", "serve", "scored")


class Skip(Exception):
    """This check does not apply; the text says why."""


def check_is_an_algorithm(make: Make) -> None:
    """It is a frozen dataclass with the methods of `script.Algorithm`, and names what it scores."""
    algorithm = make(toy.learner("mlp", toy.ragged()))
    kind = type(algorithm)
    name = kind.__name__
    assert is_dataclass(kind) and hasattr(algorithm, "learner"), f"{name} must be a dataclass with a learner"
    assert kind.__dataclass_params__.frozen, f"{name} must be frozen: what changes belongs in its state"
    for method in METHODS:
        assert callable(getattr(algorithm, method, None)), f"{name} has no method '{method}'"
    for task, what in algorithm.tasks().items():
        assert isinstance(what, Task | Swap), (
            f"tasks()['{task}'] is a {type(what).__name__}, not a Task or Swap"
        )
    assert algorithm.scored(), "scored() is empty: there is nothing to compare"
    for scored in algorithm.scored():
        assert scored in MODELS, f"scored() names {scored!r}; use one of {', '.join(MODELS)}"


def check_engines_agree(make: Make, network: str = "tiny_cnn") -> None:
    """Loop, batched, workers and wire give the same states, memories, scores, groups and bytes."""
    large = network == "lenet"
    federation = toy.images28() if large else toy.ragged()
    algorithm = make(toy.learner(network, federation))
    rounds, share = (1, 1.0) if large else (2, 0.8)
    found = {name: toy.play_rounds(algorithm, federation, name, rounds, 0, share) for name in ENGINES}
    for name in ENGINES:
        differs = outcome_difference(found[name], found["loop"], ENGINE_TOLERANCE)
        assert not differs, f"engine '{name}' does not agree with 'loop' on {network}: {differs}"


def check_engines_agree_on_lenet(make: Make) -> None:
    """The engines agree on a network without BatchNorm as well, and on larger images."""
    check_engines_agree(make, "lenet")


def check_same_seed_same_bits(make: Make) -> None:
    """Twice the same seed gives twice the same bits, and no global generator is touched."""
    federation = toy.ragged()
    algorithm = make(toy.learner("mlp", federation))
    for name in ("loop", "batched", "workers"):
        before = _generators()
        first, second = (toy.play_rounds(algorithm, federation, name, participation=0.8) for _ in range(2))
        differs = outcome_difference(second, first, 0)
        assert not differs, f"the same seed gave other bits the second time ({name}): {differs}"
        for library, was, now in zip(("torch", "numpy", "random"), before, _generators(), strict=True):
            assert was == now, f"it draws from the global generator of {library}; draw from turn.seed instead"


def _generators() -> tuple[bytes, str, str]:
    return torch.get_rng_state().numpy().tobytes(), str(np.random.get_state()), str(random.getstate())


def check_order_of_clients(make: Make) -> None:
    """Clients handed over in another order give the same bits."""
    algorithm = make(toy.learner("mlp", toy.ragged()))
    for name in ("loop", "batched"):
        forwards, backwards = (
            toy.play_rounds(algorithm, toy.ragged(backwards=way), name, participation=0.8)
            for way in (False, True)
        )
        differs = outcome_difference(backwards, forwards, 0)
        assert not differs, f"the order in which clients were handed over matters ({name}): {differs}"


def check_renamed_clients(make: Make) -> None:
    """Clients under other names, sorted the other way round, have the scores that belong to their rows.

    Batches hold all rows, so that shuffles do not matter. Some clients are not asked and some do not
    answer, so that a position taken for an identity shows.
    """
    new = dict(zip(toy.NAMES, reversed(toy.NAMES), strict=True))
    plain, renamed = (_played_by_name(make, name.__getitem__) for name in ({n: n for n in new}, new))
    back = {kind: {new[c]: s for c, s in by.items()} for kind, by in renamed.items()}
    differs = score_difference(back, plain, 1e-4)
    if differs and score_difference(_played_by_name(make, str, seed=1), plain, 1e-4):
        raise Skip("it draws for each client by itself, so that a new name is a new draw")
    assert not differs, f"a client's result depends on where its name sorts: {differs}"


def _played_by_name(
    make: Make, name: Callable[[Client], str], seed: int = 0
) -> dict[str, dict[Client, tuple[int, float]]]:
    """The scores of clients called `name(...)` after rounds in which some are not asked or do not answer."""
    names = [Client(name(c)) for c in toy.NAMES]
    federation = toy.ragged(names)
    algorithm = make(toy.learner("mlp", toy.ragged(), batch=64))
    asked = [names, [names[i] for i in (1, 2, 4, 5, 7)], names]
    missing = [{names[0], names[3]}, {names[2]}, {names[1]}]
    outcome = toy.play_rounds(
        algorithm,
        federation,
        rounds=3,
        seed=seed,
        absent=lambda turn, who: who in missing[turn.round],
        cohort=lambda number: sorted(asked[number]),
    )
    return outcome.scores


def check_state_not_mutated(make: Make) -> None:
    """A round leaves the state, the memories and the messages it was given as they were."""
    federation = toy.ragged()
    algorithm = make(toy.learner("tiny_cnn", federation))
    for name in ("loop", "batched"):
        with toy.staged(algorithm, federation, name) as stage:
            first = toy.first_model(algorithm)
            state = algorithm.init(first, federation.clients, Seed(0))
            for number in range(2):
                turn = Turn(Seed(0), number, federation.clients)
                held = dict(stage.engine.memories)
                before = copied(to_message(state)[0]), {c: copied(m) for c, m in held.items()}

                def perform(request: Request, turn: Turn = turn) -> Any:
                    return _watched(request, lambda: stage.perform(request, turn), name)  # noqa: B023

                after, _ = play(algorithm.round(state, federation.clients, turn), perform)
                differs = message_difference(to_message(state)[0], before[0], 0)
                assert not differs, f"a round ({name}) changed the state it was given: {differs}"
                for who, memory in before[1].items():
                    differs = message_difference(held[who], memory, 0)
                    assert not differs, f"a round ({name}) wrote into the memory of {who}: {differs}"
                state = after


def _watched(request: Request, perform: Callable[[], Any], engine: str) -> Any:
    """Perform a request and see that its messages stay as they were."""
    if isinstance(request, Exchange):
        return perform()
    sent = [request.shared] + ([request.each.body] if request.each else [])
    before = [copied(m) for m in sent]
    answer = perform()
    for message, was in zip(sent, before, strict=True):
        differs = message_difference(message, was, 0)
        assert not differs, f"task '{request.task}' ({engine}) wrote into the message it was sent: {differs}"
    return answer


def check_replies_as_declared(make: Make) -> None:
    """In a healthy run no reply is refused: each task sends what it declares."""
    federation = toy.ragged()
    for network in ("mlp", "tiny_cnn"):
        outcome = toy.play_rounds(make(toy.learner(network, federation)), federation, "batched", rounds=1)
        refused = [facts for event, facts in outcome.log if event == "rejected"]
        assert not refused, (
            f"task '{refused[0]['task']}' does not reply what it declares: {refused[0]['reason']}"
        )


def check_resume(make: Make) -> None:
    """Two rounds, a stop and two more give the same bits and records as four at once."""
    with tempfile.TemporaryDirectory() as folder:
        whole, halves = Path(folder) / "whole", Path(folder) / "halves"
        once = _run(make, whole, rounds=4, participation=0.5, absent=0.2)
        _run(make, halves, rounds=2, participation=0.5, absent=0.2)
        twice = _run(make, halves, rounds=4, participation=0.5, absent=0.2, resume=True)
        differs = state_difference(twice.state, once.state, 0)
        assert not differs, f"a resumed run ends elsewhere: {differs}"
        for who in sorted(set(once.memories) | set(twice.memories)):
            differs = message_difference(twice.memories.get(who, {}), once.memories.get(who, {}), 0)
            assert not differs, f"a resumed run leaves {who} with another memory: {differs}"
        assert read_scores(halves).equals(read_scores(whole)), "a resumed run has other scores on record"
        for a, b in zip(read_rounds(halves), read_rounds(whole), strict=True):
            a.pop("seconds"), b.pop("seconds")
            assert a == b, f"a resumed run has other facts on record: {a}, not {b}"


def _run(make: Make, folder: Path, resume: bool = False, **settings: Any) -> Result:
    """A run from a spec to a folder, on the toy federation."""
    federation = toy.ragged()
    learner = toy.learner("mlp", federation)
    return run(
        _spec(make(learner), settings), folder, federation=federation, network=learner.module, resume=resume
    )


def _spec(algorithm: Algorithm[Any], settings: dict[str, Any]) -> Experiment:
    kind = type(algorithm)
    if "<" in kind.__qualname__:
        raise Skip(f"{kind.__name__} is defined inside a function, where a run can not import it")
    options = {f.name: getattr(algorithm, f.name) for f in fields(kind) if f.init and f.name != "learner"}
    name = f"{kind.__module__}:{kind.__qualname__}"
    return Experiment(
        local=LocalSpec(batch=8, lr=0.05),
        algorithm=AlgorithmSpec(name, options),
        engine=EngineSpec("loop", "cpu"),
        run=RunSpec(**settings),
    )


def check_survives_drop_outs(make: Make) -> None:
    """Three in ten clients miss each round; everything stays finite and everybody can be scored."""
    federation = toy.ragged()
    algorithm = make(toy.learner("tiny_cnn", federation))
    outcome = toy.play_rounds(algorithm, federation, "batched", rounds=4, absent=drop_outs(0.3))
    _sound(outcome, federation.clients, "after rounds with drop-outs")


def check_survives_cohort_of_one(make: Make) -> None:
    """One client a round is enough, the one with a single row included."""
    federation = toy.ragged()
    algorithm = make(toy.learner("tiny_cnn", federation))
    outcome = toy.play_rounds(algorithm, federation, rounds=3, participation=0.01)
    _sound(outcome, federation.clients, "with one client a round")
    single = toy.NAMES[toy.ROWS.index(1)]
    for engine in ENGINES:
        outcome = toy.play_rounds(algorithm, federation, engine, rounds=1, cohort=lambda number: [single])
        _sound(outcome, federation.clients, f"with one client of one row ({engine})")


def check_survives_nobody(make: Make) -> None:
    """Rounds that nobody answers end a run with an error, and leave models and memories as they were."""
    federation = toy.ragged()
    algorithm = make(toy.learner("mlp", federation))
    _sound(
        toy.play_rounds(algorithm, federation, absent=lambda turn, who: True),
        federation.clients,
        "after rounds that nobody answered",
    )
    settings = {"rounds": 4, "absent": 1 - 1e-12}
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run(make, Path(folder), **settings)
        except KinfolkError as error:
            assert error.field == "run", f"a run that nobody answered ended otherwise than expected: {error}"
        loaded, _ = load_latest(Path(folder) / "checkpoints", dump(_spec(algorithm, settings)))
        assert loaded is not None, "a run that nobody answered left no checkpoint"
        start = algorithm.init(toy.first_model(algorithm), federation.clients, Seed(0))
        end = from_message(start, loaded.tensors["state"], loaded.facts["state"], toy.CPU)
        differs = state_difference(end, start, 0)
        assert not differs, f"a round that nobody answered changed the state: {differs}"
        assert not loaded.tensors["memory"], "a round that nobody answered changed a memory"


def _sound(outcome: toy.Outcome, clients: Sequence[Client], when: str) -> None:
    """Everything is finite and everybody has a score of every kind."""
    wrong = unsound(to_message(outcome.state)[0])
    assert not wrong, f"{when}, state.{wrong}"
    for who, memory in outcome.memories.items():
        wrong = unsound(memory)
        assert not wrong, f"{when}, the memory of {who}: {wrong}"
    for kind, by_client in outcome.scores.items():
        assert set(by_client) == set(clients), (
            f"{when}, {kind} scores are missing for {set(clients) - set(by_client)}"
        )
        bad = [who for who, (_, loss) in by_client.items() if not np.isfinite(loss)]
        assert not bad, f"{when}, the {kind} model of {bad[0]} has no finite loss"


def check_bad_replies(make: Make) -> None:
    """A damaged reply is refused by name and counts as missing; the others' replies count."""
    federation = toy.ragged()
    algorithm = make(toy.learner("mlp", federation))
    tasks = algorithm.tasks().values()
    if not any(task.reply for task in tasks if isinstance(task, Task)):
        raise Skip("its clients reply with nothing")
    bad = [toy.NAMES[i] for i in (0, 2, 3, 5, 7)]
    without = toy.play_rounds(algorithm, federation, absent=lambda turn, who: who in bad)
    for ways in (list(HARMS)[0::2], list(HARMS)[1::2]):
        how = dict(zip(bad, ways, strict=True))
        outcome = toy.play_rounds(algorithm, federation, wrap=spoil(how))
        refused = outcome.named("rejected")
        for who, way in how.items():
            assert who in refused, f"a reply with {way} was not refused"
        assert refused == set(bad), f"sound replies were refused: {sorted(refused - set(bad))}"
        wrong = unsound(to_message(outcome.state)[0])
        assert not wrong, f"after refused replies, state.{wrong}"
        # Whoever is refused by the coordinator still writes to its peers; who is absent does not.
        if not any(isinstance(task, Swap) for task in tasks):
            differs = state_difference(outcome.state, without.state, 0)
            assert not differs, f"a refused reply is not the same as a missing one: {differs}"


def check_state_is_plain(make: Make) -> None:
    """The state survives the way to disk and back: tensors, trees, finite numbers and text."""
    federation = toy.ragged()
    algorithm = make(toy.learner("tiny_cnn", federation))
    for rounds in (0, 1):
        state = toy.play_rounds(algorithm, federation, rounds=rounds).state
        assert is_dataclass(state), f"the state is a {type(state).__name__}, not a dataclass"
        assert type(state).__dataclass_params__.frozen, "the state must be a frozen dataclass"
        tensors, facts = to_message(state)
        back = from_message(state, decode(encode(tensors))[0], plain(facts), toy.CPU)
        differs = state_difference(back, state, 0)
        assert not differs, f"the state does not survive the way to disk: {differs}"


def check_scores_everyone(make: Make) -> None:
    """Everybody can be scored, those never asked as well; groups, if any, cover everybody."""
    federation = toy.ragged()
    algorithm = make(toy.learner("mlp", federation))
    for rounds in (0, 1):
        outcome = toy.play_rounds(algorithm, federation, rounds=rounds, participation=0.3)
        assert set(outcome.scores) == set(algorithm.scored()), "a kind of model could not be scored"
        _sound(outcome, federation.clients, f"after {rounds} rounds")
        if isinstance(algorithm, Groups):
            labels = algorithm.groups(outcome.state)
            assert labels.shape == (len(federation.clients),), "groups() must give one group per client"
            assert labels.dtype == torch.int64, f"groups() gives {labels.dtype}, not whole numbers"


def check_serves_any_subset(make: Make) -> None:
    """What a client is served does not depend on who else is."""
    federation = toy.ragged()
    algorithm = make(toy.learner("mlp", federation))
    with toy.staged(algorithm, federation) as stage:
        state = algorithm.init(toy.first_model(algorithm), federation.clients, Seed(0))
        state = toy.play_one(
            algorithm, state, federation.clients, stage, Turn(Seed(0), 0, federation.clients)
        )
        everyone = _served(algorithm, state, federation.clients)
        turn = Turn(Seed(0), 1, federation.clients)
        scores = toy.scores_of(algorithm, state, stage, turn, federation.clients)
        for who in (toy.NAMES[4:5], toy.NAMES[::3], tuple(reversed(toy.NAMES[1:4]))):
            for client, message in _served(algorithm, state, who).items():
                differs = message_difference(message, everyone[client], 0)
                assert not differs, f"what {client} is served depends on who else is served: {differs}"
            for kind, some in toy.scores_of(algorithm, state, stage, turn, who).items():
                wanted = {kind: {c: scores[kind][c] for c in who}}
                differs = score_difference({kind: some}, wanted, 0)
                assert not differs, f"scores depend on who else is scored: {differs}"


def _served(algorithm: Algorithm[Any], state: Any, who: tuple[Client, ...]) -> dict[Client, Message]:
    shared, each = algorithm.serve(state, who)
    if each is not None:
        assert each.clients == tuple(sorted(who)), f"serve() for {list(who)} answers for {list(each.clients)}"
    return {c: {**shared, **(each.row(c) if each is not None else {})} for c in who}


def check_learns_something(make: Make) -> None:
    """Where everybody holds the same easy task, a few rounds lower the loss."""
    federation = toy.alike()
    algorithm = make(toy.learner("mlp", federation))
    before, after = (toy.play_rounds(algorithm, federation, "batched", rounds=r).scores for r in (0, 4))
    for kind in algorithm.scored():
        was, now = (float(np.mean([loss for _, loss in s[kind].values()])) for s in (before, after))
        assert now < was, f"the loss of the {kind} model went from {was:.3f} to {now:.3f} on an easy task"


CHECKS: dict[str, Callable[[Make], None]] = {
    "is_an_algorithm": check_is_an_algorithm,
    "replies_as_declared": check_replies_as_declared,
    "learns_something": check_learns_something,
    "engines_agree": check_engines_agree,
    "engines_agree_on_lenet": check_engines_agree_on_lenet,
    "same_seed_same_bits": check_same_seed_same_bits,
    "order_of_clients": check_order_of_clients,
    "renamed_clients": check_renamed_clients,
    "state_not_mutated": check_state_not_mutated,
    "state_is_plain": check_state_is_plain,
    "scores_everyone": check_scores_everyone,
    "serves_any_subset": check_serves_any_subset,
    "survives_drop_outs": check_survives_drop_outs,
    "survives_cohort_of_one": check_survives_cohort_of_one,
    "survives_nobody": check_survives_nobody,
    "bad_replies": check_bad_replies,
    "resume": check_resume,
}
