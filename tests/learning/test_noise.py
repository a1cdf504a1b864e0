"""Noise out of a hash: against whole numbers of Python, and against what random numbers must satisfy."""

import numpy as np
import torch
from scipy import stats
from torch.func import vmap

from kinfolk.learning.noise import bits, normal, uniform

MASK = 2**64 - 1


def mixed(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def test_bits_are_those_of_splitmix():
    gamma, key, word = 0x9E3779B97F4A7C15, 2**62 + 12345, 6
    state = mixed(key ^ mixed(((word + 1) * gamma) & MASK))
    wanted = [mixed((state + i * gamma) & MASK) for i in range(1, 7)]
    got = bits(torch.tensor(key), (2, 3), word).flatten().tolist()
    assert [g & MASK for g in got] == wanted


def test_normals_are_normal_and_uniforms_uniform():
    n = 40_000
    z, u = normal(torch.tensor(3), (n,), 0).numpy(), uniform(torch.tensor(3), (n,), 0).numpy()
    assert abs(z.mean()) < 4 / np.sqrt(n)
    assert abs(z.var() - 1) < 4 * np.sqrt(2 / n)
    assert stats.kstest(z, "norm").pvalue > 1e-3
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    assert 0 < u.min() < u.max() < 1


def test_other_places_keys_and_uses_have_nothing_to_do_with_one_another():
    n = 20_000
    base = normal(torch.tensor(3), (n,), 0, 5).numpy()
    others = [
        np.roll(base, 1),
        normal(torch.tensor(4), (n,), 0, 5).numpy(),
        normal(torch.tensor(3), (n,), 1, 5).numpy(),
        normal(torch.tensor(3), (n,), 0, 6).numpy(),
        normal(torch.tensor(3), (n,), 5, 0).numpy(),
    ]
    for other in others:
        assert abs(np.corrcoef(base, other)[0, 1]) < 4.5 / np.sqrt(n)
        assert abs(np.corrcoef(base**2, other**2)[0, 1]) < 4.5 / np.sqrt(n)


def test_many_clients_at_once_have_the_numbers_of_each():
    keys, steps = torch.tensor([5, 6, 2**62]), torch.tensor([0, 1, 7])
    together = vmap(lambda key, step: uniform(key, (4, 2), 1, step))(keys, steps)
    alone = torch.stack([uniform(k, (4, 2), 1, s) for k, s in zip(keys, steps, strict=True)])
    assert torch.equal(together, alone)
    assert torch.equal(uniform(torch.tensor(6), (4, 2), 1, 1), alone[1])


def test_rows_are_normal_each_and_have_nothing_to_do_with_one_another():
    """As attackers and GANs take it: many keys, a few hundred numbers each, and all moments up to four."""
    clients, n = 60, 2000
    z = vmap(lambda key: normal(key, (n,), 3))(torch.arange(clients)).numpy()
    assert abs(z.mean(1)).max() < 4.5 / np.sqrt(n)
    assert abs(z.var(1) - 1).max() < 4.5 * np.sqrt(2 / n)
    assert abs((z**3).mean()) < 4.5 * np.sqrt(15 / z.size)
    assert abs((z**4).mean() - 3) < 4.5 * np.sqrt(96 / z.size)
    assert stats.kstest(z.ravel(), "norm").pvalue > 1e-3
    off = np.corrcoef(z)[np.triu_indices(clients, 1)]
    assert abs(off).max() < 5 / np.sqrt(n)
    assert stats.kstest(off * np.sqrt(n), "norm").pvalue > 1e-3
    assert np.unique(z).size == z.size  # no number twice: 32 bits would have had some


def test_one_number_out_of_a_key_is_a_key():
    keys = vmap(lambda key: bits(key, (), 4))(torch.arange(1000))
    assert keys.shape == (1000,)
    assert len(set(keys.tolist())) == 1000
    assert torch.equal(keys[7], bits(torch.tensor(7), (), 4))
