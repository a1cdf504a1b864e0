"""Networks of every common kind: samples a second of `auto`'s engine against a plain loop of the same run.

python benchmarks/networks.py              a CUDA device: attention, recurrent, language models, convolutions
python benchmarks/networks.py --cpu        this machine's cores: the small networks of the conformance suite
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from kinfolk.engines.choose import arithmetic, choose
from kinfolk.engines.fast import accelerated
from kinfolk.engines.spec import EngineSpec
from kinfolk.federation.federation import Federation
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.batchable import cost, obstacle
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.streams import Seed
from kinfolk.task import Plan
from measure import engine_round, plain_round

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))

from network_kinds import NETWORKS, Kind, States, ViT  # type: ignore[import-not-found]

WORDS = 90
USUAL = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


class LM(nn.Module):
    """A language model of d numbers a place; the mean over places says the class."""

    def __init__(self, width: int, layers: int, heads: int, length: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.table, self.place = nn.Embedding(WORDS, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, WORDS)
        ahead = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("ahead", ahead, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        ids = x.long()
        h = self.table(ids) + self.place(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.body(h, self.ahead))).mean(1)


class OwnAttention(nn.Module):
    """A block that calls `F.scaled_dot_product_attention` by itself, as most models of today do."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow, self.heads = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), heads

    def forward(self, x: Tensor) -> Tensor:
        parts = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0)
        q, k, v = (part.transpose(1, 2) for part in parts)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(out.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norm2(x))))


