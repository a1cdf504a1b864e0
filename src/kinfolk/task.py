"""What a client does when it is asked: pure functions written for one client, with no loop inside.

A task that goes over rows states what happens before, per batch and after; the engine owns the loop
over batches. Only so can an engine run many clients in one call, or compile or capture the step.

Rules inside `start`, `objective`, `step` and `finish`, so that they can be batched over clients: no
`.item()`, no `if` on the value of a tensor, no draws, no writing into arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from kinfolk.streams import RoundContext
from kinfolk.types import Client, Message, Rows, Tree

# What a task carries from batch to batch: a message of its own.
Carry = Message


class Batch(NamedTuple):
    """A few rows of one client. `weight` is None when every row is real, else 0 for padding."""

    x: Rows
    y: Rows
    row: Tensor  # position of each row among the client's rows of this split
    weight: Tensor | None
    key: Tensor | None = None  # of this client and step: what dropout drops follows from it

    def mean(self, values: Tensor) -> Tensor:
        """The mean of one value per row, padding left out."""
        if self.weight is None:
            return values.mean()
        return (values * self.weight).sum() / self.weight.sum().clamp(min=1)

    def sum(self, values: Tensor) -> Tensor:
        """The sum over rows of `values` [rows, ...], padding left out."""
        if self.weight is None:
            return values.sum(0)
        weight = self.weight.to(values.dtype).reshape(-1, *[1] * (values.dim() - 1))
        return (values * weight).sum(0)


class ClientInfo(NamedTuple):
    """What a task may know about its client besides message and memory."""

    rows: Tensor  # number of training rows
    steps: Tensor  # number of steps the first pass of this task will take
    round: int


class Augment(Protocol):
    """A change of rows, one of a few, drawn for each row each time it is visited."""

    @property
    def ways(self) -> int:
        """How many changes there are; all are equally likely."""
        ...

    def __call__(self, x: Tensor, way: Tensor) -> Tensor:
        """Rows x [..., *shape] changed, each by its own way [...] of int64: element by element, no draws."""
        ...


@dataclass(frozen=True)
class Plan:
    """Which rows a pass visits. Either `epochs` or `steps` of shuffled rows, or one pass in order."""

    batch: int
    epochs: int = 1
    steps: int = 0  # > 0: exactly that many steps, going round the rows as often as needed
    shuffle: bool = True
    split: str = "train"
    drop_single: bool = False  # a batch of one has no variance: BatchNorm cannot train on it
    drop_last: bool = False  # rows that fill no batch are left out of this epoch, unless there are no others
    rows: int = 0  # > 0: of a client that has more, only so many, drawn again for each pass
    share: float = 1.0  # of a client's rows, one at least; drawn again for each pass
    augment: Augment | None = None  # what is done to the rows of a batch
    draws: bool = False  # a step drops numbers at random, so its batch has a key

    def kept(self, n: int) -> int:
        """How many of a client's n rows a pass goes over.

        >>> Plan(4, share=0.8).kept(9), Plan(4, share=0.1).kept(3), Plan(4, rows=5).kept(9), Plan(4).kept(0)
        (7, 1, 5, 0)
        """
        some = max(int(self.share * n), 1) if self.share < 1 else n
        return min(some, n, self.rows or n)


# A number that the host knows, or one that lies on the device.
Number = float | Tensor
Count = int | Tensor


class Optimiser(Protocol):
    """How gradients move parameters: element-wise, so that a stack of trees goes as each tree does."""

    def init(self, params: Tree) -> Message:
        """The state before the first step; zeros of the parameters' shapes."""
        ...

    def update(
        self, params: Tree, grads: Tree, state: Message, step: Count, lr: Number, rows: Number
    ) -> tuple[Tree, Message]:
        """Parameters and state after step number `step` (from 0); `rows` are the rows of the batch.

        Where steps are recorded and replayed, `step` and `lr` are tensors on the device. An optimiser that
        declares `client_rates = True` may be given an `lr` of [clients] with a stack of trees.
        """
        ...


# What a rate is multiplied by: (number of the round or step from 0, how many there are) -> factor.
Schedule = Callable[[int, int], float]

# The loss of one client on one batch: (model, batch, carry) -> scalar. The model is carry[part]
# with its parameters ready to be differentiated.
Objective = Callable[[Tree, Batch, Carry], Tensor]


