"""Networks of every common kind train and score alike in every engine, on every device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from network_kinds import ALONE, NETWORKS, Kind, flat
from torch import Tensor, nn
from toys import empty, together

from kinfolk.contract.compare import ENGINE_TOLERANCE, message_difference
from kinfolk.engines.batched import Batched
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.fast import accelerated, trace
from kinfolk.engines.loop import Loop
from kinfolk.engines.wire import Wire
from kinfolk.engines.workers import Workers
from kinfolk.federation.federation import Federation
from kinfolk.learning.batchable import cost, obstacle
from kinfolk.learning.freezing import frozen_parts
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.optim import SGD
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan, Table
from kinfolk.types import Stack, map_leaves

SIZES = (4, 7, 13)  # in batches of 4: padded rows, idle clients, whole steps
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]


def learner_of(kind: Kind, data: Federation) -> Learner:
    loss = find_loss("cross_entropy" if data.classes else "mse")
    # A batch of one row would have no variance.
    plan = Plan(4, epochs=2, drop_single=True)
    made = Learner(kind.network(), loss, data.classes or 64, SGD(0.5), plan, lr=0.02, score_batch=2)
    return accelerated(made, data.x[:2])


def found(
    engine: Engine, learner: Learner, data: Federation, device: str = "cpu", rounds: int = 2
) -> list[Stack]:
    """The replies of some rounds of training, and the scores of what came out of the last."""
    try:
        out = []
        for number in range(rounds):
            at = RoundContext(Seed(5), number, data.clients)
            first = map_leaves(lambda t: t.to(device), {"model": learner.first})
            out.append(together(engine, Ask("train", data.clients, first), at))
        return [*out, together(engine, Ask("score", data.clients, {}, out[-1]), at)]
    finally:
        engine.close()


def tasks(learner: Learner) -> Table:
    return {"train": learner.train(), "score": learner.score()}


def differences(got: list[Stack], wanted: list[Stack], tolerance: float = ENGINE_TOLERANCE) -> list[str]:
    return [message_difference(a.body, b.body, tolerance) for a, b in zip(got, wanted, strict=True)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", NETWORKS)
def test_many_clients_in_one_call_get_what_each_gets_alone(name, device, monkeypatch):
    monkeypatch.setattr(trace, "WORTH_TRACING", 3)  # so that some steps are traced, and some are not
    kind = NETWORKS[name]
    data = kind.federation(SIZES)
    learner = learner_of(kind, data)
    assert learner.plan.draws == kind.drops
    with warnings.catch_warnings(), arithmetic(torch.device(device), "float32"):
        warnings.simplefilter("error")  # a rule of vmap that goes over clients one by one warns
        assert obstacle(learner, data.x[:2], data.y[:2]) == ""
        loop = found(Loop(data, tasks(learner), empty(), device), learner, data, device)
        engine = Batched(data, tasks(learner), empty(), 3, device)
        many = found(engine, learner, data, device)
    assert engine.take_warnings() == []
    assert differences(many, loop) == [""] * 3
    if device == "cuda":
        here = found(Loop(data, tasks(learner), empty()), learner, data)
        assert differences(loop, here) == [""] * 3, "another device"
    start = learner.first
    moved = [n for n in learner.names if (loop[0].tree("model")[n] - start[n].to(device)).abs().max() > 0]
    assert len(moved) >= len(learner.names) - 1, "it was trained"


class FromTheHost(nn.Module):
    """Makes a tensor on the host in every call, which a recording cannot wait for."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.linspace(0.5, 1.5, x.shape[1]).to(x.device)


@pytest.mark.parametrize("device", DEVICES)
def test_what_cannot_be_recorded_shares_calls_all_the_same(device):
    kind = Kind(lambda: nn.Sequential(nn.Linear(8, 6), FromTheHost(), nn.Linear(6, 4)), (8,))
    data = kind.federation(SIZES)
    learner = learner_of(kind, data)
    with arithmetic(torch.device(device), "float32"):
        loop = found(Loop(data, tasks(learner), empty(), device), learner, data, device)
        engine = Batched(data, tasks(learner), empty(), 3, device)
        assert differences(found(engine, learner, data, device), loop) == [""] * 3
    told = engine.take_warnings()
    if device == "cuda":
        assert "'train' cannot be recorded (layer FromTheHost: " in told[0], told
        assert engine._way("train") is not None, "many clients share a call"
    else:
        assert told == []


@pytest.mark.parametrize("name", ["lstm both ways", "dropout transformer", "tied lstm"])
def test_other_processes_and_messages_of_bytes(name):
    kind = NETWORKS[name]
    data = kind.federation(SIZES)
    learner = learner_of(kind, data)
    table = tasks(learner)
    loop = found(Loop(data, table, empty()), learner, data)
    assert differences(found(Wire(data, table, empty()), learner, data), loop, 0) == [""] * 3
    for inner in (None, lambda held: Batched(data, table, held, 2)):
        some = Workers(data, table, empty(), 2, inner, 2)
        assert differences(found(some, learner, data), loop) == [""] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_in_every_engine(name):
    kind = NETWORKS[name]
    data = kind.federation(SIZES)
    learner = learner_of(kind, data)
    table = tasks(learner)
    loop = found(Loop(data, table, empty()), learner, data)
    assert differences(found(Wire(data, table, empty()), learner, data), loop, 0) == [""] * 3
    inner = lambda held: Batched(data, table, held, 2)  # noqa: E731
    assert differences(found(Workers(data, table, empty(), 2, inner, 2), learner, data), loop) == [""] * 3
    for chunk in (1, 2):
        assert differences(found(Batched(data, table, empty(), chunk), learner, data), loop) == [""] * 3


