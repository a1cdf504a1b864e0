"""Weights that a network begins with, read from a safetensors file; every name and shape is checked."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from kinfolk.errors import KinfolkError
from kinfolk.learning.freezing import FEW, frozen_names, matched
from kinfolk.types import Tree

FIELD = "model.weights"


def load_weights(network: nn.Module, file: str | Path, fresh: Sequence[str] = ()) -> None:
    """Put the weights of a file into a network.

    `fresh` are patterns of names, as `"head.*"`, for which network and file need not agree: the network keeps
    its own. A tensor that a network holds under several names may have any of them in the file.

    >>> import tempfile
    >>> from safetensors.torch import save_file
    >>> network = nn.Linear(2, 1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_file({"weight": torch.ones(1, 2), "bias": torch.zeros(1)}, f"{folder}/a.safetensors")
    ...     load_weights(network, f"{folder}/a.safetensors")
    >>> network.weight.tolist()
    [[1.0, 1.0]]
    """
    given = read_weights(file)
    own = network.state_dict(keep_vars=True)
    matched("model.fresh", fresh, [*own, *(name for name in given if name not in own)])
    kept = {name for name in (*own, *given) if any(fnmatchcase(name, pattern) for pattern in fresh)}
    tied: dict[int, list[str]] = {}
    for name, tensor in own.items():
        tied.setdefault(id(tensor), []).append(name)
    wrong = _wrong(own, {name: t for name, t in given.items() if name not in kept}, kept, tied)
    if wrong:
        raise KinfolkError(FIELD, str(file), _remedy(wrong, own, given))
    with torch.no_grad():
        for name, tensor in given.items():
            if name not in kept:
                own[name].copy_(tensor)


def read_weights(file: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; any other kind of file is refused.

    >>> read_weights("model.pt")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: model.weights = 'model.pt': is a pickle, which can run code when read; ...
    """
    path = Path(file)
    if path.suffix in (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"):
        remedy = (
            "is a pickle, which can run code when read; convert it where you trust it: "
            'safetensors.torch.save_file(torch.load(FILE, weights_only=True), "weights.safetensors")'
        )
        raise KinfolkError(FIELD, str(file), remedy)
    if path.is_dir() or not path.exists():
        here = sorted(p.name for p in (path if path.is_dir() else path.parent).glob("*.safetensors"))
        close = difflib.get_close_matches(path.name, here, n=1, cutoff=0.5) or here[:FEW]
        hint = f"; there is {', '.join(close)}" if close else ""
        kind = "is a folder; name a safetensors file in it" if path.is_dir() else "no such file"
        raise KinfolkError(FIELD, str(file), kind + hint)
    try:
        given: dict[str, Tensor] = load_file(path)
    except (SafetensorError, OSError) as error:
        remedy = f"is no safetensors file ({str(error)[:80]}); write one by safetensors.torch.save_file"
        raise KinfolkError(FIELD, str(file), remedy) from error
    for name, tensor in given.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise KinfolkError(FIELD, str(file), f"{name} holds NaN or infinity; give sound weights")
    return given


def _wrong(
    own: Mapping[str, Tensor], given: Mapping[str, Tensor], kept: set[str], tied: Mapping[int, list[str]]
) -> list[str]:
    """What does not match, one phrase for each name."""
    wrong = []
    for name, tensor in own.items():
        names = tied[id(tensor)]
        there = given.get(name)
        if there is None:
            if name == names[0] and not kept.intersection(names) and not any(n in given for n in names):
                others = [other for other in given if other not in own]
                close = difflib.get_close_matches(name, others, n=1, cutoff=0.6)
                wrong.append(f"{name} is not in the file" + (f" (near: {close[0]})" if close else ""))
        elif there.shape != tensor.shape:
            wrong.append(f"{name} is {list(tensor.shape)} here and {list(there.shape)} in the file")
        elif there.is_floating_point() != tensor.is_floating_point():
            kinds = (str(t.dtype).removeprefix("torch.") for t in (tensor, there))
            wrong.append("{} is {} here and {} in the file".format(name, *kinds))
    return wrong + [f"{name} is not in the network" for name in given if name not in own]


def _remedy(wrong: Sequence[str], own: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> str:
    """The first few that do not match, and what most likely happened."""
    more = f"; and {len(wrong) - FEW} more" if len(wrong) > FEW else ""
    said = f"{len(wrong)} names or shapes do not match: {'; '.join(wrong[:FEW])}{more}"
    for one, other, where in ((given, own, "of the file"), (own, given, "of the network")):
        prefix = _prefix(list(one), list(other))
        if prefix:
            return (
                f"{said}. Names {where} begin with {prefix!r}, the others do not; save them with equal names"
            )
    heads = {n.rpartition(".")[0] for n in own if n in given and own[n].shape != given[n].shape}
    if len(heads) == 1:
        head = heads.pop()
        return f'{said}. {head} has another size; to begin it anew, set model.fresh=["{head}.*"]'
    return f"{said}. Names that need not match go into model.fresh"


def _prefix(names: Sequence[str], others: Sequence[str]) -> str:
    """What the names begin with and the others lack, if that alone sets most of them apart.

    >>> _prefix(["model.a.w", "model.b.w"], ["a.w", "b.w"]), _prefix(["a.w"], ["b.w"])
    ('model.', '')
    """
    for other in others[:FEW]:
        for name in names:
            prefix = name.removesuffix(other)
            if name.endswith(f".{other}") and sum(f"{prefix}{o}" in names for o in others) * 2 > len(others):
                return prefix
    return ""


def fill(network: nn.Module, model: Tree) -> None:
    """Put a model into a network of the same names and shapes; tensors of several names are filled once.

    A model without what is frozen is whole enough: the network has that already.

    >>> network = nn.Linear(1, 1)
    >>> fill(network, {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])})
    >>> network(torch.tensor([3.0])).tolist()
    [7.0]
    """
    own = network.state_dict(keep_vars=True)
    names = {id(t): name for name, t in reversed(own.items())}
    frozen = frozen_names(network)
    mine = {
        name: t for name, t in own.items() if names[id(t)] == name and (name in model or name not in frozen)
    }
    for name in sorted(mine.keys() | model.keys()):
        if name not in mine or name not in model or mine[name].shape != model[name].shape:
            there, here = (_shape(tree.get(name)) for tree in (model, mine))
            remedy = f"is not the network of the run: {name} is {there} there and {here} here"
            raise KinfolkError("network", type(network).__name__, remedy)
    with torch.no_grad():
        for name, tensor in mine.items():
            tensor.copy_(model[name])


def _shape(tensor: Tensor | None) -> str:
    return "nothing" if tensor is None else str(list(tensor.shape))
