"""The guard between engine and script: a reply is what its task declares, or it counts as missing.

Names, shapes and types must match exactly; a shape that would broadcast is a wrong shape. Values must
be finite and within the declared range. Nothing is repaired. What is sound by itself and absurd beside the
replies of others is seen by `Cohort`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from kinfolk.task import Expected, FloatSpec, IntSpec
from kinfolk.types import Client, Stack, leaves

# A count beyond this is a lie or a slip: no client holds that many rows.
LARGEST_COUNT = 10**9
# A value beyond this is finite, but its square and what is computed from it in float32 may not be.
LARGEST_VALUE = 1e18
# What `Cohort` says of an update that is too long.
TOO_LONG = "times the cohort's"
# Reasons for which a reply is rejected because of its numbers, and not because of its form.
EXPLODED = ("is not finite", f"is beyond {LARGEST_VALUE:g}", TOO_LONG)


def inspect(
    chunk: Stack, expected: Expected, largest: int = LARGEST_COUNT, trees: bool = True
) -> tuple[Stack, dict[Client, str]]:
    """The replies that may pass, and for each client whose reply may not, the reason.

    Without `trees`, numbers of models are not looked at.

    >>> nan = {"v": torch.tensor(float("nan"))}
    >>> replies = {Client("a"): (3, {"v": torch.tensor(1.0)}), Client("b"): (3, nan)}
    >>> good, bad = inspect(Stack.of(replies), {"v": FloatSpec()})
    >>> good.clients, bad
    (('a',), {'b': 'v is not finite'})
    """
    wrong = _misshapen(chunk, expected)
    if wrong:
        return Stack((), chunk.size[:0], {}), dict.fromkeys(chunk.clients, wrong)
    # One look at the device for the whole chunk; which check failed is asked only if one did.
    seen = chunk
    if not trees:
        numbers = {key: value for key, value in chunk.body.items() if not isinstance(value, dict)}
        seen = Stack(chunk.clients, chunk.size, numbers)
    checks = list(_checks(seen, expected, largest, quick=True))
    if bool(torch.stack([ok for _, ok in checks]).all()):
        return chunk, {}
    checks = list(_checks(seen, expected, largest, quick=False))
    bad: dict[Client, str] = {}
    for reason, ok in checks:
        for client, fine in zip(chunk.clients, ok.tolist(), strict=True):
            if not fine:
                bad.setdefault(client, reason)
    return chunk.at([c for c in chunk.clients if c not in bad]), bad


def _misshapen(chunk: Stack, expected: Expected) -> str:
    """What is wrong with names, shapes and types: rows of one stack are alike and fall together."""
    if chunk.size.dtype != torch.int64:
        return f"row count has type {chunk.size.dtype}, expected a whole number"
    if set(chunk.body) != set(expected):
        return f"reply has {sorted(chunk.body)}, expected {sorted(expected)}"
    for key, declared in expected.items():
        value = chunk.body[key]
        if isinstance(declared, dict) != isinstance(value, dict):
            return f"{key} is a {'tree' if isinstance(value, dict) else 'tensor'}, expected the other"
        if isinstance(declared, dict):
            if list(value) != list(declared):
                return f"{key} does not have the tensors of the model in their order"
            wrong = [_unlike(f"{key}/{n}", value[n], declared[n].shape, declared[n].dtype) for n in declared]
        elif isinstance(declared, Tensor):
            wrong = [_unlike(key, value, declared.shape, declared.dtype)]
        elif isinstance(declared, IntSpec):
            wrong = [_unlike(key, value, torch.Size(()), torch.int64)]
        else:
            kind = value.dtype if value.is_floating_point() else torch.float32
            wrong = [_unlike(key, value, torch.Size(declared.shape), kind)]
        for reason in filter(None, wrong):
            return reason
    return ""


def _unlike(name: str, got: Tensor, shape: torch.Size, kind: torch.dtype) -> str:
    if got.dtype != kind:
        return f"{name} has type {got.dtype}, expected {kind}"
    if got.shape[1:] != shape:
        return f"{name} has shape {tuple(got.shape[1:])}, expected {tuple(shape)}"
    return ""


def _calm(values: Tensor) -> Tensor:
    """Rows whose length tells, in one pass, that no number is too large or not a number."""
    length: Tensor = torch.linalg.vector_norm(values, dim=1)
    return length <= LARGEST_VALUE


def _checks(chunk: Stack, expected: Expected, largest: int, quick: bool) -> Iterator[tuple[str, Tensor]]:
    """(reason, which replies are fine) for every value that is checked, on one device.

    If `quick`, a reply that is not fine may turn out to be.
    """
    device = next((leaf.device for _, _, leaf in leaves(chunk.body)), chunk.size.device)
    yield f"row count is not in 1..{largest}", ((chunk.size >= 1) & (chunk.size <= largest)).to(device)
    for key, name, leaf in leaves(chunk.body):
        flat, declared = leaf.reshape(len(chunk), -1), expected[key]
        if leaf.is_floating_point():
            # A number that may come as a double must be one that float32, in which we compute, can hold.
            held = flat.float() if isinstance(declared, FloatSpec) else flat
            where = f"{key}/{name}" if name else key
            if quick:
                yield where, _calm(held)
            else:
                yield f"{where} is not finite", held.isfinite().all(1)
                yield f"{where} is beyond {LARGEST_VALUE:g}", (held.abs() <= LARGEST_VALUE).all(1)
        if isinstance(declared, IntSpec):
            within = (leaf >= declared.low) & (leaf < declared.high)
            yield f"{key} is not in {declared.low}..{declared.high - 1}", within
        elif isinstance(declared, FloatSpec):
            within = ((flat >= declared.low) & (flat <= declared.high)).all(1)
            yield f"{key} is not within [{declared.low:g}, {declared.high:g}]", within
