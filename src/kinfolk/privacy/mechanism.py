"""What a `[privacy]` table makes of a method: noise in its means or in its clients' replies, or a refusal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kinfolk.algorithms.fesem.fesem import FeSEM
from kinfolk.algorithms.ifca import IFCA
from kinfolk.errors import KinfolkError
from kinfolk.learning.learner import Learner
from kinfolk.privacy.accountant import epsilon_of, noise_for
from kinfolk.privacy.central import Noise, NoisyAggregator
from kinfolk.privacy.local import noisy, trees
from kinfolk.privacy.spec import PrivacySpec
from kinfolk.script import Algorithm
from kinfolk.streams import Seed, cohort_size, sample
from kinfolk.task import PeerTask, Table, Task
from kinfolk.types import Client

# Methods whose server releases nothing but what it makes of one mean, or one mean per group, in a round.
# What clients keep beside it for themselves is none of its releases.
SERVER = (
    *("fedavg", "fedavg_tuned", "fedprox", "feddist", "fedsgd", "fedem", "ifca", "fesem"),
    *("fedadagrad", "fedadam", "fedavgm", "fedyogi", "apfl", "ditto", "fedala", "knn_per"),
)


@dataclass(frozen=True)
class Mechanism:
    """A method's noise, and what each release of a client costs.

    >>> Mechanism(PrivacySpec("server", noise=2.0), 2.0, 10).cost
    0.25
    """

    spec: PrivacySpec
    multiplier: float  # z: the noise's standard deviation over what one client can change
    cohort: int

    @property
    def cost(self) -> float:
        """What a release adds to the account of a client that it was made of: 1 / z^2."""
        return self.multiplier**-2

    def epsilon(self, account: float) -> float:
        """The epsilon of an account."""
        return epsilon_of(account, self.spec.delta)

    def protected(self, algorithm: Algorithm[Any]) -> Algorithm[Any]:
        """The method with noise in its server's means, if it is the server's to add."""
        if self.spec.mode != "server":
            return algorithm
        noise = Noise(self.spec.clip, self.multiplier, self.cohort)
        made: Algorithm[Any] = replace(algorithm, aggregate=NoisyAggregator(noise=noise))  # type: ignore[type-var]
        return made

    def armed(self, table: Table) -> Table:
        """What clients can be asked, with their noise, if it is theirs to add.

        A client's rows may be any others: two updates of length `clip` are as far apart as twice that.
        """
        if self.spec.mode != "local":
            return table
        std = self.multiplier * 2 * self.spec.clip
        return {
            name: noisy(task, self.spec.clip, std) if isinstance(task, Task) and trees(task) else task
            for name, task in table.items()
        }


def mechanism(
    spec: PrivacySpec,
    name: str,
    algorithm: Algorithm[Any],
    learner: Learner,
    clients: tuple[Client, ...],
    seed: Seed,
    rounds: int,
    participation: float,
) -> Mechanism | None:
    """What a spec asks for; None for nothing. One that would promise too much is refused."""
    if spec.mode == "none":
        return None
    if not (spec.noise or spec.epsilon):
        raise KinfolkError(
            "privacy.noise", spec.noise, "give noise, or the epsilon that it is to follow from"
        )
    if spec.delta * len(clients) >= 1:
        remedy = f"is no protection among {len(clients)} clients; give far less than 1 / {len(clients)}"
        raise KinfolkError("privacy.delta", spec.delta, remedy)
    if set(learner.first) - set(learner.names) - set(learner.frozen):
        remedy = "has buffers (BatchNorm), which noise would break; take a network without, as with GroupNorm"
        raise KinfolkError("privacy.mode", spec.mode, f"the network {remedy}")
    table = algorithm.tasks()
    (check_server if spec.mode == "server" else check_local)(name, algorithm, table)
    most = _most_releases(table, clients, seed, rounds, participation)
    z = spec.noise or noise_for(spec.epsilon, spec.delta, most)
    found = Mechanism(spec, z, cohort_size(len(clients), participation))
    least = found.epsilon(found.cost)
    if 0 < spec.epsilon < least:
        remedy = f"one round costs {least:.3g}; give that, or more noise"
        raise KinfolkError("privacy.epsilon", spec.epsilon, remedy)
    return found


def _most_releases(
    table: Table, clients: tuple[Client, ...], seed: Seed, rounds: int, participation: float
) -> int:
    """The most releases that any client takes part in: its rounds, and what a method asks for besides."""
    often = dict.fromkeys(clients, 0)
    for round in range(rounds if participation < 1 else 0):
        for client in sample(seed, round, clients, participation):
            often[client] += 1
    replies = [task for task in table.values() if isinstance(task, Task) and trees(task)]
    each = sum(not task.extra for task in replies)
    return (max(often.values()) or rounds) * max(each, 1) + sum(task.extra for task in replies)


def check_server(name: str, algorithm: Algorithm[Any], table: Table) -> None:
    """Refuse a method of which more is released than means that noise is added to.

    >>> check_server("clustered_fl", None, {})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.name = 'clustered_fl': releases more than noisy means; take one ...
    """
    if name not in SERVER:
        remedy = f"releases more than noisy means; take one of {', '.join(SERVER)}, or privacy.mode = 'local'"
        raise KinfolkError("algorithm.name", name, remedy)
    aggregate: Any = getattr(algorithm, "aggregate", None)
    needs: list[tuple[str, Any, Sequence[Any], str]] = [
        ("aggregate.name", aggregate.name, ("mean",), "noise is for means"),
        (
            "weights",
            getattr(algorithm, "weights", "uniform"),
            ("uniform",),
            "numbers of rows are not covered",
        ),
        (
            "aggregate.weights",
            getattr(aggregate, "weights", "uniform"),
            ("uniform",),
            "nor are numbers of rows",
        ),
        (
            "aggregate.share",
            getattr(aggregate, "share", "nothing"),
            ("nothing",),
            "noise is for whole models",
        ),
    ]
    if isinstance(algorithm, IFCA):
        needs.append(("restarts", algorithm.restarts, (1,), "losses of starts have no noise"))
    if isinstance(algorithm, FeSEM):
        starts = "random_partition", "distinct_models"
        needs += [
            ("start.name", algorithm.start.name, starts, "k-means looks at models without noise"),
            ("reseed_after", algorithm.reseed_after, (0,), "a centre would be one client's model"),
            ("patience", algorithm.patience, (0,), "when groups stop changing has no noise"),
        ]
        if algorithm.lam:
            needs.append(
                ("prox_scaling", algorithm.prox_scaling, ("plain",), "the mean number of rows has no noise")
            )
    _refuse(needs)


def _refuse(needs: Iterable[tuple[str, Any, Sequence[Any], str]]) -> None:
    for key, value, good, why in needs:
        if value not in good:
            ways = " or ".join(map(repr, good))
            raise KinfolkError(f"algorithm.{key}", value, f"with privacy.mode = 'server' give {ways}: {why}")


def check_local(name: str, algorithm: Algorithm[Any], table: Table) -> None:
    """Refuse a method whose clients send anything but trees of real numbers.

    >>> swap = PeerTask(lambda memory, me: {}, lambda inbox, memory, me: memory)
    >>> check_local("slfed", None, {"swap": swap})
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.name = 'slfed': its clients write each other without noise (swap)
    """
    replies = False
    for task_name, task in table.items():
        if isinstance(task, PeerTask):
            remedy = f"its clients write each other without noise ({task_name})"
            raise KinfolkError("algorithm.name", name, remedy)
        open_to_all = sorted(task.reply.keys() - trees(task).keys())
        if open_to_all:
            told = f"its clients send {open_to_all[0]!r} ({task_name!r}), which has no noise"
            other = "privacy.mode = 'server'" if name in SERVER else "another method"
            raise KinfolkError("algorithm.name", name, f"{told}; take {other}")
        replies |= bool(task.reply)
    if not replies:
        raise KinfolkError("algorithm.name", name, "sends no models; take out [privacy]")
