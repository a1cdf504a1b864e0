"""What a run folder says of its rows and its first model, so that models can be used where no rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.codec import decode, encode
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import readable_json, write_bytes, write_json
from kinfolk.federation.federation import SPLITS, Federation, as_trained, output_count, pack
from kinfolk.federation.own_data.columns import Recipe
from kinfolk.federation.scaling import Scaling
from kinfolk.learning.learner import Learner
from kinfolk.types import Client, Rows, Tree

# Of one input or target: the shape of a row, and its type.
Leaf = tuple[tuple[int, ...], str]
FILE, FIRST = "federation.json", "first.safetensors"


@dataclass(frozen=True)
class Outline:
    """Clients, classes and columns of a federation, without a single row."""

    clients: tuple[Client, ...]
    shape: tuple[int, ...]  # of one row
    classes: int  # 0: numbers to predict
    outputs: int
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    scale: tuple[float, float] | None  # rows that are bytes are trained on as x * scale[0] + scale[1]
    name: str
    # What networks are given, name by name; without any, x is one tensor of floats, y what `classes` says.
    inputs: Mapping[str, Leaf] = field(default_factory=dict)
    targets: Mapping[str, Leaf] = field(default_factory=dict)
    target: str = ""  # kind of the targets; by the classes where an older version wrote it
    class_axis: int = -1  # of a class per position: which axis of the outputs is that of the classes
    scaling: Scaling | None = None  # how rows and targets were standardised
    recipe: Recipe | None = None  # how rows come out of raw columns

    @property
    def kind(self) -> str:
        """What is predicted: see `kinfolk.learning.losses.TARGETS`."""
        return self.target or ("class" if self.classes else "numbers")

    @property
    def pixels(self) -> tuple[float, float] | None:
        """How bytes are scaled before anything else; None where rows are none."""
        return self.scale or (self.scaling.pixels if self.scaling else None)

    @property
    def row_text(self) -> str:
        """The inputs in words, where they are not one tensor of floats.

        >>> Outline((), (), 2, 2, (), (), None, "", {"tokens": ((9,), "int64")}).row_text
        'tokens [9] int64'
        """
        return ", ".join(f"{name} {list(s)} {kind}".strip() for name, (s, kind) in self.inputs.items())

    @staticmethod
    def of(federation: Federation, learner: Learner | None = None) -> Outline:
        """The outline of a federation, and of what a learner makes of its targets.

        >>> from kinfolk.federation.own_data.arrays import from_arrays
        >>> Outline.of(from_arrays({"ann": (torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0]))})).shape
        (2,)
        """
        x, y = federation.x, federation.y
        floats = federation.scale is not None or (isinstance(x, Tensor) and x.is_floating_point())
        count = learner.outputs if learner else output_count(federation)
        several = isinstance(y, Tensor) and y.dim() == 2 and y.is_floating_point() and y.shape[1] == count > 1
        usual = several or (isinstance(y, Tensor) and y.dim() == 1)
        return Outline(
            federation.clients,
            federation.shape,
            federation.classes,
            count,
            federation.class_names,
            federation.feature_names,
            federation.scale,
            federation.name,
            {} if floats else _leaves(x),
            {} if usual else _leaves(y),
            learner.loss.target if learner else "",
            learner.loss.class_axis if learner else -1,
            federation.scaling,
            federation.recipe,
        )

    def without_rows(self) -> Federation:
        """A federation with these clients that owns one row of zeros, enough to build a network for.

        >>> Outline((Client("ann"),), (2,), 3, 3, (), (), None, "").without_rows().x.shape
        torch.Size([2, 2])
        """
        y = torch.zeros(2, dtype=torch.int64) if self.classes else torch.zeros(2, self.outputs)
        given = _blank(self.targets) if self.targets else y if self.classes or self.outputs > 1 else y[:, 0]
        shared = pack([torch.tensor([0])], of=[0] * len(self.clients))
        # Scaled rows are floats by the time that a network sees them.
        return Federation(
            self.clients,
            _blank(self.inputs) if self.inputs else torch.zeros(2, *self.shape),
            self._retaken(given),
            dict.fromkeys(SPLITS, shared),
            self.classes,
            name=self.name,
            class_names=self.class_names,
            feature_names=self.feature_names,
            scaling=self.scaling,
            recipe=self.recipe,
        )

    def _retaken(self, y: Rows) -> Rows:
        """Targets that are taken as the run's were: all 0 or 1 they may be labels, summing to one soft."""
        if isinstance(y, dict) or self.kind not in ("positions", "numbers", "soft", "any"):
            return y
        return y + (self.classes - 1 if self.classes else 1 / max(y[0].numel(), 2))


