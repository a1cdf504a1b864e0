"""The guard between engine and script: a reply is what its task declares, or it counts as missing.

Names, shapes and types must match exactly; a shape that would broadcast is a wrong shape. Values must
be finite and within the declared range. Nothing is repaired.

A model that is finite but absurd is seen by its norm: `Cohort` refuses one that is far beyond both what its
client was sent and the median of those who answered with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kinfolk.script import Ask
from kinfolk.task import Expected, FloatSpec, IntSpec
from kinfolk.types import Client, IndexedMessages, Message, Stack, leaves

# A count beyond this is a lie or a slip: no client holds that many rows.
LARGEST_COUNT = 10**9
# A value beyond this is finite, but its square and what is computed from it in float32 may not be.
LARGEST_VALUE = 1e18
# A model's norm beyond this many times what was sent, and the median of the cohort, is no honest training.
FAR = 1e3
# A norm beyond this many times what was sent is noted with its client, for the watch on training.
GROWN = 10.0
# Reasons for which a reply is rejected because of its numbers, and not because of its form.
EXPLODED = ("is not finite", f"is beyond {LARGEST_VALUE:g}", f"is over {FAR:g} times")


def inspect(
    chunk: Stack, expected: Expected, largest: int = LARGEST_COUNT
) -> tuple[Stack, dict[Client, str]]:
    """The replies that may pass, and for each client whose reply may not, the reason.

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
    checks = list(_checks(chunk, expected, largest, quick=True))
    if bool(torch.stack([ok for _, ok in checks]).all()):
        return chunk, {}
    checks = list(_checks(chunk, expected, largest, quick=False))
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


def norms(body: Message, count: int) -> Tensor:
    """The norm of the largest tree of every row of a stacked message, [count] in float64 on the host.

    >>> norms({"model": {"w": torch.tensor([[3.0, 4.0], [0.0, 1.0]])}, "loss": torch.tensor([9.0, 9.0])}, 2)
    tensor([5., 1.], dtype=torch.float64)
    """
    trees = [value for value in body.values() if isinstance(value, dict)]
    largest = [torch.zeros(count, dtype=torch.float64)]
    for tree in trees:
        parts = [
            torch.linalg.vector_norm(leaf.reshape(count, -1), dim=1).double()
            for leaf in tree.values()
            if leaf.is_floating_point()
        ]
        if parts:
            largest.append(torch.stack(parts).norm(dim=0).cpu())
    return torch.stack(largest).amax(0)


@dataclass
class Cohort:
    """The norms of the replies to one request, and the replies that are judged when all are there.

    A reply whose norm is ordinary for what its client was sent passes at once, so that a fold holds one
    chunk at a time. One that is more than FAR times as large waits: where most of the cohort are like it,
    as after a first round on data of another scale, it passes in the end; otherwise it is refused. The rule
    does not depend on how an engine cuts its chunks.
    """

    request: Ask[object]
    expected: Expected
    seen: list[Tensor] = field(default_factory=list)  # norms of this round so far, chunk by chunk
    waiting: list[Stack] = field(default_factory=list)
    refused: set[Client] = field(default_factory=set)
    grown: dict[Client, tuple[float, float]] = field(default_factory=dict)  # (norm, norm of what was sent)

    def __post_init__(self) -> None:
        self.silent = set(self.request.to)  # those without a usable reply so far
        declared = {key: value for key, value in self.expected.items() if isinstance(value, dict)}
        self._common = max(_norm(declared), _norm(self.request.shared))
        each = self.request.each
        self._kinds = norms(each.table, _rows(each.table)) if isinstance(each, IndexedMessages) else None

    def pass_on(self, chunk: Stack) -> Stack:
        """The replies that may pass now; the others wait."""
        if not any(isinstance(value, dict) for value in chunk.body.values()):
            return chunk  # no model, nothing that belongs to a median of models
        long = norms(chunk.body, len(chunk))
        self.seen.append(long)
        sent = self._sent(chunk.clients)
        for i in (long > GROWN * sent).nonzero().flatten().tolist():
            self.grown[chunk.clients[i]] = float(long[i]), float(sent[i])
        far = long > FAR * sent
        if not bool(far.any()):
            return chunk
        names = dict(zip(chunk.clients, far.tolist(), strict=True))
        self.waiting.append(chunk.at([c for c, out in names.items() if out]))
        return chunk.at([c for c, out in names.items() if not out])

    def judge(self) -> tuple[Stack, dict[Client, str]]:
        """Of those that wait: who may pass, and why the others may not."""
        if not self.waiting:
            return Stack((), torch.zeros(0, dtype=torch.int64), {}), {}
        held = Stack.join(self.waiting)
        median = float(torch.cat(self.seen).median())
        bad = {
            c: f"norm {long:.3g} is over {FAR:g} times what was sent and the cohort's median, {median:.3g}"
            for c, long in zip(held.clients, norms(held.body, len(held)).tolist(), strict=True)
            if long > FAR * median
        }
        return held.at([c for c in held.clients if c not in bad]), bad

    def _sent(self, who: tuple[Client, ...]) -> Tensor:
        """The norm of what each client was sent; of a model that starts at zero, of no less than one."""
        each, least = self.request.each, max(self._common, 1.0)
        if each is None:
            return torch.full((len(who),), least, dtype=torch.float64)
        if isinstance(each, IndexedMessages):
            assert self._kinds is not None
            own = self._kinds[each.kinds(who)]
        else:
            own = norms(each.at(who).body, len(who))
        return own.clamp(min=least)


def _norm(message: Message) -> float:
    """The norm of the largest tree of one message."""
    one = {k: {n: t[None] for n, t in v.items()} for k, v in message.items() if isinstance(v, dict)}
    return float(norms(one, 1))


def _rows(table: Message) -> int:
    return len(next(leaf for _, _, leaf in leaves(table)))
