"""What a run folder says of its rows and its first model, so that models can be used where no rows are."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kinfolk.codec import decode, encode
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_bytes, write_json
from kinfolk.federation.federation import SPLITS, Federation, pack
from kinfolk.learning.learner import Learner
from kinfolk.types import Client, Tree

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

    @staticmethod
    def of(federation: Federation) -> Outline:
        """The outline of a federation.

        >>> from kinfolk.federation.own_data.arrays import from_arrays
        >>> Outline.of(from_arrays({"ann": (torch.zeros(5, 2), torch.tensor([0, 1, 0, 1, 0]))})).shape
        (2,)
        """
        y = federation.y
        return Outline(
            federation.clients,
            federation.shape,
            federation.classes,
            federation.classes or (y.shape[1] if y.dim() > 1 else 1),
            federation.class_names,
            federation.feature_names,
            federation.scale,
            federation.name,
        )

    def without_rows(self) -> Federation:
        """A federation with these clients that owns one row of zeros, enough to build a network for.

        >>> Outline((Client("ann"),), (2,), 3, 3, (), (), None, "").without_rows().x.shape
        torch.Size([2, 2])
        """
        zeros = torch.zeros(2, dtype=torch.int64) if self.classes else torch.zeros(2, self.outputs)
        shared = pack([torch.tensor([0])], of=[0] * len(self.clients))
        # Scaled rows are floats by the time that a network sees them.
        return Federation(
            self.clients,
            torch.zeros(2, *self.shape),
            zeros if self.classes or self.outputs > 1 else zeros[:, 0],
            dict.fromkeys(SPLITS, shared),
            self.classes,
            name=self.name,
            class_names=self.class_names,
            feature_names=self.feature_names,
        )


def write_outline(folder: Path, federation: Federation, learner: Learner) -> None:
    """Write both files of a run that begins; what is frozen is written here and nowhere else."""
    write_json(folder / FILE, asdict(Outline.of(federation)))
    write_bytes(folder / FIRST, encode({"model": {**learner.first, **learner.frozen}}))


def read_outline(folder: Path) -> Outline:
    """The outline in a run folder.

    >>> read_outline(Path("nowhere"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: run = 'nowhere': has no federation.json (of an older version); run it again
    """
    try:
        told: dict[str, Any] = json.loads((folder / FILE).read_text(encoding="utf-8"))
        lists: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in told.items()
        }
        return Outline(**lists)
    except FileNotFoundError as error:
        remedy = f"has no {FILE} (of an older version); run it again"
        raise KinfolkError("run", str(folder), remedy) from error
    except (OSError, ValueError, TypeError) as error:
        raise KinfolkError("run", str(folder / FILE), f"cannot be read ({error}); run it again") from error


def read_first(folder: Path) -> Tree:
    """The common initial model of a run, frozen part and all."""
    try:
        model: Tree = decode((folder / FIRST).read_bytes())[0]["model"]
    except (OSError, KeyError) as error:
        raise KinfolkError("run", str(folder / FIRST), f"cannot be read ({error}); run it again") from error
    return model


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
