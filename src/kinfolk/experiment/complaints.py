"""What clients could not use of one another's letters, for the audit log of whoever simulates them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kinfolk.script import Complains
from kinfolk.types import Client, Message


def complaints(
    algorithm: object, memories: Mapping[Client, Message], clients: tuple[Client, ...]
) -> Iterator[dict[str, Any]]:
    """Client, peer and reason of each; only out of memories that are held in this process.

    >>> list(complaints(None, {}, ()))
    []
    """
    if isinstance(algorithm, Complains):
        for who in sorted(memories):
            for peer, reason in algorithm.complaints(memories[who], clients).items():
                yield {"client": who, "peer": peer, "reason": reason}
