import pytest
import torch
from torch import nn
from torch.func import functional_call
from whole_matching import matched_average, restore_width

from kinfolk.algorithms.fesem.chain import chain_of
from kinfolk.algorithms.fesem.matched import common_model, match_next, units_of
from kinfolk.algorithms.fesem.matching import Matching, match_layer
from kinfolk.errors import KinfolkError
from kinfolk.learning.models import (
    MLP,
    CelebaCNN,
    FemnistCNN,
    LeNet,
    Logistic,
    MobileNetV2,
    ResNet18,
    TinyCNN,
)
from kinfolk.learning.network import exchange_layers
from kinfolk.learning.norm import without_padding
from kinfolk.streams import Seed

NETWORKS = {
    "mlp": (lambda: MLP(6, (8, 5), 3), (6,)),
    "lenet": (lambda: LeNet(1, 10, 28), (1, 28, 28)),
    "femnist": (lambda: FemnistCNN(12, 5, 1, 8), (1, 8, 8)),
    "celeba": (lambda: CelebaCNN(12), (3, 12, 12)),
    "tiny": (lambda: TinyCNN(norm="bn"), (1, 8, 8)),
    "row norm": (lambda: exchange_layers(TinyCNN(norm="bn"), without_padding), (1, 8, 8)),
    "logistic": (lambda: Logistic(inputs=4, outputs=3), (4,)),
    "linear": (lambda: nn.Linear(4, 3), (4,)),
}


def _network(name):
    build, shape = NETWORKS[name]
    with Seed(1).borrowed("network"):
        network = build()
    draw = Seed(2).torch("buffers")
    for leaf, value in network.state_dict().items():
        if value.dim() == 1 and value.is_floating_point():  # norms start alike in every unit
            value.copy_(torch.rand(value.shape, generator=draw) + 0.5)
        if leaf.endswith("num_batches_tracked"):
            value.fill_(3)
    return network.eval(), torch.randn(5, *shape, generator=draw)


def _shuffled(tree, chain, number):
    """The same function with the units of every hidden layer in another order."""
    own = [
        torch.randperm(len(tree[layer.weight]), generator=Seed(number).torch("order", layer.weight))
        for layer in chain.layers[:-1]
    ]
    return restore_width(tree, chain, own), own


def _stack(*trees):
    return {name: torch.stack([tree[name] for tree in trees]) for name in trees[0]}


@pytest.mark.parametrize("name", NETWORKS)
def test_equal_networks_average_to_themselves(name):
    network, _ = _network(name)
    tree = network.state_dict()
    found = matched_average(_stack(tree, tree, tree), network, Seed(0))
    assert list(found.model) == list(tree)
    for leaf, value in tree.items():
        assert torch.allclose(found.model[leaf], value, atol=1e-6)
        assert found.model[leaf].dtype == value.dtype
    for assignment in found.assignments:
        assert torch.equal(assignment, torch.arange(assignment.shape[1]).expand(3, -1))


@pytest.mark.parametrize("growth", [1.0, 1.5])
@pytest.mark.parametrize("name", [n for n in NETWORKS if n not in ("logistic", "linear")])
def test_shuffled_copies_are_recovered_and_the_function_stays(name, growth):
    network, x = _network(name)
    tree, chain = network.state_dict(), chain_of(network)
    (one, first), (two, second) = (_shuffled(tree, chain, n) for n in (1, 2))
    wanted = network(x)
    assert torch.allclose(functional_call(network, one, x), wanted, atol=1e-5)
    found = matched_average(_stack(tree, one, two), network, Seed(0), growth=growth)
    assert torch.allclose(functional_call(network, found.model, x), wanted, atol=1e-5)
    for layer, assignment in enumerate(found.assignments):
        assert torch.equal(assignment[1], first[layer])
        assert torch.equal(assignment[2], second[layer])
    mine = restore_width(found.model, chain, [a[2] for a in found.assignments])
    assert all(torch.allclose(mine[leaf], value, atol=1e-5) for leaf, value in two.items())
    plain = {leaf: value.float().mean(0) for leaf, value in _stack(tree, one, two).items()}
    assert not torch.allclose(functional_call(network, plain, x), wanted, atol=1e-2)


