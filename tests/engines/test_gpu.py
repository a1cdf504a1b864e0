"""On a CUDA device every algorithm gives what it gives on the CPU. Skipped, visibly, without one."""

from __future__ import annotations

import gc
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from fast_learner import Learner
from small_runs import equal, go, saved

from kinfolk.algorithms import ALGORITHMS
from kinfolk.contract import toy
from kinfolk.contract.compare import ENGINE_TOLERANCE, outcome_difference
from kinfolk.contract.toy import Outcome
from kinfolk.engines.batched import Batched
from kinfolk.engines.choose import arithmetic
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.fast import KERNELS, capture, conv
from kinfolk.engines.fast.lanes import lanes_on
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.experiment.record import read_scores
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.sources import DataSpec, build
from kinfolk.learning import recording
from kinfolk.learning.augment import FlipCrop
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import build_model
from kinfolk.learning.optim import SGD, Adam, AdamW
from kinfolk.learning.row_metrics import find_metrics
from kinfolk.learning.schedules import Cosine
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import Stack, leaves

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]


@pytest.mark.parametrize("network", ["lenet", "tiny_cnn"])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_cuda_agrees_with_the_reference(name: str, network: str, request: pytest.FixtureRequest) -> None:
    if name == "slfed":
        if network == "tiny_cnn":  # of LeNet's clients nobody gets as far as sharing
            pytest.importorskip("cryptography")
        # Seen on an H200: images are numbers rounded to bytes, and some come out one grey level apart.
        request.applymarker(pytest.mark.xfail(reason="a GAN's images differ by a grey level", strict=False))
    federation = toy.images28() if network == "lenet" else toy.ragged()
    algorithm = ALGORITHMS[name](toy.learner(network, federation))
    reference = toy.play_rounds(algorithm, federation, "loop")
    for engine in ("loop", "batched"):
        got = toy.play_rounds(algorithm, federation, engine, device=torch.device("cuda"))
        assert outcome_difference(got, reference, ENGINE_TOLERANCE) == "", engine


@pytest.mark.parametrize("optimiser", [SGD(), SGD(0.9, 1e-3), Adam(eps=1e-2)], ids=lambda o: type(o).__name__)
@pytest.mark.parametrize("network", ["mlp", "lenet", "tiny_cnn", "tiny_cnn, changed rows"])
def test_a_recorded_pass_is_the_pass(network: str, optimiser: object) -> None:
    """Clients of unequal size, so that steps with padding and with idle clients are recorded too.

    Adam with a large eps: with its own, the sign of a gradient that is zero but for rounding moves a weight.
    """
    network, _, changed = network.partition(",")
    plan = Plan(8, epochs=2, augment=FlipCrop(2) if changed else None)
    shape = {"mlp": (20,), "lenet": (1, 28, 28), "tiny_cnn": (1, 8, 8)}[network]
    draw = Seed(0).torch("rows")
    rows = [
        (torch.randn(n, *shape, generator=draw), torch.randint(5, (n,), generator=draw))
        for n in (33, 40, 57, 12, 40)
    ]
    federation = from_arrays(rows, test={}, classes=5)
    with Seed(0).borrowed("init"):
        module = build_model(network, shape, 5, {"norm": "bn"} if network == "tiny_cnn" else {})
    learner = Learner(module, find_loss("cross_entropy"), 5, optimiser, plan, lr=0.01, decay=0.9)
    table = {"update": learner.train(), "score": learner.score()}
    first = {"model": {n: t.cuda() for n, t in learner.first.items()}}
    engines = [
        Loop(federation, table, Memories(lambda who: {}), "cuda"),
        Batched(federation, table, Memories(lambda who: {}), 3, "cuda", record=False),
        Batched(federation, table, Memories(lambda who: {}), 3, "cuda", record=True),
        Batched(federation, table, Memories(lambda who: {}), 1, "cuda", record=True, lanes=2),
    ]
    for round in (0, 1, 2):  # the plan of the third is made ahead
        context = RoundContext(Seed(3), round, federation.clients)
        with arithmetic(torch.device("cuda"), "float32"):
            loop, *others = (
                Stack.join(list(e.replies(Ask("update", federation.clients, first), context)))
                for e in engines
            )
        for name, leaf in loop.tree("model").items():
            scale = leaf.double().norm() + 1e-9
            for other in others:
                assert (other.tree("model")[name].double() - leaf).norm() <= 1e-4 * scale, name
    assert engines[2].lanes[0].recordings
    assert all(lane.recordings for lane in engines[3].lanes)


