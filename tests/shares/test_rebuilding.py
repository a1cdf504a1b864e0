"""One layer-wise share is a working model in a curious member's hands; one additive share is noise.

A layer-wise share is the victim's model with every layer times an unknown positive number. The attacker
starts from the sizes of its own layers and fits those numbers, one for each layer, on a few rows of its own.
"""

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

from kinfolk.shares.additive import Additive64
from kinfolk.shares.context import Context
from kinfolk.shares.fixed_point import expand, to_tensor
from kinfolk.shares.layerwise import Layerwise
from kinfolk.shares.vector import to_tree, to_vector
from kinfolk.streams import Seed

MEMBERS = ("bob", "cyd", "dan", "eve")
ROWS = 60  # of the attacker's own


def mlp():
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU(), nn.Linear(32, 10))


def cnn():
    layers = [nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    layers += [nn.Conv2d(8, 12, 3, stride=2), nn.BatchNorm2d(12), nn.ReLU(), nn.Flatten(), nn.Linear(108, 10)]
    return nn.Sequential(*layers)


def train(net, x, y, draw, epochs):
    net.train()
    for _ in range(epochs):
        for rows in torch.from_numpy(draw.permutation(len(y))).split(50):
            loss = nn.functional.cross_entropy(net(x[rows]), y[rows])
            slopes = torch.autograd.grad(loss, list(net.parameters()))
            with torch.no_grad():
                for p, g in zip(net.parameters(), slopes, strict=True):
                    p -= 0.2 * g
    return {name: leaf.detach().clone() for name, leaf in net.eval().state_dict().items()}


def rebuild(share, own, predict, x, y, sweeps=15):
    """The model behind a share, as far as one number per tensor can undo the cutting.

    `own` is the attacker's model, `y` the classes of its rows `x`, or probabilities [rows, classes] where
    it matches predictions instead. Tensors of whole numbers are taken from `own`. The search goes from
    tensor to tensor, tries it larger and smaller, and needs no gradients: buffers have none.
    """
    names = [name for name, leaf in share.items() if leaf.is_floating_point()]
    model = {**own, **{name: _sized_like(share[name].detach(), own[name]) for name in names}}
    factor = 2.0
    with torch.no_grad():
        best = _loss(predict(model, x), y)
        for _ in range(sweeps):
            before = best
            for name, scale in ((name, scale) for name in names for scale in (factor, 1 / factor)):
                tried = {**model, name: model[name] * scale}
                loss = _loss(predict(tried, x), y)
                if loss < best:
                    model, best = tried, loss
            factor = factor if best < before * 0.99 else factor**0.5
    return model


def _loss(logits, y):
    # Smoothed: on few rows that are all read rightly, the plain loss falls for ever as scales grow.
    return float(torch.nn.functional.cross_entropy(logits, y, label_smoothing=0.1))


def _sized_like(leaf, own):
    """The leaf, as long as the attacker's own; a leaf of zeros stays."""
    length = leaf.double().norm()
    scale = torch.where(length > 0, own.double().norm() / length.clamp(min=1e-300), torch.ones_like(length))
    return (leaf.double() * scale).to(own)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = Seed(0).numpy("digits").permutation(len(y))
    return torch.from_numpy(x[order] / 16).float(), torch.from_numpy(y[order]).long()


@pytest.mark.parametrize("make", [mlp, cnn])
def test_a_layerwise_share_is_a_working_model(make, digits):
    x, y = digits
    with Seed(2).borrowed("net"):
        net = make()
    first = {name: leaf.clone() for name, leaf in net.state_dict().items()}
    victim = train(net, x[:700], y[:700], Seed(2).numpy("victim"), 20)
    net.load_state_dict(first)
    mine = x[700 : 700 + ROWS], y[700 : 700 + ROWS]
    attacker = train(net, *mine, Seed(2).numpy("attacker"), 40)

    def predict(model, rows):
        return torch.func.functional_call(net, model, (rows,))

    def accuracy(model):
        with torch.no_grad():
            return 100 * float((predict(model, x[1000:]).argmax(1) == y[1000:]).double().mean())

    whole, own = accuracy(victim), accuracy(attacker)
    assert whole > 88
    assert own < whole - 3
    print(f"{make.__name__}: victim {whole:.1f}, attacker's own model {own:.1f}")
    vec, layers = to_vector(victim)
    ctx = Context("ann", 0, MEMBERS, (0.5,) * len(MEMBERS), layers)
    for layers in ("tensor", "module"):
        scheme = Layerwise(layers, entropy=Seed(2).numpy("cuts").bytes)
        share = to_tree(scheme.split(vec, 0.5, "bob", MEMBERS, ctx)["cyd"]["part"], attacker)
        found = accuracy(rebuild(share, attacker, predict, *mine))
        print(f"  by {layers}: share as it is {accuracy(share):.1f}, rebuilt {found:.1f}")
        assert found > whole - 2

    secret = Additive64(entropy=Seed(2).numpy("seeds").bytes).split(vec, 0.5, "bob", MEMBERS, ctx)["cyd"]
    words = to_tensor(expand(secret["seed"].numpy().tobytes(), ctx, "bob", "cyd"))
    noise = accuracy(rebuild(to_tree(words.double() / 2**32, attacker), attacker, predict, *mine))
    print(f"  from an additive64 share: {noise:.1f}")
    assert noise < 25