def test_nearly_aligned_networks_give_the_plain_mean():
    network, _ = _network("lenet")
    tree, draw = network.state_dict(), Seed(5).torch("near")
    others = [{n: v + 0.01 * torch.randn(v.shape, generator=draw) for n, v in tree.items()} for _ in range(3)]
    found = matched_average(_stack(*others), network, Seed(0))
    for leaf in tree:
        wanted = sum(other[leaf] for other in others) / 3
        assert torch.allclose(found.model[leaf], wanted, atol=1e-6)


def test_steps_with_nothing_in_between_are_the_whole():
    network, _ = _network("lenet")
    draw = Seed(6).torch("apart")
    models = {n: torch.randn(3, *v.shape, generator=draw) for n, v in network.state_dict().items()}
    chain, here = chain_of(network), models
    whole = matched_average(models, chain, Seed(4))
    for layer in range(len(chain.layers) - 1):
        here, assignment = match_next(here, chain, layer, Seed(4), Matching())
        assert all(torch.equal(here[n][2], here[n][0]) for n in chain.layers[layer].leaves())
        assert torch.equal(assignment, whole.assignments[layer])
        assert not set(chain.layers[layer].leaves()) & set(chain.after(layer))
    last = common_model(here, chain)
    assert all(torch.equal(leaf, whole.model[n]) for n, leaf in last.items())


def test_a_client_computes_the_same_with_its_inputs_put_in_order():
    """Before anything is averaged away: units matched exactly, the next layer only re-indexed."""
    network, x = _network("femnist")
    tree, chain = network.state_dict(), chain_of(network)
    models, _ = match_next(_stack(tree, _shuffled(tree, chain, 3)[0]), chain, 0, Seed(0), Matching())
    for row in range(2):
        mine = {n: leaf[row] for n, leaf in models.items()}
        assert torch.allclose(functional_call(network, mine, x), network(x), atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "tiny", "femnist"])
def test_a_layer_that_grew_is_cut_back_to_the_units_that_most_clients_have(name):
    network, x = _network(name)
    draw, chain = Seed(8).torch("far"), chain_of(network)
    models = {
        n: v + 10 * torch.randn(4, *v.shape, generator=draw) if v.is_floating_point() else v.expand(4)
        for n, v in network.state_dict().items()
    }
    for n in (n for n in models if n.endswith("running_var")):
        models[n] = models[n].abs()
    layer = len(chain.layers) - 2
    here, following = chain.layers[layer], chain.layers[layer + 1]
    units = models[here.weight].shape[1]
    how = Matching(growth=1.5, gamma=50.0)
    wide = match_layer(units_of(models, here), Seed(Seed(0).number("layer", layer)), how)
    counts = wide.flatten().bincount().tolist()
    assert len(counts) == int(1.5 * units)
    kept = sorted(sorted(range(len(counts)), key=lambda unit: (-counts[unit], unit))[:units])
    small, assignment = match_next(models, chain, layer, Seed(0), how)
    for own, old in zip(assignment.flatten().tolist(), wide.flatten().tolist(), strict=True):
        assert own == (kept.index(old) if old in kept else -1)
    for n in here.leaves():
        for unit in range(units):
            mean = models[n][assignment == unit].double().mean(0)
            assert torch.allclose(small[n][3, unit].double(), mean, rtol=1e-5)
    # The next layer takes its inputs from the units that a client has, and nothing from those it has not.
    old, new = (t[following.weight].unflatten(2, (units, -1)) for t in (models, small))
    for row, place in enumerate(assignment):
        has = place >= 0
        assert torch.equal(new[row][:, place[has]], old[row][:, has])
        assert (new[row].abs().flatten(2).sum((0, 2)) > 0).sum() == has.sum()
    shapes = {n: v.shape for n, v in network.state_dict().items()}
    assert {n: leaf.shape[1:] for n, leaf in small.items()} == shapes
    assert functional_call(network, {n: leaf[1] for n, leaf in small.items()}, x).isfinite().all()


