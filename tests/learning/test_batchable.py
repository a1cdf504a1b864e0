"""What can be batched over clients and what can not, with the layer that stands in the way named."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from fast_learner import Learner
from torch import Tensor, nn

from kinfolk.learning.batchable import Cost, cost, obstacle
from kinfolk.learning.losses import find_loss
from kinfolk.learning.models import MODELS, build_model
from kinfolk.streams import Seed

X = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 4))).float()
Y = torch.tensor([0, 2])


def why(network: nn.Module, x: Tensor = X, y: Tensor = Y) -> str:
    return obstacle(Learner(network, find_loss("cross_entropy"), 3), x, y)


class Branch(nn.Module):
    """Looks at a value to decide; `late`: after its own layer has run."""

    def __init__(self, late: bool) -> None:
        super().__init__()
        self.late, self.inner = late, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        if self.late:
            x = self.inner(x)
        return x if x.sum() * self.inner.weight.sum() > 0 else -x


class Item(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.item()


class Noise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.randn_like(x)


class Centred(nn.Module):
    """Subtracts the mean of the batch, padding included."""

    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


class Own(nn.BatchNorm1d):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Channels(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(2, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.reshape(-1, 2, 2)).flatten(1)


def between(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), layer, nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (nn.Sequential(nn.ReLU(), nn.AlphaDropout(0.1)), "layer 1.1 (AlphaDropout) draws random numbers"),
        (Branch(late=False), "layer 1 (Branch): "),
        (Branch(late=True), "layer 1 (Branch): "),
        (Item(), "layer 1 (Item): "),
        (Noise(), "layer 1 (Noise) draws random numbers"),
        (nn.RReLU(), "layer 1 (RReLU): "),
        (Centred(), "layer 1 (Centred) lets one row of a batch change another"),
        (Own(4), "layer 1 (Own) lets one row of a batch change another"),
        (nn.utils.spectral_norm(nn.Linear(4, 4)), "layer 1 (Linear): "),
        (Channels(), "layer 1.norm (InstanceNorm1d) lets one row of a batch change another"),
    ],
    ids=lambda v: "" if isinstance(v, str) else type(v).__name__,
)
def test_the_layer_in_the_way_is_named(layer, named):
    assert why(between(layer)).startswith(named)


def test_a_bare_network_in_the_way_is_named_too():
    class Net(Branch):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, :3]

    assert why(Net(late=True)).startswith("the network (Net): vmap: It looks like")
    assert why(Net(late=True)).endswith("data-dependent control flow")


class Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(2, 3, batch_first=True), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = nn.utils.rnn.pack_padded_sequence(
            x.reshape(-1, 2, 2), torch.full((len(x),), 2), batch_first=True
        )
        return self.head(self.inner(rows)[1][0][-1])


def test_of_what_fails_nothing_else_is_said():
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        assert why(Packed()).startswith("layer inner (LSTM): packed sequences")
    assert heard == []


def frozen() -> nn.Module:
    network = between(nn.ReLU())
    network[0].requires_grad_(False)
    return network


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.b(torch.relu(self.a(x))))


@pytest.mark.parametrize(
    "network",
    [
        frozen(),
        Tied(),
        between(nn.Dropout(0.0)),
        between(nn.Dropout(0.5)),
        between(nn.BatchNorm1d(4)),
        between(nn.BatchNorm1d(4, momentum=None)),
        between(nn.BatchNorm1d(4, track_running_stats=False)),
        between(nn.LayerNorm(4)),
        between(nn.GroupNorm(2, 4)),
    ],
    ids=[
        "frozen",
        "tied",
        "no dropout",
        "dropout",
        "bn",
        "bn cumulative",
        "bn by batch",
        "layer norm",
        "group norm",
    ],
)
def test_what_can_be_batched_passes(network):
    assert why(network) == ""
    assert why(network, X[:1].repeat(2, 1)) == "", "two rows that are alike"


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mlp", {}),
        ("logistic", {}),
        ("tiny_cnn", {}),
        ("lenet", {}),
        ("resnet18", {"width": 4}),
        ("resnet18", {"width": 4, "norm": "gn"}),
        ("mobilenetv2", {"width": 8, "norm": "gn"}),
    ],
)
def test_our_own_models_can_be_batched(name, options):
    side = 8 if not MODELS[name].least else 16
    shape = (1, side, side)
    with Seed(0).borrowed("init"):
        network = build_model(name, shape, 3, options)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(2, *shape))).float()
    assert why(network, x) == ""


def test_to_ask_changes_nothing():
    network = between(nn.BatchNorm1d(4))
    before = {n: t.clone() for n, t in network.state_dict().items()}
    generators = random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()
    learner = Learner(network, find_loss("cross_entropy"), 3)
    trees = {n: t.clone() for n, t in learner.training_module.state_dict().items()}
    obstacle(learner, X, Y)
    cost(learner, X)
    assert (random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()) == generators
    assert all(torch.equal(before[n], t) for n, t in network.state_dict().items())
    assert all(torch.equal(trees[n], t) for n, t in learner.training_module.state_dict().items())
    assert network.training
    assert not network[0]._forward_hooks


def test_cost_of_a_known_network():
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3), nn.BatchNorm1d(3))
    found = cost(Learner(network, find_loss("cross_entropy"), 3), torch.zeros(4, 1, 5, 5))
    conv, linear = 2 * 9 * (2 * 9), 2 * 18 * 3
    outputs = 18 + 18 + 18 + 3 + 3
    numbers = (2 * 9 + 2) + (18 * 3 + 3) + (4 * 3 + 1)
    assert found == Cost(flops=conv + linear, floats=outputs, parameters=numbers, layers=2)


def test_a_network_is_large_by_its_layers_not_by_their_number():
    """Of two networks of as many operations the one of many small layers leaves a GPU idle."""
    sizes = {
        name: cost(build_model(name, (3, 32, 32), 10, {}), torch.zeros(1, 3, 32, 32))
        for name in ("resnet18", "mobilenetv2", "lenet")
    }
    assert [size.layers for size in sizes.values()] == [21, 58, 5]
    assert [name for name, size in sizes.items() if size.large(50)] == ["resnet18"]
    assert not sizes["resnet18"].large(5)
