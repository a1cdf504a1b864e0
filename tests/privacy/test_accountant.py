"""Epsilon by other ways: an integral over the outcomes, and the accountants of dp-accounting."""

from __future__ import annotations

import builtins
import math

import dp_accounting
import numpy as np
import pytest
from dp_accounting import pld, rdp

from kinfolk.errors import KinfolkError
from kinfolk.privacy.accountant import epsilon_of, noise_for


def delta_of(epsilon: float, account: float) -> float:
    """How far N(mu, 1) is over e^epsilon N(0, 1), summed over all outcomes; mu^2 is the account."""
    mu = math.sqrt(account)
    x = np.linspace(-40, 40 + mu, 2_000_001)
    density = np.exp(-((x - mu) ** 2) / 2) - math.exp(epsilon) * np.exp(-(x**2) / 2)
    return float(np.clip(density, 0, None).sum() * (x[1] - x[0]) / math.sqrt(2 * math.pi))


@pytest.mark.parametrize("account", [0.01, 0.25, 1.0, 9.0])
@pytest.mark.parametrize("delta", [1e-2, 1e-6])
def test_epsilon_is_where_the_rest_weighs_delta(account, delta):
    epsilon = epsilon_of(account, delta)
    found = delta_of(epsilon, account) if epsilon else delta
    assert found == pytest.approx(delta, rel=1e-3)


@pytest.mark.parametrize(("z", "releases"), [(1.0, 1), (2.0, 10), (6.0, 100)])
def test_releases_add_up_as_the_accountants_have_it(z, releases):
    event = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(z), releases)
    tight = pld.PLDAccountant().compose(event).get_epsilon(1e-5)
    bound = rdp.RdpAccountant().compose(event).get_epsilon(1e-5)
    found = epsilon_of(releases / z**2, 1e-5)
    assert found == pytest.approx(tight, rel=0.01)
    assert found <= bound <= 1.5 * found


def test_noise_meets_its_epsilon_and_no_more():
    z = noise_for(2.0, 1e-5, 30)
    assert delta_of(2.0, 30 / z**2) == pytest.approx(1e-5, rel=1e-3)


def test_without_the_library_there_is_one_line(monkeypatch):
    usual = builtins.__import__

    def lacking(name, *rest, **more):
        if name == "dp_accounting":
            raise ImportError(name)
        return usual(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", lacking)
    with pytest.raises(KinfolkError, match=r"pip install 'kinfolk\[privacy\]'"):
        epsilon_of(1.0, 1e-5)
