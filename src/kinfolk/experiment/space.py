"""What a search tries: settings by name with the values of each, and the points that these make."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kinfolk.algorithms import find_algorithm, options_of
from kinfolk.algorithms.options import search_space
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.method import Method
from kinfolk.experiment.sections import describe
from kinfolk.experiment.spec import override, values
from kinfolk.streams import Seed

Space = Mapping[str, Sequence[Any]]
Point = dict[str, Any]

# Factors on the spec's own learning rate, and limits of a gradient's norm (0: none).
RATES = (0.1, 0.3, 1.0, 3.0, 10.0)
CLIPS = (0.0, 1.0, 5.0)
# Of fine-tuning: factors on the learning rate that was chosen (0: that of the round), and epochs.
TUNE_RATES = (0.0, 0.1, 0.3)
TUNE_EPOCHS = (1, 3)
# Settings that change fine-tuned models alone, so that nothing has to be trained again for them.
FINE = ("local.tune_lr", "local.tune_epochs")


def parse_space(texts: Sequence[str]) -> dict[str, list[Any]]:
    """A space given as lines `section.key=value,value,...`.

    >>> parse_space(["local.lr=0.01,0.1", "algorithm.mu=1"])
    {'local.lr': ['0.01', '0.1'], 'algorithm.mu': ['1']}
    """
    found: dict[str, list[Any]] = {}
    for text in texts:
        name, equals, listed = (part.strip() for part in text.partition("="))
        given = [word.strip() for word in listed.split(",")]
        section, dot, key = name.partition(".")
        if not (equals and dot and key and all(given)):
            remedy = "write section.key=value,value, as in local.lr=0.01,0.03,0.1"
            raise KinfolkError("--space", text, remedy)
        if section in ("data", "engine", "run"):
            raise KinfolkError("--space", text, "is the same for every method; search local.* or algorithm.*")
        if name in found:
            raise KinfolkError("--space", text, "is named twice; give all its values at once")
        found[name] = given
    return found


def check_names(space: Space, methods: Sequence[Method]) -> None:
    """Refuse a setting that there is not, and an option that none of the methods has."""
    settings = {name for name, _, _ in describe()}
    options = {f"algorithm.{key}" for one in methods for key in _options(one)}
    for name in space:
        if name.startswith("model."):
            continue  # what a network takes is checked with the point
        known = options if name.startswith("algorithm.") else settings
        if name not in known:
            what = "no method here has such an option" if name.startswith("algorithm.") else "no such setting"
            raise KinfolkError("--space", name, f"{what}; {near(name, known)}")


def _options(method: Method) -> Mapping[str, Any]:
    return options_of(find_algorithm(method.spec.algorithm.name))


def space_of(method: Method, given: Space) -> dict[str, tuple[Any, ...]]:
    """What is searched for a method: what is given, or its rate, clip and own strengths; never what it sets.

    >>> from kinfolk.experiment.method import parse_method
    >>> from kinfolk.experiment.sections import Experiment
    >>> space_of(parse_method("fedprox;local.clip=0", Experiment()), {})["local.lr"]
    (0.01, 0.03, 0.1, 0.3, 1.0)
    """
    spec = method.spec
    space: dict[str, tuple[Any, ...]] = {name: tuple(listed) for name, listed in given.items()}
    if not given:
        space = {
            "local.lr": _scaled(spec.local.lr, RATES),
            "local.clip": tuple(sorted({*CLIPS, spec.local.clip})),
        }
        space |= search_space(find_algorithm(spec.algorithm.name))
    mine = {*method.own, *(f"algorithm.{key}" for key in spec.algorithm.options)}
    has = {f"algorithm.{key}" for key in _options(method)}
    return {
        name: listed
        for name, listed in space.items()
        if name not in mine and name not in FINE and (name in has or not name.startswith("algorithm."))
    }


def fine_space(method: Method, given: Space) -> dict[str, tuple[Any, ...]]:
    """What is searched for fine-tuned models, around the learning rate that the method has by now."""
    usual: Space = {
        "local.tune_lr": _scaled(method.spec.local.lr, TUNE_RATES),
        "local.tune_epochs": TUNE_EPOCHS,
    }
    space = given or usual
    return {name: tuple(space[name]) for name in FINE if name in space and name not in method.own}


def _scaled(rate: float, factors: Sequence[float]) -> tuple[float, ...]:
    return tuple(float(f"{rate * factor:.6g}") for factor in factors)


def points(method: Method, space: Space, seed: Seed) -> Iterator[Point]:
    """Every point of a space but the method's own settings, in an order that follows from the seed.

    Each setting goes through all its values before one comes again, in an order of its own that is the same
    for every method: with as many points, all methods are tried with the same learning rates.

    >>> from kinfolk.experiment.method import parse_method
    >>> from kinfolk.experiment.sections import Experiment
    >>> fedavg = parse_method("fedavg", Experiment())
    >>> sorted(point["local.lr"] for point in points(fedavg, {"local.lr": (0.01, 0.1, 0.3)}, Seed(0)))
    [0.01, 0.3]
    """
    draws = {name: seed.numpy("tune", name) for name in space}
    longest = max(map(len, space.values()), default=0)
    shuffled: Iterator[Point] = (
        dict(zip(space, chosen, strict=True))
        for _ in range(math.prod(map(len, space.values())) if space else 0)
        for chosen in zip(*(_cycled(space[n], draws[n], longest) for n in space), strict=True)
    )
    seen = set()
    for point in itertools.chain(shuffled, grid(space)):  # the grid has what no shuffle has brought together
        key = tuple(point.values())
        if key not in seen and not _is_own(method, point):
            yield point
        seen.add(key)


def _cycled(values: Sequence[Any], draw: np.random.Generator, many: int) -> list[Any]:
    """So many values, each as often as any other or once more, shuffled."""
    full = [values[i] for _ in range(-(-many // len(values))) for i in draw.permutation(len(values)).tolist()]
    return full[:many]


def _is_own(method: Method, point: Point) -> bool:
    """Whether a point is what the method has already; of options, what it has by default."""
    usual = {f"algorithm.{key}": value for key, value in _options(method).items()} | values(method.spec)
    try:
        there = values(override(method.spec, point))
    except KinfolkError:
        return False
    return all(there[name] == usual[name] for name in point)


def grid(space: Space) -> list[Point]:
    """All points of a small space, in order.

    >>> grid({"local.tune_lr": (0.0, 0.1), "local.tune_epochs": (1,)})[1]
    {'local.tune_lr': 0.1, 'local.tune_epochs': 1}
    """
    chosen = itertools.product(*space.values()) if space else ()
    return [dict(zip(space, one, strict=True)) for one in chosen]
