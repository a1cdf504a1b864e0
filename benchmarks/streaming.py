"""An algorithm over more and more made-up clients: neither memory nor the time of one client may grow."""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from kinfolk.algorithms import build_algorithm
from kinfolk.clustering.agreement import agreement
from kinfolk.engines.choose import arithmetic, choose, make
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.fast import prepare
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.experiment.compare import parse_algorithm
from kinfolk.experiment.sections import Experiment
from kinfolk.federation.sources import DataSpec, build
from kinfolk.learning.batchable import cost
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.script import Groups, client_tasks, play
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan


def round_of(clients: int, engine: str, name: str) -> dict[str, object]:
    spec = DataSpec("gaussians", clients, 30, 4, "source", features=60, test="local")
    federation = build(spec, Seed(0))
    with Seed(0).borrowed("init"):
        module = build_model("mlp", (60,), 10, {"hidden": [200]})
    learner = Learner(module, find_loss("cross_entropy"), 10, SGD(), Plan(10), lr=0.05, prepare=prepare)
    chosen = parse_algorithm(name, Experiment())
    algorithm = build_algorithm(chosen.name, learner, chosen.options)
    choice = choose(EngineSpec(engine, "cpu"), cost(learner, torch.zeros(1, 60)), 10, clients, "", 3)
    coordinator = Coordinator(
        make(choice.engine, federation, client_tasks(algorithm), Memories(lambda who: {}))
    )
    state = algorithm.init(learner.first, federation.clients, Seed(0))
    times = []
    with arithmetic(torch.device("cpu"), "float32"):
        for number in range(2):
            context = RoundContext(Seed(0), number, federation.clients)
            began = time.perf_counter()
            state, _ = play(
                algorithm.round(state, federation.clients, context),
                lambda request, context=context: coordinator.perform(request, context),
            )
            times.append(time.perf_counter() - began)
    coordinator.engine.close()
    mine, others = (
        resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    groups = algorithm.groups(state).tolist() if isinstance(algorithm, Groups) else []
    found = {"ARI": agreement(groups, federation.truth)["ari"]} if groups else {}
    return {
        **found,
        **{"algorithm": name, "first round": round(times[0], 2)},
        **{"clients": clients, "engine": coordinator.engine.note, "seconds a round": round(times[-1], 2)},
        **{"ms a client": round(1e3 * times[-1] / clients, 3)},
        **{"peak MiB": mine // 1024, "peak MiB of a process it started": others // 1024},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("clients", nargs="*", type=int, default=[1000, 10_000, 100_000])
    parser.add_argument("--engine", default="workers")
    parser.add_argument("--algorithm", default="fedavg", help="as `kinfolk compare -a` takes it")
    options = parser.parse_args()
    if len(options.clients) == 1:
        print(json.dumps(round_of(options.clients[0], options.engine, options.algorithm)))
        return
    for clients in options.clients:  # a process each, so that peaks do not mix
        more = ["--engine", options.engine, "--algorithm", options.algorithm]
        subprocess.run([sys.executable, __file__, str(clients), *more], check=True)


if __name__ == "__main__":
    main()
