"""Dropout by a key: as often as it should, nowhere twice alike, and the same wherever it is computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import vmap

from kinfolk.engines.one import step_keys
from kinfolk.learning.dropout import attention_weights, dropping, has_dropout, kept, watching
from kinfolk.streams import RoundContext, Seed
from kinfolk.task import Plan
from kinfolk.types import Client

KEY = torch.tensor(123456789012345)
KNOWN = [[1, 1, 1, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0, 1, 0]]


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_as_many_stay_as_should(p):
    stays = kept(KEY, (100, 200), p).double()
    spread = (p * (1 - p) / stays.numel()) ** 0.5
    assert abs(float(stays.mean()) - (1 - p)) < 5 * spread
    for axis in (0, 1):  # no row and no column has a lot of its own
        lines = stays.mean(axis)
        assert float(lines.std()) == pytest.approx((p * (1 - p) / stays.shape[axis]) ** 0.5, rel=0.25)


def test_neighbours_calls_keys_and_axes_have_nothing_to_do_with_one_another():
    one = kept(KEY, (64, 64), 0.5).double() - 0.5
    others = [
        kept(KEY, (64, 64), 0.5, call=1),
        kept(KEY + 1, (64, 64), 0.5),
        kept(KEY, (64, 64), 0.5).T,
        kept(KEY, (64, 65), 0.5)[:, 1:],
        kept(KEY, (65, 64), 0.5)[1:],
    ]
    for other in others:
        assert abs(float((one * (other.double() - 0.5)).mean() * 4)) < 5 / 64


def test_the_same_alone_among_others_and_in_a_larger_batch():
    keys = torch.tensor([5, 6, 7])
    many = vmap(lambda key: kept(key, (9, 4), 0.3, 2))(keys)
    for key, mine in zip(keys, many, strict=True):
        assert torch.equal(mine[:5], kept(key, (5, 4), 0.3, 2))
        assert torch.equal(mine[:, :2], kept(key, (9, 2), 0.3, 2)), "whatever axis is padded"


def test_known_bits():
    """Written down: a resumed run, or one on another machine, must drop the same."""
    assert kept(torch.tensor(1), (2, 8), 0.5).int().tolist() == KNOWN


def test_layers_and_functions_drop_alike_and_scale_what_stays():
    x = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(0))
    layers = [nn.Dropout(0.25), lambda x: F.dropout(x, 0.25), lambda x: torch.dropout(x, 0.25, True)]
    outs = []
    for layer in layers:
        with dropping(KEY):
            outs.append(layer(x))
    mask = kept(KEY, (6, 4, 5), 0.25)
    assert all(torch.equal(out, outs[0]) for out in outs)
    torch.testing.assert_close(outs[0], x * mask / 0.75)
    with dropping(KEY):
        twice = nn.Sequential(nn.Dropout(0.25), nn.Dropout(0.25))(torch.ones(6, 4, 5))
    torch.testing.assert_close(twice, mask * kept(KEY, (6, 4, 5), 0.25, 1) / 0.75**2)


def test_channels_share_a_fate_and_what_is_not_training_drops_nothing():
    x = torch.ones(3, 4, 2, 2)
    with dropping(KEY):
        whole = nn.Dropout2d(0.5)(x)
        assert nn.Dropout(0.5).eval()(x) is x
        assert nn.Dropout(0.0)(x) is x
        assert not nn.Dropout(1.0)(x).any()
        changed = x.clone()
        assert F.dropout(changed, 0.5, inplace=True) is changed
    assert torch.equal(whole, whole[..., :1, :1].expand_as(whole))
    assert set(whole.flatten().tolist()) == {0.0, 2.0}
    assert (changed == 0).any()


@pytest.mark.parametrize("masked", ["none", "causal", "bool", "float"])
def test_attention_with_dropout_is_attention_without_but_for_the_mask(masked):
    draw = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 5, 4, generator=draw) for _ in range(3))
    mask = {"bool": torch.ones(5, 5).tril().bool(), "float": torch.randn(5, 5, generator=draw)}.get(masked)
    causal = masked == "causal"
    weights = attention_weights(q, k, mask, causal)
    torch.testing.assert_close(weights @ v, F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal))
    with dropping(KEY):
        got = F.scaled_dot_product_attention(q, k, v, mask, 0.3, causal)
    torch.testing.assert_close(got, (weights * kept(KEY, (2, 3, 5, 5), 0.3) / 0.7) @ v)


def test_a_place_that_may_look_nowhere_finds_nothing_and_has_a_gradient():
    q, k, v = (torch.ones(1, 1, 3, 2, requires_grad=True) for _ in range(3))
    nowhere = torch.zeros(3, 3, dtype=torch.bool)
    nowhere[0] = True
    for mask in (nowhere, torch.zeros(3, 3).masked_fill(~nowhere, -torch.inf)):
        out = attention_weights(q, k, mask) @ v
        assert torch.equal(out[0, 0], torch.tensor([[1.0, 1], [0, 0], [0, 0]]))
        assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


def test_who_drops():
    assert has_dropout(nn.TransformerEncoderLayer(4, 2, 8))
    assert not has_dropout(nn.TransformerEncoderLayer(4, 2, 8, 0.0))
    with watching() as watched:
        F.dropout(torch.ones(3), 0.5, training=False)
        F.relu(torch.ones(3))
    assert not watched.dropped


def test_no_two_steps_rounds_clients_or_passes_share_a_key():
    def keys(who: str = "ann", round: int = 0, number: int = 0, seed: int = 0) -> list[int]:
        context = RoundContext(Seed(seed), round, (Client("ann"), Client("bob")))
        found = step_keys(Plan(2, draws=True), 5, "batch", number, Client(who), context)
        assert found is not None
        return found.tolist()

    all_of_them = [*keys(), *keys("bob"), *keys(round=1), *keys(number=1), *keys(seed=1)]
    assert len(set(all_of_them)) == 25
    assert keys() == keys()
    context = RoundContext(Seed(0), 0, (Client("ann"),))
    assert step_keys(Plan(2), 5, "batch", 0, Client("ann"), context) is None
