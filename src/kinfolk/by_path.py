"""What a user's import path `package.module:Name` names."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from kinfolk.errors import KinfolkError


def by_path(field: str, path: str) -> Any:
    """The class or function that the path names; modules of the working directory are found too.

    >>> by_path("model.name", "collections:OrderedDict").__name__
    'OrderedDict'
    """
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


def one_line(error: Exception) -> str:
    """An error on one line.

    >>> one_line(ValueError("two\\nlines"))
    'ValueError: two lines'
    """
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