@pytest.mark.parametrize("name", ["fesem", "feddc", "fedem", "mdicfl"])
def test_lanes_give_what_one_lane_gives(name: str) -> None:
    """With memories, folds in chunks and several tasks a round."""
    federation, device = toy.ragged(), torch.device("cuda")
    algorithm = ALGORITHMS[name](toy.learner("tiny_cnn", federation))

    def in_lanes(count: int) -> Outcome:
        def change(engine: Engine) -> Engine:
            assert isinstance(engine, Batched)
            engine.lanes, engine.chunk = lanes_on(device, count), 1
            return engine

        return toy.play_rounds(algorithm, federation, "batched", device=device, wrap=change)

    one = in_lanes(1)
    for _ in range(3):
        assert outcome_difference(in_lanes(3), one, 0) == "", "not a bit"
    # Seen to fail for fesem on an H200, before clients were computed without vmap; the cause is not known.
    together = toy.play_rounds(algorithm, federation, "batched", device=device)
    assert outcome_difference(one, together, ENGINE_TOLERANCE) == "", "one client a call or three"


@pytest.mark.parametrize("lanes", [0, 3], ids=["three clients a call", "three lanes"])
@pytest.mark.parametrize("optimiser", [SGD(), SGD(0.9, 1e-3), Adam(eps=1e-2)], ids=str)
@pytest.mark.parametrize("name", ["fedavg", "fesem"])
def test_a_pass_recorded_as_a_whole_has_the_bits_of_its_steps(
    name: str, optimiser: SGD | Adam, lanes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients of 1 to 30 rows, so with padding and idle clients; FeSEM holds them to a centre besides."""
    federation, device = toy.ragged(), torch.device("cuda")
    learner = replace(toy.learner("tiny_cnn", federation, batch=4, epochs=2), optimiser=optimiser)
    most, wholes = capture.MOST_WHOLE, list[int]()

    def played(most: int) -> Outcome:
        engines: list[Batched] = []

        def change(engine: Engine) -> Engine:
            assert isinstance(engine, Batched)
            if lanes:
                engine.lanes, engine.chunk = lanes_on(device, lanes), 1
            engines.append(engine)
            return engine

        monkeypatch.setattr(capture, "MOST_WHOLE", most)
        monkeypatch.setattr(capture, "WORTH_WHOLE", 1)
        monkeypatch.setattr(capture, "LONGEST_WHOLE", 64)
        algorithm = ALGORITHMS[name](learner)
        outcome = toy.play_rounds(algorithm, federation, "batched", 4, device=device, wrap=change)
        recordings = [one for lane in engines[0].lanes for one in lane.recordings.values()]
        assert recordings
        wholes.append(sum(len(one.wholes) for one in recordings))
        return outcome

    steps = played(0)
    assert outcome_difference(played(most), steps, 0) == "", "not a bit"
    assert wholes[0] == 0 < wholes[1]


def test_a_recorded_sweep_scores_every_client_by_its_own_model() -> None:
    """Sweeps of many steps are recorded; every client has a model, rows and a tally of its own."""
    draw = Seed(0).torch("rows")
    sizes = (33, 40, 57, 12, 40)
    rows = [(torch.randn(n, 20, generator=draw), torch.randint(5, (n,), generator=draw)) for n in sizes]
    federation = from_arrays(rows, test=rows, classes=5)
    with Seed(0).borrowed("init"):
        module = build_model("mlp", (20,), 5, {})
    learner = Learner(module, find_loss("cross_entropy"), 5, plan=Plan(8, epochs=2), lr=0.1, score_batch=4)
    table = {"update": learner.train(), "score": learner.score(tune=learner.tuning(1))}
    first = {"model": {n: t.cuda() for n, t in learner.first.items()}}
    context = RoundContext(Seed(3), 0, federation.clients)
    found = []
    for engine in (
        Loop(federation, table, Memories(lambda who: {}), "cuda"),
        Batched(federation, table, Memories(lambda who: {}), 3, "cuda", record=True),
    ):
        models = Stack.join(list(engine.replies(Ask("update", federation.clients, first), context)))
        asked = (Ask("score", federation.clients, {}, models), Ask("score", federation.clients, first))
        found.append([Stack.join(list(engine.replies(ask, context))).body for ask in asked])
    for loop, recorded in zip(*found, strict=True):
        assert loop["rows"].tolist() == list(sizes) == recorded["rows"].tolist()
        assert torch.allclose(loop["loss"], recorded["loss"], rtol=1e-4)
        assert torch.equal(loop["correct"], recorded["correct"])
        assert len(set(recorded["loss"].tolist())) == len(sizes)


@pytest.mark.parametrize("chunk", [1, 3])
@pytest.mark.parametrize(("precision", "far"), [("tf32", 0.02), ("bf16", 0.15)])
def test_coarse_products_of_a_network_with_batch_norm_stay_near(
    chunk: int, precision: str, far: float
) -> None:
    """One step of a small network: in many steps or layers ReLUs near zero make rounding large."""
    draw = Seed(0).torch("rows")
    rows = [(torch.randn(40, 1, 8, 8, generator=draw), torch.arange(40) % 5) for _ in range(3)]
    federation = from_arrays(rows, test={}, classes=5)
    moves = []
    for half, how in ((False, "float32"), (precision == "bf16", precision)):
        with Seed(0).borrowed("init"):
            module = build_model("tiny_cnn", (1, 8, 8), 5, {"norm": "bn"})
        learner = Learner(module, find_loss("cross_entropy"), 5, SGD(), Plan(40), lr=0.01, half=half)
        first = {"model": {n: t.cuda() for n, t in learner.first.items()}}
        with arithmetic(torch.device("cuda"), how):
            table, none = {"t": learner.train()}, Memories(lambda who: {})
            engine = Batched(federation, table, none, chunk, "cuda", lanes=2)
            ask, context = Ask("t", federation.clients, first), RoundContext(Seed(1), 0, federation.clients)
            model = Stack.join(list(engine.replies(ask, context))).tree("model")
        moves.append(torch.cat([(model[n] - first["model"][n]).flatten() for n in learner.names]).double())
    exact, coarse = moves
    assert (coarse - exact).norm() <= far * exact.norm()
    assert precision == "tf32" or not torch.equal(coarse, exact)


def test_networks_in_float64_train_on_the_device() -> None:
    """Doubles have no kernels of ours: the other forms of a convolution serve them."""
    draw = Seed(0).torch("rows")
    rows = [(torch.randn(24, 1, 28, 28, generator=draw), torch.arange(24) % 10) for _ in range(3)]
    federation = from_arrays(rows, test={}, classes=10)

    class Doubled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = build_model("lenet", (1, 28, 28), 10, {}).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x.double())

    with Seed(0).borrowed("init"):
        learner = Learner(Doubled(), find_loss("cross_entropy"), 10, plan=Plan(8), lr=0.05)
    table, context = {"update": learner.train()}, RoundContext(Seed(0), 0, federation.clients)
    first = {"model": {n: t.cuda() for n, t in learner.first.items()}}
    loop, batched = (
        Stack.join(list(kind.replies(Ask("update", federation.clients, first), context)))
        for kind in (
            Loop(federation, table, Memories(lambda who: {}), "cuda"),
            Batched(federation, table, Memories(lambda who: {}), 3, "cuda"),
        )
    )
    for name, leaf in loop.tree("model").items():
        # The learning rate lies on the device in float32: PyTorch's fused step takes no other.
        assert (batched.tree("model")[name] - leaf).norm() <= 1e-7 * leaf.norm(), name


def test_rows_that_are_made_on_demand_are_recorded_too() -> None:
    spec = DataSpec(name="gaussians", clients=12, rows=40, groups=2, features=6, classes=3, shift="source")
    federation = build(spec, Seed(0))
    with Seed(0).borrowed("init"):
        module = build_model("mlp", (6,), 3, {})
    learner = Learner(module, find_loss("cross_entropy"), 3, SGD(), Plan(5, epochs=2), lr=0.05)
    engines = [
        Batched(federation, {"t": learner.train()}, Memories(lambda who: {}), 4, "cuda", record)
        for record in (True, False)
    ]
    for number in range(2):
        context = RoundContext(Seed(2), number, federation.clients)
        first = {"model": {n: t.cuda() for n, t in learner.first.items()}}
        got, wanted = (
            Stack.join(list(engine.replies(Ask("t", federation.clients, first), context)))
            for engine in engines
        )
        for name, leaf in wanted.tree("model").items():
            torch.testing.assert_close(got.tree("model")[name], leaf, rtol=1e-5, atol=1e-6)
    assert engines[0].lanes[0].recordings


def test_graphs_of_an_earlier_run_may_be_garbage_while_another_is_recorded() -> None:
    """Collected amid a recording they made it invalid: the third run of a process ended with an error."""
    tensor = torch.zeros(4, device="cuda")
    before = gc.get_threshold()

    def steps() -> None:
        made = [{"made": [tensor.add(1)]} for _ in range(50)]
        tensor.add_(made[-1]["made"][0].sub_(tensor))

    try:
        for _ in range(3):
            old: list[Any] = [recording.recorded(lambda: tensor.add_(1).neg_())]
            old.append(old)  # a cycle, which only a collection ends
            del old
            gc.set_threshold(1)
            graph = recording.recorded(steps)
            gc.set_threshold(*before)
            graph.replay()
    finally:
        gc.set_threshold(*before)
    assert tensor.tolist() == [3.0] * 4, "each recording is whole and was replayed once"


def test_a_resumed_run_keeps_its_kernels_and_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where trials end otherwise the second time, as they do when kernels are nearly as fast."""
    words = ("model.name=tiny_cnn", "engine.name=batched", "engine.device=cuda", "local.batch=4")
    monkeypatch.setattr(KERNELS, "chosen", {})
    whole = tmp_path / "whole"
    go(whole, *words, "run.rounds=4")
    chosen = dict(KERNELS.chosen)
    assert chosen, "convolutions were tried out"
    broken = tmp_path / "broken"
    go(broken, *words, "run.rounds=2")
    trial, tried = conv._trial, []

    def slowest(call: conv.Call) -> dict[str, float]:
        tried.append(call)
        return {name: -took if math.isfinite(took) else took for name, took in trial(call).items()}

    monkeypatch.setattr(KERNELS, "chosen", {})
    monkeypatch.setattr(conv, "_trial", slowest)
    go(broken, *words, "run.rounds=4", resume=True)
    assert chosen == KERNELS.chosen
    assert not tried
    (_, tensors, _), (_, wanted, _) = saved(broken), saved(whole)
    assert all(equal(tensors[entry], wanted[entry]) for entry in wanted)
    assert read_scores(broken).equals(read_scores(whole))


@pytest.mark.parametrize(
    "optimiser", [SGD(), SGD(0.9, 1e-3, True), Adam(eps=1e-2), AdamW(eps=1e-2, weight_decay=0.1)], ids=repr
)
def test_a_recorded_pass_takes_the_rate_of_each_step_and_client(optimiser: object) -> None:
    """A rate that changes within a round, and metrics that need all rows; clients of unequal size."""
    draw = Seed(0).torch("rows")
    rows = [
        (torch.randn(n, 20, generator=draw), torch.randint(5, (n,), generator=draw))
        for n in (33, 40, 57, 12, 40)
    ]
    federation = from_arrays(rows, classes=5)
    with Seed(0).borrowed("init"):
        module = build_model("mlp", (20,), 5, {})
    like = {"out": torch.zeros(0, 5), "y": torch.zeros(0, dtype=torch.int64)}
    learner = Learner(
        module, find_loss("cross_entropy", {"class_weights": [1.0, 2.0, 1.0, 0.5, 1.0]}), 5, optimiser,
        Plan(8, epochs=2), lr=0.05, by_step=Cosine(end=0.1), score_batch=4, score_rows=12, score_like=like,
        metrics=find_metrics(["auroc"], "class", 5),
    )  # fmt: skip
    table = {"update": learner.train(), "score": learner.score()}
    first = {"model": {n: t.cuda() for n, t in learner.first.items()}}
    engines = [
        Loop(federation, table, Memories(lambda who: {}), "cuda"),
        Batched(federation, table, Memories(lambda who: {}), 3, "cuda", record=False),
        Batched(federation, table, Memories(lambda who: {}), 3, "cuda", record=True),
    ]
    for round in (0, 1):
        context = RoundContext(Seed(3), round, federation.clients)
        for name in ("update", "score"):
            with arithmetic(torch.device("cuda"), "float32"):
                loop, *others = (
                    Stack.join(list(e.replies(Ask(name, federation.clients, first), context)))
                    for e in engines
                )
            for key, part, leaf in leaves(loop.body):
                for other in others:
                    there = other.body[key] if part is None else other.body[key][part]
                    scale = leaf.double().norm() + 1e-9
                    assert (there.double().cpu() - leaf.double().cpu()).norm() <= 1e-4 * scale.cpu(), key
    assert engines[2].lanes[0].recordings
