"""Half of the clients ride free: they are sent a model of their own, and send it back but for rounding."""

from __future__ import annotations

from small_runs import go

from kinfolk.experiment.conduct_files import read_conduct
from kinfolk.experiment.record import read_audit

RUN = ["algorithm.name=fesem", "algorithm.k=3", "data.clients=12", "data.groups=2", "run.rounds=9"]


def test_nobody_honest_is_refused_because_half_stand_still(tmp_path):
    go(tmp_path / "r", *RUN, "run.attack=own_cluster", "run.attackers=0.5")
    *_, (_, last) = read_conduct(tmp_path / "r")
    still = last["length"] < 1e-6 * last["sent"]
    assert still.sum() == 6, "the attack works: they do stand still"
    assert [x for x in read_audit(tmp_path / "r") if x["event"] == "rejected"] == []
