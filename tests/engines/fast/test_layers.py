"""Layers for many clients: every form gives what PyTorch gives client by client."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, vmap

import kinfolk
from kinfolk.engines.batched import Batched
from kinfolk.engines.fast import accelerated, conv, prepare
from kinfolk.engines.fast.layers import FastReluPool2, Pool2, fast_layer, join_relu_and_pool
from kinfolk.engines.loop import Loop
from kinfolk.engines.memory import Memories
from kinfolk.federation.own_data.arrays import from_arrays
from kinfolk.learning.batchable import obstacle
from kinfolk.learning.learner import Learner
from kinfolk.learning.losses import find_loss
from kinfolk.learning.network import ReluPool2, exchange_layers
from kinfolk.script import Ask
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import Stack

# clients, rows, in, out, height, width, kernel, stride, padding
SHAPES = [
    (3, 4, 1, 6, 12, 12, 5, 1, 0),
    (2, 3, 6, 17, 9, 8, 3, 1, 1),
    (2, 2, 16, 8, 8, 8, 3, 2, 1),
    (2, 1, 20, 5, 6, 7, 1, 2, 0),
    (1, 5, 13, 40, 7, 7, 3, 1, 1),
]
USABLE = ["grouped", "columns"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=Seed(0).torch(str(shape)), dtype=torch.float32).to(DEVICE)


def one_by_one(x, w, bias, stride, pad):
    """Each client by PyTorch in float64, and the gradients of a weighted sum."""
    x, w, bias = (t.double().requires_grad_() for t in (x, w, bias))
    out = torch.stack([F.conv2d(*one, stride, pad) for one in zip(x, w, bias, strict=True)])
    weight = torch.cos(torch.arange(out.numel(), device=DEVICE).reshape(out.shape))
    return [out, *torch.autograd.grad((out * weight).sum(), (x, w, bias))], weight.float()


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool((a.double() - b).norm() <= 2e-5 * b.norm() + 1e-9)


KERNELS = [pytest.param(form, marks=pytest.mark.gpu) for form in ("turned", "gathered")]


@pytest.mark.parametrize("form", [*USABLE, *KERNELS])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_form_is_the_convolution_of_each_client(form, shape):
    if form not in USABLE and DEVICE == "cpu":
        pytest.skip("no CUDA device")
    g, n, ci, co, h, w_, k, stride, pad = shape
    if form == "turned" and stride > 1:
        with pytest.raises(RuntimeError, match="turned"):
            conv.FORMS[form](normal(g, n, ci, h, w_), normal(g, co, ci, k, k), None, stride, pad)
        return
    x, w, bias = normal(g, n, ci, h, w_), normal(g, co, ci, k, k), normal(g, co)
    expected, weight = one_by_one(x, w, bias, stride, pad)
    given = [t.requires_grad_() for t in (x, w, bias)]
    out = conv.FORMS[form](*given, stride, pad)
    for got, wanted in zip([out, *torch.autograd.grad((out * weight).sum(), given)], expected, strict=True):
        assert close(got, wanted)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_vmapped_layer_is_the_layer_of_each_client(shape):
    g, n, ci, co, h, w_, k, stride, pad = shape
    layer = conv.fast_conv(nn.Conv2d(ci, co, k, stride, pad).to(DEVICE))
    x, w, bias = normal(g, n, ci, h, w_), normal(g, co, ci, k, k), normal(g, co)
    expected, weight = one_by_one(x, w, bias, stride, pad)
    given = [t.requires_grad_() for t in (x, w, bias)]
    out = vmap(lambda x, w, b: functional_call(layer, {"weight": w, "bias": b}, (x,)))(*given)
    for got, wanted in zip([out, *torch.autograd.grad((out * weight).sum(), given)], expected, strict=True):
        assert close(got, wanted)
    # One model for everybody, as in scoring.
    both = {"weight": w[0].detach(), "bias": bias[0].detach()}
    out = vmap(lambda x: functional_call(layer, both, (x,)))(x.detach())
    alone = F.conv2d(x.detach().flatten(0, 1), both["weight"], both["bias"], stride, pad)
    assert close(out.flatten(0, 1), alone.double())


# Prints the largest error of the gradients, in parts of a gradient, for a convolution that skips pixels.
SKIPPING = """
import torch
import torch.nn.functional as F
from torch import nn
from kinfolk.engines.fast.conv import fast_conv
torch.manual_seed(0)
worst = 0.0
for channels in (3, 4, 8) * 30:
    layer = fast_conv(nn.Conv2d(channels, 8, 1, stride=2))
    x = torch.randn(4, channels, 16, 16)
    given = layer.weight, layer.bias
    exact = [t.detach().double().requires_grad_() for t in given]
    by = torch.randn(4, 8, 8, 8)
    got = torch.autograd.grad((layer(x) * by).sum(), given)
    wanted = torch.autograd.grad((F.conv2d(x.double(), *exact, 2) * by).sum(), exact)
    worst = max(worst, *(float((g - w).abs().max() / w.abs().max()) for g, w in zip(got, wanted)))
