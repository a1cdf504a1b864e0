"""One round of SLFed with N peers of a named network: seconds, memory and bytes by phase.

Every phase is waited for, so that its seconds are its own. "host" is the part of them before the last
waiting: where it is nearly all, the host is what is slow. Of "generate_images" the passes are timed
too. Lists grow while peers get to know one another: with `--rounds 4 --gan-every 3` the last round has full
lists and makes images anew, and nothing in it is done for the first time.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kinfolk.algorithms import build_algorithm
from kinfolk.engines.choose import arithmetic, choose, make
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.fast import prepare
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.federation.federation import Federation, client_names, pack
from kinfolk.learning.augment import find_augment
from kinfolk.learning.batchable import cost
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.script import Exchange, client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import map_leaves

SHAPES = {"lenet": (1, 28, 28), "resnet18": (3, 32, 32)}
CLASSES = 10
WORDS = {
    "local_train": "local training before the first meeting",
    "begin": "memories to the host",
    "generate_images": "images anew",
    "images": "images sent, predictions",
    "counts": "similarities",
    "opinions": "opinions, lists",
    "requests": "requests",
    "accepts": "answers to them",
    "confirm": "lists settled, models scaled and split",
    "shares": "shares exchanged, added up",
    "ready": "whose shares came",
    "verdict": "go, or a shorter list",
    "again": "shares once more, where needed",
    "responses": "sums, aggregation",
    "results": "sums passed on",
    "next": "models of the next requesters split",
    "train": "local training",
}
PASSES = {
    "gan": ("first weights", "GAN training", "GAN images", "copies: sample", "copies: distances"),
    "back_search": ("first images", "back search", "as bytes"),
    "noise": ("noise",),
    "means": ("room", "sums", "means", "copies: sample", "copies: distances"),
}


def made_up(peers: int, rows: int, shape: tuple[int, ...]) -> Federation:
    """Peers with rows of bytes: a bright spot for each class, in noise."""
    draw = Seed(0).torch("bench")
    y = torch.randint(CLASSES, (peers * rows,), generator=draw)
    x = torch.randint(128, (peers * rows, *shape), dtype=torch.uint8, generator=draw)
    for label in range(CLASSES):
        x[y == label, :, 2 * label : 2 * label + 4, 8:12] += 120
    sets = list(torch.arange(peers * rows).split(rows))
    none = pack([torch.zeros(0, dtype=torch.int64)] * peers)
    splits = {"train": pack(sets), "valid": none, "test": none}
    return Federation(tuple(client_names(peers)), x, y, splits, CLASSES, scale=(2 / 255, -1.0))


def build(options):
    """(learner, federation) as the options say."""
    shape = SHAPES[options.model]
    chosen = {"width": options.width} if options.model == "resnet18" else {}
    with Seed(0).borrowed("init"):
        module = build_model(options.model, shape, CLASSES, chosen)
    plan = Plan(options.batch, augment=find_augment(options.augment, 4, shape))
    sgd = SGD(momentum=0.9, weight_decay=5e-4)
    half = options.precision == "bf16"
    learner = Learner(
        module, find_loss("cross_entropy"), CLASSES, sgd, plan, lr=0.01, half=half, prepare=prepare
    )
    return learner, made_up(options.peers, options.rows, shape)


class Clock:
    """Seconds, processor seconds and peak bytes of whatever runs within."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.lines: list[dict[str, float | str]] = []

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.wait()
        if self.device.type == "cuda" and not name.startswith(" "):
            torch.cuda.reset_peak_memory_stats()
        began, busy = time.perf_counter(), time.process_time()
        yield
        host = time.perf_counter() - began
        self.wait()
        line = {"phase": name, "s": time.perf_counter() - began, "host": host}
        line |= {"processor": time.process_time() - busy, "GiB": self.peak()}
        self.lines.append(line)

    def peak(self) -> float:
        if self.device.type == "cuda":
            return torch.cuda.max_memory_allocated() / 2**30
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def watched(engine, clock: Clock, names: tuple[str, ...]):
    """The engine, whose passes of "generate_images" are timed one by one."""
    making, plain = engine.table["generate_images"].passes, engine._passes.run
    names = ("ranges",) * (len(making) - len(names)) + names  # which are found before anything is made

    def timed(one, *rest):
        place = [i for i, known in enumerate(making) if known is one]
        if not place:
            return plain(one, *rest)
        with clock.phase("  " + names[place[0]]):
            return plain(one, *rest)

    engine._passes.run = timed
    return engine


