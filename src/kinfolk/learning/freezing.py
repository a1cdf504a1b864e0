"""Which part of a network is trained.

The rest is frozen: every site has it from the start, so it does not travel, and is held once for all clients.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import nn

from kinfolk.errors import KinfolkError

# Names that an error lists.
FEW = 5


def matched(field: str, patterns: Sequence[str], names: Collection[str]) -> set[str]:
    """The names that patterns as `"head.*"` are about; one that is about none is an error with near names.

    >>> sorted(matched("model.train", ["head.*"], ["body.weight", "head.weight", "head.bias"]))
    ['head.bias', 'head.weight']
    >>> matched("model.train", ["haed.*"], ["body.weight", "head.weight"])
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: model.train = 'haed.*': matches no name; near ones: head.weight
    """
    found: set[str] = set()
    for pattern in patterns:
        some = {name for name in names if fnmatchcase(name, pattern)}
        if not some:
            raise KinfolkError(field, pattern, f"matches no name; {near_names(pattern, names)}")
        found |= some
    return found


def near_names(name: str, names: Collection[str]) -> str:
    """A few names that look like this one, or some of those there are.

    >>> near_names("head", ["a.weight", "b.weight"])
    'there are a.weight, b.weight'
    """
    close = difflib.get_close_matches(name.replace("*", ""), names, n=FEW, cutoff=0.5)
    if close:
        return f"near ones: {', '.join(close)}"
    more = f", ... {len(names)} in all" if len(names) > FEW else ""
    return f"there are {', '.join(list(names)[:FEW])}{more}"


def freeze(network: nn.Module, train: Sequence[str]) -> None:
    """Let parameters that a pattern names be trained, and freeze all others. A tied one may go by any name.

    >>> network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    >>> freeze(network, ["1.*"])
    >>> [name for name, p in network.named_parameters() if p.requires_grad]
    ['1.weight', '1.bias']
    """
    named = dict(network.named_parameters(remove_duplicate=False))
    wanted = {id(named[name]) for name in matched("model.train", train, named)}
    for parameter in network.parameters():
        parameter.requires_grad_(id(parameter) in wanted and parameter.is_floating_point())
    if not any(p.requires_grad for p in network.parameters()):
        raise KinfolkError(
            "model.train", list(train), "freezes everything; name parameters that have gradients"
        )


def frozen_parts(network: nn.Module) -> dict[str, nn.Module]:
    """Every module, by its path, that lies in a part whose parameters are all frozen.

    Such a part is one fixed function, in training as in scoring: BatchNorm keeps its running statistics, and
    nothing is dropped.

    >>> network = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    >>> freeze(network, ["1.*"])
    >>> list(frozen_parts(network))
    ['0']
    """
    found: dict[str, nn.Module] = {}
    for path, module in network.named_modules(remove_duplicate=False):
        inside = any(path.startswith(f"{outer}.") for outer in _prefixes(path) if outer in found)
        flags = [p.requires_grad for p in module.parameters()]
        if inside or (flags and not any(flags)):
            found[path] = module
    return found


def _prefixes(path: str) -> list[str]:
    parts = path.split(".")
    return [".".join(parts[:i]) for i in range(1, len(parts))]


def frozen_names(network: nn.Module) -> frozenset[str]:
    """The entries of a network's state that are frozen: parameters, and buffers of frozen parts.

    >>> network = nn.Sequential(nn.BatchNorm1d(2, affine=False), nn.Linear(2, 1))
    >>> network[1].bias.requires_grad_(False).shape
    torch.Size([1])
    >>> sorted(frozen_names(network))
    ['1.bias']
    """
    names = {n for n, p in network.named_parameters(remove_duplicate=False) if not p.requires_grad}
    for path, module in frozen_parts(network).items():
        names |= {f"{path}.{name}".lstrip(".") for name, _ in module.named_buffers(recurse=False)}
    return frozenset(names)
