"""Whether a network fits into this machine's memory, seen before it is made."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from kinfolk.errors import KinfolkError

# A model that is trained, its gradient and a copy to compare it with: no run takes less.
COPIES = 3
_UNITS = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")


def machine_memory() -> int:
    """Bytes of this machine's memory, or 8 GiB where it does not tell.

    >>> machine_memory() > 0
    True
    """
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30


def check_fits(name: str, build: Callable[[], nn.Module], options: str) -> None:
    """Refuse a network that this machine cannot hold; it is built without memory to be measured.

    >>> check_fits("linear", lambda: nn.Linear(10**6, 10**9), "")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: model.name = 'linear': takes 4.0 PB, and 3 of it do not fit into ...
    """
    given = f" with {options}" if options else ""
    try:
        with torch.device("meta"), _Undrawn():
            network = build()
        size = sum(t.numel() * t.element_size() for t in chain(network.parameters(), network.buffers()))
    except (RuntimeError, OverflowError, TypeError) as error:  # more numbers than can be counted, for one
        reason = str(error).splitlines()[0][:120]
        raise KinfolkError("model.name", name, f"cannot be built{given}: {reason}") from error
    if COPIES * size > machine_memory():
        remedy = (
            f"takes {_bytes(size)}{given}, and {COPIES} of it do not fit into {_bytes(machine_memory())} of"
        )
        raise KinfolkError("model.name", name, f"{remedy} memory; make it smaller")


class _Undrawn(TorchFunctionMode):
    """Leaves out the drawing of first weights: without memory there is nothing to draw, and torch takes
    seconds to find that out for some.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__name__", "") in ("normal_", "uniform_"):
            return args[0] if args else named["tensor"]
        return func(*args, **named)


def _bytes(size: float) -> str:
    for unit in _UNITS:
        if size < 1000 or unit == _UNITS[-1]:
            break
        size /= 1000
    return f"{size:.1f} {unit}"
