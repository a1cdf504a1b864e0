"""FedAvg by Flower's simulation: a ServerApp, a ClientApp and Ray, one process a core; evaluation off.

Clients are written for its message API, which takes a fifth less time here than `NumPyClient` (now kept for
compatibility). A client reads its rows from memory-mapped files, so that they do not travel with messages.
"""

from __future__ import annotations

import logging
import os
import tempfile
from typing import Any

import numpy as np
import torch
import work
from work import UNTIMED, Clock, Options, accuracy, missing, network, options, parser, report, rows

# Nothing is to be sent anywhere while the clock runs.
os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}


def client_app(o: Options, folder: str) -> Any:
    """A client: load the weights, one local epoch, send the weights."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        torch.set_num_threads(1)
        user = context.node_config["partition-id"]
        x, y = (torch.from_numpy(np.load(f"{folder}/{n}.npy", mmap_mode="r")[user].copy()) for n in "xy")
        net = work.kept_network(o.setting)
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        draw = np.random.default_rng((o.seed, message.content["config"]["server-round"], user))
        work.train(net, x, y, o, work.shuffled(o.rows, draw))
        reply = {
            "arrays": ArrayRecord(net.state_dict()),
            "metrics": MetricRecord({"num-examples": len(y)}),
        }
        return Message(RecordDict(reply), reply_to=message)

    return app


def server_app(o: Options, clock: Clock, final: dict[str, torch.Tensor]) -> Any:
    """The server: Flower's own FedAvg; its hook for evaluation only looks at the clock."""
    from flwr.app import ArrayRecord
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg

    app = ServerApp()

    @app.main()
    def run(grid: Any, context: Any) -> None:
        strategy = FedAvg(
            fraction_train=o.cohort / o.users,
            fraction_evaluate=0.0,
            min_train_nodes=o.cohort,
            min_available_nodes=o.users,
        )
        result = strategy.start(
            grid,
            ArrayRecord(network(o.setting).state_dict()),
            num_rounds=o.rounds + UNTIMED,
            evaluate_fn=lambda number, arrays: clock.tick() if number else None,
        )
        final.update(result.arrays.to_torch_state_dict())

    return app


def main() -> None:
    asked = parser()
    asked.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    given = asked.parse_args()
    try:
        import flwr
        import ray
        from flwr.simulation import run_simulation
    except ModuleNotFoundError as problem:
        return missing("flower", problem)
    if given.device != "cpu":
        raise SystemExit("flower_run.py: --device cuda is not set up here; use cpu")
    o = options(given)
    data, clock, final = rows(o), Clock(o), {}
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        for name, values in (("x", data.x), ("y", data.y)):
            np.save(f"{folder}/{name}.npy", values.numpy())
        run_simulation(
            server_app(o, clock, final),
            client_app(o, folder),
            num_supernodes=o.users,
            backend_config={
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
                "init_args": {"num_cpus": given.processes},
            },
        )
    net = network(o.setting)
    net.load_state_dict(final)
    how = f"{given.processes} Ray actors x 1 thread, ray {ray.__version__}"
    report(clock, accuracy(net, data), "flower", flwr.__version__, how)


if __name__ == "__main__":
    main()
