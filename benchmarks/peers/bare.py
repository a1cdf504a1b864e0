"""FedAvg by hand: a loop over clients that loads the global weights, trains and adds up, in one process.

This is how PFLlib and FL-bench go through clients, less their data loaders and book-keeping.
"""

from __future__ import annotations

import numpy as np
import torch
from work import UNTIMED, Clock, accuracy, network, options, parser, report, rows, shuffled, train


def main() -> None:
    o = options(parser().parse_args())
    data, clock, draw = rows(o), Clock(o), np.random.default_rng(o.seed)
    x, y = data.x.to(o.device), data.y.to(o.device)
    net = network(o.setting).to(o.device)
    common = {name: t.detach().clone() for name, t in net.state_dict().items()}
    for _ in range(o.rounds + UNTIMED):
        total = {name: torch.zeros_like(t) for name, t in common.items()}
        for user in draw.choice(o.users, o.cohort, replace=False):
            net.load_state_dict(common)
            train(net, x[user], y[user], o, shuffled(o.rows, draw).to(o.device))
            for name, t in net.state_dict().items():
                total[name].add_(t, alpha=1 / o.cohort)
        common = total
        clock.tick()
    net.load_state_dict(common)
    report(clock, accuracy(net, data), "bare loop", torch.__version__, f"{o.threads} threads")


if __name__ == "__main__":
    main()