def _leaves(rows: Rows) -> dict[str, Leaf]:
    """Shape and type of every tensor of some rows as networks see them; one tensor has no name."""
    named = rows if isinstance(rows, dict) else {"": rows}
    kinds = {name: str(as_trained(t[:0]).dtype).removeprefix("torch.") for name, t in named.items()}
    return {name: (tuple(t.shape[1:]), kinds[name]) for name, t in named.items()}


def _blank(leaves: Mapping[str, Leaf]) -> Rows:
    """Two rows of such tensors: ids and numbers are 0, everything is real and has a length."""
    made: dict[str, Tensor] = {}
    for name, (shape, kind) in leaves.items():
        dtype = getattr(torch, kind)
        real = dtype == torch.bool or name.endswith("lengths")
        made[name] = (torch.ones if real else torch.zeros)((2, *shape), dtype=dtype)
    return made.get("", made)


def write_outline(folder: Path, federation: Federation, learner: Learner) -> None:
    """Write both files of a run that begins; what is frozen is written here and nowhere else."""
    write_json(folder / FILE, asdict(Outline.of(federation, learner)))
    write_bytes(folder / FIRST, encode({"model": {**learner.first, **learner.frozen}}))


def outline_from(told: dict[str, Any]) -> Outline:
    """An outline out of what `dataclasses.asdict` gave, or JSON made of it.

    >>> import json
    >>> some = Outline((Client("ann"),), (2,), 3, 3, (), (), None, "")
    >>> outline_from(json.loads(json.dumps(asdict(some)))) == some
    True
    """
    lists: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
    }
    for key in ("inputs", "targets"):  # which runs of an older version lack
        lists[key] = {n: (tuple(shape), kind) for n, (shape, kind) in told.get(key, {}).items()}
    lists["scaling"] = told.get("scaling") and Scaling.from_dict(told["scaling"])
    return Outline(**{**lists, "recipe": Recipe.from_dict(told.get("recipe"))})


def read_outline(folder: Path) -> Outline:
    """The outline in a run folder.

    >>> read_outline(Path("nowhere"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': has no federation.json (of an older version); run it again
    """
    try:
        return outline_from(readable_json((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        remedy = f"has no {FILE} (of an older version); run it again"
        raise KinfolkError("run", str(folder), remedy) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise KinfolkError("run", str(folder / FILE), f"cannot be read ({error}); run it again") from error


def read_first(folder: Path) -> Tree:
    """The common initial model of a run, frozen part and all."""
    try:
        model: Tree = decode((folder / FIRST).read_bytes())[0]["model"]
    except (OSError, KeyError) as error:
        raise KinfolkError("run", str(folder / FIRST), f"cannot be read ({error}); run it again") from error
    return model


def is_torn(folder: Path) -> bool:
    """Whether there is an outline that cannot be read.

    >>> is_torn(Path("nowhere"))
    False
    """
    if not (folder / FILE).exists():
        return False
    try:
        read_outline(folder)
    except KinfolkError:
        return True
    return False


def check_frozen(folder: Path, learner: Learner) -> None:
    """Refuse to go on with a run whose frozen part is another by now; its file may have changed."""
    if not learner.frozen:
        return
    kept = read_first(folder)
    for name, tensor in learner.frozen.items():
        if name not in kept or not torch.equal(kept[name], tensor.cpu()):
            remedy = (
                f"{name}, which is frozen, is not what the run began with; give the same network and weights"
            )
            raise KinfolkError("run", str(folder), remedy)
