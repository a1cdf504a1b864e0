"""The tables of an experiment file: one frozen record each, a comment above every key, its bounds below."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Any, get_type_hints

from kinfolk.attacks.attack import KINDS as ATTACKS
from kinfolk.engines import spec as engine
from kinfolk.engines.cohort import GuardSpec
from kinfolk.engines.spec import EngineSpec
from kinfolk.federation.sources import DataSpec
from kinfolk.learning.augment import NAMES as AUGMENTS
from kinfolk.learning.losses import LOSSES
from kinfolk.learning.optim import OPTIMISERS
from kinfolk.learning.schedules import SCHEDULES
from kinfolk.privacy import spec as privacy
from kinfolk.privacy.spec import PrivacySpec
from kinfolk.secure_sums import spec as secure_sums
from kinfolk.secure_sums.spec import SecureSumsSpec


@dataclass(frozen=True)
class LoraSpec:
    """The `[model.lora]` table: low-rank adapters beside frozen matrices."""

    # Rank of the adapters; 0: none.
    rank: int = 0
    # What adapters give is scaled by alpha / rank.
    alpha: float = 16.0
    # Patterns of linear and attention layers that get an adapter, as "blocks.*.attn"; the rest is frozen.
    layers: tuple[str, ...] = ("*",)


@dataclass(frozen=True)
class ModelSpec:
    """The `[model]` table: which network."""

    # Name of the model.
    name: str = "mlp"
    # Every other key of the table: what this model takes.
    options: dict[str, Any] = field(default_factory=dict)
    # Which field, by name or place, of an object that the network gives in place of a tensor: "logits".
    output: str = ""
    # File of weights to begin with (safetensors); without one they are drawn.
    weights: str = ""
    # Patterns of names, as "head.*", that the file does not give: the network keeps what was drawn.
    fresh: tuple[str, ...] = ()
    # Patterns of parameters, as "head.*", that are trained; all others are frozen. None: all are trained.
    train: tuple[str, ...] = ()
    # Adapters.
    lora: LoraSpec = field(default_factory=LoraSpec)


@dataclass(frozen=True)
class LocalSpec:
    """The `[local]` table: how a client trains."""

    # Passes over a client's rows per round.
    epochs: int = 1
    # Above 0: exactly that many steps per round, whatever the epochs say.
    steps: int = 0
    # Rows per step.
    batch: int = 20
    # Leave out, in each epoch, the rows that fill no batch: BatchNorm learns little good from a batch of two.
    drop_last: bool = False
    # Learning rate.
    lr: float = 0.1
    # The learning rate of round r is lr x decay ** r.
    decay: float = 1.0
    # Learning rate of models that are fine-tuned to be scored; 0: that of the round.
    tune_lr: float = 0.0
    # Epochs of models that are fine-tuned to be scored; 0: as many as the method has of its own, mostly 1.
    tune_epochs: int = 0
    # What the rate is multiplied by over rounds: "constant", "cosine", "linear", "step", or an import path.
    schedule: str = "constant"
    # Options of the schedule: warmup, end, every, factor.
    schedule_options: dict[str, Any] = field(default_factory=dict)
    # The same over the steps of a client in a round.
    step_schedule: str = "constant"
    # Options of that schedule.
    step_schedule_options: dict[str, Any] = field(default_factory=dict)
    # How gradients move parameters: "sgd", "adam", "adamw", "adagrad", "rmsprop", or an import path.
    optimiser: str = "sgd"
    # Options of the optimiser that this table has no key for, as nesterov or betas.
    optimiser_options: dict[str, Any] = field(default_factory=dict)
    # Momentum of "sgd".
    momentum: float = 0.0
    # Pull towards zero, added to the gradient; of "adamw" taken off the weights themselves.
    weight_decay: float = 0.0
    # Largest norm of one gradient; 0: no limit.
    clip: float = 0.0
    # What is minimised: "auto" (by the targets), "cross_entropy", "bce", "focal", "mse", "huber", "l1", or an
    # import path.
    loss: str = "auto"
    # Options of the loss, as label_smoothing, class_weights, ignore_index, gamma or pos_weight.
    loss_options: dict[str, Any] = field(default_factory=dict)
    # Pictures changed at random in training, never in scoring: "none", "flip", "crop" or "flip_crop".
    augment: str = "none"
    # Pixels of border that "crop" adds on each side before it cuts the old size out again.
    augment_pad: int = 4


@dataclass(frozen=True)
class AlgorithmSpec:
    """The `[algorithm]` table: which method."""

    # Name of the algorithm.
    name: str = "fedavg"
    # Every other key of the table: what this algorithm takes.
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunSpec:
    """The `[run]` table: how long, how often, from which seed."""

    # Number of rounds.
    rounds: int = 20
    # Fraction of the clients that are asked in a round.
    participation: float = 1.0
    # Seed of everything that is drawn.
    seed: int = 0
    # Rounds between two evaluations.
    evaluate_every: int = 1
    # Rounds between two checkpoints; 0: as many as 5 % of the time allow.
    checkpoint_every: int = 0
    # Checkpoints that are kept: the "last" two, these and the "best" round's on validation rows, or "all".
    keep: str = "last"
    # Stop after so many evaluations without a better score on validation rows; 0: never.
    patience: int = 0
    # Rows that are scored: "test" or "valid".
    split: str = "test"
    # Whose scores are taken: of "all" models that an algorithm has for a client, or of the "first" alone.
    models: str = "all"
    # What clients tell of their scores: "auto" (counts by class, unless the method or privacy keeps labels to
    # the client), "sums" (never counts by class) or "none" (nothing: nobody is scored).
    reveal: str = "auto"
    # Stop once the score reaches this; 0: never.
    target: float = 0.0
    # The score that `target` is about.
    target_score: str = "accuracy"
    # Metrics besides those that the targets have anyway: names as "auroc", or import paths.
    metrics: list[str] = field(default_factory=list)
    # The score that the best round, patience, tune and choose-k go by; "auto": accuracy, mse or the loss.
    monitor: str = "auto"
    # What is written down to look at: "none"; sketches of "models"; also "rows", a few of them, if images.
    pictures: str = "models"
    # Fraction of the cohort that must answer, else the round is void.
    quorum: float = 0.0
    # Probability that a client does not answer, to simulate drop-outs.
    absent: float = 0.0
    # If training diverges: "warn", "stop", "rollback" (go back, halve the rate) or "exclude" (clients).
    on_divergence: str = "warn"
    # What attackers do: "none"; to their replies "sign_flip", "scaled", "noise", "unchanged", "free_noise",
    # "replay", "sybil", "own_cluster", "absurd"; to their rows "label_flip", "backdoor"; to what they say
    # "slander", "ballot_stuffing", "many_rows".
    attack: str = "none"
    # Fraction of the clients that attack; they are not scored.
    attackers: float = 0.0


@dataclass(frozen=True)
class Experiment:
    """One experiment file, every value resolved.

    >>> Experiment(local=LocalSpec(lr=0.05)).local.lr
    0.05
    """

    data: DataSpec = field(default_factory=DataSpec)
    model: ModelSpec = field(default_factory=ModelSpec)
    local: LocalSpec = field(default_factory=LocalSpec)
    algorithm: AlgorithmSpec = field(default_factory=AlgorithmSpec)
    engine: EngineSpec = field(default_factory=EngineSpec)
    guard: GuardSpec = field(default_factory=GuardSpec)
    privacy: PrivacySpec = field(default_factory=PrivacySpec)
    secure_sums: SecureSumsSpec = field(default_factory=SecureSumsSpec)
    run: RunSpec = field(default_factory=RunSpec)


SECTIONS: dict[str, type[Any]] = get_type_hints(Experiment)

CHOICES: dict[str, Collection[str]] = {
    **engine.CHOICES,
    **privacy.CHOICES,
    **secure_sums.CHOICES,
    "local.augment": AUGMENTS,
    "run.keep": ("last", "best", "all"),
    "run.split": ("test", "valid"),
    "run.models": ("all", "first"),
    "run.reveal": ("auto", "sums", "none"),
    "run.pictures": ("none", "models", "rows"),
    "run.on_divergence": ("warn", "stop", "rollback", "exclude"),
    "run.attack": ("none", *ATTACKS),
}

# Settings that name one of these, or something of the user's by an import path.
NAMED: dict[str, Collection[str]] = {
    "local.optimiser": OPTIMISERS,
    "local.loss": ("auto", *LOSSES),
    "local.schedule": SCHEDULES,
    "local.step_schedule": SCHEDULES,
}

# (what holds, what to do if it does not, the settings it is about)
RANGES: list[tuple[Callable[[Any], bool], str, str]] = [
    *engine.RANGES,
    *privacy.RANGES,
    *secure_sums.RANGES,
    (bool, "give a name", "model.name algorithm.name run.target_score run.monitor"),
    (lambda v: v >= 1, "give 1 or more", "local.batch run.rounds run.evaluate_every"),
    (lambda v: v >= 0, "give 0 or more", "local.epochs local.steps local.weight_decay local.clip"),
    (lambda v: v >= 0, "give 0 or more", "local.augment_pad local.tune_lr local.tune_epochs"),
    (lambda v: v >= 0, "give 0 or more", "run.seed run.patience run.checkpoint_every model.lora.rank"),
    (lambda v: v > 0, "give a number above 0", "local.lr model.lora.alpha"),
    (bool, 'give a pattern or more, as ["*attn*"]', "model.lora.layers"),
    (lambda v: 0 < v <= 1, "give a number above 0 and at most 1", "local.decay run.participation"),
    (lambda v: 0 <= v < 1, "give a number from 0 to below 1", "local.momentum run.absent run.attackers"),
    (lambda v: 0 <= v <= 1, "give a number from 0 to 1", "run.quorum guard.share"),
    (lambda v: v == 0 or v >= 1, "give 1 or more, or 0 for no limit", "guard.rows guard.norm"),
]


def describe() -> tuple[tuple[str, Any, str], ...]:
    """(setting, default, meaning) of every setting; the meaning is the comment above the field.

    >>> describe()[-1]
    ('run.attackers', 0.0, 'Fraction of the clients that attack; they are not scored.')
    """
    return tuple(line for section, kind in SECTIONS.items() for line in _described(section, kind))


def _described(table: str, kind: type[Any]) -> Iterator[tuple[str, Any, str]]:
    source = inspect.getsource(kind)
    for f in fields(kind):
        found = re.search(rf"((?:^    # .*\n)+)    {f.name}:", source, re.MULTILINE)
        meaning = " ".join(line.strip(" #") for line in found[1].splitlines()) if found else ""
        default = f.default if f.default_factory is MISSING else f.default_factory()
        if is_dataclass(default):
            yield from _described(f"{table}.{f.name}", type(default))
        else:
            yield f"{table}.{f.name}", default, meaning


def groups_of(kind: type[Any]) -> dict[str, type[Any]]:
    """The tables inside a table, by name.

    >>> groups_of(ModelSpec)
    {'lora': <class 'kinfolk.experiment.sections.LoraSpec'>}
    """
    hints = get_type_hints(kind).items()
    return {name: hint for name, hint in hints if isinstance(hint, type) and is_dataclass(hint)}
