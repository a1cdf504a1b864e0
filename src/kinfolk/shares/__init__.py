"""Sums of models out of shares: from no secrecy, through the published scheme, to shares that hide.

What each protects and what not is in docs/secret-shares.md.
"""

from __future__ import annotations

from collections.abc import Callable

from kinfolk.shares.additive import Additive64
from kinfolk.shares.layerwise import Layerwise
from kinfolk.shares.plain import Plain
from kinfolk.shares.scheme import Scheme
from kinfolk.shares.shamir import Shamir61

# By the names that a configuration uses.
SCHEMES = {"plain": Plain, "layerwise": Layerwise, "additive64": Additive64, "shamir61": Shamir61}
HIDING = ("additive64", "shamir61")  # those that hide a model, if it is part of one sum only


def make_scheme(
    name: str,
    entropy: Callable[[int], bytes],
    min_members: int = 3,
    max_share: float = 0.5,
    layers: str = "tensor",
    bits: int = 0,
    limit: float = 2.0**14,
) -> Scheme:
    """A scheme by its name; those without secrets to keep do without the rest. Bits of 0: the scheme's own.

    >>> make_scheme("plain", bytes), make_scheme("shamir61", bytes, 4).min_members
    (Plain(), 4)
    """
    if name == "plain":
        return Plain()
    if name == "layerwise":
        return Layerwise(layers, entropy)
    kind = Additive64 if name == "additive64" else Shamir61
    bits = bits or kind.bits
    return kind(bits=bits, limit=limit, min_members=min_members, max_share=max_share, entropy=entropy)
