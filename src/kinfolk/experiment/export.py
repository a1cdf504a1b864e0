"""Models written to be used elsewhere: safetensors and a card; torch.export and ONNX where it can be."""

from __future__ import annotations

import json
import logging
import os
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import torch
from safetensors.torch import save
from torch import nn

from kinfolk.by_path import one_line
from kinfolk.errors import KinfolkError, near
from kinfolk.experiment.card import Wanted, card
from kinfolk.experiment.kept_models import KeptModels
from kinfolk.experiment.outline import Outline
from kinfolk.experiment.raw_rows import with_raw_rows
from kinfolk.experiment.record import disk_errors, write_bytes, write_json, write_text
from kinfolk.learning.network import Wrapper, arguments, inputs_of
from kinfolk.private import private_folder

WEIGHTS, CARD, FACTS = "model.safetensors", "README.md", "model.json"


@dataclass(frozen=True)
class Format:
    """A way to write a network: the file it goes into, and how."""

    file: str
    write: Callable[[nn.Module, Outline, Path], None]
    needs: tuple[str, ...] = ()  # packages that Kinfolk itself does not need


def export(
    network: nn.Module, kept: KeptModels, wanted: Wanted, folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Write one model and its card into a new folder, and give the files.

    A network that cannot be traced is an error at the end: what needs no tracing is there all the same.
    """
    check_formats(formats)
    _vacant(folder)
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with disk_errors("--out", folder):
            private_folder(temporary)
            output = kept.spec.model.output
            failed = _written(network, kept.outline, wanted, temporary, formats, output)
            files = sorted(path.name for path in temporary.iterdir())
            write_json(temporary / FACTS, facts_of(kept, wanted))
            write_text(temporary / CARD, card(kept, wanted, network, files))
            if folder.exists():
                folder.rmdir()  # it is empty
            os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for error in failed:
        raise error
    return sorted(folder.iterdir())


def _vacant(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise KinfolkError("--out", str(folder), "is there already; choose another name or remove it first")


def check_formats(formats: Sequence[str]) -> None:
    """Refuse formats that there are not, or not here.

    >>> check_formats(["safetensor"])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: --format = 'safetensor': did you mean 'safetensors'?
    """
    for name in formats:
        if name not in FORMATS:
            raise KinfolkError("--format", name, near(name, FORMATS))
        if any(find_spec(package) is None for package in FORMATS[name].needs):
            raise KinfolkError("--format", name, f"needs packages of an extra: pip install 'kinfolk[{name}]'")


def _written(
    network: nn.Module,
    outline: Outline,
    wanted: Wanted,
    folder: Path,
    formats: Iterable[str],
    output: str,
) -> list[KinfolkError]:
    """Write all formats that can be; why others cannot. Whole programs take rows as they came."""
    failed = []
    for name in dict.fromkeys(["safetensors", *formats]):
        file = folder / FORMATS[name].file
        try:
            one = network if name == "safetensors" else with_raw_rows(network, outline, wanted.client, output)
            FORMATS[name].write(one, outline, file)
        except KinfolkError as error:
            file.unlink(missing_ok=True)
            failed.append(error)
    return failed


def facts_of(kept: KeptModels, wanted: Wanted) -> dict[str, Any]:
    """What a program needs to know to use the model."""
    outline = kept.outline
    return {
        "shape": list(outline.shape),
        **({"inputs": {name: list(leaf) for name, leaf in outline.inputs.items()}} if outline.inputs else {}),
        "classes": outline.classes,
        "class_names": list(outline.class_names),
        "feature_names": list(outline.feature_names),
        "scale": None if outline.pixels is None else list(outline.pixels),
        "standardized": _statistics(outline, wanted.client),
        "recipe": None if outline.recipe is None else asdict(outline.recipe),
        "network": {"name": kept.spec.model.name, "options": dict(kept.spec.model.options)},
        "kind": wanted.kind,
        "round": wanted.round,
        "client": wanted.client,
        "group": wanted.group,
    }


def _statistics(outline: Outline, client: str | None) -> dict[str, Any] | None:
    """What rows and targets are standardised by; rows of None where each client has its own."""
    scaling = outline.scaling
    if scaling is None:
        return None
    rows = scaling.rows.get(client or "") if scaling.by == "client" else scaling.of(None)
    told = {"rows": rows and asdict(rows), "target": scaling.target and asdict(scaling.target)}
    return {"by": scaling.by, **told}


def _safetensors(network: nn.Module, outline: Outline, path: Path) -> None:
    """All parameters and buffers by their names; tied ones under each of them."""
    tensors = {name: t.detach().cpu().clone().contiguous() for name, t in network.state_dict().items()}
    told = {"shape": json.dumps(list(outline.shape)), "class_names": json.dumps(list(outline.class_names))}
    write_bytes(path, save(tensors, {"format": "pt", **told}))


class Example(NamedTuple):
    """Two rows to trace a network on: what it is called with, and whose first axis is the rows."""

    placed: tuple[Any, ...]
    named: dict[str, Any]
    rows: Any  # of every argument, as `torch.export` has it
    names: list[str]  # of the inputs


def _example(network: nn.Module, outline: Outline) -> Example:
    dim = {0: torch.export.Dim("rows", min=1)}
    if not outline.inputs:
        # What a wrapper takes by place stands under the name that it has for all of it.
        rows = {"placed": (dim,)} if isinstance(network, Wrapper) else (dim,)
        return Example((torch.zeros(2, *outline.shape),), {}, rows, ["x"])
    placed, named = arguments(network, outline.without_rows().x)
    given = dict(zip(inputs_of(network).names, placed, strict=False)) | named
    rows = {name: _dims(v, dim) for name, v in given.items()}
    leaves = [n for name, v in given.items() for n in (v if isinstance(v, dict) else [name])]
    if isinstance(network, Wrapper):  # torch.export knows no shapes of what has no names: all by place
        placed = tuple(given[name] for name in inputs_of(network).names[: len(given)])
        return Example(placed, {}, {"placed": tuple(_dims(v, dim) for v in placed)}, leaves)
    return Example(placed, named, rows, leaves)


def _dims(value: Any, dim: Any) -> Any:
    return dict.fromkeys(value, dim) if isinstance(value, dict) else dim


def _torch(network: nn.Module, outline: Outline, path: Path) -> None:
    """A program of torch.export for any number of rows."""
    with _traced("torch"):
        like = _example(network, outline)
        program = torch.export.export(network, like.placed, like.named, dynamic_shapes=like.rows)
        torch.export.save(program, path)


def _onnx(network: nn.Module, outline: Outline, path: Path) -> None:
    """An ONNX graph for any number of rows."""
    with _traced("onnx"):
        like = _example(network, outline)
        names: Any = {"input_names": like.names, "output_names": ["out"], "dynamic_shapes": like.rows}
        names |= {"kwargs": like.named} if like.named else {}
        torch.onnx.export(network, like.placed, path, dynamo=True, verbose=False, **names)


class _traced:
    """Turns whatever tracing a network raises into one line that says what can be done instead."""

    def __init__(self, name: str) -> None:
        self.name, self.quiet = name, ExitStack()

    def __enter__(self) -> None:
        self.quiet.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # of libraries about one another
        # What torch logs and prints of a graph that it gives up.
        log, level = logging.getLogger("torch"), logging.getLogger("torch").level
        log.setLevel(logging.CRITICAL)
        self.quiet.callback(log.setLevel, level)
        self.quiet.enter_context(redirect_stdout(StringIO()))
        self.quiet.enter_context(redirect_stderr(StringIO()))

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.quiet.close()
        if isinstance(error, Exception) and not isinstance(error, OSError):
            remedy = (
                f"the network cannot be traced ({one_line(error)[:160]}); {WEIGHTS} is written, for use with "
                "its class; or rewrite what depends on values of x (if, .item(), loops) with torch.where"
            )
            raise KinfolkError("--format", self.name, remedy) from error


FORMATS = {
    "safetensors": Format(WEIGHTS, _safetensors),
    "torch": Format("model.pt2", _torch),
    "onnx": Format("model.onnx", _onnx, ("onnx", "onnxscript")),
}


def export_all(
    kept: KeptModels, kind: str, round: int, folder: Path, formats: Sequence[str], licence: str
) -> list[Path]:
    """Write every model of a kind into a folder each: `all`, `group-2`, or a client's name."""
    check_formats(formats)
    _vacant(folder)
    owners = kept.owners(kind, round)
    trees = kept.trees(sorted(set(owners.values())), kind, round)
    files: list[Path] = []
    for (client, group), who in owners.items():
        name = _folder_name(client) if client else "all" if group is None else f"group-{group}"
        wanted = Wanted(kind, round, client, group, licence)
        files += export(kept.network(kind, trees[who]), kept, wanted, folder / name, formats)
    return files


def _folder_name(client: str) -> str:
    """A client's name as that of a folder, which no two clients share.

    >>> _folder_name("ann"), _folder_name("../b c")
    ('ann', '%2E%2E%2Fb%20c')
    """
    safe = quote(client, safe="")
    return safe if not safe.startswith(".") else safe.replace(".", "%2E")
