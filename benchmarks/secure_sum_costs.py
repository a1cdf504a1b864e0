"""What a secure sum costs: bytes and seconds of one mean, by the number of clients and the scheme.

Clients do not train here: what is measured is the time from models that are there to their mean, all clients
one after another in one process, and the bytes that requests and exchanges send. A client's share of the
seconds is what its own machine would take; the rest is the server's.

    python benchmarks/secure_sum_costs.py --clients 8 16 32 64 --numbers 62500
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from kinfolk.engines.choose import make
from kinfolk.engines.coordinator import Coordinator
from kinfolk.engines.memory import Memories
from kinfolk.engines.spec import EngineSpec
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.fold import Mean
from kinfolk.script import Ask, Exchange, Request
from kinfolk.secure_sums.asking import Asking
from kinfolk.secure_sums.holding import LOG, armed, first_memory, summed_trees
from kinfolk.secure_sums.member import exchanges
from kinfolk.secure_sums.spec import SecureSumsSpec
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Task


def trial(clients: int, numbers: int, scheme: str, repeats: int) -> dict[str, float]:
    """Megabytes up and across, seconds of a client, of the server and of plain means; the largest error."""
    rows = {f"c{i:04}": (np.zeros((4, 1)), np.zeros(4, dtype=int)) for i in range(clients)}
    federation = from_arrays(rows, test=rows, classes=2)
    model = {"w": torch.zeros(numbers)}
    start = lambda message, memory, facts: {"model": message["model"], "rows": facts.rows}  # noqa: E731
    task = Task(start, lambda carry: ({"model": carry["model"]}, None), reply={"model": model})
    spec, plain = SecureSumsSpec(scheme), {"update": task}
    secure = scheme != "off"
    table: Any = {**armed(plain, plain, clients, 2.0**14), **exchanges(spec)} if secure else plain
    memories = Memories(first_memory(lambda who: {}), (LOG,) if secure else ())
    engine = make(EngineSpec("loop", "cpu"), federation, table, memories)
    stage, best, apart = Coordinator(engine, federation=federation), [float("inf")] * 2, 0.0
    asking = Asking(spec, summed_trees(plain, plain) if secure else {})
    for number in range(repeats):
        sent = {"w": torch.from_numpy(Seed(number).numpy("w").normal(size=numbers)).float()}
        context, spent = RoundContext(Seed(0), number, federation.clients), {"clients": 0.0}

        def perform(request: Request, context: RoundContext = context, spent: Any = spent) -> Any:
            began = time.perf_counter()
            found = stage.perform(request, context)
            mine = isinstance(request, Exchange) or request.task != "update"
            spent["clients"] += (time.perf_counter() - began) * mine
            return found

        stage.begin()
        began = time.perf_counter()
        ask = Ask("update", federation.clients, {"model": sent}, None, Mean("model", model))
        mean = asking.around(perform, context)(ask)
        whole = time.perf_counter() - began
        best = min(best, [spent["clients"] / clients, whole - spent["clients"]])
        apart = max(apart, float((mean["w"].double() - sent["w"].double()).abs().max()))
    ways = [way for kind in stage.ledger.bytes.values() for way in kind.items()]
    up, across = (sum(n for way, n in ways if way == name) / repeats / 1e6 for name in ("up", "across"))
    return {"up": up, "across": across, "client": best[0], "server": best[1], "error": apart}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--numbers", type=int, default=62_500, help="in a model: 62,500 are 250 kB")
    parser.add_argument("--schemes", nargs="+", default=["off", "additive64", "shamir61"])
    parser.add_argument("--repeats", type=int, default=3, help="the fastest counts")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| clients | scheme | MB up | MB across | ms of a client | ms of the server | largest error |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for clients in options.clients:
        for scheme in options.schemes:
            got = trial(clients, options.numbers, scheme, options.repeats)
            sizes = f"{got['up']:.2f} | {got['across']:.2f}"
            times = f"{1e3 * got['client']:.1f} | {1e3 * got['server']:.0f}"
            print(f"| {clients} | {scheme} | {sizes} | {times} | {got['error']:.1e} |", flush=True)


if __name__ == "__main__":
    main()
