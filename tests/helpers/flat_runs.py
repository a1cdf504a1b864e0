"""Runs whose curves are flat and whose scores are planted, for rules that judge them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from kinfolk.report.read import Run

ROUNDS = (0, 3, 4)


def flat(
    title: str,
    seed: int,
    value: ArrayLike,
    *,
    clients: int = 12,
    rows: int = 1000,
    model: str = "",
    score: str = "accuracy",
    groups: Sequence[int] | None = None,
    before: float = 0.0,
    noise: float = 0.003,
    known: Sequence[float] | None = None,
    spec: dict[str, Any] | None = None,
    lines: Sequence[Any] = (),
    audit: Sequence[Any] = (),
    **facts: Any,
) -> Run:
    """A run that ends with `value` (of all clients, or of each) and had `before` less at three quarters."""
    draw = np.random.default_rng([seed, *title.encode()])
    own = np.broadcast_to(np.asarray(value, dtype=float), (clients,)) + noise * draw.normal(size=clients)
    columns: dict[str, Any] = {
        "round": np.repeat(ROUNDS, clients),
        "client": [f"c{i:02d}" for i in range(clients)] * len(ROUNDS),
        "value": np.concatenate([np.full(clients, 0.1), own - before, own]),
        "rows": rows,
        "score": score,
        "model": model or ("personal" if title == "local" else "centre"),
    }
    if groups is not None:
        columns["group"] = list(groups) * len(ROUNDS)
    run = Run.of({"title": title, "seed": seed, **facts}, columns, lines)
    run.__dict__.update(spec=spec or {}, audit=list(audit))
    if known is not None:
        names = [f"c{i:02d}" for i in range(clients)]
        run.__dict__["client_facts"] = pd.DataFrame({"known group": list(known)}, index=names)
    return run


def seeds(title: str, value: ArrayLike, many: int = 3, **more: Any) -> list[Run]:
    """The same with several seeds; what is a list of lists is one list for each."""
    return [
        flat(title, s, value, **{k: v[s] if k == "by_seed" else v for k, v in more.items()})
        for s in range(many)
    ]
