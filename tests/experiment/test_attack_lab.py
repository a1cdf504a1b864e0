"""Planning of attacks, and what they do to whom: clusters of one's own, and the guard beside no guard."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_runs import SPEC, go

from kinfolk.experiment.attack_lab import Asked, planned
from kinfolk.experiment.record import read_audit, read_rounds, read_scores
from kinfolk.experiment.spec import override
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.federation.sources import build
from kinfolk.streams import Seed
from kinfolk.types import Client

TEN = override(SPEC, ["data.clients=10"])


def plan(*methods, **asked):
    return planned(TEN, Asked(methods, **asked), (0, 4), build(TEN.data, Seed(0)))


def test_where_nobody_attacks_attacks_share_a_run_and_a_trigger_has_one_of_its_own():
    given = {"attacks": ("noise", "scaled", "backdoor"), "defences": ("mean",), "shares": (0.0, 0.2, 0.5)}
    cells, runs = plan("fedavg", **given)
    assert [(c.attack, c.attackers) for c in cells] == [
        ("none", 0), ("noise", 2), ("noise", 5), ("scaled", 2), ("scaled", 5),
        ("backdoor", 0), ("backdoor", 2), ("backdoor", 5),
    ]  # fmt: skip
    assert len(runs) == 2 * len(cells)
    assert {seed for _, seed in runs.values()} == {0, 4}
    assert sorted(name for cell in cells for name in cell.runs) == sorted(runs)


def test_krum_and_trimming_know_how_many_attack_and_krum_ends_at_its_limit():
    given = {"attacks": ("noise",), "defences": ("krum", "trimmed"), "shares": (0.0, 0.3, 0.4)}
    cells, runs = plan("fedavg", **given)
    told = {(c.defence, c.attackers): c for c in cells}
    krum = runs[told["krum", 3].runs[0]][0].spec.algorithm.options
    assert (krum["aggregate.name"], krum["aggregate.attackers"]) == ("krum", 3)
    # Ten clients: 2 f + 3 of them for f = 3, not for f = 4.
    assert told["krum", 4].refused.endswith("krum needs 11 members in a group, not 10")
    assert not told["krum", 4].runs
    trims = [runs[told["trimmed", f].runs[0]][0].spec.algorithm.options for f in (0, 3, 4)]
    assert [one["aggregate.trim"] for one in trims] == [0.1, 0.3, 0.4]


def test_what_a_method_does_not_offer_is_refused_and_not_run():
    cells, runs = plan("local", attacks=("noise",), defences=("mean", "median"), shares=(0.2,))
    assert [(c.defence, c.refused) for c in cells] == [("mean", ""), ("median", "offers no aggregation rule")]
    assert len(runs) == 2


def test_without_the_guard_its_limits_are_off():
    _, runs = plan("fedavg", attacks=("absurd",), defences=("mean", "unguarded"), shares=(0.1,))
    limits = sorted((one.spec.guard.norm, one.spec.guard.rows) for one, _ in runs.values())
    assert limits == [(0, 0), (0, 0), (100, 50), (100, 50)]


def kinds(turned, names="abcdefgh"):
    """Clients with one task, or with labels turned by one."""
    draw = np.random.default_rng(0)
    middles = draw.normal(size=(4, 6)) * 3
    sets = {}
    for name, turn in zip(names, turned, strict=True):
        y = draw.integers(0, 4, 48)
        sets[Client(name)] = (middles[y] + draw.normal(size=(48, 6)), (y + turn) % 4)
    rows, test = (
        {c: (x[part], y[part]) for c, (x, y) in sets.items()} for part in (slice(24), slice(24, 48))
    )
    return from_arrays(rows, test=test, classes=4)


@pytest.mark.parametrize("method", ["fesem", "robust"])
def test_attackers_with_a_cluster_of_their_own_hurt_nobody(tmp_path, method):
    """With a group to spare: the honest end where they end when attackers are not there at all."""
    federation = kinds([0, 0, 0, 1, 1, 1, 0, 1])
    changes = [f"algorithm.name={method}", "algorithm.k=3", "run.rounds=12", "run.evaluate_every=12"]
    attack = ["run.attack=own_cluster", "run.attackers=0.25"]
    end = go(tmp_path / "bad", *changes, *attack, federation=federation)
    last = read_rounds(tmp_path / "bad")[-1]
    assert last["groups"]["mixed"] == 0
    clean = go(tmp_path / "clean", *changes, federation=federation)
    scores = [read_scores(tmp_path / name).set_index("client") for name in ("clean", "bad")]
    honest = sorted(set(scores[1].index))
    assert len(honest) == 6
    found = [
        s[(s["score"] == "accuracy") & (s["round"] == s["round"].max())]["value"].loc[honest] for s in scores
    ]
    assert found[1].mean() > found[0].mean() - 0.05
    assert end.rounds == clean.rounds


def test_one_absurd_reply_is_all_there_is_without_the_guard_and_nothing_with_it(tmp_path):
    changes = ["data.clients=8", "run.rounds=4", "run.attack=absurd", "run.attackers=0.125"]
    free = go(tmp_path / "free", *changes, "guard.norm=0")
    held = go(tmp_path / "held", *changes)
    sizes = [max(float(t.abs().max()) for t in end.state.model.values()) for end in (free, held)]
    # An eighth of 9e17, which steps of training do not undo.
    assert sizes[0] == pytest.approx(9e17 / 8, rel=0.2)
    assert sizes[1] < 10
    (line,) = [line for line in read_audit(tmp_path / "held") if line["event"] == "rejected"]
    assert (line["round"], "update of model" in line["reason"]) == (2, True)
    assert not [line for line in read_audit(tmp_path / "free") if line["event"] == "rejected"]
    assert all(torch.isfinite(t).all() for t in held.state.model.values())
