"""What `run.json` says of a run: its data, network, engine and versions."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from kinfolk.engines.choose import Choice
from kinfolk.experiment.attack import SUCCESS
from kinfolk.experiment.build import Parts, parameters
from kinfolk.experiment.record import FORMAT
from kinfolk.experiment.spec import run_id
from kinfolk.learning.learner import Learner


def description(parts: Parts, choice: Choice, how: Mapping[str, Any]) -> dict[str, Any]:
    """All that is known of a run; `how` it stands comes after what it is.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import EngineSpec, Experiment
    >>> one = Choice(EngineSpec("loop", "cpu"), "as asked")
    >>> list(description(build_parts(Experiment()), one, {"status": "running"}))[:5]
    ['format', 'algorithm', 'title', 'seed', 'status']
    """
    federation, spec = parts.federation, parts.spec
    groups = None if federation.truth is None else len(set(federation.truth.tolist()))
    facts = {
        "format": FORMAT,
        "algorithm": spec.algorithm.name,
        "title": parts.title,
        "seed": spec.run.seed,
        **how,
        "why": choice.why,
        "choice": {**asdict(choice.engine), "device": choice.device.type, "why": choice.why},
        "federation": {
            "name": federation.name,
            "clients": len(federation.clients),
            "rows": int(federation.splits["train"].counts().sum()),
            "classes": federation.classes,
            "groups": groups,
            "fingerprint": federation.fingerprint(),
        },
        "model": {"name": spec.model.name, "parameters": parameters(parts.learner), **_frozen(parts.learner)},
        "versions": versions(),
        "id": run_id(spec),
    }
    facts |= {"own": dict(parts.own)} if parts.own else {}
    extra = {metric.name: asdict(metric.score) for metric in parts.learner.metrics}
    facts |= {"scores": extra} if extra else {}
    if parts.attack is None:
        return facts
    if parts.attack.trigger:
        told = {"title": "Attack success", "percent": False, "lower_is_better": True}
        facts["scores"] = facts.get("scores", {}) | {SUCCESS: told}
    return facts | {"attackers": sorted(parts.attack.who)}


def _frozen(learner: Learner) -> dict[str, int]:
    """How many numbers are frozen, where some are."""
    count = sum(t.numel() for t in learner.frozen.values())
    return {"frozen": count} if count else {}


def versions() -> dict[str, str]:
    """The versions that a result depends on.

    >>> "torch" in versions()
    True
    """
    found = {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine()}
    for name in ("kinfolk", "numpy", "scikit-learn", "safetensors"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
