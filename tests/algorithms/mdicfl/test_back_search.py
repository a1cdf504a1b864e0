"""Back-searching: steps in closed form, and what the rows look like to their model."""

import numpy as np
import pytest
import torch
from small_networks import TURN, learner_of, seeded, several
from torch import nn

from kinfolk.algorithms.mdicfl.back_search import BackSearch
from kinfolk.algorithms.mdicfl.generator import Generator
from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.learning.inputs import probabilities
from kinfolk.learning.models import LeNet
from kinfolk.streams import RoundContext, Seed


def closed_form(w, b, x, c, wanted):
    """The gradient of CE + the pull of a linear softmax model at one row, in float64."""
    z = w @ x + b
    p = np.exp(z - z.max())
    p /= p.sum()
    p[c] -= 1
    away = x - wanted.prior_mean
    pull = wanted.prior_weight * away
    if wanted.norm == "l2":
        pull = wanted.prior_weight / 2 * away / np.sqrt(away @ away + 1e-12)
    return w.T @ p + pull


PRIORS = [{}, {"prior_mean": 0.5, "prior_weight": 0.4},
          {"prior_mean": -0.2, "prior_weight": 0.3, "norm": "squared"}]  # fmt: skip


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize(("iterations", "lr"), [(1, 0.1), (3, 0.1), (3, 0.03)])
def test_a_step_of_the_search_is_that_of_the_closed_form(prior, iterations, lr):
    learner = learner_of(seeded(lambda: nn.Linear(5, 3)))
    models, wanted = several(learner, 2), PseudoRows(samples=2, **prior)
    search = BackSearch(iterations, lr, warm_steps=0)
    got, _ = search.draw(wanted, learner, models, (5,), TURN, {})
    for k in range(2):
        start = torch.randn(6, 5, generator=TURN.seed.torch("pseudo", TURN.round, k)).double().numpy()
        w, b = (models[n][k].double().numpy() for n in ("weight", "bias"))
        for i, c in enumerate([0, 0, 1, 1, 2, 2]):
            x = start[i]
            first, second = np.zeros(5), np.zeros(5)
            for t in range(1, iterations + 1):  # Adam by its definition
                g = closed_form(w, b, x, c, wanted)
                first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
                x = x - lr * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-8)
            np.testing.assert_allclose(got[k, i].numpy(), x, atol=2e-5)


def test_rows_of_a_class_are_taken_for_it_and_follow_from_seed_round_and_model():
    learner = learner_of(seeded(lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))))
    models, wanted = several(learner, 2), PseudoRows(samples=5)
    search = BackSearch(warm_steps=0)
    x, kept = search.draw(wanted, learner, models, (6,), TURN, {})
    assert x.shape == (2, 15, 6)
    assert kept == {}
    for k in range(2):
        said = probabilities(learner, {n: t[k : k + 1] for n, t in models.items()}, x[k])[0]
        assert (said.argmax(1) == wanted.labels(3)).all()
    assert torch.equal(search.draw(wanted, learner, models, (6,), TURN, {})[0], x)
    assert not torch.equal(search.draw(wanted, learner, models, (6,), RoundContext(Seed(3), 1, ()), {})[0], x)
    assert not torch.equal(x[0], x[1])
    held, _ = BackSearch(clip_to_range=True).draw(wanted, learner, models, (6,), TURN, {})
    assert held.abs().max() <= 1 < x.abs().max()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_recorded_steps_give_what_plain_ones_give():
    learner = learner_of(seeded(lambda: LeNet(1, 4, 28)), 4)
    models = several(learner, 2)
    there, wanted = {n: t.cuda() for n, t in models.items()}, PseudoRows(samples=2)
    for sampler in (BackSearch(iterations=6), Generator(6, batch=5, hidden=8)):
        here, _ = sampler.draw(wanted, learner, models, (1, 28, 28), TURN, {})
        got, _ = sampler.draw(wanted, learner, there, (1, 28, 28), TURN, {})
        torch.testing.assert_close(got.cpu(), here, rtol=1e-3, atol=2e-2)
