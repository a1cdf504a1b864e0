"""Every option of an algorithm tried once: each choice that is not the default, each flag, each zero.

The list is made from the fields of the class, so that a new option is tried without being listed anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args, get_origin

from kinfolk.algorithms.options import option_types, options_of, with_options
from kinfolk.codec import decode, encode
from kinfolk.contract import toy
from kinfolk.contract.checks import Make, require
from kinfolk.contract.compare import (
    ENGINE_TOLERANCE,
    message_difference,
    score_difference,
    state_difference,
    unsound,
)
from kinfolk.engines.coordinator import Coordinator
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import plain
from kinfolk.experiment.state import from_message, to_message
from kinfolk.script import Algorithm
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Client

# What numbers that are 0 unless they are set are set to: the first that an algorithm takes.
SOME = (1, 2, 0.5)
ROUNDS = 3


def others(kind: type[Any]) -> Iterator[tuple[str, Any]]:
    """(option, value) for each value that may be tried: other choices, turned flags, numbers that were 0.

    >>> from kinfolk.algorithms.robust import Robust
    >>> list(others(Robust))[:2]
    [('aggregate.name', 'mean'), ('aggregate.name', 'median')]
    """
    hints = option_types(kind)
    for name, usual in options_of(kind).items():
        if get_origin(hints[name]) is Literal:
            yield from ((name, value) for value in get_args(hints[name]) if value != usual)
        elif hints[name] is bool:
            yield name, not usual
        elif hints[name] in (int, float) and usual == 0:
            fits = [value for value in SOME if hints[name](value) == value]
            yield from ((name, hints[name](value)) for value in fits)


def variants(kind: type[Any], usual: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Options by what is tried: each by itself, or with the one other option without which it is refused.

    `usual` are options in which all variants begin. Of numbers the first that is possible is tried. A value
    that no single other option makes possible is left out; an option that has no other has an empty entry.

    >>> from kinfolk.algorithms.fedprox import FedProx
    >>> variants(FedProx, {"mu": 0.5})["weights=uniform"]
    {'mu': 0.5, 'weights': 'uniform'}
    """
    learner = toy.learner("mlp", toy.ragged())
    alone = list(others(kind))

    def makes(options: dict[str, Any]) -> bool:
        try:
            with_options(kind, learner, options)
        except KinfolkError:
            return False
        return True

    numbers = {name: type(old)(0) for name, old in options_of(kind).items() if type(old) in (int, float)}
    beside = [*alone, *numbers.items()]  # what an option may need: another value elsewhere, or a number off
    found: dict[str, dict[str, Any]] = {}
    for name, value in alone:
        tried = [{**usual, name: value}]
        tried += [{**usual, other: more, name: value} for other, more in beside if other != name]
        good = next((options for options in tried if makes(options)), None)
        number = not isinstance(value, bool | str)
        if good is not None and not (number and any(label.startswith(f"{name}=") for label in found)):
            found[f"{name}={value}"] = good
    for name in dict.fromkeys(name for name, _ in alone):
        if not any(label.startswith(f"{name}=") for label in found):
            found[f"{name}="] = {}
    return found


def check_variant(make: Make) -> None:
    """Three rounds, the first of which nobody answers: sound, alike in two engines, and after a stop."""
    algorithm = make(toy.learner("mlp", toy.ragged()))
    state, scores = played(algorithm, "loop")
    wrong = unsound(to_message(state)[0])
    require(not wrong, f"the state is not sound: {wrong}")
    for kind, by_client in scores.items():
        require(len(by_client) == len(toy.NAMES), f"not everybody has a {kind} score")
    again, other = played(algorithm, "loop", stops=True)
    differs = state_difference(again, state, 0) or score_difference(other, scores, 0)
    require(not differs, f"a run that was stopped ends elsewhere: {differs}")
    batched, third = played(algorithm, "batched")
    differs = state_difference(batched, state, ENGINE_TOLERANCE)
    differs = differs or score_difference(third, scores, ENGINE_TOLERANCE)
    require(not differs, f"engine 'batched' does not agree with 'loop': {differs}")


def played(algorithm: Algorithm[Any], engine: str, stops: bool = False) -> tuple[Any, toy.Scores]:
    """(state, scores) after the rounds; with `stops`, states and memories go to disk and back after each."""
    federation, seed = toy.ragged(), Seed(0)

    def absent(context: RoundContext, who: Client) -> bool:
        return context.round == 0 or (context.round + toy.NAMES.index(who)) % 5 == 0

    with toy.coordinated(algorithm, federation, engine, absent) as coordinator:
        state = algorithm.init(toy.first_model(algorithm), federation.clients, seed)
        for number in range(ROUNDS):
            context = RoundContext(seed, number, federation.clients)
            state = toy.play_one(algorithm, state, federation.clients, coordinator, context)
            state = through_disk(coordinator, state) if stops else state
        last = RoundContext(seed, ROUNDS, federation.clients)
        return state, toy.scores_of(algorithm, state, coordinator, last, federation.clients)


def through_disk(coordinator: Coordinator, state: Any) -> Any:
    """The state as it is when it has been written and read again; the clients' memories likewise."""
    memories = coordinator.engine.memories
    for who, memory in list(memories.items()):
        memories[who] = decode(encode(memory))[0]
        require(not message_difference(memories[who], memory, 0), f"the memory of {who} is not plain")
    tensors, facts = to_message(state)
    return from_message(state, decode(encode(tensors))[0], plain(facts), toy.CPU)
