"""Planted failures are all named in time, and healthy runs are left alone: benchmarks/divergence.py."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

PATH = Path(__file__).parents[2] / "benchmarks" / "divergence.py"


def _load() -> Any:
    spec = importlib.util.spec_from_file_location("planted_failures", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["planted_failures"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


BENCH = _load()
QUICK = ("one reply x 500 in round 5", "rate 1000, fedavg, loop")


def _cases(cases: Any) -> list[Any]:
    marks = [() if case.name in QUICK else (pytest.mark.slow,) for case in cases]
    return [pytest.param(case, id=case.name, marks=mark) for case, mark in zip(cases, marks, strict=True)]


def test_there_are_at_least_twelve_failures_and_thirty_healthy_runs():
    at_once = [case for case in BENCH.PLANTED if case.within <= 1]
    assert len(at_once) >= 12
    assert len(BENCH.HEALTHY) >= 30


@pytest.mark.parametrize("case", _cases(BENCH.PLANTED))
def test_a_planted_failure_is_named_in_time(case):
    found = BENCH.watched(case)
    assert BENCH.is_named(case, found), found


@pytest.mark.parametrize("case", _cases(BENCH.HEALTHY))
def test_a_healthy_run_is_left_alone(case):
    assert BENCH.watched(case).text == ""
