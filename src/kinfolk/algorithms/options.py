"""Options of algorithms: the fields of their classes; one that is a frozen dataclass is a group of options.

Options are named as they are written: `k`, and `start.warm_epochs` for the field `warm_epochs` of the group
`start`, in TOML also as a table `[algorithm.start]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

from kinfolk.errors import KinfolkError, near
from kinfolk.learning.learner import Learner


def flat_options(table: Mapping[str, Any]) -> dict[str, Any]:
    """Options by dotted name, whether groups came as tables or as dotted names.

    >>> flat_options({"k": 2, "start": {"name": "warm_kmeans"}, "start.restarts": 5})
    {'k': 2, 'start.name': 'warm_kmeans', 'start.restarts': 5}
    """
    flat: dict[str, Any] = {}
    for name, value in table.items():
        if isinstance(value, Mapping):
            flat |= {f"{name}.{inner}": v for inner, v in flat_options(value).items()}
        else:
            flat[name] = value
    return flat


def options_of(kind: type[Any]) -> dict[str, Any]:
    """An algorithm's options by dotted name, with their defaults.

    >>> from kinfolk.algorithms.fedfomo import FedFomo
    >>> options_of(FedFomo)
    {'models': 5, 'norm': 'l2', 'epsilon': 0.3, 'decay': 0.05}
    """
    return _values({f.name: _default(f) for f in fields(kind) if _is_option(f)})


def option_values(algorithm: Any) -> dict[str, Any]:
    """The options that an algorithm was made with, by dotted name."""
    return _values({f.name: getattr(algorithm, f.name) for f in fields(algorithm) if _is_option(f)})


def option_types(kind: type[Any]) -> dict[str, Any]:
    """The declared types of an algorithm's options, by dotted name.

    >>> from kinfolk.algorithms.fedprox import FedProx
    >>> option_types(FedProx)["mu"]
    <class 'float'>
    """
    types: dict[str, Any] = {}
    for name, hint in get_type_hints(kind).items():
        if is_dataclass(hint) and isinstance(hint, type) and hint is not Learner:
            types |= {f"{name}.{inner}": h for inner, h in option_types(hint).items()}
        else:
            types[name] = hint
    return types


def option_groups(kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The groups of an algorithm with some options changed, by name, without the algorithm itself."""
    groups = {f.name: _default(f) for f in fields(kind) if _is_option(f) and is_dataclass(_default(f))}
    inside = {n: v for n, v in flat_options(options).items() if n.partition(".")[0] in groups and "." in n}
    return groups | _grouped(kind, inside)


def with_options(kind: type[Any], learner: Learner, options: Mapping[str, Any]) -> Any:
    """An algorithm with some options changed; names and types are not checked here."""
    return kind(learner=learner, **_grouped(kind, flat_options(options)))


def check_options(name: str, kind: type[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options as their types want them; unknown names and wrong types are errors.

    >>> from kinfolk.algorithms.fedprox import FedProx
    >>> check_options("fedprox", FedProx, {"mu": 1})
    {'mu': 1.0}
    >>> check_options("fedprox", FedProx, {"weight": 1})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.weight = 1: fedprox has no such option; did you mean 'weights'?
    """
    known, types, checked = options_of(kind), option_types(kind), {}
    for key, value in flat_options(options).items():
        if key not in known:
            raise KinfolkError(f"algorithm.{key}", value, _unknown(name, key, known))
        problem = _misfit(value, types[key])
        if problem:
            raise KinfolkError(f"algorithm.{key}", value, problem)
        checked[key] = float(value) if types[key] is float else value
    return checked


def search_space(kind: type[Any]) -> dict[str, tuple[Any, ...]]:
    """Values worth trying of an algorithm's own options, which it declares as a class attribute `tune_space`.

    >>> from kinfolk.algorithms.fedprox import FedProx
    >>> search_space(FedProx)
    {'algorithm.mu': (0.001, 0.01, 0.1, 1.0)}
    """
    declared: Mapping[str, tuple[Any, ...]] = getattr(kind, "tune_space", {})
    return {f"algorithm.{name}": tuple(values) for name, values in declared.items()}


def _is_option(f: Field[Any]) -> bool:
    return f.init and f.name != "learner"


def _default(f: Field[Any]) -> Any:
    return f.default if f.default_factory is MISSING else f.default_factory()


def _values(options: Mapping[str, Any]) -> dict[str, Any]:
    groups = {k: v for k, v in options.items() if is_dataclass(v) and not isinstance(v, type)}
    inner = {k: {f.name: getattr(v, f.name) for f in fields(v)} for k, v in groups.items()}
    return flat_options({k: _values(inner[k]) if k in inner else v for k, v in options.items()})


def _grouped(kind: Any, flat: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a class, or of a group of options, that dotted names speak of."""
    own = {name: value for name, value in flat.items() if "." not in name}
    groups = dict.fromkeys(name.partition(".")[0] for name in flat if "." in name)
    known = fields(kind) if groups else ()
    defaults = {f.name: _default(f) if isinstance(kind, type) else getattr(kind, f.name) for f in known}
    for group in groups:
        mine = {n.partition(".")[2]: v for n, v in flat.items() if n.startswith(f"{group}.")}
        own[group] = replace(defaults[group], **_grouped(defaults[group], mine))
    return own


def _unknown(name: str, key: str, known: Mapping[str, Any]) -> str:
    """What to say of an option that there is not."""
    inside = [option for option in known if option.startswith(f"{key}.")]
    if inside:
        return f"is a group of options; set one of {', '.join(inside)}"
    last = key.rpartition(".")[2]
    moved = [option for option in known if option.endswith(f".{last}") or option == last]
    hint = f"did you mean {moved[0]!r}?" if moved else near(key, known)
    return f"{name} has no such option; {hint}"


def _misfit(value: Any, hint: Any) -> str:
    """Why a value does not fit a declared type; empty if it does."""
    if get_origin(hint) is Literal:
        return "" if value in get_args(hint) else "choose one of " + ", ".join(map(repr, get_args(hint)))
    if hint is float:
        fits = isinstance(value, (int, float)) and not isinstance(value, bool)
        return "" if fits and abs(value) < float("inf") else "give a finite number"
    if hint is int:
        return "" if isinstance(value, int) and not isinstance(value, bool) else "give a whole number"
    if isinstance(hint, type) and not isinstance(value, hint):
        return f"give a {hint.__name__}"
    return ""
