"""BatchNorm with padding left out is PyTorch's BatchNorm on the rows that are real."""

from __future__ import annotations

import copy
import itertools

import numpy as np
import pytest
import torch
from fast_learner import Learner
from torch import Tensor, nn
from torch.func import functional_call, vmap

from kinfolk.learning.losses import find_loss
from kinfolk.learning.network import exchange_layers
from kinfolk.learning.norm import RowBatchNorm, has_batch_norm, row_weights, without_padding
from kinfolk.streams import Seed

LAYERS = {
    "1d": (nn.BatchNorm1d, (3,)),
    "1d with length": (nn.BatchNorm1d, (3, 5)),
    "2d": (nn.BatchNorm2d, (3, 4, 2)),
    "3d": (nn.BatchNorm3d, (3, 2, 2, 2)),
}
SETTINGS = list(itertools.product((0.1, 0.7, None), (True, False), (True, False)))


def draws(*words: int) -> np.random.Generator:
    return np.random.default_rng(words)


def made(layer: str, momentum: float | None, affine: bool, track: bool) -> nn.Module:
    kind, shape = LAYERS[layer]
    norm = kind(shape[0], momentum=momentum, affine=affine, track_running_stats=track, dtype=torch.float64)
    if affine:
        with torch.no_grad():
            norm.weight.copy_(torch.tensor([0.5, -1.5, 2.0]))
            norm.bias.copy_(torch.tensor([1.0, 0.0, -3.0]))
    return norm


def padded(layer: str, step: int, real: int = 6, padding: int = 4) -> tuple[Tensor, Tensor]:
    """Rows with padding strewn among them, and the weights that tell them apart."""
    draw = draws(step, 7)
    rows = torch.from_numpy(draw.normal(loc=3, scale=2, size=(real + padding, *LAYERS[layer][1])))
    weights = torch.zeros(real + padding)
    weights[torch.from_numpy(draw.permutation(real + padding)[:real])] = 1
    rows[weights == 0] = 1e6
    return rows, weights


def gradients(norm: nn.Module, x: Tensor, up: Tensor, weights: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    x = x.clone().requires_grad_()
    with row_weights(weights):
        out = norm(x)
    return out.detach(), list(torch.autograd.grad((out * up).sum(), [x, *norm.parameters()]))


def assert_close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("momentum", "affine", "track"), SETTINGS)
def test_outputs_gradients_and_statistics_are_those_of_the_real_rows(layer, momentum, affine, track):
    theirs = made(layer, momentum, affine, track)
    ours = RowBatchNorm(copy.deepcopy(theirs))
    for step in range(3):
        x, weights = padded(layer, step)
        real = weights > 0
        up = torch.from_numpy(draws(step, 8).normal(size=x.shape)) * weights.reshape(-1, *[1] * (x.dim() - 1))
        out, (dx, *dparams) = gradients(ours, x, up, weights)
        expected, (dx_expected, *dparams_expected) = gradients(theirs, x[real], up[real], None)
        assert_close(out[real], expected)
        assert_close(dx[real], dx_expected)
        assert not dx[~real].any()
        for a, b in zip(dparams, dparams_expected, strict=True):
            assert_close(a, b)
        for (name, a), (other, b) in zip(ours.named_buffers(), theirs.named_buffers(), strict=True):
            assert (name, a.dtype) == (other, b.dtype)
            assert_close(a, b)
    if track:
        assert ours.num_batches_tracked == 3
    ours.eval(), theirs.eval()
    x, weights = padded(layer, 9)
    real = weights > 0
    with row_weights(weights), torch.no_grad():
        assert_close(ours(x)[real], theirs(x[real]))
    assert [torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True)].count(
        False
    ) <= 2
    if track:  # scoring leaves the statistics alone, and looks at one row at a time
        before = [b.clone() for b in ours.buffers()]
        with row_weights(weights), torch.no_grad():
            assert torch.allclose(ours(x[:1]), ours(x)[:1])
        assert all(torch.equal(a, b) for a, b in zip(before, ours.buffers(), strict=True))


@pytest.mark.parametrize("layer", LAYERS)
def test_without_weights_it_is_pytorchs_own_to_the_bit(layer):
    theirs = made(layer, 0.1, True, True).float()
    ours = RowBatchNorm(copy.deepcopy(theirs))
    for mode in (True, True, False):
        x = padded(layer, 1)[0].float()
        ours.train(mode), theirs.train(mode)
        assert torch.equal(ours(x), theirs(x))
    assert all(torch.equal(a, b) for a, b in zip(ours.buffers(), theirs.buffers(), strict=True))


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("track", [True, False])
def test_clients_with_unequal_padding_in_one_call_equal_one_by_one(momentum, track):
    norm = RowBatchNorm(made("2d", momentum, True, track))
    clients = [padded("2d", i, real, 8 - real) for i, real in enumerate((2, 5, 8))]
    x, weights = (torch.stack(part) for part in zip(*clients, strict=True))
    params = {n: torch.stack([p.detach() + i for i in range(3)]) for n, p in norm.named_parameters()}
    buffers = {n: torch.stack([b + i for i in range(3)]) for n, b in norm.named_buffers()}
    alone = [
        (
            {n: p[i].clone() for n, p in params.items()},
            {n: b[i].clone() for n, b in buffers.items()},
        )
        for i in range(3)
    ]

    def apply(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, w: Tensor) -> Tensor:
        with row_weights(w):
            return functional_call(norm, {**p, **b}, (x,))

    together = vmap(apply)(params, buffers, x, weights)
    for i, (p, b) in enumerate(alone):
        one = apply(p, b, x[i], weights[i])
        assert_close(together[i], one)
        for name, after in b.items():
            assert_close(buffers[name][i], after)


