"""On a CUDA device every algorithm gives what the reference gives on the CPU. Skipped, visibly, without one."""

from __future__ import annotations

import pytest
import torch

from kinfolk.algorithms import ALGORITHMS
from kinfolk.engines.batched import Batched
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.stage import Stage
from kinfolk.federation.own import from_arrays
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD
from kinfolk.script import Ask, Remembers, installed, play
from kinfolk.streams import Seed, Turn
from kinfolk.task import Plan

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


def federation(shape: tuple[int, ...]):
    draw = Seed(5).torch("gpu")
    sizes = (1, 2, 7, 30, 64, 11)
    rows = [(torch.randn(n, *shape, generator=draw), torch.randint(4, (n,), generator=draw)) for n in sizes]
    return from_arrays(rows, test=rows_like(shape, draw), classes=4)


def rows_like(shape, draw):
    return [
        (torch.randn(9, *shape, generator=draw), torch.randint(4, (9,), generator=draw)) for _ in range(6)
    ]


def outcome(algorithm, learner, data, engine_kind, device, **options):
    remember = algorithm.remember if isinstance(algorithm, Remembers) else lambda who: {}
    engine = engine_kind(data, installed(algorithm), Memories(remember), device=device, **options)
    stage = Stage(engine)
    first = {n: t.to(engine.device) for n, t in learner.first.items()}
    state = algorithm.init(first, data.clients, Seed(0))
    with arithmetic(engine.device, "float32"):
        for r in range(2):
            turn = Turn(Seed(0), r, data.clients)
            state, _ = play(algorithm.round(state, data.clients, turn), lambda q, t=turn: stage.perform(q, t))
        shared, each = algorithm.serve(state, data.clients)
        losses = [
            stage.perform(Ask(f"score.{k}", data.clients, shared, each), turn) for k in algorithm.scored()
        ]
    return torch.cat([s.tensor("loss").cpu() for s in losses])


@pytest.mark.parametrize("network", ["lenet", "tiny_cnn"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_cuda_agrees_with_the_reference(name: str, network: str) -> None:
    data = federation((1, 28, 28))
    with Seed(0).borrowed("init"):
        module = build_model(network, data.shape, 4, {"norm": "bn"} if network == "tiny_cnn" else {})
    plan = Plan(batch=8, epochs=2)
    learner = Learner(module, find_loss("cross_entropy"), 4, SGD(0.9, 1e-3), plan, lr=0.02, clip=5.0)
    algorithm = ALGORITHMS[name](learner)
    reference = outcome(algorithm, learner, data, Loop, "cpu")
    for kind, options in ((Loop, {}), (Batched, {"chunk": 4})):
        got = outcome(algorithm, learner, data, kind, "cuda", **options)
        torch.testing.assert_close(got, reference, rtol=1e-5, atol=1e-5)
