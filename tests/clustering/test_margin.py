from __future__ import annotations

import math

import torch

from kinfolk.algorithms.blocks.aggregator import Aggregator
from kinfolk.algorithms.fesem.fesem import EM
from kinfolk.clustering.margin import margins
from kinfolk.types import Client, Stack


def by_hand(costs: list[float], own: int) -> float:
    a = costs[own]
    b = min(cost for k, cost in enumerate(costs) if k != own)
    return (b - a) / max(a, b)


def test_margins_are_those_of_plain_loops() -> None:
    cost = torch.rand(40, 5, generator=torch.Generator().manual_seed(0)) + 0.01
    group = torch.arange(40) % 5
    wanted = [by_hand(row, k) for row, k in zip(cost.double().tolist(), group.tolist(), strict=True)]
    assert torch.allclose(margins(cost, group), torch.tensor(wanted), atol=1e-5)


def test_one_group_has_no_margin_and_a_model_that_is_no_number_is_no_rival() -> None:
    assert margins(torch.ones(2, 1), torch.tensor([0, 0])).isnan().all()
    assert margins(torch.tensor([[1.0, math.nan]]), torch.tensor([0])).tolist() == [1.0]


def test_fesem_measures_distances_and_not_their_squares() -> None:
    centres = {"w": torch.tensor([[0.0], [10.0]])}
    models = {Client("a"): (1, {"model": {"w": torch.tensor([2.0])}})}
    em = EM(centres, ["w"], Aggregator())
    found = em.end(em.add(em.begin(), Stack.of(models)))
    assert math.isclose(found.margin[Client("a")], 1 - 2 / 8, abs_tol=1e-6)
