"""Accuracy, perplexity and ARI against languages of every run in a folder of `kinfolk compare text/manuals`.

kinfolk compare text/manuals-small -a fedavg -a fesem_shared,k=8 --out runs/text
python benchmarks/text_table.py runs/text
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

import numpy as np
from sklearn.metrics import adjusted_rand_score

from kinfolk.experiment.record import read_scores


def languages_found(last) -> float:
    """ARI of groups against the languages that clients are named after; NaN where there are no groups."""
    known = last.drop_duplicates("client")
    if "group" not in known or known["group"].isna().all():
        return float("nan")
    return float(adjusted_rand_score([name[:2] for name in known["client"]], known["group"].astype(int)))


def main(folder: str) -> None:
    """Print one line of Markdown for each method and model, over its seeds."""
    found: dict[tuple[str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for run in sorted(Path(folder).glob("*-seed*")):
        scores = read_scores(run)
        last = scores[scores["round"] == scores["round"].max()]
        ari = languages_found(last)
        for model, part in last.groupby("model"):
            value = {name: part[part["score"] == name]["value"] for name in ("accuracy", "loss")}
            told = (100 * value["accuracy"].mean(), float(np.exp(value["loss"].median())), ari)
            found[run.name.rsplit("-seed", 1)[0], str(model)].append(told)
    print(
        "| method | model | accuracy in % | perplexity of the median client | ARI by seed |\n"
        + "| --- " * 5
        + "|"
    )
    for (name, model), seeds in found.items():
        accuracy, perplexity, ari = np.array(seeds).T
        spread = f" ± {accuracy.std(ddof=1):.1f}" if len(seeds) > 1 else ""
        groups = "" if np.isnan(ari).all() else ", ".join(f"{one:.2f}" for one in ari)
        print(f"| `{name}` | {model} | {accuracy.mean():.1f}{spread} | {perplexity.mean():.1f} | {groups} |")


if __name__ == "__main__":
    main(sys.argv[1])
