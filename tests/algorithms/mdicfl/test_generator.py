"""Generators: they learn what PyTorch would from the same noise, and see other noise in every round."""

import copy

import pytest
import torch
from test_pseudo import TURN, by_module, learner_of, seeded, several
from torch import nn
from torch.nn import functional as F

from kinfolk.algorithms.mdicfl.back_search import Prior
from kinfolk.algorithms.mdicfl.generator import TRAINED, Generators
from kinfolk.streams import RoundContext

NAMES = {
    "weight1": "0.weight",
    "scale": "1.weight",
    "shift": "1.bias",
    "weight2": "3.weight",
    "bias2": "3.bias",
}
STEPS, BATCH, NOISE = 3, 6, 3


def learned(how, learner, models, k, turn):
    """What one generator's parameters are after its steps, by an ordinary network and PyTorch's Adam."""
    net = by_module(how.first(2, 3, (6,), turn), k, (6,)).train()
    params = dict(net.named_parameters())
    adam = torch.optim.Adam([params[n] for n in NAMES.values()], lr=how.lr)
    classifier = copy.deepcopy(learner.module).eval()
    classifier.load_state_dict({n: t[k] for n, t in models.items()})
    words = ("pseudo", turn.round, k)
    noise = torch.randn((STEPS, BATCH, NOISE), generator=turn.seed.torch(*words, "train"))
    wanted = torch.randint(3, (STEPS, BATCH), generator=turn.seed.torch(*words, "labels"))
    for e, y in zip(noise, wanted, strict=True):
        x = net(torch.cat([e, F.one_hot(y, 3).float()], 1))
        away = (x - how.prior.mean).norm(dim=1)
        pull = how.prior.weight / 2 * (away.square() if how.prior.norm == "squared" else away)
        adam.zero_grad()
        (F.cross_entropy(classifier(x), y) + pull.mean()).backward()
        adam.step()
    return params


@pytest.mark.parametrize("prior", [Prior(0.0, 0.0), Prior(0.6, 2.0), Prior(-0.5, 1.0, "squared")])
def test_generators_learn_what_pytorch_would(prior):
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models = several(learner, 2)
    how = Generators(2, STEPS, batch=BATCH, noise=NOISE, hidden=5, warm_start=True, prior=prior)
    first, kept = how.first(2, 3, (6,), TURN), how.draw(learner, models, (6,), TURN, {})[1]
    for k in range(2):
        wanted = learned(how, learner, models, k, TURN)
        for name in TRAINED:
            torch.testing.assert_close(kept[name][k], wanted[NAMES[name]].detach(), rtol=0, atol=1e-3)
    # Each of the steps is about as long as the learning rate, ten times what is forgiven.
    assert (kept["weight2"] - first["weight2"]).abs().max() > 0.01


def test_the_prior_pulls_rows_towards_its_mean():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models, means = several(learner, 1), []
    for mean in (-0.8, 0.8):
        how = Generators(4, 60, batch=20, hidden=8, prior=Prior(mean, 20.0))
        means.append(float(how.draw(learner, models, (6,), TURN, {})[0].mean()))
    assert means[0] < -0.5
    assert means[1] > 0.5


def test_noise_differs_from_round_to_round_in_training_and_in_drawing():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models = several(learner, 2)
    other = RoundContext(TURN.seed, TURN.round + 1, ())
    nets = Generators(hidden=5, noise=NOISE).first(2, 3, (6,), TURN)
    for steps, shown in ((0, "drawing"), (STEPS, "training")):
        how = Generators(2, steps, batch=BATCH, noise=NOISE, hidden=5, warm_start=True)
        (x, kept), (y, moved) = (how.draw(learner, models, (6,), turn, nets) for turn in (TURN, other))
        assert not torch.allclose(x, y, atol=1e-3), shown
        same = torch.allclose(kept["weight1"], moved["weight1"], atol=1e-4)
        assert same == (steps == 0), shown
    assert not torch.equal(
        nets["weight1"], Generators(hidden=5, noise=NOISE).first(2, 3, (6,), other)["weight1"]
    )
