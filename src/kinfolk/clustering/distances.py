"""How far apart points are: squared L2 and cosine, on points or on stacks of models laid flat."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError, near
from kinfolk.types import Tree

# Below this length a vector counts as zero: its cosine with anything is 0.
TINY = 1e-12


def flat(stack: Tree, names: Sequence[str] | None = None) -> Tensor:
    """A stack of models (every leaf [N, ...]) as points [N, P], leaf after leaf in the order of `names`.

    Without `names`: every floating-point leaf, in stored order. Integer leaves have no distance.

    >>> flat({"w": torch.ones(2, 1, 2), "n": torch.tensor([1, 2])}).shape
    torch.Size([2, 2])
    """
    names = floating(stack) if names is None else names
    for name in names:
        if name not in stack:
            raise KinfolkError("names", name, near(name, stack))
    if not names:
        raise KinfolkError("names", list(names), "name at least one floating-point leaf")
    return torch.cat([stack[name].flatten(1) if stack[name].dim() > 1 else stack[name][:, None]
                      for name in names], dim=1)  # fmt: skip


def floating(tree: Tree) -> tuple[str, ...]:
    """The names of the floating-point leaves, in stored order.

    >>> floating({"w": torch.ones(2), "n": torch.tensor(1)})
    ('w',)
    """
    return tuple(name for name, leaf in tree.items() if leaf.is_floating_point())


def squared(points: Tensor) -> Tensor:
    """Squared distances [N, N] between points [N, D], in float64; exactly zero from a point to itself.

    One matrix product; points are first moved to their mean, so that a common offset, however large, costs no
    digits.

    >>> squared(torch.tensor([[0.0, 0.0], [3.0, 4.0]]))
    tensor([[ 0., 25.],
            [25.,  0.]], dtype=torch.float64)
    """
    here = points.double() - points.double().mean(0)
    return _both_ways(apart(here, here))


def apart(points: Tensor, centres: Tensor) -> Tensor:
    """|x|^2 - 2 x.c + |c|^2 as it stands, never below 0; for points that are centred already.

    >>> apart(torch.tensor([[1.0]]), torch.tensor([[[0.0]], [[3.0]]]))
    tensor([[[1.]],
    <BLANKLINE>
            [[4.]]])
    """
    *batch, k, features = centres.shape
    # One product for all batches: [N, D] x [D, batch * K].
    inner = points @ centres.reshape(-1, features).T
    shaped = inner.reshape(len(points), *batch, k).movedim(0, -2)
    # Not points.square(): a second copy of all points.
    own = torch.einsum("nd,nd->n", points, points)[:, None]
    lengths = own + centres.square().sum(-1).unsqueeze(-2)
    return (lengths - 2 * shaped).clamp_(min=0)


def cosines(points: Tensor) -> Tensor:
    """Cosine similarities [N, N] in [-1, 1]; 0 where a vector is zero, also with itself.

    >>> cosines(torch.tensor([[2.0, 0.0], [0.0, 0.0], [-1.0, 0.0]]))
    tensor([[ 1.,  0., -1.],
            [ 0.,  0.,  0.],
            [-1.,  0.,  1.]])
    """
    here = _unit(points)
    return (here @ here.T).clamp(-1, 1)


def cosine_distances(points: Tensor) -> Tensor:
    """1 - cosine, in [0, 2] and in float64; the diagonal is 0 and the matrix symmetric.

    >>> cosine_distances(torch.eye(2))
    tensor([[0., 1.],
            [1., 0.]], dtype=torch.float64)
    """
    return _both_ways(1 - cosines(points.double()))


def _both_ways(distances: Tensor) -> Tensor:
    """The same from i to j as from j to i, which a matrix product alone does not promise; 0 to itself."""
    return ((distances + distances.T) / 2).fill_diagonal_(0.0)


def _unit(points: Tensor) -> Tensor:
    """Rows of length 1; rows that are nearly zero stay so short that their cosines vanish."""
    lengths = torch.linalg.vector_norm(points, dim=-1, keepdim=True)
    return torch.where(lengths > TINY, points / lengths.clamp(min=TINY), torch.zeros_like(points))
