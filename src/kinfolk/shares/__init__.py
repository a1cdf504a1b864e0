"""Sums of models out of shares: from no secrecy, through the published scheme, to shares that hide.

What each protects and what not is in docs/privacy/secret-shares.md. A new scheme is a new file and a line
here.
"""

from __future__ import annotations

from typing import Any

from kinfolk.shares.additive import Additive64
from kinfolk.shares.layerwise import Layerwise
from kinfolk.shares.plain import Plain
from kinfolk.shares.shamir import Shamir61

# By the names that a configuration uses.
SCHEMES: dict[str, type[Any]] = {
    "additive64": Additive64,
    "plain": Plain,
    "layerwise": Layerwise,
    "shamir61": Shamir61,
}
