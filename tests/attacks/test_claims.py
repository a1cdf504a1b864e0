"""Clients that claim 10^9 rows: what it does to a weighted mean, and what the guard leaves of it."""

from __future__ import annotations

import pytest
import torch
from small_runs import SPEC, digits, go

from kinfolk.errors import KinfolkError
from kinfolk.experiment.attack import attackers
from kinfolk.experiment.record import read_audit
from kinfolk.experiment.spec import override
from kinfolk.streams import Seed

DATA = ["data.clients=6", "data.rows=20", "run.rounds=1"]
RUN = [*DATA, "run.attack=many_rows", "run.attackers=0.34"]


@pytest.mark.parametrize("name", ["loop", "batched", "wire", pytest.param("workers", marks=pytest.mark.slow)])
def test_the_mean_is_that_of_the_attackers_or_with_the_guard_of_capped_weights(name, tmp_path):
    federation = digits(override(SPEC, DATA).data, 0)
    bad = attackers(federation.clients, 0.34, Seed(0))
    models, counts = [], federation.splits["train"].counts().tolist()
    for who in federation.clients:  # alone they train as they do among others
        models.append(go(tmp_path / who, *DATA, federation=federation.only(who)).state.model)
    free = go(tmp_path / "free", *RUN, f"engine.name={name}", "guard.rows=0")
    held = go(tmp_path / "held", *RUN, f"engine.name={name}")
    claimed = sorted(10**9 if c in bad else n for c, n in zip(federation.clients, counts, strict=True))
    cap = 10 * claimed[(len(claimed) - 1) // 2]
    for end, most in ((free, 10**9), (held, cap)):
        weights = [most if c in bad else n for c, n in zip(federation.clients, counts, strict=True)]
        for leaf, t in end.state.model.items():
            whole = sum(w * m[leaf].double() for w, m in zip(weights, models, strict=True)) / sum(weights)
            torch.testing.assert_close(t.double(), whole, rtol=1e-4, atol=1e-6)
    told = {x["client"]: x["reason"] for x in read_audit(tmp_path / "held") if x["event"] == "capped"}
    assert set(told) == bad
    assert all(reason.startswith("its 1000000000 rows count as 200,") for reason in told.values())


def test_where_no_model_is_weighed_by_rows_it_is_refused(tmp_path):
    with pytest.raises(KinfolkError, match=r"run.attack = 'many_rows': no model of this algorithm"):
        go(tmp_path, *RUN, "algorithm.name=local")
