"""Which engine is chosen and why: every branch, every refusal, and settings that are put back."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from toys import empty, federation

from kinfolk.engines import choose as module
from kinfolk.engines.choose import ENGINES, SMALL_ROUND, SMALL_STEP, arithmetic, choose, make
from kinfolk.engines.spec import EngineSpec
from kinfolk.errors import KinfolkError
from kinfolk.learning.batchable import LARGE_LAYER, Cost

SMALL = Cost(flops=5_000, floats=42, parameters=2_410)
LARGE = Cost(flops=50_000_000, floats=60_000, parameters=1_000_000)
BLOCKED = "layer 2 (Dropout) draws random numbers"


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine of four cores without a GPU; `machine(cores, gpu)` makes it another."""

    class Properties:
        total_memory = 16 << 30

    def be(cores: int = 4, gpu: bool = False) -> None:
        monkeypatch.setattr(module, "cores", lambda: cores)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)

    be()
    return be


def name(spec: EngineSpec, cost: Cost = SMALL, obstacle: str = "", clients: int = 24) -> str:
    return choose(spec, cost, 20, clients, obstacle).name


def test_auto_without_a_gpu(machine):
    assert name(EngineSpec()) == "batched"
    assert name(EngineSpec(), LARGE) == "workers"
    assert name(EngineSpec(), LARGE, clients=1) == "batched", "one client needs one process"
    assert name(EngineSpec(processes=1), LARGE) == "batched"
    assert name(EngineSpec(), SMALL, BLOCKED) == "workers"
    assert name(EngineSpec(), LARGE, BLOCKED) == "workers"
    assert name(EngineSpec(processes=1), SMALL, BLOCKED) == "loop"
    machine(cores=1)
    assert name(EngineSpec(), LARGE) == "batched"
    assert name(EngineSpec(), SMALL) == "batched"


def test_auto_with_a_gpu(machine):
    machine(gpu=True)
    for cost in (SMALL, LARGE):
        choice = choose(EngineSpec(), cost, 20, 24, "")
        assert (choice.name, choice.device.type, choice.why) == ("batched", "cuda", "a GPU is here")
    assert choose(EngineSpec(), SMALL, 20, 24, BLOCKED).name == "loop"
    assert choose(EngineSpec(), SMALL, 20, 24, BLOCKED).device.type == "cuda"
    assert choose(EngineSpec(device="cpu"), LARGE, 20, 24, "").name == "workers"
    assert choose(EngineSpec("workers"), SMALL, 20, 24, "").device.type == "cpu"
    assert choose(EngineSpec("loop", "cuda"), SMALL, 20, 24, "").device.type == "cuda"


def test_large_networks_have_lanes_where_products_are_coarse(machine):
    machine(gpu=True)
    size = Cost(flops=int(4 * LARGE_LAYER / 3 / 20) + 1, floats=60_000, parameters=1_000_000, layers=4)

    def way(spec: EngineSpec, cost: Cost = size) -> tuple[int, int]:
        choice = choose(spec, cost, 20, 24, "")
        return choice.engine.chunk, choice.engine.lanes

    assert way(EngineSpec(precision="tf32")) == way(EngineSpec(precision="bf16")) == (1, module.LANES)
    assert way(EngineSpec())[1] == way(EngineSpec(precision="tf32"), replace(size, layers=5))[1] == 1
    assert way(EngineSpec(precision="tf32", chunk=5)) == (5, 1), "as asked"
    assert way(EngineSpec(lanes=2, chunk=3)) == (3, 2)
    assert way(EngineSpec(precision="tf32", memory=0.2)) == (1, 2), "no more than the memory holds"
    for other in ("workers", "loop"):
        assert way(EngineSpec(other, lanes=4))[1] == 1, "lanes are for a GPU"
    assert (
        way(EngineSpec("loop", precision="tf32"))[1]
        == way(EngineSpec(device="cpu", precision="bf16"))[1]
        == 1
    )


