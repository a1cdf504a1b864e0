"""Whether cheap pseudo rows choose the clusters that the paper's choose, round by round, over a whole run.

python benchmarks/warm_rows.py mdicfl/rotated-mnist-small data.alpha=3.0 run.seed=1

A run of MD-ICFL goes on by the paper's rows (100 steps from fresh noise, M = 30). In every round, the one in
which clients are split included, the same models of clusters and clients are also looked at with other rows,
each kind going on from its own of the round before. One line a round: the part of the clients for which a
kind chooses as the paper's rows do, the agreement of its choices with the true groups, and its confidence.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from typing import Any

import torch

from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.algorithms.mdicfl.output_distance import Probe, confidence, nearest_cluster
from kinfolk.algorithms.options import option_values, with_options
from kinfolk.clustering.agreement import agreement
from kinfolk.engines.choose import arithmetic, make
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.memory import Memories
from kinfolk.experiment.build import Parts, build_parts
from kinfolk.experiment.choice import chosen
from kinfolk.experiment.spec import load, override
from kinfolk.script import Ask, client_tasks, play
from kinfolk.streams import RoundContext
from kinfolk.types import IndexedMessages, Stack

PAPER = {"pseudo.samples": 30, "search.iterations": 100, "search.warm_steps": 0}
OTHERS = {
    "warm 5, M 10": {"pseudo.samples": 10, "search.warm_steps": 5},
    "warm 10, M 10": {"pseudo.samples": 10, "search.warm_steps": 10},
    "warm 5, M 30": {"pseudo.samples": 30, "search.warm_steps": 5},
    "fresh 15, M 10": {"pseudo.samples": 10, "search.iterations": 15, "search.warm_steps": 0},
}


def changed(method: MDICFL, options: dict[str, int]) -> MDICFL:
    """The method with other options."""
    made: MDICFL = with_options(MDICFL, method.learner, {**option_values(method), **options})
    return made


class Onlooker:
    """Performs requests, and looks at the replies of local updates with several kinds of pseudo rows."""

    def __init__(self, parts: Parts, coordinator: Coordinator) -> None:
        method = parts.algorithm
        assert isinstance(method, MDICFL)
        self.coordinator, self.federation = coordinator, parts.federation
        self.kinds = {"paper": method} | {name: changed(method, how) for name, how in OTHERS.items()}
        self.kept: dict[str, Any] = {name: {} for name in self.kinds}
        self.line: dict[str, Any] = {}
        self.state: Any = None
        train, y = parts.federation.splits["train"], parts.federation.y
        counts = [torch.bincount(y[train.rows(i)].cpu(), minlength=method.learner.outputs)
                  for i in range(len(parts.federation.clients))]  # fmt: skip
        self.labels = torch.stack(counts).double() / torch.stack(counts).sum(1, keepdim=True)

    def perform(self, request: Any, context: RoundContext) -> Any:
        """What a stage gives."""
        if not isinstance(request, Ask) or request.task != "update" or request.fold is None:
            return self.coordinator.perform(request, context)
        got = self.coordinator.perform(replace(request, fold=None), context)
        assert isinstance(request.each, IndexedMessages)
        self.look(got, request.each, context)
        return request.fold.end(request.fold.add(request.fold.begin(), got))

    def look(self, got: Stack, sent: IndexedMessages, context: RoundContext) -> None:
        """Note what each kind of rows would choose."""
        place = {c: i for i, c in enumerate(self.federation.clients)}
        rows = torch.tensor([place[c] for c in got.clients])
        truth = self.federation.truth
        choices = {}
        for name, method in self.kinds.items():
            state = replace(
                self.state, centres=sent.table["model"], shape=self.federation.shape, kept=self.kept[name]
            )
            began = time.perf_counter()
            state, probe = method.probe(state, context)
            apart = probe.distances(method.learner, got.tree("model"))
            choices[name] = nearest_cluster(apart, self.labels[rows].to(apart.device)).cpu()
            self.kept[name] = state.kept
            self.line[name] = self.facts(choices, name, probe, truth, rows)
            self.line[name]["seconds"] = round(time.perf_counter() - began, 3)

    def facts(self, choices: Any, name: str, probe: Probe, truth: Any, rows: Any) -> dict[str, Any]:
        """Of one kind."""
        same = float((choices[name] == choices["paper"]).double().mean())
        ari = agreement(choices[name].tolist(), truth[rows])["ari"] if truth is not None else None
        return {"same": same, "ari": ari, "confidence": float(confidence(probe.own).min())}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    given.add_argument("spec")
    given.add_argument("changes", nargs="*")
    asked = given.parse_args()
    usual = [f"algorithm.{name}={value}" for name, value in PAPER.items()]
    spec = override(load(asked.spec), ["algorithm.name=mdicfl", "algorithm.k=4", *usual, *asked.changes])
    parts = build_parts(spec)
    choice, clients = chosen(parts, None), parts.federation.clients
    with arithmetic(choice.device, spec.engine.precision):
        memories = Memories(lambda who: {})
        engine = make(choice.engine, parts.federation, client_tasks(parts.algorithm), memories)
        look = Onlooker(parts, Coordinator(engine))
        first = {n: t.to(choice.device) for n, t in parts.learner.first.items()}
        state = parts.algorithm.init(first, clients, parts.seed)
        for number in range(spec.run.rounds):
            context, look.state, look.line = RoundContext(parts.seed, number, clients), state, {}
            script = parts.algorithm.round(state, clients, context)
            state, info = play(script, lambda request, context=context: look.perform(request, context))
            truth = parts.federation.truth
            ari = agreement(state.member.tolist(), truth)["ari"] if truth is not None else None
            print(json.dumps({"round": number, "ari": ari, "info": info, "rows": look.line}), flush=True)
        engine.close()


if __name__ == "__main__":
    main()
