"""The algorithms by name: one file per paper, one line per algorithm in the table."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from kinfolk.algorithms.apfl import APFL
from kinfolk.algorithms.clustered_fl import ClusteredFL
from kinfolk.algorithms.clustered_hdbscan import ClusteredHDBSCAN
from kinfolk.algorithms.ditto import Ditto
from kinfolk.algorithms.fedala import FedALA
from kinfolk.algorithms.fedavg import FedAvg, FedAvgNoBuffers, FedAvgTuned
from kinfolk.algorithms.feddane import FedDANE
from kinfolk.algorithms.feddc import FedDC
from kinfolk.algorithms.feddist import FedDist, FedDWS
from kinfolk.algorithms.fedem import FedEM
from kinfolk.algorithms.fedfomo import FedFomo
from kinfolk.algorithms.fedopt import FedAdagrad, FedAdam, FedAvgM, FedYogi
from kinfolk.algorithms.fedprox import FedProx
from kinfolk.algorithms.fedsgd import FedSGD
from kinfolk.algorithms.fesem.fesem import FeSEM, FeSEMShared
from kinfolk.algorithms.fesem.fesem_ma import FeSEMMA
from kinfolk.algorithms.fl_hc import FLHC
from kinfolk.algorithms.gossip import Gossip
from kinfolk.algorithms.hypcluster import HypCluster
from kinfolk.algorithms.ifca import IFCA
from kinfolk.algorithms.knn_per import KNNPer
from kinfolk.algorithms.local import Local
from kinfolk.algorithms.majority_label import MajorityLabel
from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.options import check_options, options_of, with_options
from kinfolk.algorithms.pens import PENS
from kinfolk.algorithms.robust import Robust
from kinfolk.algorithms.scaffold import SCAFFOLD
from kinfolk.algorithms.slfed.slfed import SLFed, SLFedSimilar
from kinfolk.algorithms.split import FedBABU, FedBN, FedPer, FedRep, LGFedAvg
from kinfolk.by_path import by_path
from kinfolk.errors import KinfolkError, near
from kinfolk.learning.learner import Learner
from kinfolk.script import Algorithm

__all__ = [
    "ALGORITHMS",
    "build_algorithm",
    "check_class",
    "find_algorithm",
    "options_of",
    "summary_line",
    "with_options",
]

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
    "apfl": APFL,
    "ditto": Ditto,
    "fedadagrad": FedAdagrad,
    "fedadam": FedAdam,
    "fedala": FedALA,
    "fedavgm": FedAvgM,
    "fedyogi": FedYogi,
    "knn_per": KNNPer,
    "scaffold": SCAFFOLD,
    "slfed": SLFed,
    "slfed_similar": SLFedSimilar,
    "fedbabu": FedBABU,
    "fedbn": FedBN,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fl_hc": FLHC,
    "gossip": Gossip,
    "lg_fedavg": LGFedAvg,
    "pens": PENS,
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
    kind: type[Any] = by_path("algorithm.name", name, _is_algorithm)
    check_class(name, kind)
    return kind


def _is_algorithm(kind: object) -> bool:
    return inspect.isclass(kind) and is_dataclass(kind) and "learner" in {f.name for f in fields(kind)}


def check_class(name: str, kind: object) -> str:
    """The name of an algorithm of the user's own, if it is the class of one.

    >>> check_class("a:B", int)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.name = 'a:B': must be a dataclass with a field 'learner: Learner'
    """
    if not _is_algorithm(kind):
        raise KinfolkError("algorithm.name", name, "must be a dataclass with a field 'learner: Learner'")
    return name


def build_algorithm(name: str, learner: Learner, options: Mapping[str, Any]) -> Algorithm[Any]:
    """An algorithm with its options checked: unknown names and wrong types are errors."""
    kind = find_algorithm(name)
    made: Algorithm[Any] = with_options(kind, learner, check_options(name, kind, options))
    return made
