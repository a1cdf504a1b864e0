"""Comparisons out of thin air in which methods have groups, and a choice of K: for reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from kinfolk.experiment.record import CLIENT_FACTS, Records, write_json, write_text

GROUPS = 3
SPEC = '[data]\nname = "digits"\nclients = 12\nalpha = 1.0\n[run]\nrounds = 6\nsplit = "test"\n'
LEVELS = {"local": 0.6, "fedavg": 0.5, "fesem k=3": 0.8, "ifca k=3": 0.75}


def make_grouped(
    folder: Path,
    titles: Sequence[str] = ("local", "fedavg", "fesem k=3", "ifca k=3"),
    seeds: int = 2,
    clients: Sequence[str] = tuple(f"client-{i:02d}" for i in range(12)),
    rounds: int = 6,
    status: str = "finished",
    **facts: Any,
) -> Path:
    """Write a comparison; methods with `k=` have groups, in which two clients start in a wrong one."""
    names = []
    for title in titles:
        for seed in range(seeds):
            names.append(f"{title.replace(' ', '-')}-seed{seed}")
            _run(folder / names[-1], title, seed, clients, rounds, status, facts)
    write_json(folder / "compare.json", {"runs": names})
    return folder


def _run(
    folder: Path,
    title: str,
    seed: int,
    clients: Sequence[str],
    rounds: int,
    status: str,
    facts: dict[str, Any],
) -> None:
    records, many = Records(folder), len(clients)
    rng = np.random.default_rng([seed, *title.encode()])
    skill, known = rng.normal(0, 0.05, many), np.arange(many) % GROUPS
    grouped, before = "k=" in title, known.copy()
    level = LEVELS.get(title, 0.55)
    for round in range(rounds + 1):
        now = np.where((np.arange(many) < 2) & (round < 3), (known + 1) % GROUPS, known)
        values = (level * (1 - np.exp(-(round + 0.5) / 2)) + skill + rng.normal(0, 0.01, many)).clip(0, 1)
        parts = [
            pd.DataFrame({
                "client": list(clients), "model": "centre", "split": "test", "score": score,
                "value": values if score == "accuracy" else 2 - values, "rows": 20,
                "group": now if grouped else None, "margin": 0.5 if grouped else None,
            })
            for score in ("accuracy", "loss")
        ]  # fmt: skip
        records.write_scores(round, pd.concat(parts, ignore_index=True))
        records.append_round(round, _fact(round, many, title, now, before, clients))
        before = now
    write_text(folder / "spec.toml", SPEC)
    columns = {"rows": np.full(many, 60.0), "known group": known.astype(float), "label 0": skill}
    tidy = [pd.DataFrame({"client": list(clients), "fact": k, "value": v}) for k, v in columns.items()]
    pd.concat(tidy).to_parquet(folder / CLIENT_FACTS, index=False)
    federation = {"name": "digits, rotated", "clients": many, "rows": 60 * many, "fingerprint": f"f{seed}"}
    told = {"algorithm": title.split()[0], "title": title, "seed": seed, "status": status}
    told |= {"federation": federation, "model": {"name": "mlp", "parameters": 4810}, "engine": "loop"}
    write_json(folder / "run.json", {**told, "versions": {"kinfolk": "0.1.0"}, **facts})


def _fact(round: int, many: int, title: str, now: Any, before: Any, clients: Sequence[str]) -> dict[str, Any]:
    fact: dict[str, Any] = {
        "round": round,
        "summary": {"centre": {"accuracy": {}, "loss": {}}},
    }
    if round == 0:
        return {**fact, "bytes": {}, "seconds": {"score.centre": 0.1}}
    fact["cohort"] = many
    fact["seconds"] = {"update": 1.0, "server": 0.25, "score.centre": 0.5}
    sent = {} if title == "local" else {"update": {"down": 1e6 * many, "up": 2e6 * many}}
    fact["bytes"] = {**sent, "score.centre": {"down": 5e6 * many}}
    if "k=" in title:
        moved = np.flatnonzero(now != before) if round > 1 else np.arange(many)
        fact["groups"] = {"ari": float(np.mean(now == np.arange(many) % GROUPS)), "switch": len(moved) / many}
        fact["groups"]["moved"] = {clients[i]: [int(before[i]), int(now[i])] for i in moved}
    return fact


def make_choice(folder: Path) -> Path:
    """Write what `kinfolk choose-k` leaves behind."""
    rows = [
        {
            "k": k,
            "score": {"seeds": [0.5 + 0.1 * min(k, 3), 0.52 + 0.1 * min(k, 3)], "mean": 0.5, "std": 0.01},
            "gain": {},
            "spread": None,
            "silhouette": {"seeds": [0.1 * k, 0.12 * k], "mean": 0.1},
            "stability": None if k == 1 else 0.9,
            "chance": None if k == 1 else 0.1,
        }
        for k in (1, 2, 3, 4)
    ]
    facts = {"rows": rows, "recommended": 3, "confidence": "high", "reason": "3 groups.", "score": "accuracy"}
    facts |= {"seeds": [0, 1], "notes": [], "algorithm": "fesem", "clients": 12, "of": 12, "rounds": 3}
    write_json(folder / "choose-k.json", {**facts, "counted": [3, 3], "federation": "digits"})
    return folder
