"""Generators: they learn what PyTorch would from the same noise, and see other noise in every round."""

import copy

import pytest
import torch
from small_networks import TURN, by_module, learner_of, seeded, several
from torch import nn
from torch.nn import functional as F

from kinfolk.algorithms.mdicfl.generator import TRAINED, Generator
from kinfolk.algorithms.mdicfl.pseudo import PseudoRows
from kinfolk.learning.inputs import probabilities
from kinfolk.streams import RoundContext

NAMES = {
    "weight1": "0.weight",
    "scale": "1.weight",
    "shift": "1.bias",
    "weight2": "3.weight",
    "bias2": "3.bias",
}
STEPS, BATCH, NOISE = 3, 6, 3


def learned(how, rows, learner, models, k, context):
    """What one generator's parameters are after its steps, by an ordinary network and PyTorch's Adam."""
    net = by_module(how.first(2, 3, (6,), context), k, (6,)).train()
    params = dict(net.named_parameters())
    adam = torch.optim.Adam([params[n] for n in NAMES.values()], lr=how.lr)
    classifier = copy.deepcopy(learner.module).eval()
    classifier.load_state_dict({n: t[k] for n, t in models.items()})
    words = ("pseudo", context.round, k)
    noise = torch.randn((STEPS, BATCH, NOISE), generator=context.seed.torch(*words, "train"))
    wanted = torch.randint(3, (STEPS, BATCH), generator=context.seed.torch(*words, "labels"))
    for e, y in zip(noise, wanted, strict=True):
        x = net(torch.cat([e, F.one_hot(y, 3).float()], 1))
        away = (x - rows.prior_mean).norm(dim=1)
        pull = rows.prior_weight / 2 * (away.square() if rows.norm == "squared" else away)
        adam.zero_grad()
        (F.cross_entropy(classifier(x), y) + pull.mean()).backward()
        adam.step()
    return params


@pytest.mark.parametrize("prior", [(0.0, 0.0, "l2"), (0.6, 2.0, "l2"), (-0.5, 1.0, "squared")])
def test_generators_learn_what_pytorch_would(prior):
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models = several(learner, 2)
    how, rows = (
        Generator(STEPS, batch=BATCH, noise=NOISE, hidden=5, warm=True),
        PseudoRows("generator", 2, *prior),
    )
    first, kept = how.first(2, 3, (6,), TURN), how.draw(rows, learner, models, (6,), TURN, {})[1]
    for k in range(2):
        wanted = learned(how, rows, learner, models, k, TURN)
        for name in TRAINED:
            torch.testing.assert_close(kept[name][k], wanted[NAMES[name]].detach(), rtol=0, atol=1e-3)
    # Each of the steps is about as long as the learning rate, ten times what is forgiven.
    assert (kept["weight2"] - first["weight2"]).abs().max() > 0.01


def test_the_prior_pulls_rows_towards_its_mean():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models, means = several(learner, 1), []
    for mean in (-0.8, 0.8):
        rows = PseudoRows(samples=4, prior_mean=mean, prior_weight=20.0)
        how = Generator(60, batch=20, hidden=8)
        means.append(float(how.draw(rows, learner, models, (6,), TURN, {})[0].mean()))
    assert means[0] < -0.5
    assert means[1] > 0.5


def test_noise_differs_from_round_to_round_in_training_and_in_drawing():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models = several(learner, 2)
    other = RoundContext(TURN.seed, TURN.round + 1, ())
    nets = Generator(hidden=5, noise=NOISE).first(2, 3, (6,), TURN)
    for steps, shown in ((0, "drawing"), (STEPS, "training")):
        how = Generator(steps, batch=BATCH, noise=NOISE, hidden=5, warm=True)
        (x, kept), (y, moved) = (
            how.draw(PseudoRows(samples=2), learner, models, (6,), context, nets) for context in (TURN, other)
        )
        assert not torch.allclose(x, y, atol=1e-3), shown
        same = torch.allclose(kept["weight1"], moved["weight1"], atol=1e-4)
        assert same == (steps == 0), shown
    assert not torch.equal(
        nets["weight1"], Generator(hidden=5, noise=NOISE).first(2, 3, (6,), other)["weight1"]
    )


@pytest.mark.parametrize(("shape", "wanted"), [((1, 32, 32), 270_592), ((3, 32, 32), 1_590_784)])
def test_generators_have_the_published_size(shape, wanted):
    nets = Generator().first(2, 10, shape, TURN)
    assert sum(nets[n][0].numel() for n in (*TRAINED, "bias1")) == wanted


def test_a_generator_is_the_network_that_it_should_be():
    how = Generator(noise=3, hidden=7)
    nets = how.first(2, 4, (2, 3), TURN)
    noise = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    y = torch.tensor([[0, 1, 2, 3, 0], [3, 3, 1, 0, 2]])
    modules = [by_module(nets, k, (2, 3)).train() for k in range(2)]
    z = torch.cat([noise, nn.functional.one_hot(y, 4).float()], -1)
    for training in (True, False):
        got = how.rows(nets, noise, y, 4, (2, 3), training)
        for k, net in enumerate(modules):
            wanted = net.train(training)(z[k]).reshape(5, 2, 3)
            torch.testing.assert_close(got[k], wanted.detach())
            torch.testing.assert_close(nets["mean"][k], net[1].running_mean)
            torch.testing.assert_close(nets["variance"][k], net[1].running_var)


def test_generators_learn_to_make_rows_of_every_class():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models = several(learner, 2)
    before = {n: t.clone() for n, t in models.items()}
    how, wanted = Generator(150, batch=20, hidden=16, warm=True), PseudoRows(samples=4)
    x, kept = how.draw(wanted, learner, models, (6,), TURN, {})
    assert x.shape == (2, 12, 6)
    assert x.abs().max() <= 1
    for k in range(2):
        said = probabilities(learner, {n: t[k : k + 1] for n, t in models.items()}, x[k])[0]
        assert (said.argmax(1) == wanted.labels(3)).float().mean() > 0.9
    assert all(torch.equal(models[n], t) for n, t in before.items())
    assert torch.equal(how.draw(wanted, learner, models, (6,), TURN, {})[0], x)
    again, on = how.draw(wanted, learner, models, (6,), TURN, kept)
    assert not torch.equal(again, x)
    assert not torch.equal(on["weight1"], kept["weight1"])
    open_ended = Generator(3, batch=5, hidden=4, output="none")
    wide, nothing = open_ended.draw(PseudoRows(samples=2), learner, models, (6,), TURN, {})
    assert nothing == {}
    assert wide.shape == (2, 6, 6)


def test_rows_are_drawn_by_the_means_that_training_has_left():
    learner = learner_of(seeded(lambda: nn.Linear(6, 3)))
    models, wanted = several(learner, 2), PseudoRows(samples=4)
    rows, kept = Generator(10, batch=20, hidden=8, warm=True).draw(wanted, learner, models, (6,), TURN, {})
    for k in range(2):
        noise = torch.randn(12, 16, generator=TURN.seed.torch("pseudo", TURN.round, k, "draw"))
        z = torch.cat([noise, F.one_hot(wanted.labels(3), 3).float()], 1)
        torch.testing.assert_close(rows[k], by_module(kept, k, (6,)).eval()(z).detach())
        assert not torch.allclose(rows[k], by_module(kept, k, (6,)).train()(z).detach(), atol=1e-3)
