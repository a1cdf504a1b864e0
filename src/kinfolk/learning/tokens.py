"""Rows of tokens where a server or a client makes rows up: mixtures of tokens, and text that a model writes.

There is no gradient with respect to a token. A mixture has one: a row [length, vocabulary] of logits, whose
softmax weighs the vectors of all tokens at each place. A network whose outputs are the next token needs no
search: it is a distribution of text, from which rows are drawn.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kinfolk.errors import KinfolkError
from kinfolk.learning.learner import Learner
from kinfolk.learning.network import exchange_layers
from kinfolk.types import Tree


class MixedEmbedding(nn.Module):
    """An embedding that takes tokens [...], or logits over tokens [..., vocabulary]: means of their vectors.

    >>> layer = MixedEmbedding(nn.Embedding.from_pretrained(torch.tensor([[1.0, 0.0], [3.0, 4.0]])))
    >>> layer(torch.tensor([1])), layer(torch.tensor([[0.0, 0.0]]))
    (tensor([[3., 4.]]), tensor([[2., 2.]]))
    """

    def __init__(self, old: nn.Embedding) -> None:
        super().__init__()
        self.weight = old.weight

    def forward(self, x: Tensor) -> Tensor:
        """The vectors of tokens, or their means."""
        return x.softmax(-1) @ self.weight if x.is_floating_point() else F.embedding(x, self.weight)


def vocabulary(network: nn.Module) -> int:
    """How many tokens a network knows: those of its first embedding; 0 if it has none.

    >>> vocabulary(nn.Sequential(nn.Embedding(95, 8), nn.Linear(8, 95))), vocabulary(nn.Linear(2, 2))
    (95, 0)
    """
    return next((m.num_embeddings for m in network.modules() if isinstance(m, nn.Embedding)), 0)


def takes_tokens(learner: Learner, shape: tuple[int, ...]) -> bool:
    """Whether the network takes rows of this shape as tokens, and not as numbers that measure something.

    >>> from kinfolk.learning.losses import find_loss
    >>> loss = find_loss("cross_entropy")
    >>> text = Learner(nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 2)), loss, 2)
    >>> takes_tokens(text, (3,)), takes_tokens(Learner(nn.Linear(3, 2), loss, 2), (3,))
    (True, False)
    """
    return vocabulary(learner.module) > 0 and not _takes_numbers(learner.module, tuple(shape))


@lru_cache(maxsize=64)
def _takes_numbers(network: nn.Module, shape: tuple[int, ...]) -> bool:
    network = copy.deepcopy(network).eval()
    try:
        with torch.no_grad():
            network(torch.zeros(2, *shape))
    except Exception:  # whatever a user's network says of rows that it cannot take
        return False
    return True


def runs(learner: Learner, x: Tensor, model: Tree | None = None) -> bool:
    """Whether the network takes some rows, with the numbers of a model or with its first ones.

    >>> from kinfolk.learning.losses import find_loss
    >>> runs(Learner(nn.Linear(3, 2), find_loss("cross_entropy"), 2), torch.zeros(1, 4))
    False
    """
    try:
        with torch.no_grad():
            learner.apply(model or learner.first, x)
    except (RuntimeError, ValueError, IndexError):  # whatever a network says of rows that it cannot take
        return False
    return True


def mixing(learner: Learner) -> Learner:
    """The learner whose network takes mixtures of tokens, [rows, length, vocabulary] of logits.

    >>> from kinfolk.learning.losses import find_loss
    >>> text = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 2))
    >>> soft = mixing(Learner(text, find_loss("cross_entropy"), 2))
    >>> soft.apply(soft.first, torch.zeros(4, 3, 9)).shape
    torch.Size([4, 2])
    """
    soft = replace(learner, module=exchange_layers(copy.deepcopy(learner.module), _mixed))
    for layer in soft._scoring.modules():
        # cuDNN has gradients of recurrent layers in training only; without drop-out it is the same.
        if isinstance(layer, nn.RNNBase):
            layer.dropout = 0.0
            layer.train()
    return soft


def _mixed(layer: nn.Module) -> nn.Module:
    return MixedEmbedding(layer) if isinstance(layer, nn.Embedding) else layer


def writes(learner: Learner, field: str, value: str) -> None:
    """Refuse a network that does not say which token comes next, naming the option that wants one.

    >>> from kinfolk.learning.losses import find_loss
    >>> text = nn.Sequential(nn.Embedding(9, 2), nn.Flatten(), nn.Linear(6, 2))
    >>> writes(Learner(text, find_loss("cross_entropy"), 2), "algorithm.pseudo.sampler", "text")
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: algorithm.pseudo.sampler = 'text': ...
    """
    tokens = vocabulary(learner.module)
    if tokens != learner.outputs:
        remedy = (
            f"the network has {learner.outputs} outputs and {tokens} tokens: it cannot write the next one"
        )
        raise KinfolkError(field, value, f"{remedy}; use 'back_search'")


def written(shares: Tensor, luck: Tensor) -> Tensor:
    """The next token [rows] from probabilities [rows, vocabulary] and numbers [rows] between 0 and 1.

    >>> written(torch.tensor([0.25, 0.25, 0.5]).expand(4, 3), torch.tensor([0.1, 0.3, 0.6, 0.999]))
    tensor([0, 1, 2, 2])
    """
    below = shares.double().cumsum(-1) <= luck.double()[:, None]
    # Rounding may leave the sum below 1.
    return below.sum(-1).clamp(max=shares.shape[-1] - 1)


def moved_on(x: Tensor, tokens: Tensor) -> Tensor:
    """Rows [rows, length] with a token more at their end and their first one gone.

    >>> moved_on(torch.tensor([[1, 2, 3]]), torch.tensor([4]))
    tensor([[2, 3, 4]])
    """
    return torch.cat([x[:, 1:], tokens[:, None].to(x.dtype)], 1)
