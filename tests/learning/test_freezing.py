"""What is frozen: which names, which buffers, and that it stays as it is in every copy."""

import copy

import pytest
import torch
from torch import nn
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from kinfolk.engines.fast import prepare
from kinfolk.errors import KinfolkError
from kinfolk.learning.freezing import freeze, frozen_names, frozen_parts
from kinfolk.learning.learner import Learner
from kinfolk.learning.lora import add_lora
from kinfolk.learning.losses import find_loss
from kinfolk.task import Batch

CE = find_loss("cross_entropy")


def network():
    body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(body, nn.BatchNorm1d(6, affine=False), nn.Linear(6, 3))


def test_a_part_whose_parameters_are_all_frozen_is_frozen_with_its_buffers():
    net = network()
    freeze(net, ["2.*"])
    assert list(frozen_parts(net)) == ["0", "0.0", "0.1", "0.2", "0.3"]
    statistics = {f"0.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}
    assert frozen_names(net) == {"0.0.weight", "0.0.bias", "0.1.weight", "0.1.bias"} | statistics
    # The BatchNorm without parameters is no part of it, and goes on learning.
    learner = Learner(net, CE, 3)
    assert [n for n in learner.first if n not in learner.names] == [
        "1.running_mean", "1.running_var", "1.num_batches_tracked",
    ]  # fmt: skip


def test_a_frozen_part_is_one_fixed_function_in_training_too():
    net = network()
    freeze(net, ["2.*"])
    net[0][1].running_mean.fill_(0.3)
    learner, x = Learner(net, CE, 3), torch.randn(5, 4)
    before = {name: t.clone() for name, t in learner.frozen.items()}
    model = {n: t.clone() for n, t in learner.first.items()}
    y = torch.zeros(5, dtype=torch.int64)
    got = learner.objective(model, Batch(x, y, torch.arange(5), None), {})
    body = copy.deepcopy(net[0]).eval()(x)
    normed = (body - body.mean(0)) / (body.var(0, unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(got, nn.functional.cross_entropy(net[2](normed), y))
    assert all(torch.equal(t, before[name]) for name, t in learner.frozen.items())
    assert model["1.num_batches_tracked"] == 1  # this one is trained


def test_a_network_whose_batch_norm_is_frozen_takes_batches_of_one():
    net = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
    assert Learner(net, CE, 3).plan.drop_single
    freeze(net, ["1.*"])
    assert not Learner(net, CE, 3).plan.drop_single


def test_all_copies_of_a_network_hold_the_same_frozen_tensors():
    net = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))
    freeze(net, ["1.*"])
    learner = Learner(net, CE, 3, prepare=prepare)
    held = net[0].weight.data_ptr()
    for module in (learner._training, learner._scoring, learner.training_module):
        assert module[0].weight.data_ptr() == held
        assert module[1].weight.data_ptr() != net[1].weight.data_ptr()
    assert all(n[0].weight.data_ptr() == held for n in learner._on(torch.device("cpu")))
    assert learner.plain_network()[0].weight.data_ptr() != held  # what leaves a run shares nothing with it


def test_a_tied_parameter_is_trained_by_any_of_its_names():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = net[0].weight
    freeze(net, ["1.weight"])
    learner = Learner(net, CE, 3)
    assert learner.names == ("0.weight",)
    assert set(learner.first) == {"0.weight"}
    assert set(learner.frozen) == {"0.bias", "1.bias"}


def test_in_bf16_frozen_matrices_are_rounded_once():
    net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
    freeze(net, ["1.*"])
    learner, x = Learner(net, CE, 3, half=True), torch.randn(2, 4)
    training, scoring = learner._on(x.device)
    assert training[0].weight.dtype == torch.bfloat16
    assert training[0].weight is scoring[0].weight
    coarse = copy.deepcopy(net).bfloat16()
    assert torch.equal(learner.apply(learner.first, x), coarse(x.bfloat16()).float())


def test_patterns_that_match_nothing_are_named():
    with pytest.raises(
        KinfolkError, match=r"model.train = 'haed.\*': matches no name; near ones: head.weight"
    ):
        freeze(nn.ModuleDict({"head": nn.Linear(2, 2, bias=False)}), ["haed.*"])
    net = nn.Module()
    net.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(KinfolkError, match="freezes everything"):
        freeze(net, ["count"])


class Made(TorchDispatchMode):
    """Notes the shape of everything that is computed; views of a tensor are not."""

    def __init__(self):
        super().__init__()
        self.shapes = set()

    def __torch_dispatch__(self, what, kinds, given=(), named=None):
        out = what(*given, **(named or {}))
        if not what.is_view:
            self.shapes |= {
                tuple(t.shape) for t in (out if isinstance(out, tuple) else (out,)) if torch.is_tensor(t)
            }
        return out


def test_frozen_weights_of_many_clients_are_one_matrix_and_have_no_gradient():
    net = nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 3))
    add_lora(net, rank=2, layers=["0"])
    net[2].requires_grad_()
    learner = Learner(net, CE, 3, prepare=prepare)
    clients, rows = 7, 5
    model = {n: t.expand(clients, *t.shape).clone().requires_grad_() for n, t in learner.first.items()}
    x, y = torch.randn(clients, rows, 40), torch.zeros(clients, rows, dtype=torch.int64)

    def loss(model, x, y):
        return learner.objective(model, Batch(x, y, torch.arange(rows), None), {})

    with Made() as made:
        total = vmap(loss)(model, x, y).sum()
        grads = torch.autograd.grad(total, list(model.values()))
    assert (clients * rows, 50) in made.shapes  # one product for all
    assert not {(50, 40), (40, 50), (clients, 50, 40), (clients, 40, 50)} & made.shapes
    assert [tuple(g.shape[1:]) for g in grads] == [tuple(t.shape) for t in learner.first.values()]