@dataclass(frozen=True)
class TrainStep:
    """One part of the carry moved along the gradient of one objective."""

    objective: Objective
    optimiser: Optimiser
    names: tuple[str, ...]  # the entries of the part that are trained; the rest are buffers
    lr: float
    decay: float = 1.0  # the learning rate of round t is lr * decay**t
    part: str = "model"
    clip: float = 0.0  # > 0: largest norm of one client's gradient
    by_round: Callable[[int], float] | None = None  # what the rate of a round is multiplied by besides
    by_step: Schedule | None = None  # and that of a step, by its number and how many steps the client takes

    def factor(self, round: int) -> float:
        """The learning rate of a round over `lr`."""
        return self.decay**round if self.by_round is None else self.decay**round * self.by_round(round)

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        return self.lr * self.factor(round)

    def rates(self, round: int, steps: int) -> list[float]:
        """The learning rate of each of a client's steps.

        >>> from kinfolk.learning.optim import SGD
        >>> TrainStep(lambda *given: given[0], SGD(), (), 0.5, by_step=lambda at, of: 1 - at / of).rates(0, 2)
        [0.5, 0.25]
        """
        rate = self.rate(round)
        return [rate if self.by_step is None else rate * self.by_step(at, steps) for at in range(steps)]


@dataclass(frozen=True)
class Fit:
    """A loop of training: for each batch of the plan, each descent in turn.

    The state of descent number i is in the carry under `"optimiser.i.<part>"` when the loop has ended.
    """

    descents: tuple[TrainStep, ...]
    plan: Plan


@dataclass(frozen=True)
class Scan:
    """A loop without gradients: `step(carry, batch) -> carry` over the batches of the plan."""

    step: Callable[[Carry, Batch], Carry]
    plan: Plan


@dataclass(frozen=True)
class IntSpec:
    """Declares a reply leaf: one integer in [low, high)."""

    low: int
    high: int


@dataclass(frozen=True)
class FloatSpec:
    """Declares a reply leaf: finite floats of this shape in [low, high]."""

    shape: tuple[int, ...] = ()
    low: float = float("-inf")
    high: float = float("inf")


# What a reply must look like, key by key. A Tree or a Tensor stands for "exactly these names,
# shapes and types, all finite".
Expected = Mapping[str, Tree | Tensor | IntSpec | FloatSpec]


@dataclass(frozen=True)
class Task:
    """One thing a client can be asked to do."""

    start: Callable[[Message, Message, ClientInfo], Carry]  # (message, memory, facts)
    finish: Callable[[Carry], tuple[Message, Message | None]]  # -> (reply, memory; None: as it was)
    passes: tuple[Fit | Scan, ...] = ()
    reply: Expected = field(default_factory=dict)
    stream: str = "batch"  # names the random stream that shuffles the rows
    # How often it is asked for in a run beyond the rounds' own local updates: the run's budget pays for it.
    extra: int = 0
    spares: Plan | None = None  # of an extra task: the local update whose place it takes, which is not extra
    # What is made of a reply before it leaves the client: any Python, client by client. `reply` is about it.
    conclude: Callable[[Message], Message] | None = None
    # What a client must be sent, as `reply` declares what it sends; it answers nothing else. None: anything.
    sent: Expected | None = None
    common: bool = False  # the reply depends on the message and on the rows it visits, in order, alone


@dataclass(frozen=True)
class Peer:
    """What a client knows of itself in an exchange: its name and where the run stands."""

    name: Client
    context: RoundContext


@dataclass(frozen=True)
class PeerTask:
    """Client to client. Each sender names its recipients out of its own memory."""

    send: Callable[[Message, Peer], dict[Client, Message]]  # (memory, me) -> {peer: payload}
    receive: Callable[[dict[Client, Message], Message, Peer], Message]  # (inbox, memory, me) -> memory
    gives: tuple[str, ...] = ()  # models of the memory that leave in it, as they are or in shares
    # Names of tensors of which every recipient is told the same: between sites that is compared.
    alike: tuple[str, ...] = ()


def peer_step(
    needs: str,
    send: Callable[[Message, Peer], dict[Client, Message]],
    receive: Callable[[dict[Client, Message], Message, Peer], Message],
    gives: tuple[str, ...] = (),
    alike: tuple[str, ...] = (),
) -> PeerTask:
    """An exchange for those who were there for what came before it; anybody else lets it pass.

    A memory holds the number of its round as "now", and under `needs` what the steps before have left.

    >>> from kinfolk.streams import Seed
    >>> me = Peer(Client("a"), RoundContext(Seed(0), 3, (Client("a"), Client("b"))))
    >>> step = peer_step("word", lambda memory, me: {Client("b"): {}}, lambda inbox, memory, me: memory)
    >>> step.send({}, me), step.send({"word": 1, "now": 2}, me), step.send({"word": 1, "now": 3}, me)
    ({}, {}, {'b': {}})
    """

    def ready(memory: Message, me: Peer) -> bool:
        return needs in memory and int(memory.get("now", -1)) == me.context.round

    return PeerTask(
        lambda memory, me: send(memory, me) if ready(memory, me) else {},
        lambda inbox, memory, me: receive(inbox, memory, me) if ready(memory, me) else memory,
        gives,
        alike,
    )


# The client half of an algorithm: what a client has installed and is willing to run, by name.
Table = Mapping[str, Task | PeerTask]

# What a round tells besides its new state; plain numbers and tensors for the records.
Info = dict[str, Any]
