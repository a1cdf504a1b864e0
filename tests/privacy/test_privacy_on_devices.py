"""Noise and clipping on a CUDA device are those of the CPU; without one that half is skipped, visibly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from small_runs import go, rounds_of, saved

from kinfolk.algorithms import build_algorithm
from kinfolk.contract import toy
from kinfolk.contract.compare import ENGINE_TOLERANCE, outcome_difference
from kinfolk.engines.batched import Batched
from kinfolk.engines.coordinator import Engine
from kinfolk.engines.fast.lanes import lanes_on
from kinfolk.privacy import gaussian
from kinfolk.privacy.gaussian import clipped, noised
from kinfolk.privacy.mechanism import Mechanism
from kinfolk.privacy.spec import PrivacySpec
from kinfolk.types import Tree

no_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, no_cuda])]
on_devices = pytest.mark.parametrize("device", DEVICES)

# Groups that no k-means of float32 decides, and none of the settings that noise does not cover.
SETTLED: dict[str, Any] = {"start.name": "random_partition", "reseed_after": 0, "patience": 0, "lam": 0.0}
# Counts alike, and every client sends nothing but models.
METHODS: dict[tuple[str, str], dict[str, Any]] = {
    ("server", "fedavg"): {"weights": "uniform"},
    ("server", "fedprox"): {"weights": "uniform"},
    ("server", "fedem"): {},
    ("server", "ifca"): {},
    ("server", "fesem"): SETTLED,
    ("local", "fedavg"): {},
    ("local", "fedprox"): {},
    ("local", "fesem"): SETTLED,
}
CLIP = 0.05  # of updates of 0.1 to 0.6 in these federations


def private(
    mode: str, method: str, noise: float, *, engine: str, device: str, lanes: int = 0, rounds: int = 2
) -> toy.Outcome:
    """Some rounds with noise on clients of 1 to 30 rows, in calls of three clients or in lanes of one."""
    federation = toy.ragged()
    mechanism = Mechanism(PrivacySpec(mode, clip=CLIP), noise, len(federation.clients))
    algorithm = build_algorithm(method, toy.learner("mlp", federation), METHODS[mode, method])

    def armed(engine: Any) -> Engine:
        engine.table = mechanism.armed(engine.table)
        if lanes:
            assert isinstance(engine, Batched)
            engine.lanes, engine.chunk = lanes_on(torch.device(device), lanes), 1
        return engine  # type: ignore[no-any-return]

    at = torch.device(device)
    protected = mechanism.protected(algorithm)
    return toy.play_rounds(protected, federation, engine, rounds, wrap=armed, score=False, device=at)


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gaussian, "normal", lambda count: torch.zeros(count, dtype=torch.float64))


@on_devices
@pytest.mark.parametrize(("mode", "method"), list(METHODS))
def test_clients_are_clipped_on_a_device_as_on_the_host(
    mode: str, method: str, device: str, without_noise: None
) -> None:
    played: Callable[..., toy.Outcome] = lambda **how: private(mode, method, 1.0, **how)  # noqa: E731
    reference = played(engine="loop", device="cpu")
    ways: list[dict[str, Any]] = [{"engine": "loop"}, {"engine": "batched"}]
    ways += [{"engine": "batched", "lanes": 3}] if device == "cuda" else []
    for how in ways:
        got = played(device=device, **how)
        assert outcome_difference(got, reference, ENGINE_TOLERANCE) == "", how
        for value in vars(got.state).values():
            for leaf in value.values() if isinstance(value, dict) else ():
                assert leaf.device.type == device, "the server's models stay where clients train"


@on_devices
@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize(("mode", "std"), [("server", 40 * CLIP / 8), ("local", 2 * 40 * CLIP / 8**0.5)])
def test_noise_on_a_device_is_as_wide_as_promised_and_never_the_same(
    mode: str, std: float, engine: str, device: str
) -> None:
    """Beside noise of 40 times the clip no update of eight clients is seen."""
    first = toy.first_model(build_algorithm("fedavg", toy.learner("mlp", toy.ragged()), {}))
    moved = []
    for _ in range(2):
        model: Tree = private(mode, "fedavg", 40.0, engine=engine, device=device, rounds=1).state.model
        moved.append(torch.cat([(t.cpu() - first[n]).double().flatten() for n, t in model.items()]))
        # Clients of 1 to 30 rows count by them where the noise is theirs.
        rows = torch.tensor(toy.ROWS, dtype=torch.float64)
        uneven = float((rows / rows.sum()).norm()) * 8**0.5 if mode == "local" else 1.0
        assert float(moved[-1].std()) == pytest.approx(std * uneven, rel=0.1)
        assert abs(float(moved[-1].mean())) < 0.2 * std * uneven
    assert float((moved[0] == moved[1]).double().mean()) < 0.01


@on_devices
def test_a_bound_holds_on_a_device_for_updates_of_any_size(device: str) -> None:
    draw = torch.Generator().manual_seed(0)
    drawn = torch.randn(5, 40, generator=draw)
    scale = torch.tensor([1e-6, 1.0, 1e4, 1e18, float("nan")])[:, None]
    updates = {"w": (drawn * scale)[:, :30].reshape(5, 6, 5), "b": (drawn * scale)[:, 30:]}
    here = clipped(updates, 0.5)
    there = clipped({n: t.to(device) for n, t in updates.items()}, 0.5)
    norms = torch.cat([t.cpu().flatten(1) for t in there.values()], 1).norm(dim=1)
    assert norms[0] == pytest.approx(1e-6 * float(drawn[0].norm()), rel=1e-6)
    assert norms[1:4].tolist() == pytest.approx([0.5] * 3)
    assert norms[4] == 0
    for name, leaf in there.items():
        assert leaf.device.type == device
        torch.testing.assert_close(leaf.cpu(), here[name], rtol=1e-12, atol=0)
    assert noised(there, 1.0)["w"].device.type == device


@on_devices
@pytest.mark.parametrize("engine", ["loop", "batched"])
@pytest.mark.parametrize("mode", ["server", "local"])
def test_a_run_on_a_device_tells_what_it_spent_and_goes_on(
    mode: str, engine: str, device: str, tmp_path: Path
) -> None:
    words = [f"engine.name={engine}", f"engine.device={device}", f"privacy.mode={mode}", "privacy.noise=4"]
    words += ["privacy.delta=0.01", "algorithm.weights=uniform"]
    go(tmp_path / "run", *words, "run.rounds=2")
    got = go(tmp_path / "run", *words, "run.rounds=4", resume=True)
    go(tmp_path / "whole", *words, "run.rounds=4")
    ends = [rounds_of(tmp_path / name)[-1]["privacy"]["epsilon"] for name in ("run", "whole")]
    assert ends[0] == pytest.approx(ends[1], rel=1e-9)
    assert got.rounds == saved(tmp_path / "run")[0] == 4
