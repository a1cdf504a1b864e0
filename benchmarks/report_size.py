"""How long a report takes, what memory, and how large the page is, on record folders made for it.

    python benchmarks/report_size.py --out /tmp/sizes

Each report is written by a process of its own. With a browser (Debian's chromium, and playwright) also how
long it takes until the page answers.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from kinfolk.experiment.record import CLIENT_FACTS, Records, write_json, write_text

BROWSER = "/usr/bin/chromium"
# What a classification run of each method scores: its models, and whether it has groups.
METHODS = {
    "local": (("personal",), 0.62),
    "fedavg": (("centre",), 0.7),
    "fedavg_tuned": (("centre", "fine-tuned"), 0.76),
    "fedprox": (("centre",), 0.71),
    "ifca": (("centre",), 0.8),
    "fesem": (("centre", "personal", "fine-tuned"), 0.82),
}
SCORES = ("accuracy", "macro_f1", "top5", "loss")
GROUPS, GROUPED = 4, ("ifca", "fesem")


@dataclass(frozen=True)
class Size:
    """What is reported on."""

    name: str
    clients: int
    rounds: int
    every: int  # rounds between evaluations
    methods: tuple[str, ...]
    seeds: int


# What a report takes, and with how many decimals it is told.
DIGITS = {"seconds": 1, "cpu": 1, "GiB": 2, "MB": 1}
SIZES = (
    Size("1,000 clients", 1_000, 100, 1, tuple(METHODS), 3),
    Size("100,000 clients", 100_000, 20, 5, ("local", "fedavg", "fesem"), 1),
    Size("24 clients", 24, 100, 1, tuple(METHODS), 3),
)


def make(size: Size, folder: Path) -> None:
    """Write the records of a comparison."""
    names = []
    for seed in range(size.seeds):
        for method in size.methods:
            title = f"{method} k={GROUPS}" if method in GROUPED else method
            names.append(f"{title.replace(' ', '-')}-seed{seed}")
            run(size, method, title, seed, folder / names[-1])
    write_json(folder / "compare.json", {"runs": names})


def run(size: Size, method: str, title: str, seed: int, folder: Path) -> None:
    rng = np.random.default_rng([seed, len(method)])
    records, (models, level) = Records(folder), METHODS[method]
    clients = np.array([f"client-{i:06d}" for i in range(size.clients)])
    skill, groups = rng.normal(0, 0.05, size.clients), rng.integers(0, GROUPS, size.clients)
    lines = []
    for round in range(size.rounds + 1):
        new = rng.integers(0, GROUPS, size.clients)
        moving = rng.random(size.clients) < (0.2 / (round + 1) if round else 0)
        before, groups = groups, np.where(moving, new, groups)
        if round % size.every == 0 or round == size.rounds:
            records.write_scores(round, scores(rng, clients, models, level, skill, round, groups, method))
        lines.append(fact(round, size, models, before, groups, clients, method))
    write_text(folder / "rounds.jsonl", "".join(json.dumps(line) + "\n" for line in lines))
    facts = {f"label {c}": rng.dirichlet(np.ones(size.clients)) for c in range(10)}
    facts |= {"rows": np.full(size.clients, 60.0), "known group": (groups + 1).astype(float)}
    tidy = pd.concat([pd.DataFrame({"client": clients, "fact": k, "value": v}) for k, v in facts.items()])
    tidy.to_parquet(folder / CLIENT_FACTS, index=False)
    write_text(folder / "spec.toml", f"[data]\nclients = {size.clients}\n[run]\nrounds = {size.rounds}\n")
    told = {
        "name": "made up",
        "clients": size.clients,
        "rows": 60 * size.clients,
        "classes": 10,
        "groups": GROUPS,
    }
    told["fingerprint"] = f"{size.clients}-{seed}"
    facts_of = {"algorithm": method, "title": title, "seed": seed, "status": "finished", "federation": told}
    write_json(folder / "run.json", {**facts_of, "reason": f"{size.rounds} rounds done"})


def scores(rng, clients, models, level, skill, round, groups, method):  # type: ignore[no-untyped-def]
    up = level * (1 - math.exp(-(round + 0.5) / 15))
    parts = []
    for model in models:
        accuracy = (up + skill + rng.normal(0, 0.02, len(clients))).clip(0, 1)
        values = {
            "accuracy": accuracy,
            "macro_f1": accuracy - 0.02,
            "top5": accuracy**0.3,
            "loss": 2 - 1.5 * accuracy,
        }
        same = {"client": clients, "model": model, "split": "test", "rows": 20}
        same |= {"group": groups if method in GROUPED else None, "margin": 0.5 if method == "fesem" else None}
        parts += [pd.DataFrame({**same, "score": name, "value": values[name]}) for name in SCORES]
    return pd.concat(parts, ignore_index=True).astype({"rows": "int64"})


def fact(round, size, models, before, groups, clients, method):  # type: ignore[no-untyped-def]
    n = size.clients
    line = {
        "round": round,
        "cohort": n,
        "answered": n,
        "summary": {m: {name: {} for name in SCORES} for m in models},
    }
    sent = {} if method == "local" else {"update": {"down": 40_000 * n, "up": 40_000 * n}}
    line["bytes"] = {**sent, "score.centre": {"down": 40_000 * n}}
    line["seconds"] = {"update": 1.5, "server": 0.2, "score.centre": 0.5}
    if method in GROUPED:
        moved = np.flatnonzero(before != groups)
        line["groups"] = {"ari": 1 - len(moved) / n, "switch": len(moved) / n, "sizes": {}}
        line["groups"]["moved"] = {str(clients[i]): [int(before[i]), int(groups[i])] for i in moved}
    return line if round else {**line, "bytes": {}, "seconds": {}}


def write(folder: Path, page: Path) -> None:
    """What a process of its own does: write the report and print what it took."""
    start, worked = time.perf_counter(), time.process_time()
    from kinfolk.report.page.write import write_report

    write_report([folder], page)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    took = {"seconds": time.perf_counter() - start, "cpu": time.process_time() - worked}
    print(json.dumps({**took, "GiB": peak, "MB": page.stat().st_size / 1e6}))


def opened(page: Path) -> float:
    """Seconds until a browser that opens the page answers to a pick; the best of three."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        times = []
        for _ in range(3):
            tab = browser.new_page(viewport={"width": 1440, "height": 900})
            start = time.perf_counter()
            tab.goto(page.as_uri())
            tab.wait_for_selector("html[data-ready]", state="attached")
            tab.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
            times.append(time.perf_counter() - start)
            tab.close()
        browser.close()
    return min(times)


def measured(sizes: tuple[Size, ...], out: Path) -> Iterator[str]:
    yield "| records | write, s | of it CPU, s | peak, GiB | page, MB | answers after, s |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for size in sizes:
        folder = out / f"{size.clients}"
        if not (folder / "compare.json").exists():
            make(size, folder)
        page = out / f"{size.clients}.html"
        call = [sys.executable, __file__, "--write", str(folder), "--page", str(page)]
        found = json.loads(subprocess.run(call, check=True, capture_output=True, text=True).stdout)
        browser = f"{opened(page):.1f}" if Path(BROWSER).exists() else "no browser"
        what = f"{size.name}, {size.rounds} rounds, {len(size.methods)} methods, {size.seeds} seeds"
        numbers = [f"{found[name]:.{digits}f}" for name, digits in DIGITS.items()]
        yield f"| {' | '.join([what, *numbers, browser])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/report-size"))
    parser.add_argument("--only", type=int, help="the size with so many clients")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--page", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write(given.write, given.page)
        return
    for line in measured(tuple(size for size in SIZES if given.only in (None, size.clients)), given.out):
        print(line, flush=True)


if __name__ == "__main__":
    main()
