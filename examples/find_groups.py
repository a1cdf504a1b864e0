"""Clients of two kinds, whose labels contradict each other: FeSEM finds who belongs together.

python examples/find_groups.py
"""

import numpy as np
from torch import nn

import kinfolk


def clients() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Eight clients; where one kind says 1, the other says 0."""
    draw = np.random.default_rng(0)
    found = {}
    for i in range(8):
        x = draw.normal(size=(60, 4)).astype("float32")
        y = (x[:, 0] > 0).astype("int64")
        found[f"client-{i}"] = (x, 1 - y if i % 2 else y)
    return found


def main() -> None:
    """One model for all fails; with two groups everybody has a model that fits."""
    print(kinfolk.compare(lambda: nn.Linear(4, 2), clients(), ["fedavg", "fesem,k=2"], rounds=8, seeds=2))


if __name__ == "__main__":
    main()
