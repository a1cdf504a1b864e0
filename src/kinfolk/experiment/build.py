"""From a spec to the parts of a run: federation, learner, algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.algorithms import build_algorithm, find_algorithm, options_of
from kinfolk.algorithms.blocks.aggregator import Aggregator, RobustMean
from kinfolk.algorithms.options import flat_options
from kinfolk.attacks.attack import Attack
from kinfolk.engines.fast import accelerated
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.attack import planned
from kinfolk.experiment.fit_rows import fit_rows
from kinfolk.experiment.fitting import fitted
from kinfolk.experiment.left_out import left_out
from kinfolk.experiment.private_training import private_training
from kinfolk.experiment.sections import Experiment
from kinfolk.experiment.secure_sums import check_method, is_on
from kinfolk.experiment.targets import Target, check_loss, settled, wanted
from kinfolk.federation.federation import Federation
from kinfolk.federation.scaling import Scaling, standardized
from kinfolk.federation.sources import build
from kinfolk.learning.augment import find_augment
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import Loss, ignored_label
from kinfolk.learning.models import build_model
from kinfolk.learning.network import run
from kinfolk.learning.optim import build_optimiser
from kinfolk.learning.row_metrics import find_metrics, named_targets
from kinfolk.learning.schedules import factor, find_schedule
from kinfolk.privacy.mechanism import Mechanism
from kinfolk.scores import learn
from kinfolk.script import Algorithm
from kinfolk.streams import Seed, cohort_size
from kinfolk.task import Augment, Plan
from kinfolk.types import Rows, Tree

JUDGED_BY = ("accuracy", "mse", "loss")  # the first that there is, if none is named

# A user's network: one that is ready, or something that makes one.
Network = nn.Module | Callable[[], nn.Module]


@dataclass(frozen=True)
class Parts:
    """Everything a run is made of, checked and ready."""

    spec: Experiment
    seed: Seed
    federation: Federation
    learner: Learner
    algorithm: Algorithm[Any]
    title: str
    attack: Attack | None = None
    own: Mapping[str, Any] = field(default_factory=dict)  # settings that this method alone has so
    privacy: Mechanism | None = None
    note: str = ""  # what there is to say of how the network takes the rows and their targets

    @property
    def monitor(self) -> str:
        """The score by which rounds, settings and numbers of groups are judged."""
        said = self.spec.run.monitor
        return said if said != "auto" else next(s for s in JUDGED_BY if s in self.learner.scoring.names)


def build_parts(
    spec: Experiment,
    federation: Federation | None = None,
    network: Network | None = None,
    own: Mapping[str, Any] | None = None,
    first: Tree | None = None,
) -> Parts:
    """Build and check everything a spec names, before anything is written.

    `own` are the settings that the method has otherwise than those it is compared with. `first` is a whole
    network, frozen part and all, that takes the place of weights from a file.

    >>> build_parts(Experiment()).title
    'fedavg'
    """
    seed = Seed(spec.run.seed)
    rows = build(spec.data, seed) if federation is None else federation
    federation = standardized(rows, spec.data.standardize, spec.data.standardize_target)
    if not int(federation.splits[spec.run.split].counts().sum()):
        raise KinfolkError(
            "run.split", spec.run.split, "the federation has no such rows; set data.valid above 0"
        )
    whole, options = federation, spec.local.loss_options
    federation, short = left_out(federation, options)
    target = wanted(spec.local.loss, federation, first_rows(federation, 1)[1])
    # Networks draw their first weights from torch's global generator: lend them one.
    with seed.borrowed("init"):
        if network is None:
            _check_built_in(spec.model.name, federation)
            module = build_model(spec.model.name, federation.shape, target.outputs, spec.model.options)
        else:
            module = network if isinstance(network, nn.Module) else network()
        # Within the loan too: lazy layers draw their weights when they see the first row.
        federation, note = fit_rows(module, federation, spec.model.output)
        x, y = first_rows(federation, 1)
        out = _tried(module, spec, federation, x)
        target, misfit = settled(target, options, spec.local.loss, out, y)
        if misfit:
            raise KinfolkError("model.name", spec.model.name, misfit)
        module = fitted(module, spec.model, first_rows(federation, 2)[0], first)
    if (
        federation.classes <= ignored_label(options) < target.outputs
    ):  # the network has the class all the same
        federation = replace(federation, classes=whole.classes, class_names=whole.class_names)
    loss = target.made(options)
    check_loss(loss, out, y)
    extra = _metrics(spec, target, federation, {"out": out.float(), **named_targets(y)})
    augment = find_augment(spec.local.augment, spec.local.augment_pad, federation.shape)
    learner = _learner(spec, module, loss, target.outputs, augment, extra, federation.scaling)
    learner = accelerated(learner, first_rows(federation, 2)[0])
    _check_training(spec, learner)
    _check_scores(spec)
    for name, known in (("run.target_score", spec.run.target), ("run.monitor", spec.run.monitor != "auto")):
        score = getattr(spec.run, name.removeprefix("run."))
        if known and score not in learner.scoring.names:
            raise KinfolkError(name, score, near(score, learner.scoring.names))
    algorithm = build_algorithm(spec.algorithm.name, learner, spec.algorithm.options)
    _check_rows(spec.algorithm.name, algorithm, federation)
    _check_room(algorithm, cohort_size(len(federation.clients), spec.run.participation))
    check_method(spec, algorithm, len(federation.clients))
    attack = planned(spec.run, federation, seed)
    privacy = private_training(spec, algorithm, learner, federation)
    algorithm = privacy.protected(algorithm) if privacy else algorithm
    notes = "; ".join(filter(None, (short, note, target.note)))
    return Parts(
        spec, seed, federation, learner, algorithm, title(spec, own), attack, own or {}, privacy, notes
    )


def title(spec: Experiment, own: Mapping[str, Any] | None = None) -> str:
    """The algorithm's name, those of its options that are not the default, and settings of its own.

    >>> from kinfolk.experiment.sections import AlgorithmSpec
    >>> title(Experiment(algorithm=AlgorithmSpec("fedprox", {"mu": 0.5})))
    'fedprox mu=0.5'
    """
    usual = options_of(find_algorithm(spec.algorithm.name))
    options = flat_options(spec.algorithm.options)
    changed = [f"{k}={v}" for k, v in options.items() if k not in usual or usual[k] != v]
    for name, value in (own or {}).items():
        short = name.removeprefix("local.")  # unless the algorithm has an option of that name
        text = f"{value:g}" if isinstance(value, float) else value
        changed.append(f"{name if short in usual else short}={text}")
    return " ".join([spec.algorithm.name.rpartition(":")[2], *changed])


def _learner(
    spec: Experiment,
    module: nn.Module,
    loss: Loss,
    outputs: int,
    augment: Augment | None,
    extra: Mapping[str, Any],
    scaling: Scaling | None,
) -> Learner:
    local, rounds, target = spec.local, spec.run.rounds, scaling.target if scaling else None
    by_round = find_schedule("local.schedule", local.schedule, local.schedule_options)
    by_step = find_schedule("local.step_schedule", local.step_schedule, local.step_schedule_options)
    return Learner(
        module,
        loss,
        outputs,
        optimiser=build_optimiser(local.optimiser, vars(local), local.optimiser_options),
        plan=Plan(local.batch, local.epochs, local.steps, drop_last=local.drop_last, augment=augment),
        lr=local.lr,
        decay=local.decay,
        clip=local.clip,
        tune_lr=local.tune_lr,
        tune_epochs=local.tune_epochs,
        score_split=spec.run.split,
        by_class=spec.run.reveal == "auto" and not is_on(spec.secure_sums) and spec.privacy.mode == "none",
        half=spec.engine.precision == "bf16",
        by_round=by_round and (lambda round: factor("local.schedule", by_round, round, rounds)),
        by_step=by_step and (lambda at, of: factor("local.step_schedule", by_step, at, of)),
        units=None if target is None else (target.mean, target.std),
        **extra,
        output=spec.model.output,
    )


def _metrics(
    spec: Experiment, target: Target, federation: Federation, like: Mapping[str, Tensor]
) -> dict[str, Any]:
    """What a learner must know of metrics that are asked for, and of the rows that they need all at once."""
    found = find_metrics(spec.run.metrics, target.kind, target.outputs)
    if not found:
        return {}
    learn({metric.name: asdict(metric.score) for metric in found})
    rows = max(int(federation.splits[split].counts().max()) for split in ("test", "valid"))
    return {"metrics": found, "score_rows": rows, "score_like": {name: t[:0] for name, t in like.items()}}


def _check_built_in(name: str, federation: Federation) -> None:
    if isinstance(federation.x, dict) and ":" not in name:
        remedy = f"takes one tensor, and rows are {federation.row_text}; give a network of your own"
        raise KinfolkError("model.name", name, f"{remedy}: 'module:Class'")


def _check_room(algorithm: Algorithm[Any], cohort: int) -> None:
    """Refuse an aggregation that a group of even size would have too few members for."""
    aggregate = getattr(algorithm, "aggregate", None)
    if isinstance(aggregate, RobustMean):
        in_groups = isinstance(aggregate, Aggregator)  # fedem's k are not groups
        aggregate.check_room(cohort, getattr(algorithm, "k", 1) if in_groups else 1)
    if isinstance(aggregate, Aggregator):
        aggregate.check_layers(algorithm.learner.names)  # type: ignore[attr-defined]


def _check_rows(name: str, algorithm: Algorithm[Any], federation: Federation) -> None:
    """Refuse rows that an algorithm cannot make more of: it says so by an attribute `makes_rows`.

    One that can make tokens has a method `makes_tokens`, which refuses rows of a shape that it cannot make.
    """
    made = getattr(algorithm, "makes_rows", "")
    makes_tokens = getattr(algorithm, "makes_tokens", None)
    plain = isinstance(federation.x, Tensor) and (federation.x.is_floating_point() or federation.scale)
    if made and makes_tokens and not plain and isinstance(federation.x, Tensor):
        makes_tokens(federation.shape)
    elif made and not plain:
        kinds = "several tensors" if isinstance(federation.x, dict) else "whole numbers"
        remedy = f"makes {made} of real numbers, and the inputs here are {kinds}; use another algorithm"
        raise KinfolkError("algorithm.name", name, remedy)


def _tried(module: nn.Module, spec: Experiment, federation: Federation, x: Rows) -> Tensor:
    """What the network gives for one row, or an error that says why it does not."""
    name = spec.model.name
    try:
        with torch.no_grad():
            module.eval()
            return run(module, x, spec.model.output)
    except KinfolkError:
        raise
    except Exception as error:  # anything a user's forward raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        rows = federation.shape if isinstance(federation.x, Tensor) else federation.row_text
        raise KinfolkError("model.name", name, f"cannot take rows of shape {rows}: {reason}") from error
    finally:
        module.train()


def _check_training(spec: Experiment, learner: Learner) -> None:
    """What would otherwise show in the first round only."""
    if not learner.names:
        raise KinfolkError(
            "model.name",
            spec.model.name,
            "has no parameters that require a gradient; name some in model.train",
        )
    if learner.plan.drop_single and spec.local.batch == 1:
        raise KinfolkError("local.batch", 1, "this network has BatchNorm, which needs batches of 2 or more")


def _check_scores(spec: Experiment) -> None:
    """Refuse what goes by scores where clients tell none."""
    run = spec.run
    by_scores = {"target": run.target, "patience": run.patience, "keep": run.keep == "best"}
    wants = next((name for name, wanted in by_scores.items() if wanted), "")
    if run.reveal == "none" and wants:
        raise KinfolkError("run.reveal", "none", f"run.{wants} goes by scores; give 'sums', or leave it out")


def first_rows(federation: Federation, count: int) -> tuple[Rows, Rows]:
    """A few rows to try a network on, as often as needed where there are fewer."""
    held = federation.among(federation.clients[:1])
    return held.take(torch.arange(count) % held.rows)


def parameters(learner: Learner) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in learner.params(learner.first).values())
