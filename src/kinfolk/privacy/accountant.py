"""What Gaussian noise costs: epsilon of many releases, and the noise that a given epsilon needs.

A release with noise of z times its sensitivity has parameter 1 / z of Gaussian differential privacy; of
several, each of which may depend on those before, the squares add up, exactly (Dong, Roth, Su: Gaussian
differential privacy. JRSS B 84, 2022, corollary 3.3). So an account is one number, the sum of 1 / z^2, and
its epsilon is that of one Gaussian mechanism (Balle, Wang: Improving the Gaussian mechanism for differential
privacy. ICML 2018), which dp-accounting computes.
Cohorts follow from a run's public seed, so that nothing is gained by sampling them.
"""

from __future__ import annotations

import math
from typing import Any

from kinfolk.errors import KinfolkError


def epsilon_of(account: float, delta: float) -> float:
    """The epsilon of releases whose 1 / z^2 add up to `account`.

    >>> round(epsilon_of(1.0, 1e-5), 4), epsilon_of(0.0, 1e-5)
    (4.3772, 0.0)
    """
    if account == 0:
        return 0.0
    return float(_library().get_epsilon_gaussian(1 / math.sqrt(account), delta))


def noise_for(epsilon: float, delta: float, releases: int) -> float:
    """The z with which so many releases cost epsilon together.

    >>> z = noise_for(3.0, 1e-5, 10)
    >>> round(epsilon_of(10 / z**2, 1e-5), 6)
    3.0
    """
    return float(_library().get_sigma_gaussian(epsilon, delta)) * math.sqrt(releases)


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        remedy = "needs dp-accounting: pip install 'kinfolk[privacy]'"
        raise KinfolkError("privacy", None, remedy) from None
    return dp_accounting
