"""The work that every system in this folder is given: rows, network, local training, clock and report.

cnn   3x32x32 rows and the network of pfl's own CIFAR-10 benchmark (two 3x3 convolutions without padding,
      32 and 64 channels, max-pooling, 128 hidden units), without its dropout
mlp   784-200-10

Users are alike: each has the same number of rows, drawn from one Gaussian per class. Of all rounds the
first (start-up) and the last (Kinfolk scores and saves there) are not timed.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from processes import cpu_seconds, peak_mib
from torch import Tensor, nn
from torch.nn import functional as F

CLASSES = 10
SHAPES = {"cnn": (3, 32, 32), "mlp": (784,)}
UNTIMED = 2
# Class means are this far from zero where the noise has deviation 1: hard enough not to end at 100%.
SPREAD = {"cnn": 0.4, "mlp": 0.12}
RATE = {"cnn": 0.05, "mlp": 0.1}


@dataclass(frozen=True)
class Options:
    """What a run is asked for."""

    setting: str = "mlp"
    users: int = 1000
    rows: int = 50
    cohort: int = 50
    batch: int = 10
    rounds: int = 10
    lr: float = 0.0
    seed: int = 0
    tests: int = 2000
    threads: int = 1
    device: str = "cpu"
    precision: str = "float32"


def parser() -> argparse.ArgumentParser:
    """The options of every script here."""
    made = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    made.add_argument("--setting", choices=sorted(SHAPES), default=Options.setting)
    for name in ("users", "rows", "cohort", "batch", "rounds", "seed", "tests", "threads"):
        made.add_argument(f"--{name}", type=int, default=getattr(Options, name))
    made.add_argument("--lr", type=float, default=Options.lr, help="0: the setting's own")
    made.add_argument("--device", choices=("cpu", "cuda"), default=Options.device)
    made.add_argument("--precision", choices=("float32", "tf32"), default=Options.precision)
    return made


def options(given: argparse.Namespace) -> Options:
    """Out of the command line; the threads and the precision are set at once."""
    known = {name: value for name, value in vars(given).items() if name in Options.__dataclass_fields__}
    known["lr"] = given.lr or RATE[given.setting]
    torch.set_num_threads(given.threads)
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = given.precision == "tf32"
    return Options(**known)


@dataclass(frozen=True)
class Rows:
    """Training rows [users, rows, ...] and common test rows."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def rows(o: Options) -> Rows:
    """Class means plus noise. Images have coarse means (4x4 blocks), which small filters can see."""
    draw = torch.Generator().manual_seed(1 + o.seed)
    shape = SHAPES[o.setting]
    coarse = torch.randn(CLASSES, *(s // 4 if len(shape) > 1 and s > 3 else s for s in shape), generator=draw)
    means = F.interpolate(coarse, size=shape[1:]) if len(shape) > 1 else coarse

    def some(count: int) -> tuple[Tensor, Tensor]:
        y = torch.randint(CLASSES, (count,), generator=draw)
        return torch.randn(count, *shape, generator=draw).add_(means[y], alpha=SPREAD[o.setting]), y

    x, y = some(o.users * o.rows)
    return Rows(x.view(o.users, o.rows, *shape), y.view(o.users, o.rows), *some(o.tests))


def network(setting: str, seed: int = 0) -> nn.Sequential:
    """The same first weights for every system."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if setting == "mlp":
            return nn.Sequential(nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, CLASSES))
        convolutions = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(
            *convolutions, nn.Flatten(), nn.Linear(14 * 14 * 64, 128), nn.ReLU(), nn.Linear(128, CLASSES)
        )


@lru_cache(maxsize=1)
def kept_network(setting: str) -> nn.Sequential:
    """A network that a worker process keeps from client to client; its weights are overwritten."""
    return network(setting)


def train(net: nn.Module, x: Tensor, y: Tensor, o: Options, order: Tensor) -> None:
    """One local epoch of SGD over the rows in this order, with nothing between us and PyTorch."""
    optimiser = torch.optim.SGD(net.parameters(), lr=o.lr)
    for picked in order.split(o.batch):
        optimiser.zero_grad()
        F.cross_entropy(net(x[picked]), y[picked]).backward()
        optimiser.step()


@torch.no_grad()
def accuracy(net: nn.Module, data: Rows) -> float:
    """The share of the common test rows that is classified rightly."""
    net = net.cpu().eval()
    right = sum(
        int((net(x).argmax(1) == y).sum())
        for x, y in zip(data.test_x.split(500), data.test_y.split(500), strict=True)
    )
    return right / len(data.test_y)


@dataclass
class Clock:
    """Times of the ends of rounds, and what was used while helpers are still there."""

    o: Options
    ends: list[float] = field(default_factory=list)
    cpu: float = 0.0
    peak: float = 0.0

    def tick(self) -> None:
        """A round has ended. Looking at processes takes a moment: never within the timed rounds."""
        if self.o.device == "cuda":
            torch.cuda.synchronize()
        if not self.ends:
            self.cpu = -cpu_seconds()
        self.ends.append(time.perf_counter())
        if len(self.ends) == self.o.rounds + 1:
            self.cpu += cpu_seconds()
        if len(self.ends) == self.o.rounds + UNTIMED:
            self.peak = peak_mib()

    @property
    def seconds(self) -> float:
        """From the end of the first round to that of the last but one."""
        return self.ends[-UNTIMED] - self.ends[0]


def report(clock: Clock, found: float, system: str, version: str, how: str) -> None:
    """Print the one line that a script is run for."""
    o = clock.o
    assert len(clock.ends) == o.rounds + UNTIMED, f"{len(clock.ends)} rounds ended"
    trained = o.rounds * o.cohort
    facts: dict[str, Any] = {"system": system, "version": version, "setting": o.setting, "how": how}
    facts |= {"rounds": o.rounds, "clients_trained": trained, "seconds": round(clock.seconds, 4)}
    facts |= {"client_trainings_per_s": round(trained / clock.seconds, 3), "accuracy": found}
    facts |= {"peak_rss_mib": round(clock.peak), "cpu_seconds": round(clock.cpu, 2)}
    facts |= {"torch": torch.__version__, "device": o.device}
    print(json.dumps(facts), flush=True)


def missing(system: str, problem: ModuleNotFoundError) -> None:
    """Say that a system is not installed, in the same form."""
    print(json.dumps({"system": system, "missing": str(problem)}), flush=True)


def shuffled(count: int, draw: np.random.Generator) -> Tensor:
    """An order of a client's rows."""
    return torch.from_numpy(draw.permutation(count))
