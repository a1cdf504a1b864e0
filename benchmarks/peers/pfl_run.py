"""FedAvg by Apple's pfl, through its public classes, in one process or in several under torchrun.

Set up as pfl's own image benchmark is: rows held as tensors on the device, every user of equal weight, a
central SGD with rate 1. In its favour: evaluation happens in the first, untimed round only, and pfl does not
shuffle a user's rows.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from work import UNTIMED, Clock, Options, Rows, accuracy, missing, network, options, parser, report, rows


class Network(nn.Sequential):
    """The common network with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict:
        from pfl.metrics import Weighted

        return {"right": Weighted(int((self(x).argmax(1) == y).sum()), len(y))}


def under_torchrun(processes: int) -> None:
    """Become a launcher of several processes of this script."""
    os.environ["OMP_NUM_THREADS"] = "1"
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    os.execv(sys.executable, [sys.executable, *launch, *sys.argv])


def fedavg(o: Options, data: Rows, clock: Clock) -> nn.Module:
    """Train by pfl's FederatedAveraging; the network it leaves."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByUser
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    class Tick(TrainingProcessCallback):
        def after_central_iteration(self, *given, **named):
            clock.tick()
            return super().after_central_iteration(*given, **named)

    np.random.seed(o.seed)  # pfl draws from NumPy's global generator
    net, total = Network(*network(o.setting)).to(o.device), o.rounds + UNTIMED
    users = np.random.permutation(o.users).tolist()
    held = dict(enumerate(zip(data.x.to(o.device), data.y.to(o.device), strict=True)))
    federation = FederatedDataset.from_slices(held, get_user_sampler("minimize_reuse", users))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(total, total, o.cohort, 0),
        backend=SimulatedBackend(federation, federation, [WeightByUser()]),
        model=PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0)),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=o.lr, local_batch_size=o.batch
        ),
        callbacks=[Tick()],
        send_metrics_to_platform=False,
    )
    return net


def main() -> None:
    asked = parser()
    asked.add_argument("--processes", type=int, default=1)
    given = asked.parse_args()
    os.environ.setdefault("PFL_PYTORCH_DEVICE", given.device)
    if given.processes > 1 and "TORCHELASTIC_RUN_ID" not in os.environ and find_spec("pfl"):
        under_torchrun(given.processes)
    try:
        import pfl
    except ModuleNotFoundError as problem:
        return missing("pfl", problem)
    o = options(given)
    data, clock = rows(o), Clock(o)
    net = fedavg(o, data, clock)
    if os.environ.get("RANK", "0") == "0":
        how = f"{given.processes} processes x {o.threads} threads"
        report(clock, accuracy(net, data), "pfl", pfl.__version__, how)


if __name__ == "__main__":
    main()
