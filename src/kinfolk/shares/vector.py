"""A model as one vector and back: what is shared are its floating-point tensors, buffers included."""

from __future__ import annotations

import torch
from torch import Tensor

from kinfolk.errors import KinfolkError
from kinfolk.types import Tree


def to_vector(tree: Tree) -> tuple[Tensor, tuple[tuple[str, int], ...]]:
    """The floating-point leaves end to end, and the table of their names and lengths.

    >>> to_vector({"w": torch.ones(1, 2), "n": torch.tensor(3), "b": torch.zeros(1)})
    (tensor([1., 1., 0.]), (('w', 2), ('b', 1)))
    """
    shared = {name: leaf for name, leaf in tree.items() if leaf.is_floating_point()}
    if not shared:
        raise KinfolkError("model", list(tree), "has no floating-point tensors to share")
    return torch.cat([leaf.reshape(-1) for leaf in shared.values()]), layers_of(tree)


def layers_of(tree: Tree) -> tuple[tuple[str, int], ...]:
    """Names and lengths of the floating-point leaves.

    >>> layers_of({"w": torch.ones(1, 2), "n": torch.tensor(3)})
    (('w', 2),)
    """
    return tuple((name, leaf.numel()) for name, leaf in tree.items() if leaf.is_floating_point())


def to_tree(vec: Tensor, like: Tree) -> Tree:
    """The model behind a vector, with the shapes and types of `like`; whole numbers are taken from there.

    >>> to_tree(torch.tensor([1.0, 2.0]), {"w": torch.zeros(2, 1), "n": torch.tensor(3)})["w"]
    tensor([[1.],
            [2.]])
    """
    size = sum(leaf.numel() for leaf in like.values() if leaf.is_floating_point())
    if tuple(vec.shape) != (size,):
        raise KinfolkError("vector", tuple(vec.shape), f"must hold {size} numbers")
    tree, start = {}, 0
    for name, leaf in like.items():
        if leaf.is_floating_point():
            tree[name] = vec[start : start + leaf.numel()].reshape(leaf.shape).to(leaf)
            start += leaf.numel()
        else:
            tree[name] = leaf
    return tree
