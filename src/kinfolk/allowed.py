"""Whose code a spec may name: a spec is data, may be a stranger's, and runs nothing that nobody has allowed.

What may be imported is Kinfolk's own, what an installed package offers, and what the person names, on the
command line or in Python. It is never read from a spec, a run folder or a file beside them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.metadata import distributions
from pathlib import Path

from kinfolk.errors import KinfolkError

# The groups of entry points by which an installed package offers something for a setting.
GROUPS = {
    "algorithm.name": "kinfolk.algorithms",
    "model.name": "kinfolk.models",
    "local.loss": "kinfolk.losses",
    "local.optimiser": "kinfolk.optimisers",
    "local.schedule": "kinfolk.schedules",
    "local.step_schedule": "kinfolk.schedules",
    "run.metrics": "kinfolk.metrics",
}
# Of this process: forked workers inherit it, and ranks are started with the same command line.
_ALLOWED: set[str] = set()


def allow_imports(*modules: str) -> None:
    """Allow import paths of specs to name what these modules and those inside them define.

    On the command line: `--allow-import MODULE`. Classes and functions handed over in Python need none.

    >>> allow_imports("my_package.networks")
    >>> allowed("my_package.networks.small"), allowed("my_package")
    (True, False)
    """
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            raise KinfolkError("--allow-import", module, "name a module, as my_package.networks")
    _ALLOWED.update(modules)


@contextmanager
def allowing(modules: Sequence[str]) -> Iterator[None]:
    """Allow these for a while.

    >>> with allowing(["my_networks"]):
    ...     allowed("my_networks")
    True
    >>> allowed("my_networks")
    False
    """
    before = set(_ALLOWED)
    allow_imports(*modules)
    try:
        yield
    finally:
        _ALLOWED.clear()
        _ALLOWED.update(before)


def allowed(module: str) -> bool:
    """Whether the person has named this module or a package that it is in."""
    return any(inside(module, one) for one in _ALLOWED)


def inside(module: str, package: str) -> bool:
    """Whether a module is a package or in it.

    >>> inside("a.b", "a"), inside("ab", "a")
    (True, False)
    """
    return f"{module}.".startswith(f"{package}.")


def offered(field: str, path: str) -> bool:
    """Whether an installed package offers exactly this path for this setting.

    >>> offered("model.name", "subprocess:getoutput")
    False
    """
    return (GROUPS.get(field), path) in _offers(tuple(sys.path), Path.cwd())


@lru_cache(maxsize=4)
def _offers(places: tuple[str, ...], here: Path) -> frozenset[tuple[str | None, str]]:
    """All that is offered, but not by the working directory: what lies there need not have been installed."""
    kept = [place for place in places if place and Path(place).resolve() != here.resolve()]
    points = (point for found in distributions(path=kept) for point in found.entry_points)
    return frozenset((one.group, one.value) for one in points if one.group in GROUPS.values())
