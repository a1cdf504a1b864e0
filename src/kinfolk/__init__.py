"""Kinfolk: federated learning among clients who are not alike."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.api import Comparison, KChoice, Placed, assign, choose_k, compare, run
    from kinfolk.errors import KinfolkError
    from kinfolk.experiment.run import Result
    from kinfolk.federation.federation import Federation
    from kinfolk.federation.own_data.arrays import from_arrays

# Names are imported when they are first used: reading reports must not wait for torch.
_HOMES = {
    "Comparison": "kinfolk.api",
    "Federation": "kinfolk.federation.federation",
    "KChoice": "kinfolk.api",
    "KinfolkError": "kinfolk.errors",
    "Placed": "kinfolk.api",
    "Result": "kinfolk.experiment.run",
    "assign": "kinfolk.api",
    "choose_k": "kinfolk.api",
    "compare": "kinfolk.api",
    "from_arrays": "kinfolk.federation.own_data.arrays",
    "run": "kinfolk.api",
}

__all__ = [
    "Comparison",
    "Federation",
    "KChoice",
    "KinfolkError",
    "Placed",
    "Result",
    "assign",
    "choose_k",
    "compare",
    "from_arrays",
    "run",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("kinfolk")
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
