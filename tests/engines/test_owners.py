"""Somebody with many clients counts for no more than one client could: in rows, and in votes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from toys import context, federation, learner

from kinfolk.algorithms.blocks.aggregator import RobustMean
from kinfolk.contract.spoil import Passing
from kinfolk.engines.cohort import GuardSpec
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.engines.owners import Owners
from kinfolk.fold import Mean
from kinfolk.script import Ask
from kinfolk.task import Table
from kinfolk.types import Client, Stack, map_leaves

HONEST, SYBIL = ("a", "b", "c"), tuple(f"s{i:02}" for i in range(12))
DATA, ONE = federation(dict.fromkeys((*HONEST, *SYBIL), 4)), learner()
TABLE: Table = {"train": ONE.train()}
LIMIT = GuardSpec(rows=1.0, norm=0.0, share=0.0)


class OfOne(Passing):
    """Everybody but the honest belongs to one owner, and replies a model of ones; the honest reply zeros."""

    def __init__(self) -> None:
        super().__init__(Loop(DATA, TABLE, Memories(lambda who: {})), self._told)

    def _told(self, request: Ask[Any], reply: Stack) -> Stack:
        ones = torch.tensor([float(c in SYBIL) for c in reply.clients])
        body = map_leaves(lambda t: torch.zeros_like(t) + ones.reshape(-1, *[1] * (t.dim() - 1)), reply.body)
        return Stack(reply.clients, reply.size, body)

    def owners(self) -> Mapping[Client, str]:
        """As a deployment knows them."""
        return dict.fromkeys(map(Client, SYBIL), "hub")

    def claims(self, who: Sequence[Client]) -> Mapping[Client, int]:
        """Twelve clients of four rows each."""
        return dict.fromkeys(who, 4)


def weight_of_owner(
    fold: Any, guard: GuardSpec = LIMIT, round: int = 0
) -> tuple[float, list[str], set[Client]]:
    """The owner's share of the model, what the log says, and who was asked."""
    log: list[str] = []
    coordinator = Coordinator(OfOne(), lambda event, **facts: log.append(str(facts["reason"])), guard=guard)
    tree = coordinator.perform(
        Ask("train", DATA.clients, {"model": ONE.first}, fold=fold), context(DATA, round=round)
    )
    return float(next(iter(tree.values())).flatten()[0]), log, coordinator.asked


@pytest.mark.parametrize("weights", ["size", "uniform"])
def test_an_owner_counts_for_what_one_client_could_in_means(weights: Any):
    """Case 34: twelve ids beside three honest clients; with a limit of one median, one part in four."""
    part, log, asked = weight_of_owner(Mean("model", ONE.first, weights))
    assert part == pytest.approx(1 / 4)
    assert len([line for line in log if "of its owner it counts as 4 rows of 48" in line]) == len(SYBIL)
    assert len(asked) == 4
    part, _, asked = weight_of_owner(Mean("model", ONE.first, weights), GuardSpec(rows=0.0, norm=0.0))
    assert part == pytest.approx(12 / 15)
    assert len(asked) == 15


def test_a_median_hears_so_many_votes_and_falls_where_they_are_most():
    """What a median cannot know: whose a vote is. The cap in a round is what protects it, if it is low."""
    fold = RobustMean("median").tree_fold("model", ONE.first, "uniform")
    assert weight_of_owner(fold)[0] == 0.0
    assert weight_of_owner(fold, GuardSpec(rows=4.0, norm=0.0, share=0.0))[0] == 1.0
    assert weight_of_owner(fold, GuardSpec(rows=0.0, norm=0.0))[0] == 1.0


def test_an_owners_clients_take_turns():
    seen: set[Client] = set()
    for round in range(12):
        asked = weight_of_owner(Mean("model", ONE.first), round=round)[2]
        assert set(HONEST) <= asked
        seen |= asked
    assert seen == set(DATA.clients)


def test_the_usual_limit_is_that_of_one_client():
    """Ten medians, as one client that claimed all these rows would count for."""
    part, _, asked = weight_of_owner(Mean("model", ONE.first), GuardSpec(norm=0.0))
    assert part == pytest.approx(10 / 13)
    assert len(asked) == 13


def test_rows_of_an_owner_are_those_of_all_its_clients():
    """Two clients, each below the limit of one as it is clamped, are above it together."""
    owners = Owners({Client("x"): "hub", Client("y"): "hub"})
    claims = {Client(c): n for c, n in {"a": 4, "b": 4, "c": 4, "x": 60, "y": 20}.items()}
    told = owners.hear(claims, GuardSpec(rows=2.0, share=0.0))
    assert sorted(told) == ["x", "y"]
    assert owners.sent(tuple(claims), 0) == tuple(claims)  # two votes are allowed
    replies = Stack(tuple(claims), torch.tensor([4, 4, 4, 8, 8]), {})
    assert owners.weighed(replies).size.tolist() == [4, 4, 4, 6, 2]
