"""Secure sums in a run: which methods they serve, and how they are put around tasks and requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.engines.coordinator import Coordinator
from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import Experiment
from kinfolk.script import Algorithm, NeedsMeansAlone, client_tasks
from kinfolk.secure_sums.asking import Asking
from kinfolk.secure_sums.holding import armed, summed_trees, trees
from kinfolk.secure_sums.member import exchanges
from kinfolk.secure_sums.spec import SecureSumsSpec
from kinfolk.streams import cohort_size
from kinfolk.task import PeerTask, Table
from kinfolk.types import Client

if TYPE_CHECKING:
    from kinfolk.experiment.build import Parts

SCHEME = "secure_sums.scheme"


def check_method(experiment: Experiment, algorithm: Algorithm[Any], clients: int) -> None:
    """Refuse secure sums where they cannot serve: single models, robust means, cohorts that hide nobody."""
    spec, name = experiment.secure_sums, experiment.algorithm.name
    if not is_on(spec):
        return
    if experiment.privacy.mode != "none":
        remedy = (
            f"clips and counts single updates, which {SCHEME}={spec.scheme} hides; set one of the two off"
        )
        raise KinfolkError("privacy.mode", experiment.privacy.mode, remedy)
    if not isinstance(algorithm, NeedsMeansAlone):
        remedy = f"{name} looks at single models or has no server; choose a method that needs means alone"
        raise KinfolkError(SCHEME, spec.scheme, f"{remedy}, as fedavg or ifca")
    aggregate = getattr(algorithm, "aggregate", None)
    if isinstance(aggregate, RobustMean) and aggregate.name != "mean":
        remedy = f"takes single models, which {SCHEME}={spec.scheme} hides; give mean, or set that to off"
        raise KinfolkError("algorithm.aggregate.name", aggregate.name, remedy)
    for task, entry in algorithm.tasks().items():
        if isinstance(entry, PeerTask) or len(trees(entry)) > (task in algorithm.summed):
            raise KinfolkError(SCHEME, spec.scheme, f"{name} shows more than a sum in {task!r}")
    cohort, scheme = cohort_size(clients, experiment.run.participation), spec.make()
    if cohort < spec.min_members:
        remedy = f"a round has {cohort} clients; have more, or give 2 or more and at most that many"
        raise KinfolkError("secure_sums.min_members", spec.min_members, remedy)
    if not cohort * scheme.limit * 2.0**scheme.bits < 2.0**scheme.room:
        remedy = (
            f"{cohort} clients with numbers up to {scheme.limit:g} overflow; give fewer, or a lower limit"
        )
        raise KinfolkError("secure_sums.bits", scheme.bits, remedy)


def is_on(spec: SecureSumsSpec) -> bool:
    """Whether sums are secure.

    >>> is_on(SecureSumsSpec())
    False
    """
    return spec.scheme != "off"


def with_sums(table: Table, parts: Parts) -> Table:
    """The tasks of clients that keep their models, if sums are secure."""
    spec, algorithm = parts.spec.secure_sums, parts.algorithm
    if not is_on(spec) or not isinstance(algorithm, NeedsMeansAlone):
        return table
    clients, limit = len(parts.federation.clients), spec.make().limit
    return {**armed(table, algorithm.summed, clients, limit), **exchanges(spec)}


def asking(parts: Parts, coordinator: Coordinator, log: Callable[..., None]) -> Asking:
    """What performs a script's requests by secure sums; with none it lets all pass.

    Whose model is in no sum has not taken part in the round.
    """

    def lost(who: Mapping[Client, str]) -> None:
        coordinator.failed.update(who)
        coordinator.answered.difference_update(who)
        coordinator.exploded.update({client: why for client, why in who.items() if why})

    spec, algorithm = parts.spec.secure_sums, parts.algorithm
    return Asking(spec, _summed(algorithm) if is_on(spec) else {}, log, lost)


def _summed(algorithm: Algorithm[Any]) -> Any:
    assert isinstance(algorithm, NeedsMeansAlone)
    return summed_trees(client_tasks(algorithm), algorithm.summed)
