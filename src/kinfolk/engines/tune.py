"""A short trial before a long run: how many clients a call are fastest here.

Sizes alone decide for short runs, so that they begin at once and one machine always chooses the same. A run
that will take minutes first trains a few clients with several sizes of chunk; what it chose stands in its
records, and a resumed run keeps to it.
"""

from __future__ import annotations

import time

import torch

from kinfolk.engines.choose import Choice, make
from kinfolk.engines.memory import Memories
from kinfolk.federation.federation import Federation
from kinfolk.learning.learner import Learner
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import map_leaves

# Operations of a whole run beyond which a trial pays: about two minutes.
LONG = {"cpu": 1e13, "cuda": 1e16}
# A size that is not clearly faster is not worth other bits.
CLEARLY = 1.1
TIMES = (0.25, 0.5, 1, 2)
# What else is tried where clients have lanes of their own.
BESIDE_LANES = {(1, 8), (4, 3), (12, 1)}


def tuned(choice: Choice, federation: Federation, learner: Learner, work: float) -> Choice:
    """The choice with the chunk that trained the most clients a second, if the run is long enough to ask.

    `work` counts the operations of the whole run.
    """
    chosen = choice.engine.chunk, choice.engine.lanes
    if work < LONG[choice.device.type] or not chosen[0]:
        return choice
    count = len(federation.clients)
    # (clients a call, calls side by side)
    ways = {(max(1, int(chosen[0] * f)), 1) for f in TIMES} if chosen[1] == 1 else BESIDE_LANES
    ways = {way for way in ways if way[0] <= count} | {chosen}
    most = max(chunk * lanes for chunk, lanes in ways) * choice.engine.processes
    rates = {
        (chunk, lanes): _rate(choice.but(chunk=chunk, lanes=lanes), federation, learner, most)
        for chunk, lanes in sorted(ways)
    }
    best = max(rates, key=rates.__getitem__)
    if rates[best] < CLEARLY * rates[chosen]:
        best = chosen
    tried = ", ".join(
        f"{chunk}{f' in {lanes} lanes' if lanes > 1 else ''}: {rate:.3g}"
        for (chunk, lanes), rate in rates.items()
    )
    why = f"{choice.why}; clients a second by clients a call: {tried}"
    return choice.but(why, chunk=best[0], lanes=best[1])


def _rate(choice: Choice, federation: Federation, learner: Learner, count: int) -> float:
    """Clients trained in a second, after a round that warms up; 0 if it does not fit."""
    who = federation.clients[:count]
    engine = make(choice.engine, federation, {"try": learner.train()}, Memories(lambda who: {}))
    model = {"model": learner.first}
    request: Ask[None] = Ask("try", who, map_leaves(lambda t: t.to(choice.device), model))
    seconds = 0.0
    try:
        for number in range(2):
            began = time.perf_counter()
            for _ in engine.replies(request, RoundContext(Seed(0), number, federation.clients)):
                pass
            if choice.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - began
    except torch.OutOfMemoryError:
        return 0.0
    finally:
        engine.close()
    return len(who) / seconds