def test_the_border_between_small_and_large_rounds(machine):
    flops = int(SMALL_ROUND / 3 / 20 / 24 / 5)
    assert name(EngineSpec(), Cost(flops - 1, floats=1, parameters=1)) == "batched"
    assert name(EngineSpec(), Cost(flops + 1, floats=1, parameters=1)) == "workers"
    assert choose(EngineSpec(), Cost(flops - 1, 1, 1), 20, 24, "", steps=6).name == "workers"


def test_a_core_is_given_what_it_can_keep_near(machine):
    def together(flops: int, parameters: int, obstacle: str = "") -> int:
        return choose(EngineSpec("workers"), Cost(flops, 100, parameters), 20, 99, obstacle).engine.chunk

    assert together(1000, 1000) == 32
    assert 4 <= together(1000, 300_000) <= 16
    assert together(int(SMALL_STEP), 1000) == 1, "a large step is enough for a core"
    assert together(1000, 1000, BLOCKED) == 0


@pytest.mark.parametrize("engine", ENGINES)
def test_what_is_asked_for_is_given(engine):
    choice = choose(EngineSpec(engine), LARGE, 20, 24, "")
    assert (choice.name, choice.why, choice.warning) == (engine, "as asked", "")


def test_batched_falls_back_to_the_loop_and_says_which_layer_is_to_blame():
    choice = choose(EngineSpec("batched"), SMALL, 20, 24, BLOCKED)
    assert choice.name == "loop"
    assert "'loop' is used" in choice.warning
    assert "layer 2 (Dropout)" in choice.warning
    assert BLOCKED in choice.why
    # Nobody asked for batching: nothing to warn of, but the reason is told.
    assert choose(EngineSpec(), SMALL, 20, 24, BLOCKED).warning == ""
    assert choose(EngineSpec(), SMALL, 20, 24, BLOCKED).why.startswith(
        f"not batched: {BLOCKED}, up to 10 times"
    )
    large = replace(SMALL, flops=int(SMALL_STEP))
    assert choose(EngineSpec(), large, 20, 24, BLOCKED).why == f"not batched: {BLOCKED}", (
        "a core is busy anyway"
    )
    asked = choose(EngineSpec("workers", chunk=2), SMALL, 20, 24, BLOCKED)
    assert asked.engine.chunk == 0
    assert asked.why.startswith(f"as asked; not batched: {BLOCKED}")


