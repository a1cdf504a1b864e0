"""Limits of the algorithms, tried from both sides: a limit that were twenty times as wide would be seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from turned import turned

from kinfolk.algorithms.fesem.fesem import FeSEM
from kinfolk.algorithms.mdicfl.mdicfl import MDICFL
from kinfolk.contract import toy
from kinfolk.script import play
from kinfolk.streams import RoundContext, Seed
from kinfolk.types import Stack


@pytest.mark.parametrize(("total", "fine"), [(0.98, False), (0.9995, True), (1.0005, True), (1.02, False)])
def test_a_label_distribution_may_miss_one_by_a_rounding_and_no_more(total, fine):
    federation, _ = turned(3)
    method = MDICFL(toy.learner("mlp", federation), k=3)
    state = replace(method.init(method.learner.first, federation.clients, Seed(0)), shape=(1, 8, 8))
    odd = federation.clients[5]
    labels = torch.tensor([0.4, 0.3, 0.2, 0.1])
    told = {c: (1, {"labels": labels * total if c == odd else labels}) for c in federation.clients}
    new, facts = play(method.hear(state, federation.clients), lambda request: Stack.of(told))
    assert facts["bad_labels"] == ([] if fine else [odd])
    assert new.has_labels(federation.clients) == [c != odd or fine for c in federation.clients]


@pytest.mark.parametrize(
    ("change", "calm"), [(0.0, 4), (5e-5, 4), (-5e-5, 4), (1e-3, 0), (-1e-3, 0), (0.3, 0)]
)
def test_a_spread_has_settled_when_it_changes_by_less_than_a_ten_thousandth(change, calm):
    federation, _ = turned(3)
    learner = toy.learner("mlp", federation)
    method = FeSEM(learner, k=2, reseed_after=0, patience=4)
    state = method.init(learner.first, federation.clients, Seed(0))
    who, name = federation.clients, method.names[0]
    centres = {n: t.clone() for n, t in state.centres.items()}
    centres[name][1] += 100.0  # far away: everybody stays with the first
    member = torch.zeros(len(who), dtype=torch.int64)
    state = replace(state, centres=centres, member=member, split=True, rows=1.0, spread=1.0, stable_rounds=3)
    # A model lies at a squared distance of 1 + change from the centre, so the spread becomes that.
    model = {n: t[0].clone() for n, t in centres.items()}
    model[name].view(-1)[0] += (1 + change) ** 0.5
    sent = Stack.of({c: (1, {"model": model}) for c in who})

    def answer(request):
        return request.fold.end(request.fold.add(request.fold.begin(), sent))

    new, facts = play(method.round(state, who, RoundContext(Seed(0), 1, who)), answer)
    assert facts["spread"] == pytest.approx(1 + change, abs=1e-5)
    assert new.member.tolist() == [0] * len(who)
    assert new.stable_rounds == calm
    assert bool(method.finished(new)) == (calm == 4)