_BETWEEN: dict[int, list[Callable[[], nn.Module]]] = {
    1: [
        *(lambda: nn.AdaptiveAvgPool1d(1), lambda: nn.AdaptiveMaxPool1d(2), lambda: nn.AvgPool1d(2)),
        *(lambda: nn.MaxPool1d(2), lambda: nn.BatchNorm1d(4), lambda: nn.InstanceNorm1d(4, affine=True)),
        *(lambda: nn.ConvTranspose1d(4, 4, 3), lambda: nn.GLU(1), nn.Mish, nn.Hardswish, nn.SELU, nn.GELU),
        *(lambda: nn.LocalResponseNorm(2), lambda: nn.ReflectionPad1d(1), lambda: nn.LayerNorm((4, 6))),
    ],
    2: [
        *(lambda: nn.AdaptiveAvgPool2d(1), lambda: nn.AdaptiveAvgPool2d(3), lambda: nn.AdaptiveMaxPool2d(2)),
        *(
            lambda: nn.MaxPool2d(3, 2, 1),
            lambda: nn.BatchNorm2d(4),
            lambda: nn.InstanceNorm2d(4, affine=True),
        ),
        *(lambda: nn.PixelShuffle(2), lambda: nn.Unfold(2), lambda: nn.ReplicationPad2d(1), nn.Softmax2d),
        *(lambda: nn.Upsample(scale_factor=2, mode="bilinear"), lambda: nn.Conv2d(4, 4, 3, groups=2)),
        *(lambda: nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"), lambda: nn.GroupNorm(2, 4)),
    ],
    3: [
        *(lambda: nn.AdaptiveAvgPool3d(1), lambda: nn.MaxPool3d(2), lambda: nn.BatchNorm3d(4)),
        *(lambda: nn.ConvTranspose3d(4, 4, 3), lambda: nn.Upsample(scale_factor=2)),
    ],
}


@pytest.mark.parametrize("axes", _BETWEEN)
def test_common_layers_share_calls_by_rules_that_are_not_slow(axes):
    conv = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    for make in _BETWEEN[axes]:
        kind = Kind(lambda make=make: flat(conv(4, 4, 3, padding=1), make()), (4, *[6] * axes))
        data = kind.federation((4,))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert obstacle(learner_of(kind, data), data.x[:2], data.y[:2]) == "", make()


@pytest.mark.parametrize("name", ALONE)
def test_what_cannot_share_a_call_is_named(name):
    kind, named = ALONE[name]
    data = kind.federation(SIZES)
    learner = learner_of(kind, data)
    assert obstacle(learner, data.x[:2], data.y[:2]).startswith(named)
    once, again = (found(Loop(data, tasks(learner), empty()), learner, data) for _ in range(2))
    assert differences(once, again, 0) == [""] * 3


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_prepared_network_is_the_network(name):
    """Alone, and with weights of a client's own among others, in training and in scoring."""
    kind = NETWORKS[name]
    data = kind.federation((8,))
    learner = learner_of(kind, data)
    plain = learner.plain_network().eval()
    with torch.no_grad():
        expected = plain(data.x[:8])
        got = learner.apply(learner.first, data.x[:8])
        many = torch.func.vmap(lambda m: learner.apply(m, data.x[:8]))(
            {n: torch.stack([t, t]) for n, t in learner.first.items()}
        )
        shared = torch.func.vmap(lambda x: learner.apply(learner.first, x))(data.x[:8].unflatten(0, (2, 4)))
    size = expected.norm()
    assert (got - expected).norm() <= 1e-5 * size
    assert (many - expected).norm() <= 2e-5 * size
    assert (shared.flatten(0, 1) - expected).norm() <= 1e-5 * size
    # Tied ones count once.
    assert cost(learner, data.x[:1]).parameters == sum(t.numel() for t in learner.first.values())


@pytest.mark.parametrize("name", [n for n, kind in NETWORKS.items() if not kind.drops])
def test_a_step_is_that_of_plain_pytorch(name):
    kind = NETWORKS[name]
    data = kind.federation((4, 4))
    learner = replace(learner_of(kind, data), plan=Plan(4, shuffle=False), optimiser=SGD())
    got = together(
        Batched(data, tasks(learner), empty(), 2),
        Ask("train", data.clients, {"model": learner.first}),
        RoundContext(Seed(5), 0, data.clients),
    ).tree("model")
    for i in range(2):
        plain = learner.plain_network().train().double()
        for part in frozen_parts(plain).values():
            part.eval()
        own = {n: p for n, p in plain.named_parameters() if p.requires_grad}
        rows = data.splits["train"].rows(i)
        y = data.y[rows] if data.classes else data.y[rows].double()
        loss = learner.loss.row_loss(plain(data.x[rows].double()), y).mean()
        slopes = torch.autograd.grad(loss, list(own.values()), materialize_grads=True)
        for (n, p), slope in zip(own.items(), slopes, strict=True):
            moved = got[n][i].double() - learner.first[n]
            # Small next to the weights, a move has as few digits as they have beside it.
            assert (
                moved + learner.lr * slope
            ).norm() <= 5e-4 * learner.lr * slope.norm() + 2e-7 * p.norm() + 1e-9, n
