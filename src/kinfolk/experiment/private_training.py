"""Whether a run can be as private as its spec asks: nothing in it may tell of rows past the noise."""

from __future__ import annotations

from typing import Any

from kinfolk.errors import KinfolkError
from kinfolk.experiment.sections import Experiment
from kinfolk.federation.federation import Federation
from kinfolk.learning.learner import Learner
from kinfolk.privacy.mechanism import Mechanism, mechanism
from kinfolk.script import Algorithm
from kinfolk.streams import Seed


def private_training(
    spec: Experiment, algorithm: Algorithm[Any], learner: Learner, federation: Federation
) -> Mechanism | None:
    """The noise that a spec asks for; None for none. What would tell of rows past the noise is refused."""
    run, clients = spec.run, federation.clients
    given = spec.privacy, spec.algorithm.name, algorithm, learner, clients, Seed(run.seed), run.rounds
    found = mechanism(*given, run.participation)
    if found is None:
        return None
    if spec.privacy.mode == "local" and run.attack not in ("none", "label_flip"):
        remedy = "attackers would clip what they send, which real ones do not; take privacy.mode = 'server'"
        raise KinfolkError("run.attack", run.attack, remedy)
    if run.pictures == "rows":
        raise KinfolkError("run.pictures", run.pictures, "rows have no noise; give 'none'")
    by_scores = "follows from scores, which have no noise; with [privacy] leave it at"
    for name, usual in (("target", 0.0), ("patience", 0), ("on_divergence", "warn"), ("quorum", 0.0)):
        if getattr(run, name) != usual:
            remedy = f"{by_scores if name != 'quorum' else 'with [privacy] leave it at'} {usual!r}"
            raise KinfolkError(f"run.{name}", getattr(run, name), remedy)
    if run.keep == "best":
        raise KinfolkError("run.keep", run.keep, f"{by_scores} 'last' or 'all'")
    if federation.scaling is not None and federation.scaling.bytes_up:
        remedy = "clients would tell means of their rows, without noise; give 'client' or 'none'"
        raise KinfolkError("data.standardize", spec.data.standardize, remedy)
    return found
