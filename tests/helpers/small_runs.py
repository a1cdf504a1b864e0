"""A tiny experiment, and how to compare what two runs have left behind."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import nn

from kinfolk.experiment.checkpoint import load_latest
from kinfolk.experiment.record import read_rounds, read_scores
from kinfolk.experiment.run import Result, run
from kinfolk.experiment.spec import override, parse
from kinfolk.federation.federation import Federation
from kinfolk.federation.sources import build
from kinfolk.federation.spec import DataSpec
from kinfolk.streams import Seed
from kinfolk.types import Message, leaves

SPEC = parse(
    """
[data]
clients = 4
rows = 12
groups = 2
[model]
name = "logistic"
[engine]
name = "loop"
[run]
rounds = 3
"""
)


@cache
def digits(data: DataSpec, seed: int) -> Federation:
    return build(data, Seed(seed))


def go(folder: Path, *changes: str, **options: Any) -> Result:
    """Run the tiny experiment with some changes; data that were built before are not built again."""
    spec = override(SPEC, changes)
    if spec.data.name == "digits":
        options.setdefault("federation", digits(spec.data, spec.run.seed))
    return run(spec, folder, **options)


def saved(folder: Path) -> tuple[int, dict[str, Message], dict[str, Any]]:
    found, complaints = load_latest(folder / "checkpoints", (folder / "spec.toml").read_text())
    assert found is not None
    assert complaints == []
    return found.number, found.tensors, found.facts


def equal(a: Message, b: Message) -> bool:
    return [(k, n) for k, n, _ in leaves(a)] == [(k, n) for k, n, _ in leaves(b)] and all(
        torch.equal(x, y) for (_, _, x), (_, _, y) in zip(leaves(a), leaves(b), strict=True)
    )


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in fact.items() if k != "seconds"} for fact in read_rounds(folder)]


def assert_same_end(a: Path, b: Path) -> None:
    (na, ta, fa), (nb, tb, fb) = saved(a), saved(b)
    assert (na, fa) == (nb, fb)
    assert all(equal(ta[entry], tb[entry]) for entry in ta)
    pd.testing.assert_frame_equal(read_scores(a), read_scores(b), check_exact=True)
    assert rounds_of(a) == rounds_of(b)


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Flatten(), *layers)
