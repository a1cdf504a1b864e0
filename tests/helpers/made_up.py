"""Run folders out of thin air: the same files a real run writes, without training and without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kinfolk.experiment.record import Records, write_json, write_text

# {model: {score: {round: (values per client)}}}
Values = Mapping[str, Mapping[str, Mapping[int, Sequence[float]]]]


def make_run(
    folder: Path,
    values: Values,
    title: str = "fedavg",
    seed: int = 0,
    rows: Sequence[int] | None = None,
    rounds: Sequence[Mapping[str, Any]] = (),
    audit: Sequence[Mapping[str, Any]] = (),
    spec: str = "",
    **facts: Any,
) -> Path:
    """Write a run folder whose clients are c00, c01, ... and whose scores are `values`."""
    records = Records(folder)
    for round in sorted({r for scores in values.values() for by in scores.values() for r in by}):
        columns: dict[str, list[Any]] = {
            k: [] for k in ("client", "model", "split", "score", "value", "rows")
        }
        for model, scores in values.items():
            for score, by in scores.items():
                for i, value in enumerate(by.get(round, ())):
                    line = (f"c{i:02d}", model, "test", score, value, rows[i] if rows is not None else 10)
                    for column, cell in zip(columns.values(), line, strict=True):
                        column.append(cell)
        records.write_scores(round, columns)
    for fact in rounds:
        records.append_round(fact["round"], fact)
    for line in audit:
        records.audit(**line)
    write_text(folder / "spec.toml", spec)
    told = {"algorithm": title.split()[0], "title": title, "seed": seed, "status": "finished", **facts}
    write_json(folder / "run.json", told)
    return folder


def make_comparison(
    folder: Path,
    titles: Mapping[str, float],
    seeds: int = 3,
    clients: int = 24,
    rounds: int = 20,
    score: str = "accuracy",
    models: Sequence[str] = ("centre",),
) -> Path:
    """Write a comparison that looks real: each title climbs to its level, a group of clients lags behind."""
    federation = {
        "name": "digits, rotated",
        "clients": clients,
        "rows": 60 * clients,
        "classes": 10,
        "groups": 4,
    }
    facts = [_fact(r, clients, models) for r in range(1, rounds + 1)]
    names = []
    for title, level in titles.items():
        for seed in range(seeds):
            rng = np.random.default_rng([seed, *title.encode()])
            names.append(f"{title.replace(' ', '-')}-seed{seed}")
            make_run(
                folder / names[-1],
                _climb(rng, level, clients, rounds, score, models),
                title,
                seed,
                rng.integers(8, 40, clients).tolist(),
                facts,
                federation={**federation, "fingerprint": f"data of seed {seed}"},
                model={"name": "mlp", "parameters": 4810},
                engine="loop: one client after the other",
                reason=f"{rounds} rounds done",
            )
    write_json(folder / "compare.json", {"runs": names})
    return folder


def _climb(
    rng: np.random.Generator, level: float, clients: int, rounds: int, score: str, models: Sequence[str]
) -> Values:
    skill = rng.normal(rng.normal(0, 0.012), 0.03, clients)
    skill -= 0.8 * (np.arange(clients) % 4 == 3) * (1.05 - level)
    up = {r: level * (1 - np.exp(-(r + 0.5) / (3 + 3 * level))) for r in range(rounds + 1)}
    curves: dict[str, dict[str, dict[int, Any]]] = {}
    for m, model in enumerate(models):
        drawn = {r: u + 0.02 * m + skill * u + rng.normal(0, 0.01, clients) for r, u in up.items()}
        error = score in ("mse", "mae", "loss")
        curves[model] = {
            score: {r: 4 * (1.05 - v) ** 2 + 0.01 if error else v.clip(0, 1) for r, v in drawn.items()}
        }
    return curves


def _fact(round: int, clients: int, models: Sequence[str]) -> dict[str, Any]:
    return {
        "round": round,
        "cohort": clients,
        "answered": clients,
        "seconds": {"update": 1.25, "score.centre": 0.5, "server": 0.25, "checkpoint": 2.0},
        "bytes": {
            "update": {"down": 1000 * clients, "up": 2000 * clients},
            "score.centre": {"down": 1000 * clients, "up": 16 * clients},
        },
        "summary": {model: {} for model in models},
    }
