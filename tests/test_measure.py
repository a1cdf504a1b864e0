"""benchmarks/measure.py: every engine is measured, and a round's memory is its own."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.slow  # each number is taken in a process of its own
PATH = Path(__file__).parents[1] / "benchmarks" / "measure.py"


@pytest.fixture(scope="module")
def measure():
    spec = importlib.util.spec_from_file_location("measure", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["measure"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_engine_is_measured(measure, monkeypatch, capsys):
    words = ["--model", "mlp", "--clients", "2", "3", "--rows", "20", "--batch", "10", "--json"]
    monkeypatch.setattr(sys, "argv", ["measure.py", *words])
    measure.main()
    rows = json.loads(capsys.readouterr().out)
    assert {(n, name) for n in (2, 3) for name in ("plain loop", "loop", "batched")} <= {
        (row["clients"], row["engine"]) for row in rows
    }
    assert all(row["peak"] > 50 for row in rows), "a process that has loaded PyTorch takes that much"
    for row in rows:
        assert row["samples"] == pytest.approx(20 * row["trainings"])
        assert row["trainings"] == pytest.approx(row["clients"] / row["seconds"])


def test_memory_of_a_round_is_not_that_of_who_measures_it(measure):
    held = torch.ones(1 << 28)  # 1 GiB
    one, more = (measure._peak_mib(measure.Work("mlp", 2, rows, 10), "loop") for rows in (10, 20_000))
    assert 50 < one < 1024 * held.numel() / (1 << 28)
    assert more - one > 0.9 * 2 * 20_000 * 784 * 4 / 2**20, "rows count"
