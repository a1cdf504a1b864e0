"""The `[data]` table of an experiment file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DataSpec:
    """Which data, dealt to whom. One field per key of the `[data]` table.

    >>> DataSpec(clients=8).rows
    60
    """

    # Where rows come from: a name in `SOURCES`.
    name: str = "digits"
    # Number of clients.
    clients: int = 24
    # Training rows of each client; their mean when `ragged` is above 0.
    rows: int = 60
    # Number of known groups; without a shift all clients are one group whatever stands here.
    groups: int = 4
    # What sets the groups apart: a name in `GROUPS` ("none", "rotation").
    shift: str = "rotation"
    # How labels are dealt to the clients of a group: a name in `PARTITIONS` ("iid", "dirichlet").
    partition: str = "dirichlet"
    # Concentration of the Dirichlet law: the smaller, the fewer classes a client sees.
    alpha: float = 100.0
    # What `alpha` counts: "total", shared out over the classes (alpha / C each), or "each" class.
    alpha_means: str = "total"
    # Which rows a client is tested on: a name in `TEST_LAWS` ("local", "group", "global").
    test: str = "group"
    # Fraction of a client's training rows held out for validation.
    valid: float = 0.0
    # Fraction of the pool kept for tests; under "local" also test rows per training row.
    test_fraction: float = 0.25
    # Spread of the number of rows per client (sigma of a log-normal law); 0: all equal.
    ragged: float = 0.0
    # Seed of the data; -1: the seed of the run.
    seed: int = -1
