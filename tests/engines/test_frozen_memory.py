"""What is frozen exists once: in traces on a CPU, and on a CUDA device."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from frozen import part_frozen
from torch import nn

from kinfolk.algorithms import build_algorithm
from kinfolk.contract import toy
from kinfolk.contract.compare import ENGINE_TOLERANCE, outcome_difference
from kinfolk.engines.batched import Batched
from kinfolk.engines.fast import prepare
from kinfolk.engines.fast.trace import WORTH_TRACING
from kinfolk.engines.memory import Memories
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.lora import add_lora
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan

CLIENTS = 16
METHODS = ["fedavg", "fesem", "fedem", "local"]
# By the direction of updates rounding decides who joins whom here: see test_gpu.py. And after the
# usual five epochs of its start it decides which of two pixels of the CNN is pooled.
CLEAR = {"fesem": {"start.on": "models", "start.warm_epochs": 1}}
no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def trained(device: str, side: int, steps: int = 12) -> tuple[Learner, Batched, dict[str, torch.Tensor]]:
    """One round of clients with adapters on a wide layer."""
    with Seed(0).borrowed("wide"):
        network = nn.Sequential(nn.Linear(side, side), nn.ReLU(), nn.Linear(side, 3))
        add_lora(network, rank=2)
    learner = Learner(
        network,
        find_loss("cross_entropy"),
        3,
        SGD(),
        Plan(2, steps=steps),
        lr=1e-3,  # with 0.1 a layer this wide has no finite numbers after twelve steps
        prepare=prepare,
    )
    draw = Seed(0).torch("rows")
    rows = [(torch.randn(8, side, generator=draw), torch.arange(8) % 3) for _ in range(CLIENTS)]
    federation = from_arrays(rows, test={}, classes=3)
    engine = Batched(federation, {"train": learner.train()}, Memories(lambda who: {}), CLIENTS, device)
    first = {name: t.to(device) for name, t in learner.first.items()}
    request = Ask("train", federation.clients, {"model": first})
    (got,) = engine.replies(request, RoundContext(Seed(0), 0, federation.clients))
    return learner, engine, got.tree("model")


def test_traced_steps_hold_the_tensors_of_the_network() -> None:
    learner, engine, _ = trained("cpu", 256, WORTH_TRACING + 4)
    traces = engine._passes._gradients.__self__  # type: ignore[attr-defined]
    graphs = [*traces._made.values(), *(one.run.__self__ for one in traces._known.values())]
    assert graphs
    large = learner.frozen["0.weight"]
    for graph in graphs:
        held = (*graph.parameters(), *graph.buffers(), *vars(graph).values())
        wide = {t.data_ptr() for t in held if torch.is_tensor(t) and t.numel() >= large.numel()}
        assert wide == {large.data_ptr()}


@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
@pytest.mark.parametrize("method", METHODS)
def test_rounding_decides_nothing_of_what_cuda_is_compared_on(method: str, network: str) -> None:
    """Ten times float32's resolution in the first weights changes no pooled pixel and no group."""
    federation = toy.ragged()
    learner = part_frozen(toy.learner(network, federation))

    def played(network: nn.Module) -> toy.Outcome:
        algorithm = build_algorithm(method, replace(learner, module=network), CLEAR.get(method, {}))
        return toy.play_rounds(algorithm, federation, "loop")

    reference = played(learner.module)
    for number in range(3):
        draw, other = Seed(number).torch("rounding"), copy.deepcopy(learner.module)
        with torch.no_grad():
            for weight in other.parameters():
                weight.mul_(1 + 1e-6 * torch.randn(weight.shape, generator=draw))
        assert outcome_difference(played(other), reference, 10 * ENGINE_TOLERANCE) == "", number


@pytest.mark.gpu
@no_cuda
@pytest.mark.parametrize("network", ["mlp", "tiny_cnn"])
@pytest.mark.parametrize("method", METHODS)
def test_cuda_agrees_on_a_network_with_a_frozen_part(method: str, network: str) -> None:
    federation = toy.ragged()
    algorithm = build_algorithm(method, part_frozen(toy.learner(network, federation)), CLEAR.get(method, {}))
    reference = toy.play_rounds(algorithm, federation, "loop")
    for engine in ("loop", "batched"):
        got = toy.play_rounds(algorithm, federation, engine, device=torch.device("cuda"))
        assert outcome_difference(got, reference, 10 * ENGINE_TOLERANCE) == "", engine


@pytest.mark.gpu
@no_cuda
def test_frozen_weights_lie_on_a_device_once() -> None:
    side = 4096  # so that the room that libraries take for themselves is small beside it
    trained("cuda", side)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    learner, _, got = trained("cuda", side)
    _, _, plain = trained("cpu", side)
    size = 4 * side * side
    assert torch.cuda.max_memory_allocated() - before < 4 * size < CLIENTS * size
    for name, t in plain.items():
        assert t.isfinite().all()
        # An H200 was 0.2 % away, for a reason that was not looked into; weights mixed up would be 100 % away.
        assert (got[name].cpu() - t).norm() <= 0.02 * max(t.norm(), 1e-2), name
    assert all(not t.is_cuda for t in learner.frozen.values())
