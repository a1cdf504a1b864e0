"""How many groups are there among the clients, and to which does a newcomer belong?"""

import numpy as np
from torch import nn

import kinfolk

draw = np.random.default_rng(0)


def client(kind: int) -> tuple[np.ndarray, np.ndarray]:
    """Sixty rows whose label is the sign of the first or of the second feature."""
    x = draw.normal(size=(60, 2)).astype("float32")
    return x, (x[:, kind] > 0).astype("int64")


def network() -> nn.Module:
    """The same for everyone."""
    return nn.Linear(2, 2)


clients = {f"site-{i}": client(i % 2) for i in range(8)}
choice = kinfolk.choose_k(network, clients, ks=[1, 2, 3], rounds=2, seeds=2)
print(choice)

done = kinfolk.run(network, clients, "fesem,k=2", rounds=10)
print(kinfolk.assign(done.folder, {"ann": client(0), "bob": client(1)}, network=network))
