"""What an admin asks a Flower server to run, signed: Flower itself asks whoever starts a run for no name.

An order holds a spec and names, and no code. It counts once, also where somebody has kept a copy.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kinfolk.deploy.flower_kits import Card
from kinfolk.deploy.letters import Identity, bonded
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_text

USED = "orders.json"  # in the server's kit
# What stands in the settings of a Flower run; the last says who has signed, and by which key.
KEYS = ("order", "by", "key", "word", "signature")


@dataclass(frozen=True)
class Order:
    """One run that is to be played."""

    run: str
    spec: str
    sites: tuple[str, ...]
    resume: bool = False
    seconds: float = 600.0
    federation: str = ""
    number: str = ""  # no two orders have the same

    def signed(self, card: Card) -> dict[str, str]:
        """The order as settings of a run, in the name of the admin whose kit it is."""
        identity = Identity.load(card.file("admin.key"))
        whole = replace(self, federation=card.federation, number=secrets.token_hex(16))
        text = json.dumps(asdict(whole))
        signature = identity.sign(_said(text)).hex()
        return dict(zip(KEYS, (text, card.name, identity.public, card.word, signature), strict=True))

    @staticmethod
    def taken(told: Mapping[str, Any], card: Card) -> Order:
        """The order in the settings of a run, at the server, which takes none that no admin has signed."""
        text, who, key, word, signature = (str(told.get(name, "")) for name in KEYS)
        try:
            known = "@" in who and bonded(card.authority, card.federation, who, key, "", word)
            if known:
                Ed25519PublicKey.from_public_bytes(bytes.fromhex(key)[:32]).verify(
                    bytes.fromhex(signature), _said(text)
                )
        except (InvalidSignature, ValueError, KinfolkError):
            known = False
        if not known:
            raise KinfolkError(
                "run", who, "is not ordered by an admin of this federation; use an admin's kit"
            )
        order = Order(**json.loads(text))
        if order.federation != card.federation:
            raise KinfolkError(
                "run", order.run, f"was ordered for {order.federation}; this is {card.federation}"
            )
        _once(order.number, card)
        return replace(order, sites=tuple(order.sites))


def _once(number: str, card: Card) -> None:
    """Note a number; one that was noted before is refused."""
    file = card.folder / USED
    used: list[str] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    if number in used:
        raise KinfolkError("run", number, "was ordered before, and an order counts once; submit it again")
    write_text(file, json.dumps([*used, number]))


def _said(text: str) -> bytes:
    return b"kinfolk order" + text.encode()