class Words(nn.Module):
    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.table, self.body, self.head = nn.Embedding(WORDS, width), body, nn.Linear(width, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        out = self.body(self.table(x.long()))
        return self.head((out[0] if isinstance(out, tuple) else out).mean(1))


def depthwise(width: int = 32) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, 2, 1), nn.ReLU()]
    for _ in range(2):
        layers += [nn.Conv2d(width, width, 3, 1, 1, groups=width), nn.Conv2d(width, width, 1), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


def series_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(6, 32, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2),
        nn.Conv1d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool1d(2), nn.Flatten(),
        nn.Linear(64 * 32, 64), nn.ReLU(), nn.Linear(64, 10),
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A network, the shape of its rows, classes, rows of a batch, how many times as fast it should be."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch: int
    target: float
    words: bool = False


def lstm(layers: int = 1, dropout: float = 0.0) -> nn.Module:
    return States(nn.LSTM(28, 64, layers, batch_first=True, dropout=dropout))


ROWS: dict[str, Row] = {
    "vit": Row(lambda: ViT(28, 7, 64, 4, 2), (1, 28, 28), 4, 20, 40),
    "lstm": Row(lstm, (28, 28), 4, 20, 30),
    "gru": Row(lambda: States(nn.GRU(28, 64, batch_first=True)), (28, 28), 4, 20, 30),
    "lm": Row(lambda: LM(128, 4, 4, 64), (64,), WORDS, 16, 10, words=True),
    "own attention": Row(
        lambda: Words(nn.Sequential(*(OwnAttention(128, 4) for _ in range(4))), 128),
        (64,),
        WORDS,
        16,
        10,
        True,
    ),
    "lm dropout": Row(lambda: LM(128, 4, 4, 64, 0.1), (64,), WORDS, 16, 10, words=True),
    "char lstm": Row(lambda: Words(nn.LSTM(128, 128, 2, batch_first=True), 128), (64,), WORDS, 16, 10, True),
    "1-d cnn": Row(series_cnn, (6, 128), 10, 20, 100),
    "depthwise": Row(depthwise, (1, 28, 28), 10, 20, 60),
}


def federation(row: Row, clients: int, rows: int) -> Federation:
    draw = Seed(0).torch("bench")

    def some() -> tuple[Tensor, Tensor]:
        x = torch.randn(rows, *row.shape, generator=draw)
        if row.words:
            x = torch.randint(WORDS, (rows, *row.shape), generator=draw)
        return x, torch.randint(row.classes, (rows,), generator=draw)

    return from_arrays([some() for _ in range(clients)], test={}, classes=row.classes)


def learner_of(module: nn.Module, data: Federation, batch: int) -> Learner:
    loss = find_loss("cross_entropy" if data.classes else "mse")
    made = Learner(module, loss, data.classes or 64, SGD(), Plan(batch), lr=0.05)
    return accelerated(made, data.x[:2])


def seconds(go: Callable[[], object], most: float, warm: int = 2) -> float:
    """The best time of a call, after some that warm up, within about so many seconds."""
    for _ in range(warm):
        go()
    times, began = list[float](), time.perf_counter()
    while len(times) < 2 or (time.perf_counter() - began < most and len(times) < 12):
        start = time.perf_counter()
        go()
        times.append(time.perf_counter() - start)
    return min(times)


def on_gpu(name: str, clients: int, steps: int, precision: str) -> None:
    row, device = ROWS[name], torch.device("cuda")
    rows = row.batch * steps
    data = federation(row, clients, rows)
    few = federation(row, 4, rows)  # a loop's time grows with the clients: a few of them tell it
    with Seed(0).borrowed("init"):
        module = row.make()
    learner = learner_of(module, data, row.batch)
    blocked = obstacle(learner, data.x[:2], data.y[:2])
    spec = EngineSpec("auto", "cuda", precision=precision)
    choice = choose(spec, cost(learner, data.x[:1]), row.batch, clients, blocked, steps)
    with arithmetic(device, precision):
        with sdpa_kernel(USUAL):  # whatever PyTorch would take by itself
            plain = 4 * rows / seconds(plain_round(learner, few, device), 2, warm=1)
        torch.cuda.reset_peak_memory_stats()
        go, coordinator = engine_round(learner, data, choice)
        fast = clients * rows / seconds(go, 4)
        told = getattr(coordinator.engine, "take_warnings", list)()
    memory = torch.cuda.max_memory_allocated() / 2**30
    fine = "ok" if fast >= row.target * plain else "MISSED"
    how = f"{precision} {choice.name} {choice.engine.chunk} a call"
    rates = f"{plain:9,.0f} {fast:11,.0f} samples/s {fast / plain:7.1f} x"
    wanted = f"(at least {row.target:g}: {fine}) {memory:5.1f} GiB"
    print(f"{name:14} {how} {rates} {wanted}", blocked, *told, flush=True)


def on_cpu(name: str, clients: int, rows: int, batch: int) -> float:
    """How many times the plain loop's speed `auto` has, both in turn so that a busy moment hits both."""
    kind: Kind = NETWORKS[name]
    data = kind.federation((rows,) * clients)
    learner = learner_of(kind.network(), data, batch)
    blocked = obstacle(learner, data.x[:2], data.y[:2])
    choice = choose(
        EngineSpec("auto", "cpu"), cost(learner, data.x[:1]), batch, clients, blocked, rows / batch
    )
    criterion = nn.CrossEntropyLoss() if data.classes else nn.MSELoss()
    with arithmetic(torch.device("cpu"), "float32"):
        go, coordinator = engine_round(learner, data, choice)
        plain = plain_round(learner, data, torch.device("cpu"), criterion)
        best = {"plain": float("inf"), "auto": float("inf")}
        for number in range(6):
            for label, one in (("plain", plain), ("auto", go)):
                began = time.perf_counter()
                one()
                took = time.perf_counter() - began
                best[label] = min(best[label], took) if number > 1 else best[label]
        coordinator.engine.close()
    ratio = best["plain"] / best["auto"]
    rates = [f"{clients * rows / best[label]:10,.0f}" for label in best]
    fine = "ok" if ratio >= 0.95 else "MISSED"
    print(f"{name:24} {choice.name:8} {choice.engine.chunk:3} a call", *rates, end=" ")
    print(f"samples/s {ratio:6.2f} x {fine} {blocked}", flush=True)
    return ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--clients", type=int, default=0)
    parser.add_argument("--rows", type=int, default=60, help="of each client, on CPUs")
    parser.add_argument("--batch", type=int, default=10, help="on CPUs")
    parser.add_argument("--steps", type=int, default=10, help="of each client, on a GPU")
    parser.add_argument("--precision", default="tf32", choices=["float32", "tf32", "bf16"])
    options = parser.parse_args()
    if options.cpu:
        found = [
            on_cpu(name, options.clients or 24, options.rows, options.batch)
            for name in options.names or NETWORKS
        ]
        print(f"least {min(found):.2f} x the plain loop")
        return
    for name in options.names or ROWS:
        try:
            on_gpu(name, options.clients or 100, options.steps, options.precision)
        except Exception as problem:  # the other rows are still to be measured
            print(f"{name:14} FAILED {type(problem).__name__}: {str(problem)[:300]}", flush=True)


if __name__ == "__main__":
    main()
