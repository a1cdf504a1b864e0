"""A shortened list of operations gives the same bits on other numbers than it was shortened on."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from kinfolk.engines.fast.graph_passes import by_methods, keep_constants, remove_noops
from kinfolk.streams import Seed

DRAW = Seed(5).torch("shorten")


def names(made) -> list[str]:
    """Every step of a list by the name of its operation."""
    return [getattr(n.target, "__name__", str(n.target)).split(".")[0] for n in made.graph.nodes]


def shortened(f, *given):
    made = make_fx(f)(*given)
    remove_noops(made.graph)
    keep_constants(made, given)
    by_methods(made, given)
    return made


def test_what_depends_on_shapes_alone_is_worked_out_once():
    def slope(x):
        mean = x.square().mean()
        return [x * (torch.ones_like(mean).expand(4).div(4).neg())[:, None]]

    x, other = (torch.randn(4, 3, generator=DRAW) for _ in range(2))
    made = shortened(slope, x)
    assert names(made) == ["x_1", "kept0", "mul", "output"]
    assert torch.equal(made(other)[0], slope(other)[0])


@pytest.mark.parametrize("way", ["itself", "a view", "given back"])
def test_what_is_written_to_is_made_anew(way):
    def write(x):
        zeros = x.new_zeros(2, 3)
        (zeros if way == "itself" else zeros[0]).add_(x[0])
        return [zeros] if way == "given back" else [zeros * 2]

    x = torch.randn(2, 3, generator=DRAW)
    made = shortened(write, x)
    for _ in range(2):  # a second call must not find the traces of the first
        assert torch.equal(made(x)[0], write(x)[0])


def test_a_constant_that_is_a_result_belongs_to_the_caller():
    made = shortened(lambda x: [torch.zeros_like(x), x + torch.ones_like(x)], torch.ones(3))
    made(torch.ones(3))[0].add_(1)
    assert torch.equal(made(torch.ones(3))[0], torch.zeros(3))


def test_large_constants_are_not_kept():
    made = shortened(lambda x: [x + torch.ones_like(x)], torch.zeros(1 << 17))
    assert "kept0" not in names(made)


def test_draws_are_drawn_each_time():
    def noisy(x):
        return [x + torch.rand_like(torch.ones_like(x))]

    with Seed(0).borrowed("draws"):
        made = shortened(noisy, torch.zeros(5))
        assert not torch.equal(made(torch.zeros(5))[0], made(torch.zeros(5))[0])


def test_operations_are_called_by_methods_with_the_same_bits():
    def many(x, w):
        y = torch.log_softmax(x @ w, 1)
        return [y.sum([0], True).view(4), torch.ops.aten.threshold_backward(y, y, -1.0)]

    x, w = torch.randn(5, 3, generator=DRAW), torch.randn(3, 4, generator=DRAW)
    made = shortened(many, x, w)
    methods = [n.target for n in made.graph.nodes if n.op == "call_method"]
    assert {"mm", "sum", "view"} <= set(methods)
    assert "threshold_backward" in names(made), "it is no method and keeps its name"
    for got, want in zip(made(x * 2, w), many(x * 2, w), strict=True):
        assert torch.equal(got, want)


def test_a_choice_between_truths_is_not_mistaken_for_another():
    """As a method `where` takes the condition second; on these numbers the two agree, on others not."""

    def chosen(c, x, y):
        return [torch.where(c, x, y)]

    yes, no = torch.tensor([True, True]), torch.tensor([False, False])
    made = shortened(chosen, yes, yes.clone(), no)
    other = (torch.tensor([False, True]), torch.tensor([True, False]), torch.tensor([False, True]))
    assert torch.equal(made(*other)[0], chosen(*other)[0])
