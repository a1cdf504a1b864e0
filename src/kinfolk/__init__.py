"""Kinfolk: federated learning for heterogeneous (non-IID) clients.

What stands in `__all__` here and in `kinfolk.authoring` is public; every other module is internal.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfolk.allowed import allow_imports
    from kinfolk.api import (
        Advice,
        Comparison,
        KChoice,
        Placed,
        Tuned,
        advise,
        assign,
        build_federation,
        choose_k,
        compare,
        run,
        tune,
    )
    from kinfolk.errors import KinfolkError
    from kinfolk.experiment.run import Result
    from kinfolk.federation.federation import Federation
    from kinfolk.federation.own_data.arrays import from_arrays
    from kinfolk.federation.own_data.columns import Columns
    from kinfolk.federation.own_data.huggingface import read_flower, read_huggingface
    from kinfolk.federation.own_data.load import load_own
    from kinfolk.federation.own_data.loaded import federate
    from kinfolk.federation.own_data.report import inspect
    from kinfolk.federation.own_data.tables import read_frame
    from kinfolk.learning.row_metrics import Metric
    from kinfolk.methods import (
        APFL,
        FLHC,
        IFCA,
        MDICFL,
        PENS,
        SCAFFOLD,
        ClusteredFL,
        ClusteredHDBSCAN,
        Ditto,
        FedAdagrad,
        FedAdam,
        FedALA,
        FedAvg,
        FedAvgM,
        FedAvgNoBuffers,
        FedAvgTuned,
        FedBABU,
        FedBN,
        FedDANE,
        FedDC,
        FedDist,
        FedDWS,
        FedEM,
        FedFomo,
        FedPer,
        FedProx,
        FedRep,
        FedSGD,
        FedYogi,
        FeSEM,
        FeSEMMA,
        FeSEMShared,
        Gossip,
        HypCluster,
        KNNPer,
        LGFedAvg,
        Local,
        MajorityLabel,
        Method,
        Robust,
        SLFed,
        SLFedSimilar,
    )
    from kinfolk.own_experiment import Experiment
    from kinfolk.report.read import Run, load_run, load_runs
    from kinfolk.trained import TrainedRun, load

__all__ = [
    "APFL",
    "FLHC",
    "IFCA",
    "MDICFL",
    "PENS",
    "SCAFFOLD",
    "Advice",
    "ClusteredFL",
    "ClusteredHDBSCAN",
    "Columns",
    "Comparison",
    "Ditto",
    "Experiment",
    "FeSEM",
    "FeSEMMA",
    "FeSEMShared",
    "FedALA",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedAvgNoBuffers",
    "FedAvgTuned",
    "FedBABU",
    "FedBN",
    "FedDANE",
    "FedDC",
    "FedDWS",
    "FedDist",
    "FedEM",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FedYogi",
    "Federation",
    "Gossip",
    "HypCluster",
    "KChoice",
    "KNNPer",
    "KinfolkError",
    "LGFedAvg",
    "Local",
    "MajorityLabel",
    "Method",
    "Metric",
    "Placed",
    "Result",
    "Robust",
    "Run",
    "SLFed",
    "SLFedSimilar",
    "TrainedRun",
    "Tuned",
    "__version__",
    "advise",
    "allow_imports",
    "assign",
    "build_federation",
    "choose_k",
    "compare",
    "federate",
    "from_arrays",
    "inspect",
    "load",
    "load_own",
    "load_run",
    "load_runs",
    "read_flower",
    "read_frame",
    "read_huggingface",
    "run",
    "tune",
]

# The algorithms, as `kinfolk.FedProx(mu=0.5)`.
_METHODS = (
    "APFL",
    "ClusteredFL",
    "ClusteredHDBSCAN",
    "Ditto",
    "FeSEM",
    "FeSEMMA",
    "FeSEMShared",
    "FedALA",
    "FedAdagrad",
    "FedAdam",
    "FedAvg",
    "FedAvgM",
    "FedAvgNoBuffers",
    "FedAvgTuned",
    "FedBABU",
    "FedBN",
    "FedDANE",
    "FedDC",
    "FedDWS",
    "FedDist",
    "FedEM",
    "FedFomo",
    "FedPer",
    "FedProx",
    "FedRep",
    "FedSGD",
    "FedYogi",
    "HypCluster",
    "IFCA",
    "KNNPer",
    "FLHC",
    "Gossip",
    "LGFedAvg",
    "Local",
    "MDICFL",
    "MajorityLabel",
    "Method",
    "PENS",
    "Robust",
    "SCAFFOLD",
    "SLFed",
    "SLFedSimilar",
)
# Where each name lives. It is imported when it is first used: reading reports must not wait for torch.
_HOMES = {
    **dict.fromkeys(
        ("Comparison", "KChoice", "Placed", "Tuned", "assign", "build_federation", "choose_k", "compare"),
        "api",
    ),
    **dict.fromkeys(_METHODS, "methods"),
    **dict.fromkeys(("Advice", "advise", "run", "tune"), "api"),
    **dict.fromkeys(("Run", "load_run", "load_runs"), "report.read"),
    "allow_imports": "allowed",
    "Columns": "federation.own_data.columns",
    "Experiment": "own_experiment",
    **dict.fromkeys(("TrainedRun", "load"), "trained"),
    "Federation": "federation.federation",
    "KinfolkError": "errors",
    "Metric": "learning.row_metrics",
    "Result": "experiment.run",
    "federate": "federation.own_data.loaded",
    "from_arrays": "federation.own_data.arrays",
    "inspect": "federation.own_data.report",
    "load_own": "federation.own_data.load",
    "read_flower": "federation.own_data.huggingface",
    "read_frame": "federation.own_data.tables",
    "read_huggingface": "federation.own_data.huggingface",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("kinfolk")
    if name not in _HOMES:
        raise AttributeError(f"module 'kinfolk' has no attribute {name!r}")
    return getattr(importlib.import_module(f"kinfolk.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
