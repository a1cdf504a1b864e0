"""Metrics of all rows of a client together: built in, or a user's function of outputs and targets.

They are computed where the rows are, after the engine's own work, one client at a time and in plain Python: a
function may call scikit-learn. Only the number leaves the client.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kinfolk.by_path import by_path, one_line
from kinfolk.errors import KinfolkError, near
from kinfolk.learning.losses import logits_last
from kinfolk.learning.metrics import KEPT_SUMS, POSITIONS, RULES, blank, count, names
from kinfolk.learning.told import TOLD, told
from kinfolk.scores import SCORES, Score
from kinfolk.task import Batch
from kinfolk.types import IGNORED, Message

# Where outputs and targets are in a carry and in a reply that is not yet concluded.
KEPT = "kept"


@dataclass(frozen=True)
class Metric:
    """A function `metric(out, y)` of a client's outputs and targets that gives a number, and how to read it.

    Args:
        function: what is called, with tensors on the CPU whose first axis is that of the rows.
        lower_is_better: whether a small number is a good one.
        percent: whether it is a fraction, shown in percent.
        name: what it is called in records; that of the function if not given.
        title: what it is called in tables and figures; the name if not given.

    >>> mean = Metric(lambda out, y: float((out[:, 0] - y).mean()), name="bias", lower_is_better=True)
    >>> mean(torch.tensor([[2.0], [4.0]]), torch.tensor([1.0, 1.0])), mean.score.title
    (2.0, 'bias')
    """

    function: Callable[[Tensor, Any], Any]
    lower_is_better: bool = False
    percent: bool = False
    name: str = ""
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.name or getattr(self.function, "__name__", ""))
        if not self.name.isidentifier():
            remedy = "give the function a name, or Metric(function, name='...')"
            raise KinfolkError("run.metrics", self.name or repr(self.function), remedy)

    def __call__(self, out: Tensor, y: Any) -> Any:
        """What the function says."""
        return self.function(out, y)

    @property
    def score(self) -> Score:
        """What reports must know."""
        return Score(self.title or self.name, self.percent, self.lower_is_better)


def find_metrics(wanted: Sequence[str], target: str, classes: int) -> tuple[Metric, ...]:
    """The metrics of these names and import paths that targets of this kind do not have anyway.

    >>> [metric.name for metric in find_metrics(["auroc", "accuracy"], "class", 3)]
    ['auroc']
    """
    found: dict[str, Metric] = {}
    for name in wanted:
        if ":" in name:
            given = by_path(
                "run.metrics", name, lambda one: one in {metric.function for metric in METRICS.values()}
            )
            lower, percent = (bool(getattr(given, what, False)) for what in ("lower_is_better", "percent"))
            metric = given if isinstance(given, Metric) else Metric(given, lower, percent)
            if metric.name in {*RULES, *POSITIONS, *METRICS}:
                raise KinfolkError("run.metrics", name, f"a score is called {metric.name} already; rename it")
        elif name in names(classes, target):
            continue
        elif name in METRICS:
            metric = METRICS[name]
            if target not in TAKES[name]:
                remedy = f"is for targets of kind {', '.join(TAKES[name])}; these are of kind {target!r}"
                raise KinfolkError("run.metrics", name, remedy)
        else:
            known = {*METRICS, *RULES, *POSITIONS}
            remedy = "these targets do not have it" if name in known else near(name, known)
            raise KinfolkError(
                "run.metrics", name, f"{remedy}; or give an import path, 'package.module:name'"
            )
        if metric.name in found and found[metric.name] != metric:
            raise KinfolkError("run.metrics", metric.name, "two metrics have this name; rename one")
        found[metric.name] = metric
    return tuple(found.values())


@dataclass(frozen=True)
class Scoring:
    """How a client is scored: what is tallied over its rows, what is kept of them, what is told."""

    classes: int  # 0: numbers
    target: str = ""
    class_axis: int = -1
    metrics: tuple[Metric, ...] = ()
    rows: int = 0  # most rows of a client
    # One row of outputs and of targets, to make room by, where a metric needs all of them.
    like: Mapping[str, Tensor] = field(default_factory=dict)
    ignored: int = IGNORED  # the class that no score counts, if it is one

    @property
    def names(self) -> tuple[str, ...]:
        """The scores that there will be."""
        return (*names(self.classes, self.target), *(metric.name for metric in self.metrics))

    @property
    def _summed(self) -> tuple[str, ...]:
        return tuple(metric.name for metric in self.metrics if metric.name in KEPT_SUMS)

    @property
    def keeps(self) -> bool:
        """Whether outputs and targets are kept until all rows have been seen."""
        return len(self.metrics) > len(self._summed)

    def begin(self, device: torch.device) -> Message:
        """What a carry holds before the first batch."""
        tally = blank(self.classes, device, self.target, self._summed, self.ignored)
        if not self.keeps:
            return {"tally": tally}
        room = {  # one place more, for padding
            name: torch.zeros((self.rows + 1, *t.shape[1:]), dtype=t.dtype, device=device)
            for name, t in self.like.items()
        }
        return {"tally": tally, KEPT: room}

    def count(self, carry: Message, out: Tensor, batch: Batch, row_loss: Tensor) -> Message:
        """A carry with one more batch in it."""
        kind = self.target or _usual(self.classes)
        tally = count(carry["tally"], out, batch, row_loss, kind, self.class_axis, self.ignored)
        if not self.keeps:
            return {**carry, "tally": tally}
        place = batch.row if batch.weight is None else torch.where(batch.weight > 0, batch.row, self.rows)
        values = {"out": out, **named_targets(batch.y)}
        room = {name: t.index_put((place,), values[name].to(t.dtype)) for name, t in carry[KEPT].items()}
        return {**carry, "tally": tally, KEPT: room}

    def reply(self, carry: Message) -> Message:
        """What the engine hands over of a carry: sums, and what is not yet concluded."""
        kept = {f"{KEPT}.{name}": t for name, t in carry[KEPT].items()} if self.keeps else {}
        return {**carry["tally"], **kept}

    def conclude(self, reply: Message) -> Message:
        """What leaves the client: of each metric its number alone."""
        own = {name for score in self._summed for name in KEPT_SUMS[score].sums}
        sums = {k: v for k, v in reply.items() if k not in own and not k.startswith(f"{KEPT}.")}
        return sums | {f"{TOLD}{metric.name}": told(self._value(metric, reply)) for metric in self.metrics}

    def _value(self, metric: Metric, reply: Message) -> float:
        if metric.name in self._summed:
            counted = {name: reply[name].cpu().numpy()[None] for name in KEPT_SUMS[metric.name].sums}
            return float(KEPT_SUMS[metric.name].value(counted)[0])
        rows = int(reply["rows"])
        if not rows:
            return float("nan")
        kept = {name: reply[f"{KEPT}.{name}"][:rows].cpu() for name in self.like}
        out = kept.pop("out")
        if metric.name in METRICS and self.target == "positions":
            out = logits_last(out, self.class_axis)
        return metric_value(metric, out, _targets(kept))

    @property
    def expected(self) -> Message:
        """What a reply looks like."""
        tally = blank(self.classes, "cpu", self.target, ignored=self.ignored)
        return {**tally, **{f"{TOLD}{metric.name}": told(0.0) for metric in self.metrics}}


def _usual(classes: int) -> str:
    return "class" if classes else "numbers"


def named_targets(y: Any) -> dict[str, Tensor]:
    """Targets as named tensors, of one tensor or of several.

    >>> list(named_targets(torch.zeros(1))), list(named_targets({"time": torch.zeros(1)}))
    (['y'], ['y.time'])
    """
    return {f"y.{name}": t for name, t in y.items()} if isinstance(y, Mapping) else {"y": y}


def _targets(kept: Mapping[str, Tensor]) -> Any:
    return kept["y"] if "y" in kept else {name.removeprefix("y."): t for name, t in kept.items()}


def metric_value(metric: Metric, out: Tensor, y: Any) -> float:
    """What a metric says, if that is one number.

    >>> metric_value(Metric(lambda out, y: "high", name="mine"), torch.zeros(1), torch.zeros(1))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run.metrics = 'mine': gives a str ('high'); give one number
    """
    try:
        value = metric(out, y)
    except Exception as error:  # whatever a user's function raises
        raise KinfolkError("run.metrics", metric.name, f"failed: {one_line(error)}") from error
    try:
        if isinstance(value, str | bytes) or (isinstance(value, Tensor) and value.numel() != 1):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        said = f"shape {tuple(value.shape)}" if hasattr(value, "shape") else repr(value)
        remedy = f"gives a {type(value).__name__} ({said}); give one number"
        raise KinfolkError("run.metrics", metric.name, remedy) from None


def _arrays(out: Tensor, y: Tensor) -> tuple[NDArray[Any], NDArray[Any]]:
    """(a number for each class, whether it is the row's own), [rows, classes]; one column for two classes."""
    truth = y.numpy()
    if out.dim() == 1 or out.shape[1] == 1 or (truth.ndim > 1 and truth.shape == tuple(out.shape)):
        points = out.double().numpy().reshape(len(out), -1)
        own = truth.reshape(len(truth), -1) > 0.5
        return points, own
    points = out.double().softmax(1).numpy()
    if points.shape[1] == 2:
        return points[:, 1:], (truth == 1)[:, None]
    return points, truth[:, None] == np.arange(points.shape[1])


def _mean_over_classes(score: Callable[..., float], out: Tensor, y: Tensor) -> float:
    """The mean over classes (labels) that some rows of a client have and some have not; NaN without any.

    A model that has diverged ranks nothing: its score is that of no rank at all, NaN.
    """
    points, own = _arrays(out, y)
    if not np.isfinite(points).all():
        return float("nan")
    told = [score(own[:, c], points[:, c]) for c in range(own.shape[1]) if 0 < own[:, c].sum() < len(own)]
    return float(np.mean(told)) if told else float("nan")


def auroc(out: Tensor, y: Tensor) -> float:
    """Area under the ROC curve; of several classes the mean of each against the rest.

    >>> auroc(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1]))
    0.75
    """
    from sklearn.metrics import roc_auc_score  # a second of imports

    return _mean_over_classes(roc_auc_score, out, y)


def average_precision(out: Tensor, y: Tensor) -> float:
    """Area under the precision-recall curve as a sum of steps; of several classes the mean.

    >>> round(average_precision(torch.tensor([0.1, 0.4, 0.35, 0.8]), torch.tensor([0, 0, 1, 1])), 3)
    0.833
    """
    from sklearn.metrics import average_precision_score

    return _mean_over_classes(average_precision_score, out, y)


def balanced_accuracy(out: Tensor, y: Tensor) -> float:
    """The mean over a client's classes of the share of their rows that is recognised.

    >>> balanced_accuracy(torch.tensor([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0]]), torch.tensor([0, 1, 1]))
    0.75
    """
    from sklearn.metrics import recall_score

    said = (out.reshape(-1) > 0).long() if out.dim() == 1 or out.shape[-1] == 1 else out.argmax(-1)
    truth = (y.argmax(1) if y.dim() > 1 else y > 0.5) if y.is_floating_point() else y
    truth = truth.long().reshape(-1)
    labelled = truth >= 0
    own, told = truth[labelled].numpy(), said.reshape(-1)[labelled].numpy()
    if not len(own):  # all its positions are left out
        return float("nan")
    return float(recall_score(own, told, labels=np.unique(own), average="macro", zero_division=0))


def perplexity(out: Tensor, y: Tensor) -> float:
    """exp of the mean cross entropy.

    >>> round(perplexity(torch.zeros(2, 4), torch.tensor([0, 3])), 6)
    4.0
    """
    truth = y.double() if y.is_floating_point() else y
    return float(torch.nn.functional.cross_entropy(out.double(), truth).exp())


def r2(out: Tensor, y: Tensor) -> float:
    """The coefficient of determination, the mean over outputs; NaN of fewer than two rows.

    >>> r2(torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([1.0, 2.0, 4.0])).__round__(4)
    0.7857
    """
    from sklearn.metrics import r2_score

    if len(y) < 2 or not out.isfinite().all():
        return float("nan")
    return float(r2_score(y.double().reshape(len(y), -1).numpy(), out.double().reshape(len(y), -1).numpy()))


def c_index(out: Tensor, y: Any) -> float:
    """Harrell's C: of pairs whose order is known, the share in which the one with more risk comes first.

    Outputs are risks; targets have `time` and `event` (1: seen, 0: censored), in a dict or as two columns.
    Pairs of equal risk count half; NaN where no pair can be compared.

    >>> c_index(torch.tensor([3.0, 1.0, 2.0]), {"time": torch.tensor([1., 2., 3.]), "event": torch.ones(3)})
    0.6666666666666666
    """
    time, event = (y["time"], y["event"]) if isinstance(y, Mapping) else (y[:, 0], y[:, 1])
    risk, time, event = (t.reshape(-1).double() for t in (out, time, event))
    pairs = agreed = 0.0
    for i in event.nonzero().flatten().tolist():
        later = (time > time[i]) | ((time == time[i]) & (event < 0.5))
        pairs += int(later.sum())
        agreed += float((risk[later] < risk[i]).sum() + 0.5 * (risk[later] == risk[i]).sum())
    return agreed / pairs if pairs else float("nan")


def _stands_for_sums(out: Tensor, y: Tensor) -> float:
    raise AssertionError("tallied batch by batch")


def _built_in(name: str, function: Callable[[Tensor, Any], float]) -> Metric:
    known = SCORES[name]
    return Metric(function, known.lower_is_better, known.percent, name, known.title)


METRICS: dict[str, Metric] = {
    "iou": _built_in("iou", _stands_for_sums),
    **{
        f.__name__: _built_in(f.__name__, f)
        for f in (auroc, average_precision, balanced_accuracy, perplexity, r2, c_index)
    },
}
TAKES: dict[str, tuple[str, ...]] = {
    "auroc": ("class", "binary", "labels"),
    "average_precision": ("class", "binary", "labels"),
    "balanced_accuracy": ("class", "binary", "soft", "positions"),
    "perplexity": ("class", "soft"),
    "r2": ("numbers",),
    "c_index": ("numbers", "any"),
    "iou": ("positions",),
}
