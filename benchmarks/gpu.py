"""What one GPU does: samples a second of FedAvg by engine, against ceilings measured in the same run."""

from __future__ import annotations

import argparse
import json
import time
from itertools import count

import torch
from torch import Tensor, nn

from kinfolk.algorithms import build_algorithm
from kinfolk.engines.batched import Batched
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.fast import KERNELS, capture, prepare
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.federation.federation import Federation, client_names, pack
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.batchable import cost
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.script import client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from measure import plain_round


class PflCNN(nn.Module):
    """The network of pfl's own CIFAR-10 benchmark."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


# name: (shape of a row, classes, clients, rows, batch); of the small ones five epochs, else the plans take
# longest. Of large networks also one client a call in lanes, and also in bf16.
CHUNK = {"resnet18": 12, "mobilenetv2": 12}
LANES = {"resnet18": 4, "mobilenetv2": 4}
EPOCHS = {"mlp": 5, "lenet": 5}
WORK = {
    "mlp": ((784,), 10, 384, 500, 50),
    "lenet": ((1, 28, 28), 10, 192, 250, 50),
    "pfl_cnn": ((3, 32, 32), 10, 50, 50, 10),
    "femnist_cnn": ((1, 28, 28), 62, 50, 50, 10),
    "femnist_cnn_small": ((1, 28, 28), 62, 256, 50, 10),
    "resnet18": ((3, 32, 32), 10, 48, 250, 50),
    "mobilenetv2": ((3, 32, 32), 10, 24, 250, 50),
}


def ceilings() -> dict[str, float]:
    """Bytes a second of a copy, operations a second of a large product in float32 and in TF32."""

    def best(go, repeats=10):
        go()
        times = []
        for _ in range(repeats):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(), go(), b.record(), b.synchronize()
            times.append(a.elapsed_time(b) / 1e3)
        return sorted(times)[len(times) // 2]

    a, b = torch.randn(8192, 8192, device="cuda"), torch.randn(8192, 8192, device="cuda")
    big, other = torch.randn(2**29, device="cuda"), torch.empty(2**29, device="cuda")
    out = {"copy_bytes": 8 * 2**29 / best(lambda: other.copy_(big))}
    for name, tf32 in (("float32", False), ("tf32", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        out[name] = 2 * 8192**3 / best(lambda: a @ b)
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = a.bfloat16(), b.bfloat16()
    out["bf16"] = 2 * 8192**3 / best(lambda: a @ b)
    return out


def setting(name: str, most: int = 10**6, half: bool = False, rows: int = 0):
    """(learner, federation, batch) of one line of the table, with at most so many clients."""
    shape, classes, clients, usual, batch = WORK[name]
    rows = rows or usual
    draw = Seed(0).torch("bench")
    given = [
        (torch.randn(rows, *shape, generator=draw), torch.randint(classes, (rows,), generator=draw))
        for _ in range(min(clients, most))
    ]
    federation = from_arrays(given, test={}, classes=classes)
    with Seed(0).borrowed("init"):
        module = PflCNN() if name == "pfl_cnn" else build_model(name, shape, classes, {})
    plan = Plan(batch, EPOCHS.get(name, 1))
    loss = find_loss("cross_entropy")
    return Learner(module, loss, classes, SGD(), plan, lr=0.05, half=half, prepare=prepare), federation, batch


def engine(learner, federation, chunk: int, record: bool, lanes: int = 1):
    """A round of FedAvg, to be called again and again; of no client a call, by `loop`."""
    algorithm = build_algorithm("fedavg", learner, {})
    none = Memories(lambda who: {})
    if chunk:
        made = Batched(federation, client_tasks(algorithm), none, chunk, "cuda", record=record, lanes=lanes)
    else:
        made = Loop(federation, client_tasks(algorithm), none, "cuda")
    coordinator = Coordinator(made)
    first = {n: t.cuda() for n, t in learner.first.items()}
    state = algorithm.init(first, federation.clients, Seed(0))
    rounds = count()

    def go():
        context = RoundContext(Seed(0), next(rounds), federation.clients)
        out, _ = play(
            algorithm.round(state, federation.clients, context), lambda r: coordinator.perform(r, context)
        )
        torch.cuda.synchronize()
        return out.model

    return go


def femnist(precisions: tuple[str, ...], clients: int = 3550, rows: int = 227) -> None:
    """A round at the size of the whole of FEMNIST: made-up images, 5 epochs, batches of 10, everybody."""
    draw = Seed(0).torch("femnist")
    x = torch.randint(256, (clients * rows, 1, 28, 28), dtype=torch.uint8, generator=draw)
    y = torch.randint(62, (clients * rows,), generator=draw)
    sets = list(torch.arange(clients * rows).split(rows))
    none = pack([torch.zeros(0, dtype=torch.int64)] * clients)
    splits = {"train": pack(sets), "valid": none, "test": none}
    federation = Federation(tuple(client_names(clients)), x, y, splits, 62, scale=(1 / 255, 0.0))
    with Seed(0).borrowed("init"):
        module = build_model("femnist_cnn_small", (1, 28, 28), 62, {})
    learner = Learner(
        module, find_loss("cross_entropy"), 62, SGD(), Plan(10, epochs=5), lr=0.03, prepare=prepare
    )
    for precision in precisions:
        with arithmetic(torch.device("cuda"), precision):
            go = engine(learner, federation, 256, True)
            times = []
            for _ in range(2):
                began = time.perf_counter()
                go()
                times.append(time.perf_counter() - began)
            print(
                f"FEMNIST, {clients} clients x {rows} rows x 5 epochs, {precision}: s a round",
                times,
                flush=True,
            )


def seconds(go, repeats: int = 3) -> float:
    go()
    return min(timed(go) for _ in range(repeats))


def apart(a, b, first) -> float:
    """How far two models are from each other, as a part of how far training has moved them."""
    names = [n for n in a if a[n].is_floating_point()]
    gap = sum(float((a[n] - b[n]).double().square().sum()) for n in names)
    moved = sum(float((b[n] - first[n].to(b[n].device)).double().square().sum()) for n in names)
    return (gap / moved) ** 0.5


def ways_of(name: str, clients: int, asked: int) -> dict[str, tuple[int, bool, int]]:
    """Clients a call, whether recorded, calls side by side."""
    chunk = asked or min(clients, CHUNK.get(name, clients))
    ways = {"vmap": (chunk, False, 1), "recorded": (chunk, True, 1)}
    if name in LANES:
        ways |= {"alone": (1, True, 1), "lanes": (1, True, LANES[name])}
    return ways


def measured(name: str, precision: str, options, top: dict[str, float]) -> dict[str, float]:
    """Samples a second of every way, the floor and how much of it the best way reaches."""
    shape, _, clients, usual, batch = WORK[name]
    rows, epochs = options.rows or usual, EPOCHS.get(name, 1)
    learner, federation, _ = setting(name, half=precision == "bf16", rows=rows)
    samples = clients * rows * epochs
    size = cost(learner, federation.x[:1])
    # A loop's time grows with the clients: a few of them tell it.
    few = setting(name, 4 if rows > usual else 12, rows=rows)[1]
    part = rows * epochs * len(few.clients)
    line = {"bare": part / seconds(plain_round(learner, few, torch.device("cuda")), 1)}
    line["loop"] = part / seconds(engine(learner, few, 0, False), 1)
    models = {}
    ways = ways_of(name, clients, options.chunk)
    ways = {label: way for label, way in ways.items() if label in (options.ways or list(ways))}
    for label, (many, record, lanes) in ways.items():
        torch.cuda.reset_peak_memory_stats()
        go = engine(learner, federation, many, record, lanes)
        line[label] = samples / seconds(go, 2)
        models[label] = go()
        line[label + "_GiB"] = torch.cuda.max_memory_allocated() / 2**30
        del go
        torch.cuda.empty_cache()
    steps = -(-rows // batch) * epochs
    floor = max(
        3 * size.flops * samples / top[precision],
        (8 * size.parameters * clients * steps + 4 * samples * torch.Size(shape).numel()) / top["copy_bytes"],
    )
    line |= {
        "floor": samples / floor,
        "reached_%": 100 * floor * max(line[label] for label in ways) / samples,
    }
    for label, one, other in (("apart", "recorded", "vmap"), ("lanes_apart", "lanes", "alone")):
        if one in models and other in models:
            line[label] = apart(models[one], models[other], learner.first)
    return line


def wholes(names: list[str]) -> None:
    """Milliseconds of a round: steps replayed one by one, the round that records the pass, and later ones."""
    before = capture.WORTH_WHOLE, capture.MOST_WHOLE, capture.LONGEST_WHOLE
    most, capture.LONGEST_WHOLE = capture.MOST_WHOLE, 64
    for name in names:
        learner, federation, _ = setting(name)
        line = {}
        for label, capture.MOST_WHOLE, capture.WORTH_WHOLE in (("steps", 0, 0), ("whole", most, 2)):
            go = engine(learner, federation, WORK[name][2], True)
            go(), go()
            if label == "whole":
                line["recording"] = 1e3 * timed(go)
            line[label] = 1e3 * sorted(timed(go) for _ in range(15))[7]
        print(name, "ms a round", json.dumps({k: round(v, 2) for k, v in line.items()}), flush=True)
    capture.WORTH_WHOLE, capture.MOST_WHOLE, capture.LONGEST_WHOLE = before


def timed(go) -> float:
    began = time.perf_counter()
    go()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(WORK))
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--rows", type=int, default=0, help="of each client")
    parser.add_argument("--ways", nargs="*", help="these alone: vmap, recorded, alone, lanes")
    parser.add_argument("--wholes", action="store_true", help="passes recorded as a whole against steps")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], help="this one alone")
    options = parser.parse_args()
    if options.names == ["femnist"]:
        femnist((options.precision,) if options.precision else ("tf32", "float32"))
        return
    if options.wholes:
        wholes(options.names)
        return
    top = ceilings()
    print({k: f"{v:.3g}" for k, v in top.items()}, flush=True)
    for name in options.names:
        usual = ("float32", "tf32", "bf16") if name in LANES else ("float32", "tf32")
        for precision in (options.precision,) if options.precision else usual:
            with arithmetic(torch.device("cuda"), precision):
                line = measured(name, precision, options, top)
            print(name, precision, json.dumps({k: float(f"{v:.4g}") for k, v in line.items()}), flush=True)
    for key, took in KERNELS.milliseconds.items():
        print(key, {n: round(t, 3) for n, t in took.items()})


if __name__ == "__main__":
    main()
