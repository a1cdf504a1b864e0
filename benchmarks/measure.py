"""Engines measured side by side: one FedAvg round each, against a plain PyTorch loop doing the same steps.

python benchmarks/measure.py --model mlp lenet --clients 12 100 --rows 50 --batch 10
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from kinfolk.algorithms import build_algorithm
from kinfolk.engines.choose import Choice, arithmetic, choose, make
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.fast import prepare
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.engines.workers import cores
from kinfolk.errors import KinfolkError
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.batchable import Cost, cost, obstacle
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.learning.plan import batches
from kinfolk.script import client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan

SHAPES = {"lenet": (1, 28, 28), "femnist_cnn": (1, 28, 28), "femnist_cnn_small": (1, 28, 28), "mlp": (784,)}
CLASSES = 10
PLAIN = "plain loop"


@dataclass(frozen=True)
class Measured:
    """One engine's best time for one round."""

    engine: str
    seconds: float
    samples: float  # rows trained on per second
    trainings: float  # clients trained per second
    ratio: float  # how many times the plain loop's speed
    floor: float  # seconds below which no engine on these cores, or this GPU, can come
    reached: float  # floor / seconds
    peak: float = math.nan  # MiB, of a round in a process of its own; NaN if not asked for


@dataclass(frozen=True)
class Ceilings:
    """What the device does at best: operations a second of a large product, bytes a second of a copy."""

    operations: float
    bytes: float


def ceilings(device: torch.device) -> Ceilings:
    """Measure a device, on a CPU one core of it."""
    side, length = (4096, 1 << 28) if device.type == "cuda" else (512, 1 << 24)
    a, b = torch.ones(side, side, device=device), torch.ones(length, device=device)
    c = torch.empty_like(b)

    def seconds(go: Callable[[], object]) -> float:
        times = []
        for _ in range(4):
            began = time.perf_counter()
            go()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return min(times)

    return Ceilings(2 * side**3 / seconds(lambda: a @ a), 8 * length / seconds(lambda: c.copy_(b)))


