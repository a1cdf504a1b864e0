"""Which round is the best on validation rows, when to stop for want of a better one, and what is kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kinfolk.errors import KinfolkError
from kinfolk.experiment.build import JUDGED_BY, Parts
from kinfolk.experiment.pace import rounds_between
from kinfolk.experiment.sections import RunSpec
from kinfolk.experiment.state import to_message
from kinfolk.learning.learner import ScoreTask
from kinfolk.scores import about, of_all
from kinfolk.script import Algorithm, Remembers
from kinfolk.task import Task
from kinfolk.types import nbytes

LAST = 2  # checkpoints that are kept of any run: the newest may be torn
ALL = 1 << 40
VALID = ".valid"  # how the validation task is named, behind the kind of model


@dataclass(frozen=True)
class Best:
    """The best evaluation so far, and how many there have been since."""

    round: int = -1
    score: str = ""
    value: float = float("nan")
    since: int = 0

    def after(self, round: int, summary: Mapping[str, Any], by: str = "auto") -> Best:
        """What holds after one more evaluation, by the mean over clients of a score of the main model.

        A score that is no number, or not of all clients, is no better than any; of equal ones the first is
        the best.

        >>> rated = lambda value: {"centre": {"loss": {"macro": 1.0}, "accuracy": {"macro": value}}}
        >>> seen = Best().after(0, rated(0.5)).after(5, rated(0.7)).after(10, rated(0.7))
        >>> seen.round, seen.score, seen.value, seen.since
        (5, 'accuracy', 0.7, 1)
        """
        main: Mapping[str, Any] = next(iter(summary.values()), {})
        score = next((name for name in (JUDGED_BY if by == "auto" else (by,)) if name in main), "")
        value = of_all(main.get(score, {}))
        if value is None:
            return replace(self, since=self.since + 1)
        gain = self.value - value if about(score).lower_is_better else value - self.value
        return (
            Best(round, score, float(value))
            if self.round < 0 or gain > 0
            else replace(self, since=self.since + 1)
        )

    @staticmethod
    def of(facts: Mapping[str, Any]) -> Best:
        """What a checkpoint holds, in which no number is None.

        >>> Best.of({"round": -1, "score": "", "value": None, "since": 2}).since
        2
        """
        return replace(Best(), **{name: value for name, value in facts.items() if value is not None})

    def told(self) -> str:
        """Why a run ends that waited long enough.

        >>> Best(5, "accuracy", 0.71234, 3).told()
        'no better accuracy on validation rows in 3 evaluations (best: 0.712 after round 5)'
        """
        best = f"best: {self.value:.3g} after round {self.round}" if self.round >= 0 else "there was none"
        return f"no better {self.score or 'score'} on validation rows in {self.since} evaluations ({best})"


def judged(spec: RunSpec) -> bool:
    """Whether rounds are judged on validation rows.

    >>> judged(RunSpec()), judged(RunSpec(patience=3)), judged(RunSpec(keep="best"))
    (False, True, True)
    """
    return spec.keep == "best" or spec.patience > 0


def check_rows(parts: Parts) -> None:
    """Refuse to judge rounds where nobody has validation rows: test rows never choose a model."""
    spec = parts.spec.run
    if judged(spec) and not int(parts.federation.splits["valid"].counts().sum()):
        name = "run.keep" if spec.keep == "best" else "run.patience"
        value = getattr(spec, name.removeprefix("run."))
        remedy = "needs validation rows, and the federation has none; set data.valid above 0, as 0.1"
        raise KinfolkError(name, value, remedy)


def validation_task(algorithm: Algorithm[Any], spec: RunSpec) -> dict[str, Task]:
    """The main model's scoring task on validation rows, where rounds are judged by them and test rows scored.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> list(validation_task(build_parts(Experiment()).algorithm, RunSpec(keep="best")))
    ['score.centre.valid']
    """
    if not judged(spec) or spec.split == "valid":
        return {}
    kind, task = next(iter(algorithm.eval_tasks().items()))
    if not isinstance(task, ScoreTask):
        name = type(algorithm).__name__
        remedy = "scores by a task of its own, which cannot go over validation rows; use Learner.score"
        raise KinfolkError("algorithm.name", name, remedy)
    return {f"score.{kind}{VALID}": task.on("valid")}


def kept_rounds(spec: RunSpec, best: Best) -> tuple[int, tuple[int, ...]]:
    """(newest checkpoints that are kept, rounds that are kept besides).

    >>> kept_rounds(RunSpec(), Best()), kept_rounds(RunSpec(keep="best"), Best(5))
    ((2, ()), (2, (5,)))
    """
    return ALL if spec.keep == "all" else LAST, (best.round,) if judged(spec) and best.round >= 0 else ()


def cost(parts: Parts, state: Any) -> dict[str, Any]:
    """What keeping models will take on the disk: bytes of one checkpoint, how many, and together.

    Of clients' memories the first ones count; what grows in a run comes on top.

    >>> from kinfolk.experiment.build import build_parts
    >>> from kinfolk.experiment.sections import Experiment
    >>> parts = build_parts(Experiment())
    >>> state = parts.algorithm.init(parts.learner.first, parts.federation.clients, parts.seed)
    >>> cost(parts, state)
    {'keep': 'last', 'checkpoint_bytes': 60040, 'checkpoints': 2, 'bytes': 120080}
    """
    spec, algorithm, clients = parts.spec.run, parts.algorithm, parts.federation.clients
    one = nbytes(to_message(state)[0])
    if isinstance(algorithm, Remembers):
        one += nbytes(algorithm.init_client(clients[0])) * len(clients)
    count = LAST + judged(spec)
    if spec.keep == "all":
        every = rounds_between(spec)
        count = spec.rounds // every + 1 + (spec.rounds % every > 0)
    return {"keep": spec.keep, "checkpoint_bytes": one, "checkpoints": count, "bytes": one * count}
