"""What hiding models costs SLFed: requests that are served, and the accuracy that comes of it.

With plain sums every request is served. With a scheme that hides, a model is part of one sum in a round; a
sum is passed on to its members (docs/privacy/secret-shares.md).

    python benchmarks/secure_sums.py digits --seeds 0 1 2 --set algorithm.images.kind=means
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kinfolk.algorithms.slfed.slfed import SLFed
from kinfolk.contract import toy
from kinfolk.experiment.build import build_parts
from kinfolk.experiment.spec import load, override
from kinfolk.script import Exchange, play
from kinfolk.shares.effective_members import effective_members
from kinfolk.shares.session import SecureSumSession
from kinfolk.streams import RoundContext


def trial(path: Path, settings: list[str], shares: str, seed: int, min_members: int) -> dict[str, Any]:
    """One run: shares of clients and requests by what became of them, and mean accuracy in %."""
    chosen = ["algorithm.name=slfed", f"algorithm.shares.scheme={shares}", f"run.seed={seed}", *settings]
    spec = override(load(path), [*chosen, f"algorithm.shares.min_members={min_members}"])
    parts = build_parts(spec)
    algorithm, names = parts.algorithm, parts.federation.clients
    assert isinstance(algorithm, SLFed)
    count = dict.fromkeys(("client_rounds", "requests", "own_sum", "passed_on", "uneven"), 0)
    with toy.coordinated(algorithm, parts.federation, "batched") as coordinator:
        memories = coordinator.engine.memories
        state = algorithm.init(parts.learner.first, names, parts.seed)
        for number in range(spec.run.rounds):
            context = RoundContext(parts.seed, number, names)

            def act(request: Any, context: RoundContext = context) -> Any:
                before = {who: memories[who].get("pam") for who in names}
                answer = coordinator.perform(request, context)
                if isinstance(request, Exchange) and request.swap == "opinions":
                    for who in names:
                        asked = memories[who]["asked"]
                        weights = asked["sigma"][asked["mask"]].tolist()
                        count["client_rounds"] += 1
                        count["requests"] += len(weights) >= min_members
                        count["uneven"] += (
                            len(weights) >= min_members and effective_members(weights) < min_members
                        )
                if isinstance(request, Exchange) and request.swap in ("responses", "results"):
                    kind = "own_sum" if request.swap == "responses" else "passed_on"
                    new = [who for who in names if memories[who]["pam"] is not before[who]]
                    count[kind] += len(new)
                return answer

            state, _ = play(algorithm.round(state, names, context), act)
        scores = toy.scores_of(
            algorithm, state, coordinator, RoundContext(parts.seed, spec.run.rounds, names), names
        )
    rows = parts.federation.splits["test"].counts().tolist()
    accuracy = {
        kind: 100 * float(np.mean([found[who][0] / n for who, n in zip(names, rows, strict=True)]))
        for kind, found in scores.items()
    }
    return {"shares": shares, "seed": seed, "min_members": min_members, **count, **accuracy}


def main() -> None:
    """Print one JSON line for each run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shares", nargs="+", default=["plain", "additive64"])
    parser.add_argument("--min-members", type=int, default=3)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    parser.add_argument("--own-only", action="store_true", help="sums are not passed on to their members")
    given = parser.parse_args()
    if given.own_only:
        SecureSumSession.pass_on = lambda self, memory: {}  # type: ignore[method-assign]
    torch.set_num_threads(1)
    for shares in given.shares:
        for seed in given.seeds:
            found = trial(given.config, given.settings, shares, seed, given.min_members)
            print(
                json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in found.items()}),
                flush=True,
            )


if __name__ == "__main__":
    main()