def test_a_large_lstm_is_trained_alone_on_a_cpu(machine):
    lstm = Cost(flops=int(SMALL_STEP / 3 / 20) + 1, floats=1, parameters=1, lstm=True)
    choice = choose(EngineSpec(), lstm, 20, 24, "")
    assert (choice.name, choice.engine.chunk, choice.warning) == ("workers", 0, "")
    assert "fastest alone" in choice.why
    assert choose(EngineSpec(processes=1), lstm, 20, 24, "").name == "loop"
    small = replace(lstm, flops=lstm.flops // 2)
    assert choose(EngineSpec(), small, 20, 24, "").engine.chunk > 1
    assert choose(EngineSpec("batched"), lstm, 20, 24, "").name == "batched", "as asked"
    machine(gpu=True)
    assert choose(EngineSpec(), lstm, 20, 24, "").name == "batched"


def test_on_a_gpu_the_cost_of_going_one_by_one_is_told(machine):
    machine(gpu=True)
    for spec in (EngineSpec("batched"), EngineSpec()):
        choice = choose(spec, SMALL, 20, 24, BLOCKED)
        assert choice.name == "loop"
        assert choice.warning.startswith(f"{BLOCKED}; ")
        assert choice.warning.endswith("one after another, about 24 times slower")
    assert "about 100 times" in choose(EngineSpec(), SMALL, 20, 5000, BLOCKED).warning
    large = replace(LARGE, flops=int(LARGE_LAYER))
    assert "slower" not in choose(EngineSpec(), large, 20, 24, BLOCKED).warning, "one client fills the device"
    assert choose(EngineSpec(), SMALL, 20, 24, "").warning == ""
    assert choose(EngineSpec("loop"), SMALL, 20, 24, BLOCKED).warning == ""


@pytest.mark.parametrize("engine", ["auto", *ENGINES])
def test_a_gpu_that_is_not_there_is_refused(engine):
    with pytest.raises(KinfolkError, match=r"engine\.device = 'cuda'"):
        choose(EngineSpec(engine, "cuda"), SMALL, 20, 24, "")


@pytest.mark.parametrize("engine", ["workers", "wire"])
def test_engines_for_cpus_refuse_a_gpu(machine, engine):
    machine(gpu=True)
    with pytest.raises(KinfolkError, match="is for CPUs"):
        choose(EngineSpec(engine, "cuda"), SMALL, 20, 24, "")


def test_processes_are_at_most_the_clients(machine):
    machine(cores=64)
    assert choose(EngineSpec("workers"), SMALL, 20, 5, "").engine.processes == 5
    assert choose(EngineSpec("workers", processes=3), SMALL, 20, 5, "").engine.processes == 3
    assert choose(EngineSpec("workers"), SMALL, 20, 500, "").engine.processes == 64


def test_the_chunk_fits_the_memory(machine):
    def chunk(cost: Cost, batch: int = 20, **wanted: float) -> int:
        return choose(EngineSpec("batched", **wanted), cost, batch, 999, "").engine.chunk

    assert chunk(SMALL) == 32, "more would only miss the cache"
    assert chunk(SMALL, chunk=7) == 7
    # By hand: 8 trees and 3 times what the layers put out for 64 rows, 4 bytes each.
    held = 4 * (8 * 1_000_000 + 3 * 64 * 60_000)
    thin = replace(LARGE, flops=1)  # its steps are small, so that a core takes more than one at a time
    assert chunk(LARGE, memory=1.0) == 1
    assert chunk(replace(thin, parameters=10), memory=0.1) == 2**30 // 10 // (4 * (80 + 3 * 64 * 60_000))
    assert chunk(thin, memory=1e-9) == 1, "one client always goes"
    machine(gpu=True)
    assert chunk(SMALL) == 256
    assert chunk(LARGE) == (16 << 30) // 4 // held
    assert chunk(LARGE, batch=256, memory=1.0) == 2**30 // (4 * (8 * 1_000_000 + 3 * 256 * 60_000))


def test_the_same_question_has_the_same_answer():
    first = choose(EngineSpec(), LARGE, 20, 24, "")
    assert all(choose(EngineSpec(), LARGE, 20, 24, "") == first for _ in range(5))


@pytest.mark.parametrize("engine", ENGINES)
def test_what_was_chosen_is_made(engine):
    data = federation()
    spec = EngineSpec(engine, "cpu", chunk=5, lanes=1, processes=2)
    made = make(spec, data, {}, empty())
    assert made.name == engine
    assert made.device == torch.device("cpu")
    assert made.note.startswith(engine)
    if engine == "batched":
        assert made.chunk == 5
    if engine == "workers":
        assert made.processes == 2
    made.close()


def settings() -> tuple[object, ...]:
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    return torch.get_num_threads(), cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark


@pytest.fixture
def unusual():
    """Settings that are not the default, so that putting them back shows."""
    before = settings()
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    torch.set_num_threads(3)
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = True, True, False, True
    yield settings()
    torch.set_num_threads(before[0])
    cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before[1:]


def test_arithmetic_on_a_cpu_is_one_thread_and_put_back(unusual):
    with arithmetic(torch.device("cpu"), "float32"):
        assert settings() == (1, *unusual[1:])
    assert settings() == unusual


@pytest.mark.parametrize(("precision", "tf32"), [("float32", False), ("tf32", True)])
def test_arithmetic_on_a_gpu_is_exact_and_repeatable_and_put_back(unusual, precision, tf32):
    with arithmetic(torch.device("cuda"), precision):
        assert settings() == (3, tf32, tf32, True, False)
    assert settings() == unusual


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_arithmetic_is_put_back_after_an_error(unusual, device):
    def fail() -> None:
        with arithmetic(torch.device(device), "float32"):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert settings() == unusual
