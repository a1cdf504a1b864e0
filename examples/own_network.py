"""Your own network and clients: is one model for everyone good enough?"""

import numpy as np
from torch import nn

import kinfolk

draw = np.random.default_rng(0)
clients = {}
for i in range(8):  # two kinds of clients, who disagree about the labels
    x = draw.normal(size=(80, 4)).astype("float32")
    clients[f"hospital-{i}"] = (x, (x[:, i % 2] > 0).astype("int64"))

table = kinfolk.compare(
    lambda: nn.Linear(4, 2), clients, ["local", "fedavg", "ifca,k=2"], rounds=10, seeds=2, folder="runs/own"
)
print(table)
print("figure:", table.figure("own.png"))

# The same from the folder alone, later or on another machine.
for run in kinfolk.load_runs("runs/own"):
    print(run.title, run.seed, run.models)
