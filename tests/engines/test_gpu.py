"""On a CUDA device every algorithm gives what it gives on the CPU. Skipped, visibly, without one."""

from __future__ import annotations

import pytest
import torch

from kinfolk.algorithms import ALGORITHMS
from kinfolk.contract import toy
from kinfolk.contract.compare import ENGINE_TOLERANCE, outcome_difference

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("network", ["lenet", "tiny_cnn"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_cuda_agrees_with_the_reference(name: str, network: str) -> None:
    federation = toy.images28() if network == "lenet" else toy.ragged()
    algorithm = ALGORITHMS[name](toy.learner(network, federation))
    reference = toy.play_rounds(algorithm, federation, "loop")
    for engine in ("loop", "batched"):
        got = toy.play_rounds(algorithm, federation, engine, device=torch.device("cuda"))
        assert outcome_difference(got, reference, ENGINE_TOLERANCE) == "", engine
