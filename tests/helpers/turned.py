"""A small federation whose groups are known."""

import torch

from kinfolk.contract import toy
from kinfolk.federation.federation import Federation
from kinfolk.streams import Seed
from kinfolk.types import Client


def turned(groups: int, seed: int = 6) -> tuple[Federation, torch.Tensor]:
    """Twelve clients whose names tell nothing, the labels of group g turned by g; and the true groups."""
    order = Seed(seed).numpy("names").permutation(12)
    names, turns = tuple(Client(f"c{i:02}") for i in order), [i % groups for i in range(12)]
    federation = toy.grouped((24,) * 12, side=8, noise=0.3, names=names, turned=turns)
    truth = dict(zip(names, turns, strict=True))
    return federation, torch.tensor([truth[c] for c in federation.clients])