print(worst)
"""


def test_narrow_convolutions_that_skip_pixels_are_right_without_avx512():
    # oneDNN writes past its buffer there (oneDNN issue 6035): such networks crashed, or learnt from noise.
    env = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": str(Path(kinfolk.__file__).parents[1])}
    words = [sys.executable, "-c", SKIPPING]
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1e-4


def test_layers_that_are_not_plain_are_left_alone():
    for layer in (
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding_mode="circular", padding=1),
        nn.Conv2d(4, 4, 3, stride=(1, 2)),
    ):
        assert type(conv.fast_conv(layer)) is nn.Conv2d
    net = exchange_layers(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Linear(2, 2)), conv.fast_conv)
    assert type(net[0]) is conv.ClientConv2d
    assert list(net.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize("bias", [True, False])
def test_a_vmapped_linear_layer_gives_gradients_in_the_weights_own_layout(bias):
    layer = fast_layer(nn.Linear(5, 3, bias=bias).to(DEVICE))
    x, w, b = (
        normal(4, 6, 5).requires_grad_(),
        normal(4, 3, 5).requires_grad_(),
        normal(4, 3).requires_grad_(),
    )
    given = {"weight": w, **({"bias": b} if bias else {})}
    out = vmap(lambda given, x: functional_call(layer, given, (x,)))(given, x)
    wanted = torch.einsum("gni,goi->gno", x, w) + (b[:, None] if bias else 0)
    weight = torch.sin(torch.arange(out.numel(), device=DEVICE).float()).reshape(out.shape)
    inputs = [x, *given.values()]
    got = torch.autograd.grad((out * weight).sum(), inputs)
    for a, e in zip(
        [out, *got], [wanted, *torch.autograd.grad((wanted * weight).sum(), inputs)], strict=True
    ):
        assert torch.allclose(a, e, atol=1e-5)
    assert got[1].is_contiguous()


@pytest.mark.parametrize("shape", [(3, 2, 8, 6), (2, 3, 7, 9)])
def test_pooling_keeps_the_first_of_equals_and_what_is_not_a_number(shape):
    x = normal(*shape).round().requires_grad_()  # many are equal
    relu_pool = fast_layer(ReluPool2())
    out, wanted = relu_pool(x), F.max_pool2d(F.relu(x), 2)
    weight = torch.sin(torch.arange(out.numel(), device=DEVICE).float()).reshape(out.shape)
    assert torch.equal(out, wanted)
    assert torch.equal(*(torch.autograd.grad((y * weight).sum(), x)[0] for y in (out, wanted)))
    pool = fast_layer(nn.MaxPool2d(2))
    assert type(pool) is Pool2
    assert torch.equal(pool(x), F.max_pool2d(x, 2))
    assert torch.equal(vmap(relu_pool)(x[None].expand(2, *shape))[1], wanted)
    bad = x.detach().clone()
    bad[0, 0, 1, 1] = float("nan")
    assert relu_pool(bad)[0, 0, 0, 0].isnan()


def test_a_pool_on_a_cpu_answers_in_the_layout_of_convolutions():
    x = torch.randn(3, 4, 8, 8).contiguous(memory_format=torch.channels_last).requires_grad_()
    for pool in (fast_layer(ReluPool2()), fast_layer(nn.MaxPool2d(2))):
        (got,) = torch.autograd.grad(pool(x).flatten(1).square().sum(), x)
        assert got.is_contiguous(memory_format=torch.channels_last)


def test_a_relu_and_a_pool_in_a_sequence_become_one_with_the_same_gradients():
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(3, 1)).to(
        DEVICE
    )
    joined = join_relu_and_pool(copy.deepcopy(plain))
    assert [type(m) for m in joined][1:] == [nn.Identity, FastReluPool2, nn.ReLU, nn.MaxPool2d]
    assert list(joined.state_dict()) == list(plain.state_dict())
    x = normal(2, 2, 12, 12)
    found = []
    for network in (plain, joined):
        out = network(x)
        found.append([out, *torch.autograd.grad(out.square().sum(), list(network.parameters()))])
    for got, want in zip(*found, strict=True):
        assert torch.allclose(got, want, atol=1e-6)


def test_layers_that_somebody_looks_at_stay():
    seen = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    seen[0].register_forward_hook(lambda module, given, out: None)
    assert type(join_relu_and_pool(seen)[0]) is nn.ReLU


class Viewing(nn.Module):
    """As many have it: the last convolution's result taken apart by `view`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3), nn.Linear(20, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.head(x.view(len(x), -1))


def test_networks_that_view_what_a_convolution_gives_train_in_every_engine():
    with Seed(0).borrowed("init"):
        module = Viewing()
    rows = [(normal(n, 3, 6, 6).cpu(), torch.arange(n) % 3) for n in (12, 9)]
    federation = from_arrays(rows, test={}, classes=3)
    learner = accelerated(
        Learner(module, find_loss("cross_entropy"), 3, plan=Plan(4), lr=0.1), rows[0][0][:2]
    )
    assert learner.prepare is not prepare, "the usual layout"
    assert torch.allclose(learner.apply(learner.first, rows[0][0]), module(rows[0][0]), atol=1e-6)
    assert obstacle(learner, *(part[:2] for part in rows[0])) == ""
    table, ask = {"t": learner.train()}, Ask("t", federation.clients, {"model": learner.first})
    context = RoundContext(Seed(0), 0, federation.clients)
    none = lambda: Memories(lambda who: {})  # noqa: E731
    engines = [Loop(federation, table, none()), *(Batched(federation, table, none(), n) for n in (1, 2))]
    loop, *others = (Stack.join(list(engine.replies(ask, context))).tree("model") for engine in engines)
    for other in others:
        for name, leaf in loop.items():
            assert torch.allclose(other[name], leaf, atol=1e-6), name