def rounds(options, learner, federation, device: torch.device) -> Iterator[tuple[list, dict, list]]:
    """Of each round the lines of the clock, bytes by phase, and how many peers each one asked."""
    given = {"shares.scheme": options.shares, "images.kind": options.images, "direct": options.direct}
    given |= {"images.count": options.images_count, "images.every": options.gan_every}
    algorithm = build_algorithm("slfed", learner, given | {"gan.width": options.gan_width})
    here = lambda message: map_leaves(lambda t: t.to(device), message)  # noqa: E731
    memories = Memories(lambda who: here(algorithm.init_client(who)))
    wanted = EngineSpec(
        "batched", device.type, options.chunk, precision=options.precision, lanes=options.lanes
    )
    choice = choose(wanted, cost(learner, federation.take(torch.arange(1))[0]), options.batch, 0, "")
    clock = Clock(device)
    engine = make(choice.engine, federation, client_tasks(algorithm), memories)
    coordinator = Coordinator(watched(engine, clock, PASSES[options.images]))
    print(engine.note, flush=True)
    state = algorithm.init(here(learner.first), federation.clients, Seed(0))
    for number in range(options.rounds):
        context = RoundContext(Seed(0), number, federation.clients)
        memories.snapshot()
        clock.lines, asked = [], []

        def perform(request, context=context, asked=asked):
            name = request.swap if isinstance(request, Exchange) else request.task
            with clock.phase(name):
                out = coordinator.perform(request, context)
            if name == "confirm":
                asked.extend(int(m["asked"]["mask"].sum()) for m in memories.values() if "asked" in m)
            return out

        state, _ = play(algorithm.round(state, federation.clients, context), perform)
        yield clock.lines, coordinator.ledger.take()[0], asked


def show(number: int, lines: list, sent: dict, asked: list[int]) -> None:
    """One round as a table; the passes of "generate_images" stand below it and are not counted twice."""
    top: dict[str, dict] = {}
    within: dict[str, float] = {}
    for line in lines:
        name = str(line["phase"])
        if name.startswith(" "):
            within[name] = within.get(name, 0.0) + line["s"]
            continue
        old = top.setdefault(name, {"s": 0.0, "host": 0.0, "processor": 0.0, "GiB": 0.0})
        for key in old:
            old[key] = max(old[key], line[key]) if key == "GiB" else old[key] + line[key]
    seconds = sum(t["s"] for t in top.values())
    print(
        f"\nround {number + 1}: {seconds:.2f} s, lists of {min(asked, default=0)} to {max(asked, default=0)}"
    )
    print(f"{'phase':34}{'s':>9}{'%':>5}{'host':>9}{'processor':>11}{'GiB':>7}{'MB sent':>10}")
    for name, t in top.items():
        megabytes = sum(sent.get(name, {}).values()) / 1e6
        label, share = WORDS[name], 100 * t["s"] / seconds
        print(
            f"{label:34.34}{t['s']:9.3f}{share:5.0f}{t['host']:9.3f}{t['processor']:11.3f}"
            f"{t['GiB']:7.2f}{megabytes:10.2f}"
        )
        for part, spent in within.items() if name == "generate_images" else ():
            print(f"{part:34}{spent:9.3f}")
    facts = {name: {k: round(v, 4) for k, v in t.items()} for name, t in top.items()}
    print(json.dumps({"round": number + 1, "seconds": round(seconds, 3), "phases": facts}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=list(SHAPES), default="resnet18")
    parser.add_argument("--width", type=int, default=64, help="of resnet18")
    parser.add_argument("--peers", type=int, default=50)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--augment", default="none")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--precision", choices=["float32", "tf32", "bf16"], default="float32")
    parser.add_argument("--chunk", type=int, default=0, help="peers a call; 0: as memory allows")
    parser.add_argument("--lanes", type=int, default=0, help="calls side by side on a GPU; 0: by size")
    parser.add_argument("--shares", default="plain", help="plain, additive64, layerwise or shamir61")
    parser.add_argument("--images", choices=list(PASSES), default="gan")
    parser.add_argument("--images-count", type=int, default=1000)
    parser.add_argument("--gan-width", type=float, default=1.0)
    parser.add_argument("--gan-every", type=int, default=1)
    parser.add_argument("--direct", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    device = torch.device(options.device)
    learner, federation = build(options)
    size = sum(t.numel() for t in learner.first.values() if t.is_floating_point())
    print({**vars(options), "numbers": size}, flush=True)
    with arithmetic(device, options.precision):
        for number, told in enumerate(rounds(options, learner, federation, device)):
            show(number, *told)


if __name__ == "__main__":
    main()
