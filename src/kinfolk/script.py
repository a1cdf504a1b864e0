"""Scripts: an algorithm says who is asked what and is resumed with the answers; it performs nothing.

A round is a generator. `ask`, `fold` and `exchange` are the verbs; `play` is the whole interpreter.
What performs a request (one process, a batch, many processes, a network) is an engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from kinfolk.fold import Fold
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Info, Table, Task
from kinfolk.types import Client, Message, PerClient, Stack, Tree

R = TypeVar("R")
S = TypeVar("S")


@dataclass(frozen=True)
class Ask(Generic[R]):
    """Coordinator to clients and back. The answer is a Stack, or what the fold makes of the replies."""

    task: str  # a name in the algorithm's table
    to: tuple[Client, ...]
    shared: Message = field(default_factory=dict)  # the same for everyone
    each: PerClient | None = None  # one message per client
    fold: Fold[R] | None = None
    again: tuple[Client, ...] = ()  # who has done the same in this round: work that nobody kept counts once


@dataclass(frozen=True)
class Exchange:
    """Clients to clients; nothing reaches a coordinator."""

    swap: str  # a name in the algorithm's table
    among: tuple[Client, ...]


Request = Ask[Any] | Exchange
Script = Generator[Request, Any, tuple[S, Info]]


def ask(
    task: str, to: Sequence[Client], shared: Message | None = None, each: PerClient | None = None
) -> Generator[Request, Any, Stack]:
    """Ask clients to run a task; the answer has a row for each client that replied."""
    got: Stack = yield Ask(task, tuple(to), shared or {}, each)
    return got


def fold(
    by: Fold[R],
    task: str,
    to: Sequence[Client],
    shared: Message | None = None,
    each: PerClient | None = None,
    again: Sequence[Client] = (),
) -> Generator[Request, Any, R]:
    """Ask clients to run a task and fold their replies chunk by chunk, holding no more than one chunk."""
    got: R = yield Ask(task, tuple(to), shared or {}, each, by, tuple(again))
    return got


def exchange(swap: str, among: Sequence[Client]) -> Generator[Request, Any, None]:
    """Let clients send to one another; the script learns nothing."""
    yield Exchange(swap, tuple(among))


class Algorithm(Protocol[S]):
    """A method: its server half is `round`, its client half is the table of tasks.

    The state is a frozen dataclass whose fields are tensors, trees or plain numbers, so that it can
    be written to disk without knowing the algorithm.
    """

    def init(self, first: Tree, clients: tuple[Client, ...], seed: Seed) -> S:
        """The state before round 0, from the common initial model."""
        ...

    def tasks(self) -> Table:
        """What a client of this algorithm can be asked, by name."""
        ...

    def round(self, state: S, cohort: tuple[Client, ...], context: RoundContext) -> Script[S]:
        """One round among the sampled clients."""
        ...

    def eval_inputs(self, state: S, who: Sequence[Client]) -> tuple[Message, PerClient | None]:
        """What clients need in order to be scored: (the same for everyone, one message each)."""
        ...

    def eval_tasks(self) -> Mapping[str, Task]:
        """The models to score, by kind (centre, personal, fine-tuned), each as a scoring task."""
        ...


# How newcomers are assigned to groups.
AssignBy = Literal["loss", "distance"]
# Values worth trying of an algorithm's own options: what its class attribute `tune_space` declares.
TuneSpace = Mapping[str, tuple[Any, ...]]


@runtime_checkable
class Remembers(Protocol):
    """An algorithm whose clients keep something between rounds."""

    def init_client(self, who: Client) -> Message:
        """What a client holds before it is first asked."""
        ...


@runtime_checkable
class NeverForgets(Protocol):
    """An algorithm whose clients keep entries that neither a void round nor a resumed run takes back."""

    @property
    def lasting(self) -> tuple[str, ...]:
        """The names of these entries in a memory: tensors of bytes [rows, width] that only grow."""
        ...


@runtime_checkable
class Rehearses(Protocol):
    """An algorithm that may be set to draw its secrets from the run's public seed, for tests."""

    def public_secrets(self) -> str:
        """Which setting makes secrets public, and its value; empty if they are secret."""
        ...