def test_a_batch_of_padding_only_stays_finite():
    norm = RowBatchNorm(made("1d", 0.1, True, True))
    with row_weights(torch.zeros(4)):
        out = norm(torch.full((4, 3), 5.0, dtype=torch.float64))
    assert out.isfinite().all()
    assert norm.running_var.isfinite().all()


def test_weights_end_with_their_block_also_after_an_error():
    norm = RowBatchNorm(nn.BatchNorm1d(3))
    x = torch.from_numpy(draws(0).normal(size=(4, 3))).float()
    plain = copy.deepcopy(norm)(x)

    def fail() -> None:
        with row_weights(torch.tensor([1.0, 1, 1, 0])):
            with row_weights(None):
                assert torch.equal(copy.deepcopy(norm)(x), plain)
            assert not torch.equal(copy.deepcopy(norm)(x), plain)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert torch.equal(norm(x), plain)


class Own(nn.BatchNorm1d):
    """A user's own: it shifts by one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Sequential(nn.BatchNorm1d(3)))
        self.twice = self.body[1]
        self.own = Own(3)
        self.nothing = None
        self.register_module("empty", None)
        self.head = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.own(self.twice(self.body(x))))


def test_conversion_keeps_names_values_and_function():
    net = Net()
    before = copy.deepcopy(net)
    changed = exchange_layers(net, without_padding)
    assert changed is net
    assert list(changed.state_dict()) == list(before.state_dict())
    assert [n for n, _ in changed.named_parameters()] == [n for n, _ in before.named_parameters()]
    assert all(
        torch.equal(a, b)
        for a, b in zip(net.state_dict().values(), before.state_dict().values(), strict=True)
    )
    assert isinstance(net.body[1], RowBatchNorm)
    assert isinstance(net.body[2][0], RowBatchNorm)
    assert net.twice is net.body[1], "one layer in two places stays one layer"
    assert type(net.own) is Own, "a forward of the user's own is not ours to replace"
    x = torch.from_numpy(draws(3).normal(size=(5, 4))).float()
    for mode in (True, False):
        net.train(mode), before.train(mode)
        assert torch.equal(net(x), before(x))
    assert all(
        torch.equal(a, b)
        for a, b in zip(net.state_dict().values(), before.state_dict().values(), strict=True)
    )
    before.load_state_dict(net.state_dict())


def test_a_bare_layer_and_its_mode():
    bare = exchange_layers(nn.BatchNorm2d(2).eval(), without_padding)
    assert isinstance(bare, RowBatchNorm)
    assert not bare.training
    assert list(bare.state_dict()) == list(nn.BatchNorm2d(2).state_dict())


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (nn.Linear(1, 1), False),
        (nn.GroupNorm(1, 2), False),
        (nn.BatchNorm1d(2), True),
        (nn.Sequential(nn.Sequential(nn.BatchNorm2d(2))), True),
        (exchange_layers(nn.Sequential(nn.BatchNorm1d(2)), without_padding), True),
        (nn.SyncBatchNorm(2), True),
    ],
)
def test_who_needs_two_rows(module, expected):
    assert has_batch_norm(module) is expected


def test_half_precision_in_vmap_is_half_precision_of_each_client():
    """Statistics and weights stay float32, the numbers between layers bfloat16, as PyTorch has it outside."""
    layer, x = RowBatchNorm(nn.BatchNorm2d(3)), torch.randn(2, 6, 3, 4, 4, generator=Seed(0).torch("x"))
    state = {n: torch.stack([t, 2 * t]) for n, t in layer.state_dict().items() if t.is_floating_point()}

    def one(state, x):
        return functional_call(layer, {n: t.clone() for n, t in state.items()}, (x,))

    got = vmap(one)(state, x.bfloat16())
    each = torch.stack([one({n: t[i] for n, t in state.items()}, x[i].bfloat16()) for i in range(2)])
    assert got.dtype == each.dtype == torch.bfloat16
    assert (got - each).abs().max() <= 2**-6, "a last digit of numbers up to four"


def test_a_group_norm_behind_convolutions_of_many_clients_is_that_of_each():
    """Those convolutions give channels innermost, which PyTorch's rule for vmap does not take."""
    network = nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3))
    learner = Learner(network.double(), find_loss("cross_entropy"), 3)
    draw = draws(8)
    models = {n: torch.from_numpy(draw.normal(size=(5, *t.shape))) for n, t in learner.first.items()}
    x = torch.from_numpy(draw.normal(size=(5, 6, 2, 5, 5)))
    leaves = {n: t.clone().requires_grad_() for n, t in models.items()}
    vmap(learner.apply)(leaves, x).square().sum().backward()
    for i in range(5):
        own = {n: t[i].clone().requires_grad_() for n, t in models.items()}
        functional_call(network, own, (x[i],)).square().sum().backward()
        for name, t in own.items():
            torch.testing.assert_close(leaves[name].grad[i], t.grad)
    assert type(network[1]) is nn.GroupNorm, "the user's own network stays as it is"
