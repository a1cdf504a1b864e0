"""Mixtures of tokens against tokens that are certain, and text that models write against probabilities."""

import copy

import pytest
import torch
from small_networks import learner_of, seeded, several
from torch import nn

from kinfolk.errors import KinfolkError
from kinfolk.learning.sequences import TextMean, TokenLSTM, TokenTransformer
from kinfolk.learning.tokens import mixing, moved_on, takes_tokens, vocabulary, writes, written

SURE = 1e4  # the logit of a token that is certain
NETWORKS = {
    "lstm": lambda: TokenLSTM(7, hidden=5),
    "transformer": lambda: TokenTransformer(7, 6, width=8, heads=2),
    "mean": lambda: TextMean(3, 7, 4),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_mixture_that_is_sure_is_a_token(name):
    learner = learner_of(seeded(NETWORKS[name]), 3 if name == "mean" else 7)
    x = torch.randint(1, 7, (5, 6), generator=torch.Generator().manual_seed(0))
    sure = nn.functional.one_hot(x, 7).float() * SURE
    soft = mixing(learner)
    assert soft.names == learner.names
    torch.testing.assert_close(soft.apply(soft.first, sure), learner.apply(learner.first, x))
    torch.testing.assert_close(soft.apply(soft.first, x), learner.apply(learner.first, x))
    other = {n: t + 0.1 for n, t in learner.first.items()}
    torch.testing.assert_close(soft.apply(other, sure), learner.apply(other, x))


def test_a_mixture_has_the_mean_vector_and_a_gradient():
    learner = learner_of(nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(4, 3)))
    z = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(1)).requires_grad_()
    soft = mixing(learner)
    out = soft.apply(soft.first, z)
    weight, last = learner.module[0].weight, learner.module[2]
    p = z.exp() / z.exp().sum(-1, keepdim=True)
    wanted = last((p[..., None] * weight).sum(-2).flatten(1))
    torch.testing.assert_close(out, wanted)
    (slope,) = torch.autograd.grad(out[:, 0].sum(), z)
    step = 1e-3 * slope
    gained = (
        soft.apply(soft.first, (z + step).detach())[:, 0] - soft.apply(soft.first, (z - step).detach())[:, 0]
    )
    torch.testing.assert_close(gained.sum(), 2e-3 * slope.square().sum(), rtol=1e-2, atol=1e-6)


def test_what_takes_tokens_is_told_from_what_takes_numbers():
    assert takes_tokens(learner_of(TokenLSTM(7, hidden=5), 7), (6,))
    assert not takes_tokens(learner_of(nn.Linear(6, 3)), (6,))

    class Places(nn.Module):
        """Numbers, with an embedding of their places."""

        def __init__(self) -> None:
            super().__init__()
            self.place = nn.Embedding(6, 1)
            self.head = nn.Linear(6, 3)

        def forward(self, x):
            return self.head(x + self.place(torch.arange(6))[:, 0])

    learner = learner_of(Places())
    assert vocabulary(learner.module) == 6
    assert not takes_tokens(learner, (6,))


def test_written_tokens_follow_the_probabilities():
    shares = torch.tensor([0.1, 0.6, 0.0, 0.3])
    luck = (torch.arange(10_000) + 0.5) / 10_000
    got = written(shares.expand(10_000, 4), luck).bincount(minlength=4) / 10_000
    torch.testing.assert_close(got, shares, rtol=0, atol=2e-4)
    edge = torch.tensor([[0.5, 0.5 - 1e-7, 0.0]])  # rounding left a sum below 1
    assert written(edge, torch.tensor([1 - 1e-12], dtype=torch.float64)).item() < 3
    assert moved_on(torch.arange(6).reshape(2, 3), torch.tensor([8, 9])).tolist() == [[1, 2, 8], [4, 5, 9]]


def test_only_a_network_that_gives_the_next_token_writes():
    writes(learner_of(TokenLSTM(7, hidden=5), 7), "algorithm.pseudo.sampler", "text")
    for module, outputs in ((TextMean(3, 7), 3), (nn.Linear(4, 7), 7)):
        with pytest.raises(KinfolkError, match=r"sampler = 'text': the network has \d outputs and \d tokens"):
            writes(learner_of(module, outputs), "algorithm.pseudo.sampler", "text")


def test_the_learners_own_network_stays_as_it_is():
    learner = learner_of(TokenLSTM(7, hidden=5, layers=2), 7)
    before = copy.deepcopy(learner.module)
    mixing(learner)
    assert repr(learner.module) == repr(before)
    assert several(learner, 2).keys() == dict(before.state_dict()).keys()
