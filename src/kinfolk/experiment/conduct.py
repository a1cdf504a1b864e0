"""Puts on record, after each round, what the coordinator has seen of every client's update."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kinfolk.engines.conduct import cosines
from kinfolk.experiment.conduct_files import MARKS, write_conduct
from kinfolk.script import Algorithm, Groups
from kinfolk.types import Client, Stack


def record_conduct(
    folder: Path,
    round: int,
    looks: Mapping[str, Sequence[Stack]],
    algorithm: Algorithm[Any],
    state: Any,
    clients: Sequence[Client],
) -> None:
    """Write what updates of a round looked like, each beside those of its group; nothing where none was seen.

    `looks` are by task, as the coordinator has them.
    """
    groups = algorithm.groups(state).cpu().to(torch.int64) if isinstance(algorithm, Groups) else None
    place = {who: i for i, who in enumerate(clients)}
    parts = [_columns(task, _last(seen), groups, place) for task, seen in looks.items() if any(seen)]
    if parts:
        write_conduct(folder, round, {name: [v for one in parts for v in one[name]] for name in parts[0]})


def _last(seen: Sequence[Stack]) -> Stack:
    """One stack of all; of who was asked twice, the last reply."""
    known: set[Client] = set()
    kept = []
    for stack in reversed(seen):
        kept.append(stack.at([c for c in stack.clients if c not in known]))
        known.update(stack.clients)
    return Stack.join(kept)


def _columns(
    task: str, seen: Stack, groups: Tensor | None, place: Mapping[Client, int]
) -> dict[str, list[Any]]:
    here = torch.full((len(seen),), -1, dtype=torch.int64)
    if groups is not None:
        here = groups[torch.tensor([place[c] for c in seen.clients])]
    marks = torch.cat([seen.tensor("marks"), seen.tensor("replied")], 1)
    return {
        "task": [task] * len(seen),
        "client": list(seen.clients),
        "group": here.tolist(),
        "rows": seen.size.tolist(),
        "length": seen.tensor("length").tolist(),
        "sent": seen.tensor("sent").tolist(),
        "cosine": cosines(seen.tensor("sketch"), here).tolist(),
        **{name: marks[:, i].tolist() for i, name in enumerate(MARKS)},
    }