@runtime_checkable
class Complains(Protocol):
    """An algorithm whose clients refuse letters of one another, and keep a note of it."""

    def complaints(self, memory: Message, clients: Sequence[Client]) -> Mapping[Client, str]:
        """Whose letters a client could not use in the last round, and why."""
        ...


@runtime_checkable
class ShowsRows(Protocol):
    """An algorithm whose clients show one another rows that they have made."""

    def rows_shown(self) -> int:
        """How many rows one letter holds at most, with what describes them: a letter has room for no more."""
        ...


@runtime_checkable
class Groups(Protocol):
    """An algorithm that assigns clients to groups.

    Newcomers are assigned by the loss of the groups' models on their rows, unless the class says
    `assign_by: ClassVar[AssignBy] = "distance"`: by the distance of these models to what a newcomer trains.
    """

    def groups(self, state: Any) -> Tensor:
        """The group of every client, [clients], in sorted order of names."""
        ...


@runtime_checkable
class Margins(Protocol):
    """An algorithm whose server knows how clearly clients belong to their groups."""

    def margins(self, state: Any) -> Tensor:
        """The margin of every client, [clients], at most 1; NaN where it is not known."""
        ...


@runtime_checkable
class Stops(Protocol):
    """An algorithm with a stop condition of its own."""

    def finished(self, state: Any) -> str:
        """Why the run may end now; empty to go on."""
        ...


@runtime_checkable
class Chooses(Protocol):
    """An algorithm whose clients choose among models: before they are scored, they choose anew."""

    def chosen_now(self, state: Any, context: RoundContext) -> Script[Any] | None:
        """What ends in the state to score by, by choices of all clients; None if there is no choice."""
        ...


@runtime_checkable
class Finalizes(Protocol):
    """An algorithm that has something to do once the rounds are over, before clients are scored at last."""

    def finalize(self, state: Any, context: RoundContext) -> Script[Any] | None:
        """What ends in the state to score by, from which nobody trains; None if there is nothing to do."""
        ...


@runtime_checkable
class Prepares(Protocol):
    """An algorithm whose clients hold secrets, which must be saved before anything that depends on them."""

    def preparation(self) -> str:
        """The exchange that all clients play before a run's first checkpoint; empty if there is none."""
        ...


@runtime_checkable
class NeedsMeansAlone(Protocol):
    """An algorithm whose server folds all that clients train into means: it never looks at a single model."""

    summed: ClassVar[tuple[str, ...]]  # the tasks whose replies are folded so: all that reply a tree


@runtime_checkable
class Spends(Protocol):
    """An algorithm that spends its clients' privacy, which no void round gives back."""

    def spent(self, state: Any) -> Mapping[Client, float]:
        """The epsilon that each client has spent so far, by name; empty where nothing is."""
        ...

    def still_spent(self, before: Any, after: Any) -> Any:
        """The state `before` a round that is void, but with what was spent `after` it."""
        ...


# Where a round's info may hold what it has made anyway, of any type, for `Shows`; it goes nowhere else.
MADE = "made"


@runtime_checkable
class Shows(Protocol):
    """An algorithm with something to look at that no score tells, for people alone.

    Only a simulation calls it: it sees what no server is sent. Nothing may follow from it. The arrays are
    those of one round, at most a megabyte together: a few of many clients will do (`streams.Few`).
    """

    def shows(
        self, state: Any, memories: Mapping[Client, Message], made: Any, context: RoundContext
    ) -> Mapping[str, Tensor]:
        """Arrays by name after a round: `made` is what its info holds under MADE, or None."""
        ...


def client_tasks(algorithm: Algorithm[Any]) -> Table:
    """Everything a client must have installed: the tasks, and the scoring tasks as `score.<kind>`."""
    return {**algorithm.tasks(), **{f"score.{kind}": task for kind, task in algorithm.eval_tasks().items()}}


def play(script: Script[S], perform: Callable[[Request], Any]) -> tuple[S, Info]:
    """Run a script to its end: perform each request and send it the answer.

    >>> def script():
    ...     got = yield from ask("double", ["a"])
    ...     return got, {}
    >>> play(script(), lambda request: f"{request.task} of {request.to}")
    ("double of ('a',)", {})
    """
    answer: Any = None
    while True:
        try:
            request = script.send(answer)
        except StopIteration as end:
            state, info = end.value
            return state, info
        answer = perform(request)
