"""Where there is nothing, the verdict says so: the rates of benchmarks/verdict_noise.py, with fewer draws."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "verdict_noise.py"
DRAWS = 80


@pytest.fixture(scope="module")
def benchmark():
    spec = importlib.util.spec_from_file_location("verdict_noise", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["verdict_noise"] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["verdict_noise"]


@pytest.mark.slow
@pytest.mark.parametrize("place", [1, 6, 7, 8, 11, 15])
def test_equal_methods_are_seldom_ranked_and_clients_seldom_named(benchmark, place):
    found = benchmark.rates(benchmark.CASES[place], DRAWS, np.random.default_rng(place))
    assert max(found.values()) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / DRAWS), found


def test_a_lead_that_is_there_is_named_and_what_is_not_there_is_not(benchmark):
    draw = np.random.default_rng(0)
    assert benchmark.rates(benchmark.Noise(3, lead=0.1, shift=0.002), 5, draw)["best"] == 1.0
    assert benchmark.rates(benchmark.Noise(3, shift=0.002), 5, draw)["best"] <= 0.2
