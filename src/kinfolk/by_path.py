"""What a user's import path `package.module:Name` names, and what was given in Python under such a name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from importlib.util import find_spec
from typing import Any

from kinfolk.allowed import allowed, inside, offered
from kinfolk.errors import KinfolkError, near

OURS = "kinfolk"
# More than any path has that somebody means.
MOST_LETTERS = 200

# Functions and classes that were handed over in this process: a spec holds names, and not all that is given
# in a notebook can be imported by its own. What is given again under a name replaces what was there.
_GIVEN: dict[str, Any] = {}


def by_path(field: str, path: str, ours: Callable[[Any], bool]) -> Any:
    """The class or function that the path names, if whose it is was allowed; nothing is imported before.

    Of Kinfolk's own it must be of the kind that the setting takes, which `ours` tells: a function that writes
    files is no model. Modules that were allowed are found in the working directory too.

    >>> by_path("model.name", "subprocess:getoutput", callable)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: model.name = 'subprocess:getoutput': would run code of subprocess, which ...
    """
    if path in _GIVEN:
        return _GIVEN[path]
    if "," in path:
        listed = ", ".join(f'"{one.strip()}"' for one in path.split(","))
        raise KinfolkError(field, path, f"several names are a list: {field}=[{listed}]")
    module, _, name = path.partition(":")
    dunder = name.startswith("__")  # what every module has: not what somebody has written
    if dunder or len(path) > MOST_LETTERS or not all(map(str.isidentifier, [*module.split("."), name])):
        raise KinfolkError(field, path, "an import path is 'package.module:Class'")
    from_package = offered(field, path)
    if not (from_package or inside(module, OURS) or allowed(module)):
        raise _not_allowed(field, path, f"would run code of {module}", module)
    found = _imported(field, path, module, name)
    if not callable(found):
        raise KinfolkError(field, path, f"{module} has no class or function {name!r}")
    home = _home(found, module)
    if inside(home, OURS) and not ours(found):
        raise KinfolkError(field, path, "is no such thing; of Kinfolk's own, name what `kinfolk list` shows")
    if not (from_package or inside(home, OURS) or allowed(home)):
        raise _not_allowed(field, path, f"is not of {module} but of {home}", home)
    return found


def _not_allowed(field: str, path: str, why: str, module: str) -> KinfolkError:
    remedy = f"add --allow-import {module} if you trust it (in Python: kinfolk.allow_imports({module!r}))"
    return KinfolkError(field, path, f"{why}, which nobody has allowed; {remedy}")


def _imported(field: str, path: str, module: str, name: str) -> Any:
    """What a module has by that name; what the person has named and is not installed may lie where they work.

    So a file that happens to lie there, in a stranger's folder, takes the place of nothing that is installed,
    nor of what that would import.
    """
    top = module.partition(".")[0]
    here = allowed(module) and not _installed(top)
    if here:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), name, None)
    except Exception as error:  # a user's module can fail in any way while it is imported
        raise KinfolkError(field, path, f"cannot import {module}: {one_line(error)}") from error
    finally:
        if here:
            sys.path.remove("")


def _installed(top: str) -> bool:
    """Whether there is such a module; a folder of that name with nothing in it to import is none."""
    if top in sys.modules:
        return True
    found = find_spec(top)
    return found is not None and found.origin is not None


def _home(found: Any, module: str) -> str:
    """The module that defines a class or function; an object that is neither is of the module that has it."""
    if not hasattr(found, "__qualname__"):
        return module
    owner = getattr(found, "__self__", None)  # of what is written in C, which may not say where it is from
    owner = owner if isinstance(owner, type) else type(owner)
    return str(found.__module__ or owner.__module__)


def path_of(thing: Any, name: str = "", of: Any = None) -> str:
    """The import path by which a spec names something that is given in Python; `by_path` finds it again.

    `name` is its own, where it is not that of a class or function; `of` something in the same module.

    >>> path_of(near)
    'kinfolk.errors:near'
    """
    kind = of or thing
    kind = kind if hasattr(kind, "__qualname__") else type(kind)
    path = f"{getattr(kind, '__module__', '__main__')}:{name or kind.__qualname__}"
    _GIVEN[path] = thing
    return path


def made_by_name(
    field: str,
    name: str,
    known: Mapping[str, type[Any]],
    options: Mapping[str, Any],
    usual: Mapping[str, Any] | None = None,
) -> Any:
    """An object of a registered class, or what an import path names, with these options.

    A class of a path is made like a registered one; a function or an object that is ready is given as it is.
    `usual` are settings of which those are taken that the class has as options.

    >>> from kinfolk.learning.optim import OPTIMISERS
    >>> made_by_name("local.optimiser", "sgd", OPTIMISERS, {"nesterov": True}, {"momentum": 0.9, "batch": 20})
    SGD(momentum=0.9, weight_decay=0.0, nesterov=True)
    >>> made_by_name("loss", "sgd", OPTIMISERS, {"nestrov": True})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: loss_options.nestrov = True: not an option of sgd; did you mean 'nesterov'?
    """
    if name not in known and ":" not in name:
        raise KinfolkError(field, name, near(name, known) + "; or give an import path, 'package.module:name'")
    kind = known[name] if name in known else by_path(field, name, lambda kind: kind in known.values())
    if not isinstance(kind, type):
        if options:
            raise KinfolkError(f"{field}_options", dict(options), f"{name} takes none: it is no class")
        return kind
    theirs = {f.name: f for f in fields(kind)} if is_dataclass(kind) else {}
    for option, value in options.items():
        where = f"{field}_options.{option}"
        if theirs and option not in theirs:
            raise KinfolkError(where, value, f"not an option of {name}; {near(option, theirs)}")
        if theirs:
            _check_kind(where, value, theirs[option].default)
    given = {n: v for n, v in (usual or {}).items() if n in theirs} | dict(options)
    try:
        return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})
    except KinfolkError as error:  # an option out of bounds, which knows only its own name
        raise KinfolkError(f"{field}_options.{error.field}", error.value, error.remedy) from error
    except Exception as error:  # whatever a user's class raises
        raise KinfolkError(field, name, f"cannot be made: {one_line(error)}") from error


def _check_kind(where: str, value: Any, usual: Any) -> None:
    """Refuse an option of another kind than its default is of."""
    words: dict[type, tuple[Any, str]] = {
        bool: (bool, "true or false"),
        int: (int, "a whole number"),
        float: ((int, float), "a number"),
        tuple: ((list, tuple), "a list of numbers"),
        str: (str, "text"),
    }
    if usual is MISSING or type(usual) not in words:
        return
    fits, word = words[type(usual)]
    if not isinstance(value, fits) or (isinstance(value, bool) and type(usual) is not bool):
        raise KinfolkError(where, value, f"give {word}")


def one_line(error: Exception) -> str:
    """An error on one line.

    >>> one_line(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
