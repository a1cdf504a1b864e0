"""Why two engines differ: a few steps by `loop` and by `batched`, in float32 and in float64.

If the engines did different things, more digits would not help. If the gap is rounding, which a ReLU or a
maximum turns into a jump (an input within rounding of zero, or two nearly equal ones), it goes with float64.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from gpu import PflCNN, apart
from kinfolk.engines.batched import Batched
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import Stack

SHAPES = {
    "mlp": (784,), "lenet": (1, 28, 28), "pfl_cnn": (3, 32, 32), "femnist_cnn_small": (1, 28, 28),
    "resnet18": (3, 32, 32),
}  # fmt: skip


class Doubled(nn.Module):
    """A network in float64, whatever the rows come in."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The same, with more digits."""
        return self.inner(x.double())


def gap(name: str, device: str, double: bool, steps: int) -> float:
    """How far apart the engines' models are after some steps, as a part of the way they have come."""
    shape, draw = SHAPES[name], Seed(0).torch("rows")
    rows = [
        (torch.randn(10 * steps, *shape, generator=draw), torch.arange(10 * steps) % 10) for _ in range(4)
    ]
    federation = from_arrays(rows, test={}, classes=10)
    with Seed(0).borrowed("init"):
        module = PflCNN() if name == "pfl_cnn" else build_model(name, shape, 10, {})
    learner = Learner(
        Doubled(module) if double else module, find_loss("cross_entropy"), 10, SGD(), Plan(10), lr=0.05
    )
    first = {n: t.to(device) for n, t in learner.first.items()}
    context = RoundContext(Seed(0), 0, federation.clients)
    found = []
    for kind, extra in ((Loop, ()), (Batched, (4,))):
        engine = kind(federation, {"update": learner.train()}, Memories(lambda who: {}), *extra, device)
        chunks = engine.replies(Ask("update", federation.clients, {"model": first}), context)
        found.append(Stack.join(list(chunks)).row(federation.clients[0])["model"])
    return apart(found[1], found[0], first)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(SHAPES))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, nargs="*", default=[1, 5])
    options = parser.parse_args()
    print(f"{'network':20} {'steps':>5} {'float32':>9} {'float64':>9}")
    for name in options.names:
        for steps in options.steps:
            cells = [gap(name, options.device, double, steps) for double in (False, True)]
            print(f"{name:20} {steps:5} " + " ".join(f"{v:9.1e}" for v in cells), flush=True)


if __name__ == "__main__":
    main()