def test_a_common_model_has_all_leaves_and_equal_rows_as_they_are():
    network, _ = _network("tiny")
    tree, chain = network.state_dict(), chain_of(network)
    stack = _stack(tree, tree, tree)
    stack["norm1.num_batches_tracked"] = torch.tensor([1, 7, 3])
    found = common_model(stack, chain, torch.ones(3, 10))
    assert list(found) == list(tree)
    assert found["norm1.num_batches_tracked"] == 7
    assert all(torch.equal(found[n], tree[n]) for n in chain.layers[0].leaves())
    assert all(torch.allclose(found[n], tree[n], atol=1e-7) for n in chain.layers[-1].leaves())


def test_each_class_is_averaged_by_who_has_seen_it():
    chain = chain_of(nn.Linear(2, 3))
    models = {
        "weight": torch.randn(2, 3, 2, generator=Seed(1).torch("w")),
        "bias": torch.tensor([[0.0] * 3, [1.0] * 3]),
    }
    found = common_model(models, chain, torch.tensor([[3, 5, 0], [1, 0, 0]]))
    assert found["bias"].tolist() == [0.25, 0.0, 0.5]
    assert torch.allclose(found["weight"][0], 0.75 * models["weight"][0, 0] + 0.25 * models["weight"][1, 0])


def test_a_chain_knows_blocks_norms_and_what_comes_after():
    chain = chain_of(LeNet(1, 10, 28))
    assert [layer.block for layer in chain.layers] == [1, 1, 25, 1, 1]
    assert chain.after(2) == ("fc2.weight", "fc2.bias", "head.weight", "head.bias")
    norm = chain_of(TinyCNN(norm="bn")).layers[0]
    assert norm.carried == ("norm1.weight", "norm1.bias", "norm1.running_mean", "norm1.running_var")
    before = nn.Sequential(
        nn.BatchNorm1d(4), nn.Linear(4, 3), nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.Linear(3, 2)
    )
    assert chain_of(before).layers[0].carried == ("2.weight", "2.bias", "3.weight", "3.bias")


class _Skip(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return x + self.second(self.first(x))


class _Branchy(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else x


class _Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


class _Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.look, self.head = nn.Linear(4, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 2)

    def forward(self, x):
        h = self.read(x)
        return self.head(self.look(h, h, h)[0])


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.memory, self.head = nn.LSTM(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.memory(x[:, None])[0][:, 0])


class _Turned(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3), nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.conv(x).permute(0, 2, 3, 1).flatten(1))


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: ResNet18(width=4), r"'blocks\.0 \(_Residual\)'.*one chain"),
        (MobileNetV2, r"blocks\.0\.layers\.3 \(Conv2d\).*groups"),
        (lambda: TinyCNN(norm="gn"), r"norm1 \(GroupNorm\)"),
        (_Skip, "_Skip.*joins or branches"),
        (_Branchy, "_Branchy.*traced"),
        (_Twice, r"layer \(Linear\).*twice"),
        (_Turned, "_Turned.*'permute'"),
        (_Attention, r"'look \(MultiheadAttention\)'.*not known"),
        (_Recurrent, r"'memory \(LSTM\)'.*not known"),
        (lambda: nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 2)), r"0 \(Embedding\).*not known"),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Bilinear(4, 4, 2)), "Bilinear"),
        (
            lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 2)),
            "one number",
        ),
        (lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(8, 2)), "8 inputs after a layer of 4"),
        (lambda: nn.Sequential(nn.ReLU()), "no linear"),
    ],
)
def test_a_network_that_is_no_chain_is_refused_by_name(build, words):
    with pytest.raises(KinfolkError, match=words):
        chain_of(build())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_models_on_a_gpu_stay_there():
    network, _ = _network("tiny")
    stack = {n: torch.stack([v, v]).cuda() for n, v in network.state_dict().items()}
    assert all(leaf.is_cuda for leaf in matched_average(stack, network, Seed(0)).model.values())
