"""What a warm start finds among clients of unlike size: the planted groups, or who took how many steps?

python benchmarks/ragged_start.py [--data digits] [--model mlp] [--seeds 3]        minutes on one core

Clients of four turns have 20 to 500 rows each, drawn log-uniformly: every turn has small and large ones. From
one model (the first, or that of some rounds of FedAvg) everybody trains: for five epochs; for as many steps
each; for fifteen epochs. k-means then looks at the models, or at updates made alike in length: divided by
their length, by the steps that made them, or by the root of these. Printed: agreement (ARI) of the groups
found with the turns, and with quarters of the clients by size.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kinfolk.algorithms.blocks.warm_start import Points, warm_task
from kinfolk.clustering.agreement import agreement
from kinfolk.clustering.kmeans import kmeans
from kinfolk.experiment.asking import coordinated, here
from kinfolk.experiment.build import Parts, build_parts
from kinfolk.experiment.sections import ModelSpec
from kinfolk.experiment.spec import load, override
from kinfolk.federation.federation import Federation, pack
from kinfolk.script import Ask, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Fit, Plan
from kinfolk.types import Tree

CONFIG = "digits"
LEAST, MOST, EPOCHS, LONG, GROUPS = 20, 500, 5, 15, 4


def cut(federation: Federation, seed: Seed) -> tuple[Federation, Tensor]:
    """Every client with so many of its training rows, log-uniform from LEAST to MOST; and how many."""
    drawn = seed.numpy("sizes").uniform(math.log(LEAST), math.log(MOST), len(federation.clients))
    sizes = torch.from_numpy(drawn).exp().round().long()
    whole = federation.splits["train"]
    rows = [whole.rows(i)[: int(n)] for i, n in enumerate(sizes)]
    return replace(federation, splits={**federation.splits, "train": pack(rows)}), sizes


def trained(parts: Parts, first: Tree, plan: Plan) -> Tensor:
    """[clients, P]: what everybody makes of a model by a plan."""
    learner, clients = parts.learner, parts.federation.clients
    task = replace(warm_task(learner, 1), passes=(Fit((learner.descent(),), plan),))
    with coordinated(parts, {"warm": task}) as coordinator:
        request = Ask("warm", clients, here(coordinator, {"model": first}), fold=Points(learner.names, None))
        points: Tensor = coordinator.perform(request, RoundContext(parts.seed, 0, clients))[2]
    return points.cpu()


def shared(parts: Parts, rounds: int) -> Tree:
    """The model of some rounds of FedAvg."""
    method, clients = parts.algorithm, parts.federation.clients
    state = method.init(parts.learner.first, clients, parts.seed)
    with coordinated(parts, method.tasks()) as coordinator:
        for number in range(rounds):
            context = RoundContext(parts.seed, number, clients)
            state = play(
                method.round(state, clients, context),
                lambda r, context=context: coordinator.perform(r, context),
            )[0]
    model: Tree = state.model
    return model


def ways(parts: Parts, first: Tree, sizes: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Every way to compare, and the points that k-means sees."""
    plan, batch = parts.learner.plan, parts.learner.plan.batch
    start = torch.cat([first[n].flatten() for n in parts.learner.names])
    five, long = (trained(parts, first, replace(plan, epochs=e, steps=0)) for e in (EPOCHS, LONG))
    each = math.ceil(EPOCHS * float((sizes / batch).ceil().mean()))
    alike = trained(parts, first, replace(plan, steps=each))
    steps = (sizes / batch).ceil() * EPOCHS
    yield f"{EPOCHS} epochs", five
    yield "as many steps each", alike
    yield f"{LONG} epochs", long
    for name, points in ((f"{EPOCHS} epochs", five), ("as many steps", alike), (f"{LONG} epochs", long)):
        yield f"{name}, updates of unit length", (points - start) / (points - start).norm(dim=1, keepdim=True)
    yield f"{EPOCHS} epochs, updates per step", (five - start) / steps[:, None]
    yield f"{EPOCHS} epochs, per root of steps", (five - start) / steps[:, None].sqrt()


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    for name, value in (("seeds", 3), ("clients", 48), ("shared", 5)):
        given.add_argument(f"--{name}", type=int, default=value)
    given.add_argument("--data", default="digits", help="digits or mnist")
    given.add_argument("--model", default="mlp")
    given.add_argument("--alpha", type=float, default=100.0)
    args = given.parse_args()
    found: dict[tuple[int, str], list[tuple[float, float]]] = {}
    for seed in range(args.seeds):
        changes = [f"data.name={args.data}", f"data.clients={args.clients}", f"data.rows={MOST}",
                   f"data.alpha={args.alpha}", f"run.seed={seed}", "local.epochs=1"]  # fmt: skip
        spec = override(load(CONFIG), changes)
        if args.model != "mlp":
            spec = replace(spec, model=ModelSpec(args.model))
        federation, sizes = cut(build_parts(spec).federation, Seed(seed))
        parts, truth = build_parts(spec, federation), federation.truth
        quarter = sizes.argsort().argsort() * 4 // len(sizes)
        for rounds in (0, args.shared):
            first = shared(parts, rounds) if rounds else parts.learner.first
            for way, points in ways(parts, first, sizes):
                labels = kmeans(points, GROUPS, parts.seed, 20).labels
                scores = tuple(agreement(labels, to)["ari"] for to in (truth, quarter))
                found.setdefault((rounds, way), []).append(scores)
    width = 7 * args.seeds
    print(
        f"{args.data}, {args.model}, alpha {args.alpha:g}, {args.clients} clients of {LEAST} to {MOST} rows"
    )
    print(f"{'after rounds':12}  {'way':40}  {'ARI with turns':{width}}  with size quarters")
    for (rounds, way), scores in found.items():
        by = ["  ".join(f"{s[i]:5.2f}" for s in scores) for i in range(2)]
        print(f"{rounds:12}  {way:40}  {by[0]:{width}}  {by[1]}")


if __name__ == "__main__":
    main()