def floor_seconds(top: Ceilings, size: Cost, clients: int, rows: int, batch: int, row: int) -> float:
    """The larger of two times: operations (forward, and twice that backward) and the fewest bytes.

    Bytes: in every step each client's model is read and written once, and its rows of `row` numbers are read.
    """
    moved = 8 * size.parameters * clients * -(-rows // batch) + 4 * row * clients * rows
    return max(3 * size.flops * clients * rows / top.operations, moved / top.bytes)


def toy(model: str, clients: int, rows: int) -> Federation:
    """Clients with rows of noise in the model's shape."""
    shape = SHAPES.get(model, (3, 32, 32))
    draw = Seed(0).torch("bench")
    given = [
        (torch.randn(rows, *shape, generator=draw), torch.randint(CLASSES, (rows,), generator=draw))
        for _ in range(clients)
    ]
    return from_arrays(given, test={}, classes=CLASSES)


def plain_round(
    learner: Learner, federation: Federation, device: torch.device, criterion: nn.Module | None = None
) -> Callable[[], None]:
    """A hand-written loop over clients: the steps of one FedAvg round, as one would write them."""
    x, y = federation.x.to(device), federation.y.to(device)
    criterion = criterion or nn.CrossEntropyLoss()

    def go() -> None:
        mean: dict[str, torch.Tensor] = {}
        for i, who in enumerate(federation.clients):
            network = copy.deepcopy(learner.module).to(device).train()
            optimiser = torch.optim.SGD(network.parameters(), lr=learner.lr)
            mine = federation.splits["train"].rows(i)
            for drawn in batches(learner.plan, len(mine), Seed(0).numpy("batch", 0, who, 0)):
                rows = mine[torch.from_numpy(drawn)].to(device)
                optimiser.zero_grad()
                criterion(network(x[rows]), y[rows]).backward()
                optimiser.step()
            for name, tensor in network.state_dict().items():
                share = tensor.detach() / len(federation.clients)
                mean[name] = mean[name] + share if name in mean else share
        if device.type == "cuda":
            torch.cuda.synchronize()

    return go


def engine_round(
    learner: Learner, federation: Federation, choice: Choice
) -> tuple[Callable[[], None], Coordinator]:
    """One FedAvg round on an engine."""
    algorithm = build_algorithm("fedavg", learner, {})
    coordinator = Coordinator(
        make(choice.engine, federation, client_tasks(algorithm), Memories(lambda who: {}))
    )
    first = {name: t.to(choice.device) for name, t in learner.first.items()}
    state = algorithm.init(first, federation.clients, Seed(0))
    context = RoundContext(Seed(0), 0, federation.clients)

    def go() -> None:
        play(
            algorithm.round(state, federation.clients, context),
            lambda request: coordinator.perform(request, context),
        )
        if choice.device.type == "cuda":
            torch.cuda.synchronize()

    return go, coordinator


@dataclass(frozen=True)
class Work:
    """What is measured: so many clients with so many rows train a network in steps of `batch` rows."""

    model: str
    clients: int
    rows: int
    batch: int

    def __post_init__(self) -> None:
        for name in ("clients", "rows", "batch"):
            if getattr(self, name) < 1:
                raise KinfolkError(f"--{name}", getattr(self, name), "give 1 or more")

    def ready(self) -> Ready:
        """The learner and made-up clients, once for all engines."""
        federation = toy(self.model, self.clients, self.rows)
        with Seed(0).borrowed("init"):
            module = build_model(self.model, federation.shape, CLASSES, {})
        loss = find_loss("cross_entropy")
        learner = Learner(module, loss, CLASSES, SGD(), Plan(self.batch), lr=0.05, prepare=prepare)
        x, y = federation.x[:2], federation.y[:2]
        return Ready(learner, federation, cost(learner, x[:1]), obstacle(learner, x, y))


@dataclass(frozen=True)
class Ready:
    """What all engines are given, and what choosing one goes by."""

    learner: Learner
    federation: Federation
    size: Cost
    blocked: str  # why the network can not be batched, or nothing


def _round(
    work: Work, ready: Ready, name: str, device: torch.device
) -> tuple[Callable[[], None], Coordinator | None] | None:
    """One round by the plain loop or an engine; nothing if that is not for this device or network."""
    if name == PLAIN:
        return plain_round(ready.learner, ready.federation, device), None
    if name == "workers" and device.type == "cuda":
        return None  # for CPUs only
    choice = choose(EngineSpec(name), ready.size, work.batch, work.clients, ready.blocked)
    return engine_round(ready.learner, ready.federation, choice) if choice.name == name else None


def measure(
    model: str,
    clients: int,
    rows: int,
    batch: int,
    repeats: int = 3,
    engines: tuple[str, ...] = ("loop", "batched", "workers"),
    memory: bool = False,
) -> list[Measured]:
    """The engines that suit this machine, interleaved so that a busy moment hits them all."""
    work = Work(model, clients, rows, batch)
    ready = work.ready()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rounds = {name: one for name in (PLAIN, *engines) if (one := _round(work, ready, name, device))}
    best = dict.fromkeys(rounds, float("inf"))
    with arithmetic(device, "float32"):
        top = ceilings(device)
        for _ in range(repeats + 1):  # the first of them warms up
            for name, (go, _) in rounds.items():
                began = time.perf_counter()
                go()
                best[name] = min(best[name], time.perf_counter() - began)
    for _, coordinator in rounds.values():
        if coordinator is not None:
            coordinator.engine.close()
    floor = floor_seconds(top, ready.size, clients, rows, batch, ready.federation.x[0].numel())
    found = []
    for name, seconds in best.items():
        least = floor / min(cores(), clients) if name == "workers" else floor
        rates = clients * rows / seconds, clients / seconds, best[PLAIN] / seconds
        peak = _peak_mib(work, name) if memory else math.nan
        found.append(Measured(name, seconds, *rates, least, least / seconds, peak))
    return found


def _peak_mib(work: Work, name: str) -> float:
    """The most memory that a round takes, measured in a process of its own, which ends with it.

    On a GPU what was held there; on a CPU the resident size of the largest process.
    """
    words = [work.model, *map(str, (work.clients, work.rows, work.batch)), name]
    done = subprocess.run(
        [sys.executable, __file__, "--peak", *words], capture_output=True, text=True, check=False
    )
    return float(done.stdout) if not done.returncode else math.nan


def _peak(words: list[str]) -> float:
    import resource  # which not every system has

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    work = Work(words[0], *map(int, words[1:4]))
    made = _round(work, work.ready(), words[4], device)
    assert made is not None
    go, coordinator = made
    with arithmetic(device, "float32"):
        go()
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    if coordinator is not None:
        coordinator.engine.close()  # processes count once they have ended
    unit = 1 << 20 if sys.platform == "darwin" else 1 << 10  # bytes there, else kibibytes
    own, others = (
        resource.getrusage(who).ru_maxrss / unit for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    status = Path("/proc/self/status")
    if status.is_file():  # Linux's own count goes on from that of the process which started this one
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        own = int(line.split()[1]) / 1024
    return max(own, others)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", nargs="+", default=["lenet"], help="models by name")
    parser.add_argument("--clients", nargs="+", type=int, default=[12], help="numbers of clients")
    parser.add_argument("--rows", type=int, default=500, help="rows of each client")
    parser.add_argument("--batch", type=int, default=50, help="rows per step")
    parser.add_argument("--json", action="store_true", help="every number instead of a table")
    parser.add_argument("--peak", nargs=5, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.peak:
        print(_peak(asked.peak))
        return
    found = [
        {"model": model, "clients": clients, **vars(one)}
        for model in asked.model
        for clients in asked.clients
        for one in measure(model, clients, asked.rows, asked.batch, memory=True)
    ]
    if asked.json:
        print(json.dumps(found))
        return
    print(f"{asked.rows} rows a client, batch {asked.batch}: one FedAvg round in float32, best of three")
    print("model       engine     clients  seconds   samples/s  clients/s  speed-up  % of limit  peak MiB")
    for one in found:
        print(
            f"{one['model']:11} {one['engine']:10} {one['clients']:7} {one['seconds']:8.3f}"
            f" {one['samples']:11,.0f} {one['trainings']:10,.1f} {one['ratio']:9.2f}"
            f" {100 * one['reached']:11.0f} {one['peak']:9,.0f}"
        )
    print("speed-up: over the plain loop; limit: operations or bytes, by a product and a copy measured here")
    print("peak: of one round in a process of its own, the largest if there are several")


if __name__ == "__main__":
    main()
