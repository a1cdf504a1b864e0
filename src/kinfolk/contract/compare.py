"""Where two outcomes differ, in one sentence."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from kinfolk.contract.toy import Outcome, Scores
from kinfolk.experiment.state import to_message
from kinfolk.types import Message, leaves, map_leaves

# Per tensor, on the scale of its norm. Float32 has a resolution of 1e-7, and a few steps multiply it.
ENGINE_TOLERANCE = 1e-5
# Root mean square below which a tensor counts as this large: differences of unit-sized weights cannot
# be known better than to some units of float32's resolution, however small they are themselves.
LEAST_SIZE = 0.1


def tensor_difference(a: Tensor, b: Tensor, tolerance: float) -> str:
    """How a tensor differs from the reference `b`; empty if it does not. Tolerance 0 asks for equal bits.

    >>> tensor_difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.1]), 1e-5)
    'is off by 4.3e-02 of its norm'
    >>> tensor_difference(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0 + 1e-6]), 1e-5)
    ''
    """
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"is {a.dtype} {list(a.shape)}, not {b.dtype} {list(b.shape)}"
    if not tolerance or not a.is_floating_point():
        same = torch.equal(_bytes(a), _bytes(b))
        return "" if same else f"differs in {int((a.cpu() != b.cpu()).sum())} of {a.numel()} entries"
    wide, other = a.cpu().double(), b.cpu().double()
    if not torch.equal(wide.isfinite(), other.isfinite()):
        return "is finite in other places"
    apart = torch.where(wide.isfinite(), wide - other, 0).norm().item()
    size = torch.where(other.isfinite(), other, 0).norm().item()
    scale = max(size, LEAST_SIZE * math.sqrt(b.numel()))
    return "" if apart <= tolerance * scale else f"is off by {apart / scale:.1e} of its norm"


def _bytes(t: Tensor) -> Tensor:
    return t.detach().cpu().reshape(-1).contiguous().view(torch.uint8)


def message_difference(a: Message, b: Message, tolerance: float) -> str:
    """Where a message differs from the reference `b`, by the first tensor that does.

    >>> message_difference({"n": torch.tensor(1)}, {"n": torch.tensor(2)}, 0)
    'n differs in 1 of 1 entries'
    """
    ours, theirs = ({f"{k}/{n}" if n is not None else k: leaf for k, n, leaf in leaves(m)} for m in (a, b))
    if list(ours) != list(theirs):
        return f"has {list(ours)}, not {list(theirs)}"
    for name, leaf in ours.items():
        found = tensor_difference(leaf, theirs[name], tolerance)
        if found:
            return f"{name} {found}"
    return ""


def state_difference(a: Any, b: Any, tolerance: float) -> str:
    """Where a state differs from the reference `b`."""
    (tensors, plain), (others, values) = to_message(a), to_message(b)
    for name, value in plain.items():
        close = (
            isinstance(value, float)
            and tolerance
            and math.isclose(value, values[name], rel_tol=tolerance, abs_tol=tolerance * LEAST_SIZE)
        )
        if value != values[name] and not close:
            return f"state.{name} is {value!r}, not {values[name]!r}"
    found = message_difference(tensors, others, tolerance)
    return f"state.{found}" if found else ""


def outcome_difference(a: Outcome, b: Outcome, tolerance: float) -> str:
    """Where an outcome differs from the reference `b`: state, memories, scores, groups or bytes sent."""
    found = state_difference(a.state, b.state, tolerance)
    if found:
        return found
    for who, memory in b.memories.items():
        mine, theirs = (_without_hashes(m, b.lasting) if tolerance else m for m in (a.memories[who], memory))
        found = message_difference(mine, theirs, tolerance)
        if found:
            return f"the memory of {who}: {found}"
    if a.groups != b.groups:
        return f"groups are {list(a.groups)}, not {list(b.groups)}"
    if a.ledger != b.ledger:
        return f"bytes sent are {a.ledger}, not {b.ledger}"
    return score_difference(a.scores, b.scores, tolerance)


def _without_hashes(memory: Message, lasting: tuple[str, ...]) -> Message:
    """What is never forgotten holds hashes of models, which are others as soon as one bit is: its length."""
    return {
        key: torch.tensor(len(value)) if key in lasting and isinstance(value, Tensor) else value
        for key, value in memory.items()
    }


def score_difference(a: Scores, b: Scores, tolerance: float) -> str:
    """Where scores differ from the reference `b`; a count of correct answers must be the same."""
    for kind, by_client in b.items():
        for who, (correct, loss) in by_client.items():
            got = a.get(kind, {}).get(who)
            if got is None:
                return f"the {kind} model of {who} has no score"
            if got[0] != correct or abs(got[1] - loss) > tolerance * max(1.0, abs(loss)):
                return f"the {kind} model of {who} scores {got}, not {(correct, loss)}"
    return ""


def unsound(message: Message) -> str:
    """The first tensor that is not finite; empty if there is none.

    >>> unsound({"m": {"w": torch.tensor([1.0, float("nan")])}})
    'm/w is not finite'
    """
    for key, name, leaf in leaves(message):
        if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
            return f"{key if name is None else f'{key}/{name}'} is not finite"
    return ""


def copied(message: Message) -> Message:
    """A message that shares no memory with the one given.

    >>> a = {"w": torch.zeros(1)}
    >>> b = copied(a)
    >>> _ = a["w"].add_(1)
    >>> b
    {'w': tensor([0.])}
    """
    return map_leaves(lambda t: t.detach().clone(), message)
