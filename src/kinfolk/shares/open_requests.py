"""The requests of others that a client has taken up, in memory that grows with them and not with peers."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from kinfolk.types import Tree


@dataclass(frozen=True)
class OpenRequests:
    """Lists, weights and reports by requester, in tensors [entries] that are part of a memory.

    An entry is a member on a requester's list; entries are sorted by the requester's place among all peers,
    then by the member's.

    >>> taken = OpenRequests(none_open()).admitted(2, [0, 1], (0.5, 0.25))
    >>> taken.requesters, taken.of(2), taken.without(2).requesters
    ([2], ([0, 1], (0.5, 0.25)), [])
    """

    tree: Tree

    @property
    def requesters(self) -> list[int]:
        """Whose requests are open, sorted."""
        return sorted(set(self.tree["of"].tolist()))

    def of(self, requester: int) -> tuple[list[int], tuple[float, ...]]:
        """The places of the members on a list, and their weights; nobody where no request is open."""
        here = self._at(requester)
        return self.tree["member"][here].tolist(), tuple(self.tree["sigma"][here].tolist())

    def may_go(self, requester: int) -> bool:
        """Whether a request may be answered."""
        return bool(self.tree["go"][self._at(requester)].any())

    def lost(self, requester: int, peers: int) -> Tensor:
        """Whose shares for a request are missing or bad, [peers] of bool."""
        lost = torch.zeros(peers, dtype=torch.bool)
        lost[self.tree["member"][self._at(requester) & self.tree["lost"]]] = True
        return lost

    def admitted(self, requester: int, members: Collection[int], sigma: Collection[float]) -> OpenRequests:
        """With a request of a requester that has none open; not to be answered yet."""
        no = torch.zeros(len(members), dtype=torch.bool)
        new = {
            "of": torch.full((len(members),), requester),
            "member": torch.tensor(list(members), dtype=torch.int64),
            "sigma": torch.tensor(list(sigma), dtype=torch.float64),
            **{"lost": no, "go": no},
        }
        order = torch.cat([self.tree["of"], new["of"]]).sort(stable=True)[1]
        return OpenRequests({key: torch.cat([leaf, new[key]])[order] for key, leaf in self.tree.items()})

    def without(self, requester: int) -> OpenRequests:
        """Without the request of one requester."""
        left = ~self._at(requester)
        return OpenRequests({key: leaf[left] for key, leaf in self.tree.items()})

    def going(self, requester: int, go: bool) -> OpenRequests:
        """With leave to answer a request, or without."""
        return self._with("go", requester, torch.tensor(go))

    def losing(self, requester: int, members: Collection[int]) -> OpenRequests:
        """With a report of whose shares for a request are missing or bad."""
        lost = torch.isin(self.tree["member"], torch.tensor(list(members), dtype=torch.int64))
        return self._with("lost", requester, lost)

    def _with(self, key: str, requester: int, value: Tensor) -> OpenRequests:
        return OpenRequests({**self.tree, key: torch.where(self._at(requester), value, self.tree[key])})

    def _at(self, requester: int) -> Tensor:
        return self.tree["of"] == requester


def none_open() -> Tree:
    """What "open" holds while no request is.

    >>> none_open()["go"]
    tensor([], dtype=torch.bool)
    """
    places, flags = torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.bool)
    sigma = torch.zeros(0, dtype=torch.float64)
    return {"of": places, "member": places, "sigma": sigma, "lost": flags, "go": flags}
