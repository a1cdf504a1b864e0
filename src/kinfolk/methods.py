"""The algorithms as Python names: `run(network, clients, FedProx(mu=0.5))`.

An algorithm itself needs a learner, which a run makes from the network and the clients. A method says which
algorithm, with which options; a run's records hold it as a name and options, so it can be resumed.
"""

from __future__ import annotations

import inspect
from dataclasses import is_dataclass
from typing import Any

from kinfolk.algorithms import ALGORITHMS, check_class, summary_line
from kinfolk.algorithms.options import check_options, option_values, options_of
from kinfolk.by_path import path_of
from kinfolk.errors import KinfolkError

_NAMES = {kind: name for name, kind in ALGORITHMS.items()}


class Method:
    """An algorithm class with some of its options set; calling it sets more.

    For an algorithm of your own: `Method(Mine, k=3)`, or the class itself where the defaults will do.

    >>> FedProx(mu=0.5)
    FedProx(mu=0.5)
    >>> FedProx(weight=1)
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.weight = 1: fedprox has no such option; did you mean 'weights'?
    """

    def __init__(self, algorithm: type[Any], /, **options: Any) -> None:
        self.kind, self.name = algorithm, _name_of(algorithm)
        self.options = check_options(self.name, algorithm, options)
        known = ", ".join(f"{name}={value!r}" for name, value in options_of(algorithm).items())
        self.__doc__ = f"{summary_line(algorithm)}\n\nOptions: {known or 'none'}."

    def __call__(self, **options: Any) -> Method:
        """The same algorithm with these options; groups of options as tables, `start={"name": ...}`."""
        return Method(self.kind, **{**self.options, **options})

    def __repr__(self) -> str:
        return f"{self.kind.__name__}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"

    def __str__(self) -> str:
        """As the command line writes it."""
        return ",".join(
            [self.name, *(f"{name}={_text(name, value)}" for name, value in self.options.items())]
        )


def written(algorithm: object) -> str:
    """An algorithm as `name,option=value`, whether it came so, as a method, a class or an instance of one.

    >>> written(FedProx(mu=0.5)), written("ifca,k=3"), written(FedAvg)
    ('fedprox,mu=0.5', 'ifca,k=3', 'fedavg')
    """
    if isinstance(algorithm, str | Method):
        return str(algorithm)
    if isinstance(algorithm, type):
        return str(Method(algorithm))
    if is_dataclass(algorithm) and hasattr(algorithm, "learner"):
        kind = type(algorithm)
        usual = options_of(kind)
        own = {k: v for k, v in option_values(algorithm).items() if k not in usual or usual[k] != v}
        return str(Method(kind, **own))
    remedy = "give a name, a method as kinfolk.FedProx(mu=0.5), or a class of your own"
    raise KinfolkError("algorithm", algorithm, remedy)


def _name_of(kind: type[Any]) -> str:
    """The name by which a run finds the class again."""
    if kind in _NAMES:
        return _NAMES[kind]
    name = path_of(kind) if inspect.isclass(kind) else repr(kind)
    if "." in name.partition(":")[2]:
        remedy = "define the class at the top of a module, where a resumed run finds it again"
        raise KinfolkError("algorithm", name, remedy)
    return check_class(name, kind)


def _text(name: str, value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    if "," in text:
        remedy = f"has a comma in it; give it as settings={{'algorithm.{name}': ...}}"
        raise KinfolkError(f"algorithm.{name}", value, remedy)
    return text


APFL = Method(ALGORITHMS["apfl"])
ClusteredFL = Method(ALGORITHMS["clustered_fl"])
ClusteredHDBSCAN = Method(ALGORITHMS["clustered_hdbscan"])
Ditto = Method(ALGORITHMS["ditto"])
FedAdagrad = Method(ALGORITHMS["fedadagrad"])
FedAdam = Method(ALGORITHMS["fedadam"])
FedALA = Method(ALGORITHMS["fedala"])
FedAvg = Method(ALGORITHMS["fedavg"])
FedAvgM = Method(ALGORITHMS["fedavgm"])
FedAvgNoBuffers = Method(ALGORITHMS["fedavg_no_buffers"])
FedAvgTuned = Method(ALGORITHMS["fedavg_tuned"])
FedBABU = Method(ALGORITHMS["fedbabu"])
FedBN = Method(ALGORITHMS["fedbn"])
FedDANE = Method(ALGORITHMS["feddane"])
FedDC = Method(ALGORITHMS["feddc"])
FedDist = Method(ALGORITHMS["feddist"])
FedDWS = Method(ALGORITHMS["feddws"])
FedEM = Method(ALGORITHMS["fedem"])
FedFomo = Method(ALGORITHMS["fedfomo"])
FedPer = Method(ALGORITHMS["fedper"])
FedProx = Method(ALGORITHMS["fedprox"])
FedRep = Method(ALGORITHMS["fedrep"])
FedSGD = Method(ALGORITHMS["fedsgd"])
FedYogi = Method(ALGORITHMS["fedyogi"])
FeSEM = Method(ALGORITHMS["fesem"])
FeSEMMA = Method(ALGORITHMS["fesem_ma"])
FeSEMShared = Method(ALGORITHMS["fesem_shared"])
FLHC = Method(ALGORITHMS["fl_hc"])
Gossip = Method(ALGORITHMS["gossip"])
HypCluster = Method(ALGORITHMS["hypcluster"])
IFCA = Method(ALGORITHMS["ifca"])
KNNPer = Method(ALGORITHMS["knn_per"])
LGFedAvg = Method(ALGORITHMS["lg_fedavg"])
Local = Method(ALGORITHMS["local"])
MajorityLabel = Method(ALGORITHMS["majority_label"])
MDICFL = Method(ALGORITHMS["mdicfl"])
PENS = Method(ALGORITHMS["pens"])
Robust = Method(ALGORITHMS["robust"])
SCAFFOLD = Method(ALGORITHMS["scaffold"])
SLFed = Method(ALGORITHMS["slfed"])
SLFedSimilar = Method(ALGORITHMS["slfed_similar"])
