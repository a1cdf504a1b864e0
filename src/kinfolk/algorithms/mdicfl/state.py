"""What MD-ICFL's server holds between rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kinfolk.algorithms.blocks import many_models
from kinfolk.algorithms.blocks.lowest_loss import where
from kinfolk.types import Client, Tree


@dataclass(frozen=True)
class State(many_models.State):
    """Models and memberships, and what clients have told the server."""

    one_with: Tensor  # [K]: the first of the clusters each was merged with; itself where it was not
    shape: tuple[int, ...]  # of a row; empty before anybody was asked
    labels: Tensor  # [clients, C] label distributions p_i; zeros where none is known
    begun: bool  # whether clients have been split into clusters
    kept: Tree  # [K, ...]: pseudo rows or generators, where they go on from round to round
    assigned: bool  # whether clients have been assigned by the distance of outputs
    answers: Tensor  # [clients] int64: how often each was asked for a random answer
    counted: int  # shared rounds that counted: see `common_start`

    @staticmethod
    def first(centres: Tree, member: Tensor, clients: tuple[Client, ...], classes: int) -> State:
        """Nobody has told anything, and nothing was merged."""
        k, none = len(next(iter(centres.values()))), torch.zeros(len(clients), dtype=torch.int64)
        labels = torch.zeros(len(clients), classes)
        return State(centres, member, clients, torch.arange(k), (), labels, False, {}, False, none, 0)

    def with_clusters(self, centres: Tree, member: dict[Client, int]) -> State:
        """Other models, and other clusters of some clients; what was merged goes on as a copy."""
        centres = {n: t[self.one_with.to(t.device)] for n, t in centres.items()}
        return replace(self, centres=centres, member=self.moved(list(member), where(member)))

    def labels_of(self, who: Sequence[Client]) -> Tensor:
        """The label distributions of some clients, in the order they are named."""
        return self.labels.cpu()[self.places(who)]

    def has_labels(self, who: Sequence[Client]) -> list[bool]:
        """Of which of them the label distribution is known."""
        known: list[bool] = self.labels_of(who).any(1).tolist()
        return known
