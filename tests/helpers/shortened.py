"""Options by which every algorithm plays rounds of a fraction of a second on a tiny federation."""

from __future__ import annotations

# Starts that leave some rounds to play.
STARTS = {
    **{name: ["algorithm.start.warm_epochs=1"] for name in ("fesem", "fesem_ma", "fesem_shared", "mdicfl")},
    "robust": ["algorithm.first_epochs=1"],
    "hypcluster": [],
}
SHORT = {name: [*more, "run.rounds=4"] for name, more in STARTS.items()}
# What clients show to one another is searched for; noise is not.
NOISE = ["algorithm.images.kind=noise", "algorithm.images.count=20"]
LIGHT = {
    **SHORT,
    "fesem_ma": [*SHORT["fesem_ma"], "model.name=mlp"],
    "mdicfl": [*SHORT["mdicfl"], "algorithm.pseudo.samples=2", "algorithm.search.iterations=4"],
    "slfed": [*NOISE, "run.rounds=4"],
    "slfed_similar": [*NOISE, "run.rounds=4"],
}
