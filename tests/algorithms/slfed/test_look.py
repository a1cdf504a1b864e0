"""What SLFed shows of a round: what lies in its clients' memories, in less."""

from __future__ import annotations

import numpy as np
from film import EASY, learner, nine, past, slfed

from kinfolk.algorithms.slfed import look
from kinfolk.script import Shows
from kinfolk.streams import RoundContext, Seed


def test_it_shows_uncertainty_lists_and_opinions_of_the_round(monkeypatch):
    film, clients = past(), nine().clients
    method = slfed(learner(), **EASY)
    assert isinstance(method, Shows)
    context = RoundContext(Seed(0), film.rounds - 1, clients)
    shown = method.shows(film.state, film.memories, None, context)
    trust = [film.memories[c]["trust"] for c in clients]
    alpha = np.stack([(t["alpha"] + t["told_alpha"]).numpy() for t in trust])
    beta = np.stack([(t["beta"] + t["told_beta"]).numpy() for t in trust])
    met = alpha + beta > 0
    u = np.where(met, 2 / (alpha + beta + 2), 1)
    s = np.where(met, alpha / (alpha + beta + 2), 0)
    others = ~np.eye(9, dtype=bool)
    mean = [u[i][others[i]].mean() for i in range(9)]
    np.testing.assert_allclose(shown["uncertainty"], mean, rtol=1e-5)
    assert shown["known"].tolist() == met.sum(1).tolist()
    np.testing.assert_allclose(shown["similarity"], s, rtol=1e-5)
    assert shown["asks"].sum(1).tolist() == shown["asked"].tolist()
    assert shown["who"].tolist() == list(range(9))
    monkeypatch.setattr(look, "MOST_PAIRED", 4)
    few = method.shows(film.state, film.memories, None, context)
    who = few["who"].tolist()
    assert len(who) == 4 == len(few["similarity"]), "every single opinion of a few"
    np.testing.assert_allclose(few["similarity"], s[np.ix_(who, who)], rtol=1e-5)
    assert few["asked"].tolist() == shown["asked"].tolist(), "counts are of everybody"
