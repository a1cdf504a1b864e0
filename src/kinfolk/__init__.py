"""Kinfolk: federated learning among clients who are not alike."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.api import Comparison, compare, run
    from kinfolk.errors import KinfolkError
    from kinfolk.experiment.run import Result
    from kinfolk.federation.federation import Federation
    from kinfolk.federation.own import from_arrays

# Names are imported when they are first used: reading reports must not wait for torch.
_HOMES = {
    "Comparison": "kinfolk.api",
    "Federation": "kinfolk.federation.federation",
    "KinfolkError": "kinfolk.errors",
    "Result": "kinfolk.experiment.run",
    "compare": "kinfolk.api",
    "from_arrays": "kinfolk.federation.own",
    "run": "kinfolk.api",
}

__all__ = ["Comparison", "Federation", "KinfolkError", "Result", "compare", "from_arrays", "run"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
