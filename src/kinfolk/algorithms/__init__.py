"""The algorithms by name: one file per paper, one line per algorithm in the table."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from kinfolk.algorithms.clustered_fl import ClusteredFL
from kinfolk.algorithms.clustered_hdbscan import ClusteredHDBSCAN
from kinfolk.algorithms.fedavg import FedAvg
from kinfolk.algorithms.fedavg_no_buffers import FedAvgNoBuffers
from kinfolk.algorithms.fedavg_tuned import FedAvgTuned
from kinfolk.algorithms.feddane import FedDANE
from kinfolk.algorithms.feddc import FedDC
from kinfolk.algorithms.feddist import FedDist, FedDWS
from kinfolk.algorithms.fedem import FedEM
from kinfolk.algorithms.fedfomo import FedFomo
from kinfolk.algorithms.fedprox import FedProx
from kinfolk.algorithms.fedsgd import FedSGD
from kinfolk.algorithms.fesem.fesem import FeSEM, FeSEMShared
from kinfolk.algorithms.fesem.fesem_ma import FeSEMMA
from kinfolk.algorithms.hypcluster import HypCluster
from kinfolk.algorithms.ifca import IFCA
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.majority_label import MajorityLabel
from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.robust import Robust
from kinfolk.algorithms.slfed.slfed import SLFed
from kinfolk.algorithms.slfed.slfed_similar import SLFedSimilar
from kinfolk.errors import KinfolkError, near
from kinfolk.learning.learner import Learner
from kinfolk.script import Algorithm

ALGORITHMS: dict[str, type[Any]] = {
    "majority_label": MajorityLabel,
    "local": Local,
    "fedsgd": FedSGD,
    "fedavg": FedAvg,
    "fedavg_no_buffers": FedAvgNoBuffers,
    "fedavg_tuned": FedAvgTuned,
    "fedprox": FedProx,
    "feddist": FedDist,
    "feddws": FedDWS,
    "fesem": FeSEM,
    "fesem_ma": FeSEMMA,
    "fesem_shared": FeSEMShared,
    "feddane": FedDANE,
    "feddc": FedDC,
    "fedfomo": FedFomo,
    "fedem": FedEM,
    "clustered_fl": ClusteredFL,
    "clustered_hdbscan": ClusteredHDBSCAN,
    "ifca": IFCA,
    "hypcluster": HypCluster,
    "mdicfl": MDICFL,
    "robust": Robust,
    "slfed": SLFed,
    "slfed_similar": SLFedSimilar,
}


def summary_line(kind: type[Any]) -> str:
    """The first line of an algorithm's docstring.

    >>> summary_line(FedAvg)
    'One model for everyone: the weighted mean of what the clients trained.'
    """
    return (inspect.getdoc(kind) or "").split("\n")[0]


def find_algorithm(name: str) -> type[Any]:
    """An algorithm's class by its name in the table, or by import path `package.module:Class`.

    >>> find_algorithm("fedavg").__name__
    'FedAvg'
    """
    if ":" not in name:
        if name not in ALGORITHMS:
            raise KinfolkError("algorithm.name", name, near(name, ALGORITHMS))
        return ALGORITHMS[name]
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        kind = getattr(importlib.import_module(module), attribute)
    except ImportError as bad:
        raise KinfolkError("algorithm.name", name, f"could not import it: {bad}") from bad
    except AttributeError as bad:
        raise KinfolkError("algorithm.name", name, f"{module} has no {attribute}") from bad
    if not (inspect.isclass(kind) and is_dataclass(kind) and "learner" in {f.name for f in fields(kind)}):
        raise KinfolkError("algorithm.name", name, "must be a dataclass with a field 'learner: Learner'")
    return kind


def options_of(kind: type[Any]) -> Mapping[str, Any]:
    """An algorithm's options with their defaults.

    >>> dict(options_of(FedProx))
    {'mu': 0.1, 'weights': 'size'}
    """
    return {f.name: f.default for f in fields(kind) if f.name != "learner" and f.init}


def build_algorithm(name: str, learner: Learner, options: Mapping[str, Any]) -> Algorithm[Any]:
    """An algorithm with its options checked: unknown names and wrong types are errors."""
    kind = find_algorithm(name)
    hints = get_type_hints(kind)
    for key, value in options.items():
        if key not in options_of(kind):
            raise KinfolkError(
                f"algorithm.{key}", value, f"{name} has no such option; {near(key, options_of(kind))}"
            )
        problem = _misfit(value, hints[key])
        if problem:
            raise KinfolkError(f"algorithm.{key}", value, problem)
    given = {k: float(v) if hints[k] is float else v for k, v in options.items()}
    make: Callable[..., Algorithm[Any]] = kind
    return make(learner=learner, **given)


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
