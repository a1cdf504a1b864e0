"""What the ranks of the tests run: several experiments in one launch, and a network that may kill them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from kinfolk.__main__ import main as command_line
from kinfolk.allowed import allow_imports
from kinfolk.engines.link import Link
from kinfolk.experiment.run import run
from kinfolk.experiment.spec import override, parse
from kinfolk.federation.own_data.arrays import from_arrays

# Of the ranks and of the process that starts them.
allow_imports("ranks", "gossip", "nearest", "__main__")

SPEC = """
[data]
clients = 6
rows = 12
groups = 2
[model]
name = "logistic"
[local]
batch = 5
[engine]
name = "distributed"
inner = "loop"
timeout = 300
[run]
rounds = 2
"""


class Mortal(nn.Module):
    """A linear network; on the rank that DIES names, its process is killed in the middle of a later round."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        if self.calls > 30 and os.environ.get("DIES") == os.environ.get("RANK", "none"):
            os.kill(os.getpid(), signal.SIGKILL)
        return self.head(x.flatten(1))


class Moody(nn.Module):
    """A linear network that on rank 1 refuses whole batches of several clients in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x) and len(x) == 5 and os.environ.get("RANK") == "1":
            raise RuntimeError("not today")
        return self.head(x.flatten(1))


def spoilt():
    """Five clients, of whom the fourth has numbers that no model survives."""
    draw = torch.Generator().manual_seed(3)
    rows = {}
    for i in range(5):
        x = torch.randn(9, 4, generator=draw) * (1e30 if i == 3 else 1)
        rows[f"c{i}"] = (x, torch.arange(9) % 3)
    return from_arrays(rows, test=rows, classes=3)


def go(folder: str, changes: list[str], resume: bool = False):
    own = {"federation": spoilt()} if "data.name=own" in changes else {}
    return run(override(parse(SPEC), changes), Path(folder), resume=resume, **own)


def fork(count: int, words: list[str]) -> None:
    """The command line on `count` ranks, which are forked so that all is imported once; how each ended."""
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)}
            for number, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(f"{name}.{rank}", os.O_WRONLY | os.O_CREAT), number)
            sys.argv = ["kinfolk", *words]
            sys.modules["ranks"] = sys.modules["__main__"]
            command_line()
            return
        children.append(child)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


def perform(jobs: list[tuple[str, list[str], bool]]) -> None:
    """Each job in turn, as one rank of those that torchrun has started."""
    lengths: list[int] = []
    take = Link.take

    def noted(self: Link, source: int) -> bytes:
        data = take(self, source)
        lengths.append(len(data))
        return data

    Link.take = noted  # type: ignore[method-assign]
    for folder, changes, resume in jobs:
        lengths.clear()
        done = go(folder, changes, resume)
        if os.environ["RANK"] == "0":
            print(json.dumps({"folder": folder, "lengths": lengths, "reason": done.reason}), flush=True)
        else:
            assert done.reason == f"rank {os.environ['RANK']} has served"


if __name__ == "__main__":
    if sys.argv[1] == "fork":
        fork(int(sys.argv[2]), sys.argv[3:])
    else:
        perform(json.loads(sys.argv[1]))
