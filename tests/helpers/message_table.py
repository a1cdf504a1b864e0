"""What the clients of each algorithm send, out of the replies that its tasks declare: a table for the docs.

`python tests/helpers/message_table.py` prints it; a test holds `docs/privacy/messages.md` to it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from option_variants import variants
from torch import Tensor

from kinfolk.algorithms import ALGORITHMS, with_options
from kinfolk.contract import toy
from kinfolk.learning.learner import Learner
from kinfolk.script import client_tasks
from kinfolk.task import Expected, FloatSpec, IntSpec, PeerTask, Table, Task
from kinfolk.types import Tree

HEAD = ("| algorithm | to the server, by task | when scored | to one another |", "| --- | --- | --- | --- |")
SCORE = "score."


def table() -> str:
    """The table as Markdown, a line for each algorithm.

    >>> table().splitlines()[0]
    '| algorithm | to the server, by task | when scored | to one another |'
    """
    learner = toy.learner("mlp", toy.ragged())
    return "\n".join([*HEAD, *(_line(name, kind, learner) for name, kind in ALGORITHMS.items())])


def _line(name: str, kind: type[Any], learner: Learner) -> str:
    usual = client_tasks(kind(learner=learner))
    tasks, swaps = _said(usual, learner), _across(usual)
    more: dict[str, str] = {}
    for label, options in variants(kind, {}).items():
        here = client_tasks(with_options(kind, learner, options))
        new = [line for line in _said(here, learner) if line not in tasks]
        new += [f"`{swap}` to one another" for swap in _across(here) if swap not in swaps]
        for line in new:
            more.setdefault(line, label)
    tasks += [f"with `{label}` {line}" for line, label in more.items()]
    across = ", ".join(f"`{swap}`" for swap in swaps)
    return f"| `{name}` | {'; '.join(tasks) or '-'} | {_scored(usual, learner)} | {across or '-'} |"


def _across(client_tasks: Table) -> list[str]:
    return [name for name, task in client_tasks.items() if isinstance(task, PeerTask)]


def _said(client_tasks: Table, learner: Learner) -> list[str]:
    """One phrase for each task of the rounds that replies with something."""
    return [
        f"`{name}`: {reply_words(task.reply, learner)}"
        for name, task in client_tasks.items()
        if isinstance(task, Task) and task.reply and not name.startswith(SCORE)
    ]


def _scored(client_tasks: Table, learner: Learner) -> str:
    """What a client tells when it is scored; the same for all models of an algorithm."""
    replies = [t.reply for n, t in client_tasks.items() if isinstance(t, Task) and n.startswith(SCORE)]
    return "; ".join(dict.fromkeys(reply_words(reply, learner) for reply in replies))


def reply_words(reply: Expected, learner: Learner) -> str:
    """A declared reply in words: models by name, numbers with their shape, where C stands for the classes.

    >>> learner = toy.learner("mlp", toy.ragged())
    >>> reply_words({"model": learner.first, "choice": IntSpec(0, 3), "labels": FloatSpec((4,))}, learner)
    'model, choice (a whole number), labels (C numbers)'
    """
    return ", ".join(f"{key}{_shape(key, value, learner)}" for key, value in reply.items())


def _shape(key: str, value: Tree | Tensor | IntSpec | FloatSpec, learner: Learner) -> str:
    if isinstance(value, Mapping):
        whole = set(value) == set(learner.first)
        return "" if whole or key != "model" else " (a part)"
    if isinstance(value, IntSpec):
        return " (a whole number)"
    shape = tuple(value.shape) if isinstance(value, Tensor) else value.shape
    known = ["C" if size == learner.outputs else str(size) for size in shape]
    return f" ({' x '.join(known)} numbers)" if known else ""


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    print(table())
