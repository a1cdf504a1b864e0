"""Adapters of rank 8 on a frozen Transformer: samples a second and memory, against a plain loop.

python benchmarks/lora.py                    # on a GPU: 25 M parameters, 100 clients, batches of 8, TF32
python benchmarks/lora.py --tiny             # on a CPU, to see that it runs

Memory is the most that PyTorch held on the device at a time within a round (`max_memory_allocated`): rows,
models, gradients and activations; beside it what it had reserved. It is compared with the bytes of one whole
network and of the adapters and heads of all clients. On a CPU it is not measured.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from kinfolk.algorithms import build_algorithm
from kinfolk.engines.batched import Batched
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.fast import prepare
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.batchable import obstacle
from kinfolk.learning.freezing import freeze
from kinfolk.learning.learner import Learner
from kinfolk.learning.lora import add_lora
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.learning.plan import batches
from kinfolk.script import client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan

Round = Callable[[], dict[str, Tensor]]
CLASSES, WORDS = 10, 1000
RANK = 8


class Transformer(nn.Module):
    """Layers of attention over tokens, and a head on their mean."""

    def __init__(self, width: int = 512, layers: int = 8, heads: int = 8, tokens: int = 32) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(tokens, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.words(x) + self.places).mean(1))


def setting(clients: int, rows: int, batch: int, tiny: bool) -> tuple[Learner, Federation]:
    """A learner with adapters and a head to train, and clients with rows of tokens."""
    width, layers, heads, tokens = (32, 2, 4, 8) if tiny else (512, 8, 8, 32)
    draw = Seed(0).torch("bench")
    given = [
        (
            torch.randint(WORDS, (rows, tokens), generator=draw),
            torch.randint(CLASSES, (rows,), generator=draw),
        )
        for _ in range(clients)
    ]
    with Seed(0).borrowed("init"):
        network = Transformer(width, layers, heads, tokens)
        freeze(network, ["head.*"])
        add_lora(network, RANK, train=True)
    learner = Learner(
        network, find_loss("cross_entropy"), CLASSES, SGD(), Plan(batch), lr=0.01, prepare=prepare
    )
    return learner, from_arrays(given, test={}, classes=CLASSES)


def plain_round(learner: Learner, federation: Federation, device: torch.device) -> Round:
    """A loop as one would write it: one network on the device, into which each client's adapters are put."""
    network = copy.deepcopy(learner.module).to(device).train()
    first = {name: t.to(device) for name, t in learner.first.items()}
    x, y = federation.x.to(device), federation.y.to(device)
    own = {name: p for name, p in network.named_parameters() if p.requires_grad}
    criterion = nn.CrossEntropyLoss()

    def go() -> dict[str, Tensor]:
        mean = {name: torch.zeros_like(t) for name, t in first.items()}
        for i, who in enumerate(federation.clients):
            with torch.no_grad():
                for name, p in own.items():
                    p.copy_(first[name])
            optimiser = torch.optim.SGD(own.values(), lr=learner.lr)
            mine = federation.splits["train"].rows(i)
            for drawn in batches(learner.plan, len(mine), Seed(0).numpy("batch", 0, who, 0)):
                rows = mine[torch.from_numpy(drawn)].to(device)
                optimiser.zero_grad()
                criterion(network(x[rows]), y[rows]).backward()
                optimiser.step()
            for name, p in own.items():
                mean[name] += p.detach() / len(federation.clients)
        return mean

    return go


def engine_round(learner: Learner, federation: Federation, device: torch.device, chunk: int) -> Round:
    """One round of FedAvg, so many clients a call; of none, by `loop`."""
    algorithm, none = build_algorithm("fedavg", learner, {}), Memories(lambda who: {})
    tasks = client_tasks(algorithm)
    engine = (
        Batched(federation, tasks, none, chunk, device) if chunk else Loop(federation, tasks, none, device)
    )
    coordinator = Coordinator(engine)
    first = {name: t.to(device) for name, t in learner.first.items()}
    state = algorithm.init(first, federation.clients, Seed(0))
    context = RoundContext(Seed(0), 0, federation.clients)

    def go() -> dict[str, Tensor]:
        script = algorithm.round(state, federation.clients, context)
        return play(script, lambda request: coordinator.perform(request, context))[0].model

    return go


def best_of(
    go: Callable[[], dict[str, Tensor]], device: torch.device, repeats: int
) -> tuple[float, dict[str, Tensor]]:
    """The shortest time of some rounds after one that warms up, and what they gave."""
    found, times = go(), []
    for _ in range(repeats):
        if device.type == "cuda":
            torch.cuda.synchronize()
        began = time.perf_counter()
        found = go()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return min(times), found


def apart(a: dict[str, Tensor], b: dict[str, Tensor], first: dict[str, Tensor]) -> float:
    """How far two models are from each other, as a part of how far training has moved them."""
    gap = sum(float((a[n] - b[n]).double().square().sum()) for n in a)
    moved = sum(float((b[n] - first[n].to(b[n].device)).double().square().sum()) for n in b)
    return (gap / moved) ** 0.5


def row(
    clients: int = 100,
    rows: int = 64,
    batch: int = 8,
    chunks: tuple[int, ...] = (6,),
    precision: str = "tf32",
    tiny: bool = False,
    repeats: int = 2,
) -> Iterator[dict[str, float | int | str]]:
    """One line for the plain loop, one for `loop`, one for each number of clients a call, when it is done."""
    device = torch.device("cpu" if tiny or not torch.cuda.is_available() else "cuda")
    learner, federation = setting(clients, rows, batch, tiny)
    if tiny:  # of the large one, minutes of a CPU
        assert not (blocked := obstacle(learner, federation.x[:2], federation.y[:2])), blocked
    trained = sum(t.numel() for t in learner.first.values())
    whole = sum(t.numel() for t in learner.frozen.values()) + trained
    need = 4 * (whole + clients * trained)
    yield {"parameters": whole, "trained": trained, "MB of one model and adapters": need / 1e6}
    plain = 0.0
    with arithmetic(device, precision):
        rounds = {"plain loop": plain_round(learner, federation, device)}
        rounds |= {f"batched, {c} a call" if c else "loop": None for c in (0, *chunks)}  # type: ignore[misc]
        models: dict[str, dict[str, Tensor]] = {}
        for name, go in rounds.items():
            if device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            chunk = int(name.split()[1]) if name.startswith("batched") else 0
            seconds, models[name] = best_of(
                go or engine_round(learner, federation, device, chunk), device, repeats
            )
            rate = clients * rows / seconds
            plain = plain or rate
            line: dict[str, float | int | str] = {"way": name, "samples/s": rate}
            line["times the plain loop"] = rate / plain
            if device.type == "cuda":
                line["MB"] = torch.cuda.max_memory_allocated() / 1e6
                line["MB reserved"] = torch.cuda.max_memory_reserved() / 1e6
                line["times one model and adapters"] = torch.cuda.max_memory_allocated() / need
            line["apart"] = apart(models[name], models["plain loop"], learner.first)
            yield line
            rounds[name] = None  # type: ignore[assignment]  # its memory is not the next one's


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--chunk", type=int, nargs="*", default=[2, 4, 6, 8, 16, 50])
    parser.add_argument("--precision", default="tf32")
    given = parser.parse_args()
    clients = given.clients or (6 if given.tiny else 100)
    chunks = tuple(given.chunk[:2] if given.tiny else given.chunk)
    for line in row(clients, given.rows, given.batch, chunks, given.precision, given.tiny):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
