"""A run's promise in words, for tables, reports and cards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def promise(facts: Mapping[str, Any]) -> str:
    """What `run.json` says under "privacy", in words; empty for a run without noise.

    >>> promise({})
    ''
    >>> promise({"epsilon": 1.447, "delta": 1e-5, "budget": 3.0, "mode": "local", "clip": 1.0, "noise": 5.0})
    'epsilon 1.45 of 3 at delta 1e-05 for what a client trains; noise by each client'
    """
    if not facts:
        return ""
    of = f" of {facts['budget']:g}" if facts["budget"] else ""
    whose = "each client" if facts["mode"] == "local" else "the server, which sees updates without"
    spent = f"epsilon {facts['epsilon']:.3g}{of} at delta {facts['delta']:g}"
    return f"{spent} for what a client trains; noise by {whose}"
