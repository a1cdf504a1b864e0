"""What a user's import path `package.module:Name` names, and what was given in Python under such a name."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from kinfolk.errors import KinfolkError, near

# Functions and classes that were handed over in this process: a spec holds names, and not all that is given
# in a notebook can be imported by its own. What is given again under a name replaces what was there.
_GIVEN: dict[str, Any] = {}


def by_path(field: str, path: str) -> Any:
    """The class or function that the path names; modules of the working directory are found too.

    >>> by_path("model.name", "collections:OrderedDict").__name__
    'OrderedDict'
    """
    if path in _GIVEN:
        return _GIVEN[path]
    if "," in path:
        listed = ", ".join(f'"{one.strip()}"' for one in path.split(","))
        raise KinfolkError(field, path, f"several names are a list: {field}=[{listed}]")
    module, _, name = path.partition(":")
    if not module or not name or module.startswith("."):
        raise KinfolkError(field, path, "an import path is 'package.module:Class'")
    # For this import alone: a file that happens to lie here must not shadow what is imported later.
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except Exception as error:  # a user's module can fail in any way while it is imported
        raise KinfolkError(field, path, f"cannot import {module}: {one_line(error)}") from error
    finally:
        sys.path.remove("")
    if not callable(found):
        raise KinfolkError(field, path, f"{module} has no class or function {name!r}")
    return found


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
    kind = known[name] if name in known else by_path(field, name)
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
