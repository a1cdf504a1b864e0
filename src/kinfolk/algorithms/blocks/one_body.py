"""Groups that have heads of their own on one body: `aggregate.share = "body"`.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning. NeurIPS 2020, weight
sharing: all layers but the last are averaged over all clients, the last one in each group. The body is the
mean of the groups' bodies by how much each group weighs, which of means is the mean over all clients; of
robust aggregations each group's is robust among its members.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Client, Tree

# What the models of groups have in common.
Share = Literal["nothing", "body"]
# The last layer, as in `Learner.head`.
HEAD = "head."

Grouped = tuple[Tree, dict[Client, int], Tensor]


class OneBody:
    """A fold of replies into the models of their groups, whose bodies then are one."""

    def __init__(self, by: Any) -> None:
        self.by, self.key, self.weights = by, by.key, by.weights
        self.begin, self.add, self.groups_of = by.begin, by.add, getattr(by, "groups_of", None)

    def end(self, total: Any) -> Grouped:
        """(models of the groups, group of each client that replied, total weight of each group)."""
        models, member, mass = self.by.end(total)
        return one_body(models, mass), member, mass

    def of_means(
        self, means: Mapping[int, Tree], mass: Mapping[int, float], member: dict[Client, int]
    ) -> Grouped:
        """The same from means that are there already."""
        models, member, weights = self.by.of_means(means, mass, member)
        return one_body(models, weights), member, weights


def check_head(names: Collection[str]) -> None:
    """Refuse a network without a head: all groups would have the same model.

    >>> check_head(["fc.weight"])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.aggregate.share = 'body': the network trains no layer called ...
    """
    if not any(name.startswith(HEAD) for name in names):
        remedy = "the network trains no layer called 'head'; name its last layer so, or give 'nothing'"
        raise KinfolkError("algorithm.aggregate.share", "body", remedy)


def one_body(models: Tree, mass: Tensor) -> Tree:
    """Models [K, ...] whose leaves before the head are their mean by weights [K]; of integers the largest.

    >>> models = {"fc": torch.tensor([[0.0], [4.0]]), "head.w": torch.tensor([[1.0], [2.0]])}
    >>> one_body(models, torch.tensor([1.0, 3.0]))
    {'fc': tensor([[3.],
            [3.]]), 'head.w': tensor([[1.],
            [2.]])}
    """
    check_head(models)
    if not bool(mass.sum() > 0):
        return models

    def common(leaf: Tensor) -> Tensor:
        if leaf.is_floating_point():
            shares = (mass / mass.sum()).double().to(leaf.device)
            one = torch.tensordot(shares, leaf.double(), 1).to(leaf.dtype)
        else:
            one = leaf[(mass > 0).to(leaf.device)].amax(0)
        copies: Tensor = one.expand_as(leaf).clone(memory_format=torch.contiguous_format)
        return copies

    return {name: leaf if name.startswith(HEAD) else common(leaf) for name, leaf in models.items()}
