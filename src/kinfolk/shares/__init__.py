"""Sums of models out of shares: from no secrecy, through the published scheme, to shares that hide.

What each protects and what not is in docs/secret-shares.md.
"""

from __future__ import annotations

from kinfolk.shares.additive import Additive64
from kinfolk.shares.layerwise import Layerwise
from kinfolk.shares.plain import Plain
from kinfolk.shares.shamir import Shamir61

# By the names that a configuration uses.
SCHEMES = {"plain": Plain, "layerwise": Layerwise, "additive64": Additive64, "shamir61": Shamir61}
