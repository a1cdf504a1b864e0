from math import sqrt

import pytest
import torch

from kinfolk.clustering import sketch as module
from kinfolk.clustering.agreement import agreement
from kinfolk.clustering.distances import flat, squared
from kinfolk.clustering.kmeans import kmeans
from kinfolk.clustering.sketch import Sketch, width_for
from kinfolk.errors import KinfolkError
from kinfolk.streams import Seed

SHAPES = {"conv.weight": (4, 3, 5, 5), "conv.bias": (4,), "fc.weight": (10, 60), "scale": ()}


def _stack(number, name="models", shapes=SHAPES):
    draw = Seed(9).torch(name)
    return {leaf: torch.randn(number, *shape, generator=draw) for leaf, shape in shapes.items()}


def _as_matrix(made, sizes):
    """The map written out as a matrix, coordinate by coordinate, from what is stored."""
    block, rows = made.width // made.signs, []
    for name, size in sizes.items():
        matrix = torch.zeros(made.width, size, dtype=torch.float64)
        for i in range(made.signs):
            for place, (source, flip) in enumerate(
                zip(made.places[name][i], made.flips[name][i], strict=True)
            ):
                coordinate = place // block * block + int(source)
                if coordinate < size:
                    matrix[i * block + place % block, coordinate] += float(flip) / sqrt(made.signs)
        rows.append(matrix)
    return torch.cat(rows, 1)


def test_it_is_the_sparse_matrix_it_says_it_is(monkeypatch):
    shapes = {"a": (3, 7), "b": (5,)}
    made, stack = Sketch.of(shapes, 12, Seed(1)), _stack(6, shapes=shapes)
    matrix = _as_matrix(made, {"a": 21, "b": 5})
    wanted = flat(stack, ["a", "b"]).double() @ matrix.T
    assert torch.allclose(made.apply(stack).double(), wanted, atol=1e-5)
    assert ((matrix != 0).sum(0) == 4).all()
    assert torch.allclose(matrix.square().sum(0), torch.ones(26, dtype=torch.float64))
    monkeypatch.setattr(module, "BLOCK", 1)  # one run at a time
    assert torch.allclose(made.apply(stack).double(), wanted, atol=1e-5)


def _sketched(stack, width, seed):
    return Sketch.of({name: leaf.shape[1:] for name, leaf in stack.items()}, width, seed).apply(stack)


def test_it_is_linear():
    made, x, y = Sketch.of(SHAPES, 64, Seed(1)), _stack(3, "x"), _stack(3, "y")
    both = {name: 2 * x[name] - 3 * y[name] for name in SHAPES}
    assert torch.allclose(made.apply(both), 2 * made.apply(x) - 3 * made.apply(y), atol=5e-4)


def test_squared_distances_are_unbiased_with_the_variance_of_a_gaussian_projection():
    stack = _stack(2)
    exact = squared(flat(stack))[0, 1]
    ratios = torch.stack([squared(_sketched(stack, 32, Seed(s)))[0, 1] / exact for s in range(600)])
    spread = sqrt(2 / 32)
    assert abs(ratios.mean().item() - 1) < 4 * spread / sqrt(600)
    assert ratios.std().item() < 1.1 * spread


def test_all_distances_stay_within_the_bound():
    stack = _stack(40)
    exact = squared(flat(stack))
    pairs = torch.triu_indices(40, 40, 1)
    width = width_for(40, 0.3)
    fine = 0
    for seed in range(10):
        ratio = (squared(_sketched(stack, width, Seed(seed))) / exact)[pairs[0], pairs[1]]
        fine += bool((ratio.min() > 0.7) & (ratio.max() < 1.3))
    assert fine >= 8


@pytest.mark.parametrize(("apart", "least"), [(0.6, 1.0), (0.25, 0.9)])
def test_groups_found_on_the_sketch_are_those_found_on_the_models(apart, least):
    draw = Seed(3).torch("groups")
    truth = torch.arange(120) % 4
    points = apart * torch.randn(4, 2000, generator=draw)[truth] + torch.randn(120, 2000, generator=draw)
    exact = kmeans(points, 4, Seed(0))
    short = kmeans(_sketched({"w": points}, 1024, Seed(0)), 4, Seed(0))
    assert agreement(short.labels, exact.labels)["ari"] >= least


def test_a_leaf_is_sketched_alike_whatever_stands_beside_it():
    stack = _stack(3)
    order = Sketch.of(dict(reversed(SHAPES.items())), 64, Seed(1)).apply(stack)
    assert torch.allclose(order, Sketch.of(SHAPES, 64, Seed(1)).apply(stack), atol=1e-5)
    assert not torch.allclose(order, Sketch.of(SHAPES, 64, Seed(2)).apply(stack), atol=1e-1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_seed_gives_the_same_sketch_on_every_device():
    stack, made = _stack(5), Sketch.of(SHAPES, 64, Seed(1))
    there = made.apply({name: leaf.cuda() for name, leaf in stack.items()})
    assert there.is_cuda
    assert torch.allclose(there.cpu(), made.apply(stack), atol=1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(KinfolkError, match="multiple of signs = 4"):
        Sketch.of(SHAPES, 30, Seed(0))
    with pytest.raises(KinfolkError, match="the sketch needs this leaf"):
        Sketch.of({"a": (2,)}, 8, Seed(0)).apply({"b": torch.ones(1, 2)})
    with pytest.raises(KinfolkError, match="another size"):
        Sketch.of({"a": (2,)}, 8, Seed(0)).apply({"a": torch.ones(1, 3)})
    with pytest.raises(KinfolkError, match="between 0 and 1"):
        width_for(10, 1.0)
    with pytest.raises(KinfolkError, match="two points"):
        width_for(1, 0.5)
    with pytest.raises(KinfolkError, match="at least one"):
        Sketch.of({}, 8, Seed(0))
