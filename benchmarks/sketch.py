"""k-means on sketches against k-means on the models themselves: agreement, inertia, seconds.

python benchmarks/sketch.py           3,550 made-up models of 50,000 numbers (0.7 GiB), four groups
python benchmarks/sketch.py femnist   what 272 writers make of one start in five epochs: 845,510 numbers each
"""

from __future__ import annotations

import platform
import resource
import sys
import time

import torch
from torch import Tensor

from kinfolk.clustering.agreement import agreement
from kinfolk.clustering.kmeans import group_means, kmeans
from kinfolk.clustering.sketch import Sketch, width_for
from kinfolk.experiment.asking import trained_alike
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.spec import load, override
from kinfolk.papers.local_models import principal
from kinfolk.streams import Seed

CLIENTS, NUMBERS, GROUPS, RESTARTS = 3550, 50_000, 4, 10
WIDTHS = (256, 512, 1024, 2048, 4096)
# Distance of two group centres over that of two members of one group. The last is below what a sketch of
# these widths can see: its distances are off by sqrt(2 / width), the groups differ by 0.06 squared.
SEPARATIONS = {"well separated": 0.3, "moderately separated": 0.12, "hardly separated": 0.06}


def models(separation: float, device: str) -> tuple[Tensor, Tensor]:
    """Groups with noise whose spread falls from number to number, as between layers of a network."""
    draw = Seed(1).torch("models")
    truth = torch.arange(CLIENTS) % GROUPS
    scale = torch.linspace(1.5, 0.2, NUMBERS)
    points = torch.randn(CLIENTS, NUMBERS, generator=draw)
    middles = torch.randn(GROUPS, NUMBERS, generator=draw) * separation
    for group in range(GROUPS):
        points[group::GROUPS] += middles[group]
    return points.mul_(scale).to(device), truth


def inertia(points: Tensor, labels: Tensor, k: int = GROUPS) -> float:
    centres = group_means(points, labels, points[:k])
    parts = [(points[labels == g] - centres[g]).square_().sum(dtype=torch.float64) for g in range(k)]
    return float(sum(parts)) / len(points)


def rows(name: str, separation: float, device: str) -> bool:
    points, truth = models(separation, device)
    began = time.perf_counter()
    exact = kmeans(points, GROUPS, Seed(0), RESTARTS)
    spent = time.perf_counter() - began
    ari = agreement(exact.labels, truth)["ari"]
    print(f"{name} ({separation:g}): on the models {spent:6.1f} s, agreement with the groups {ari:.3f}")
    print("   width  ARI to exact  ARI to groups   inertia  sketch s  k-means s")
    found = []
    for width in WIDTHS:
        began = time.perf_counter()
        short = Sketch.of({"w": (NUMBERS,)}, width, Seed(0)).apply({"w": points})
        made = time.perf_counter()
        labels = kmeans(short, GROUPS, Seed(0), RESTARTS).labels
        ended = time.perf_counter()
        same, right = agreement(labels, exact.labels)["ari"], agreement(labels, truth)["ari"]
        ratio = inertia(points, labels) / exact.inertia
        found.append(same)
        print(f"{width:8} {same:13.3f} {right:14.3f} {ratio:9.4f} {made - began:9.2f} {ended - made:10.2f}")
    return found[-1] > 0.95


def writers(seeds: int = 5) -> None:
    """FeSEM's own start on FEMNIST; another seed of the exact k-means is what a sketch can be held to."""
    spec = override(load("fesem/femnist"), ["data.min_rows=100", "local.lr=0.1"])
    parts = build_parts(spec)
    points = trained_alike(parts, 5)
    print(f"{len(points)} writers' models of {points.shape[1]:,} numbers, 20 restarts, {seeds} seeds")
    first, used = parts.learner.first, width_for(len(points), 0.25)
    shapes = {name: tuple(first[name].shape) for name in parts.learner.names}
    # As many axes as there are points keep every distance.
    rows = {"the models": [principal(points, len(points))[0]] * seeds}
    for width in (256, used, 4096):
        drawn = [_sketched(points, shapes, width, Seed(seed)) for seed in range(1, seeds + 1)]
        rows[f"sketches, {width}"] = drawn
    exact = rows["the models"][0]
    print("  K          k-means on  ARI to exact  least  inertia")
    for k in (2, 3, 4):
        best = kmeans(exact, k, Seed(0), 20).labels
        for name, drawn in rows.items():
            labels = [kmeans(here, k, Seed(i + 1), 20).labels for i, here in enumerate(drawn)]
            same = [agreement(one, best)["ari"] for one in labels]
            cost = sum(inertia(exact, one, k) for one in labels) / inertia(exact, best, k) / seeds
            print(f"{k:3} {name:>19} {sum(same) / seeds:13.3f} {min(same):6.3f} {cost:8.5f}")


def _sketched(points: Tensor, shapes: dict[str, tuple[int, ...]], width: int, seed: Seed) -> Tensor:
    sizes = [torch.Size(shape).numel() for shape in shapes.values()]
    leaves = torch.split(points, sizes, dim=1)
    stack = {n: t.reshape(-1, *s) for (n, s), t in zip(shapes.items(), leaves, strict=True)}
    return Sketch.of(shapes, width, seed).apply(stack)


def main() -> int:
    if sys.argv[1:] == ["femnist"]:
        writers()
        return 0
    gpu = torch.cuda.is_available()
    name = torch.cuda.get_device_name() if gpu else f"{platform.machine()}, {torch.get_num_threads()} threads"
    print(
        f"torch {torch.__version__} on {name}; {CLIENTS} models of {NUMBERS:,} numbers, {RESTARTS} restarts"
    )
    print(f"width for an error of 0.25: {width_for(CLIENTS, 0.25)}, of 0.2: {width_for(CLIENTS, 0.2)}")
    good = [rows(label, value, "cuda" if gpu else "cpu") for label, value in SEPARATIONS.items()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"most memory: {peak:.2f} GiB")
    return 0 if all(good[:2]) else 1


if __name__ == "__main__":
    sys.exit(main())
