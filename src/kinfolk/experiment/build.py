"""From a spec to the parts of a run: federation, learner, algorithm."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from kinfolk.algorithms import build_algorithm, find_algorithm, options_of
from kinfolk.algorithms.options import flat_options
from kinfolk.engines.fast import accelerated
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.attack import Attack, planned
from kinfolk.experiment.fit_rows import fit_rows
from kinfolk.experiment.fitting import fitted
from kinfolk.experiment.sections import Experiment
from kinfolk.federation.federation import Federation, output_count
from kinfolk.federation.sources import build
from kinfolk.learning.augment import find_augment
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import Loss, find_loss
from kinfolk.learning.metrics import names
from kinfolk.learning.models import build_model
from kinfolk.learning.network import run
from kinfolk.learning.optim import build_optimiser
from kinfolk.script import Algorithm
from kinfolk.streams import Seed
from kinfolk.task import Augment, Plan
from kinfolk.types import Rows, Tree

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
    note: str = ""  # what there is to say of how the network takes the rows


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
    federation = federation or build(spec.data, seed)
    if not int(federation.splits[spec.run.split].counts().sum()):
        raise KinfolkError(
            "run.split", spec.run.split, "the federation has no such rows; set data.valid above 0"
        )
    known = names(federation.classes)
    if spec.run.target and spec.run.target_score not in known:
        raise KinfolkError("run.target_score", spec.run.target_score, near(spec.run.target_score, known))
    loss = _loss(spec.local.loss, federation)
    outputs = output_count(federation)
    # Networks draw their first weights from torch's global generator: lend them one.
    with seed.borrowed("init"):
        if network is None:
            _check_built_in(spec.model.name, federation)
            module = build_model(spec.model.name, federation.shape, outputs, spec.model.options)
        else:
            module = network if isinstance(network, nn.Module) else network()
        # Within the loan too: lazy layers draw their weights when they see the first row.
        federation, note = fit_rows(module, federation, spec.model.output)
        _check_output(module, spec, federation, outputs)
        module = fitted(module, spec.model, first_rows(federation, 2)[0], first)
    augment = find_augment(spec.local.augment, spec.local.augment_pad, federation.shape)
    learner = accelerated(_learner(spec, module, loss, outputs, augment), first_rows(federation, 2)[0])
    _check_training(spec, learner)
    algorithm = build_algorithm(spec.algorithm.name, learner, spec.algorithm.options)
    _check_rows(spec.algorithm.name, algorithm, federation)
    attack = planned(spec.run, federation, seed)
    return Parts(spec, seed, federation, learner, algorithm, title(spec, own), attack, own or {}, note)


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
    spec: Experiment, module: nn.Module, loss: Loss, outputs: int, augment: Augment | None
) -> Learner:
    local = spec.local
    return Learner(
        module,
        loss,
        outputs,
        optimiser=build_optimiser(local.optimiser, vars(local)),
        plan=Plan(local.batch, local.epochs, local.steps, drop_last=local.drop_last, augment=augment),
        lr=local.lr,
        decay=local.decay,
        clip=local.clip,
        tune_lr=local.tune_lr,
        tune_epochs=local.tune_epochs,
        score_split=spec.run.split,
        half=spec.engine.precision == "bf16",
        output=spec.model.output,
    )


def _loss(name: str, federation: Federation) -> Loss:
    loss = find_loss(name if name != "auto" else "cross_entropy" if federation.classes else "mse")
    if loss.classification != bool(federation.classes):
        kind = f"{federation.classes} classes" if federation.classes else "numbers to predict"
        raise KinfolkError("local.loss", name, f"the data have {kind}; use 'auto'")
    return loss


def _check_built_in(name: str, federation: Federation) -> None:
    if isinstance(federation.x, dict) and ":" not in name:
        remedy = f"takes one tensor, and rows are {federation.row_text}; give a network of your own"
        raise KinfolkError("model.name", name, f"{remedy}: 'module:Class'")


def _check_rows(name: str, algorithm: Algorithm[Any], federation: Federation) -> None:
    """Refuse rows that an algorithm cannot make more of: it says so by an attribute `makes_rows`."""
    made = getattr(algorithm, "makes_rows", "")
    plain = isinstance(federation.x, Tensor) and (federation.x.is_floating_point() or federation.scale)
    if made and not plain:
        kinds = "several tensors" if isinstance(federation.x, dict) else "whole numbers"
        remedy = f"makes {made} of real numbers, and the inputs here are {kinds}; use another algorithm"
        raise KinfolkError("algorithm.name", name, remedy)


def _check_output(module: nn.Module, spec: Experiment, federation: Federation, outputs: int) -> None:
    """Try the network on one row: the right width, or an error that says what it gave."""
    name = spec.model.name
    try:
        with torch.no_grad():
            module.eval()
            out = run(module, first_rows(federation, 1)[0], spec.model.output)
    except KinfolkError:
        raise
    except Exception as error:  # anything a user's forward raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        rows = federation.shape if isinstance(federation.x, Tensor) else federation.row_text
        raise KinfolkError("model.name", name, f"cannot take rows of shape {rows}: {reason}") from error
    finally:
        module.train()
    if isinstance(federation.y, dict):
        return
    if federation.classes and federation.y.dim() > 1:  # a class for each position
        if outputs not in out.shape[1:]:
            remedy = (
                f"gives outputs of shape {tuple(out.shape[1:])}, the data need {outputs} classes a position"
            )
            raise KinfolkError("model.name", name, f"{remedy}; change the last layer")
        return
    width = out.shape[-1] if out.dim() > 1 else 1
    if out.shape[0] != 1 or out.dim() > 2 or width != outputs:
        wanted = f"{outputs} classes" if federation.classes else f"{outputs} numbers"
        remedy = (
            f"gives outputs of shape {tuple(out.shape[1:])}, the data need {wanted}; change the last layer"
        )
        raise KinfolkError("model.name", name, remedy)


def _check_training(spec: Experiment, learner: Learner) -> None:
    """What would otherwise show in the first round only."""
    if not learner.names:
        raise KinfolkError("model.name", spec.model.name, "has no parameters that require a gradient")
    if learner.plan.drop_single and spec.local.batch == 1:
        raise KinfolkError("local.batch", 1, "this network has BatchNorm, which needs batches of 2 or more")


def first_rows(federation: Federation, count: int) -> tuple[Rows, Rows]:
    """A few rows to try a network on, as often as needed where there are fewer."""
    held = federation.among(federation.clients[:1])
    return held.take(torch.arange(count) % held.rows)


def parameters(learner: Learner) -> int:
    """How many numbers are trained."""
    return sum(p.numel() for p in learner.params(learner.first).values())
