"""Letters from site to site that whoever passes them on can neither read, forge, replay nor put elsewhere.

A letter is signed by its sender's Ed25519 key, then sealed for its receiver: a fresh X25519 key,
HKDF-SHA256, ChaCha20-Poly1305. The signature covers the letter's place (run, round, request, kind, sender and
receiver), a digest of the text, and one of each part that everybody is told alike; the seal covers the place.
Two signatures of one place with different digests of such a part prove that the sender said both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_bytes

Place = Mapping[str, str]  # run, round, request, kind, from, to
_KEY = 32
_NONCE = bytes(12)  # every letter has a key of its own, so that no nonce is used twice under one


class Refused(Exception):
    """A letter that does not come from whom it says, or was written for another place; why, in a word."""


@dataclass(frozen=True)
class Said:
    """What a sender has signed: where, a digest of all of it, and of each part that it tells everybody alike.

    It tells nobody what was said, and may be shown to anybody.
    """

    place: Place
    text: str
    alike: Mapping[str, str]
    signature: str

    def by(self, sender: str) -> bool:
        """Whether the holder of the keys behind `sender` has signed it."""
        try:
            key = Ed25519PublicKey.from_public_bytes(_halves(sender)[0])
            key.verify(bytes.fromhex(self.signature), _signed(self.place, self.text, self.alike))
        except (InvalidSignature, ValueError):
            return False
        return True

    def plain(self) -> dict[str, Any]:
        """As JSON can write it."""
        return asdict(self)

    @staticmethod
    def read(told: Any) -> Said:
        """Out of what JSON has read, which anybody may have written."""
        try:
            place, alike = ({str(k): str(v) for k, v in told[key].items()} for key in ("place", "alike"))
            return Said(place, str(told["text"]), alike, str(told["signature"]))
        except (TypeError, KeyError, AttributeError) as error:
            raise Refused("is no word of a site") from error


@dataclass(frozen=True)
class Identity:
    """A site's two private keys, which stay at the site.

    >>> ann, bob = Identity.new(), Identity.new()
    >>> place = {"run": "7", "from": "ann", "to": "bob"}
    >>> letter = ann.seal(b"hello", bob.public, place)
    >>> bob.open(letter, ann.public, place)[0]
    b'hello'
    """

    signing: bytes
    opening: bytes

    @staticmethod
    def new() -> Identity:
        """Fresh keys from the operating system's generator."""
        signing, opening = Ed25519PrivateKey.generate(), X25519PrivateKey.generate()
        return Identity(signing.private_bytes_raw(), opening.private_bytes_raw())

    @staticmethod
    def load(path: Path) -> Identity:
        """The keys in a file; one that others can read is refused."""
        try:
            data, open_to = path.read_bytes(), path.stat().st_mode & 0o077
        except OSError as error:
            raise KinfolkError("key", str(path), f"cannot be read ({error.strerror})") from error
        if open_to:
            raise KinfolkError("key", str(path), "others can read it; run chmod 600 on it")
        if len(data) != 2 * _KEY:
            raise KinfolkError("key", str(path), "is no key of a site; unpack the kit again")
        return Identity(data[:_KEY], data[_KEY:])

    def save(self, path: Path) -> None:
        """Into a file that only its owner can read."""
        write_bytes(path, self.signing + self.opening, "key")

    @property
    def public(self) -> str:
        """What others know: the key that checks signatures, then the one that seals."""
        check = Ed25519PrivateKey.from_private_bytes(self.signing).public_key().public_bytes_raw()
        seal = X25519PrivateKey.from_private_bytes(self.opening).public_key().public_bytes_raw()
        return (check + seal).hex()

    def sign(self, data: bytes) -> bytes:
        """The signature of some bytes."""
        return Ed25519PrivateKey.from_private_bytes(self.signing).sign(data)

    def say(self, text: bytes, place: Place, alike: Mapping[str, str] | None = None) -> Said:
        """This text at this place, signed; `alike` are digests of the parts that all are told alike."""
        digest, parts = hashlib.sha256(text).hexdigest(), dict(alike or {})
        return Said(dict(place), digest, parts, self.sign(_signed(place, digest, parts)).hex())

    def seal(self, text: bytes, to: str, place: Place, alike: Mapping[str, str] | None = None) -> bytes:
        """A letter that only the holder of the keys behind `to` can open."""
        _, sealing = _halves(to)
        fresh, where, said = X25519PrivateKey.generate(), _place(place), self.say(text, place, alike)
        secret = fresh.exchange(X25519PublicKey.from_public_bytes(sealing))
        shown = fresh.public_key().public_bytes_raw()
        stub = json.dumps(said.plain()).encode()
        inside = len(stub).to_bytes(4, "big") + stub + text
        return shown + ChaCha20Poly1305(_derived(secret, shown, sealing)).encrypt(_NONCE, inside, where)

    def open(self, letter: bytes, sender: str, place: Place) -> tuple[bytes, Said]:
        """(what it says, what was signed); anything but a letter of this sender and place is refused."""
        mine, where = X25519PrivateKey.from_private_bytes(self.opening), _place(place)
        shown, own = letter[:_KEY], mine.public_key().public_bytes_raw()
        try:
            secret = mine.exchange(X25519PublicKey.from_public_bytes(shown))
            inside = ChaCha20Poly1305(_derived(secret, shown, own)).decrypt(_NONCE, letter[_KEY:], where)
            size = int.from_bytes(inside[:4], "big")
            said, text = Said.read(json.loads(inside[4 : 4 + size])), inside[4 + size :]
        except (InvalidTag, ValueError, RecursionError) as error:
            raise Refused("not sealed for this place") from error
        if said.place != place or said.text != hashlib.sha256(text).hexdigest() or not said.by(sender):
            raise Refused("not signed by its sender")
        return text, said


def contradict(sender: str, one: Said, other: Said) -> str:
    """The part of which a sender told two receivers different things, as both prove; empty if they do not.

    Their places may differ in the receiver alone. Anybody who knows the sender's public keys can check it.
    """
    places = [{key: value for key, value in said.place.items() if key != "to"} for said in (one, other)]
    parts = sorted(set(one.alike) & set(other.alike))
    differs = next((part for part in parts if one.alike[part] != other.alike[part]), "")
    return differs if places[0] == places[1] and one.by(sender) and other.by(sender) else ""


def _place(place: Place) -> bytes:
    return json.dumps(dict(place), sort_keys=True).encode()


def _signed(place: Place, text: str, alike: Mapping[str, str]) -> bytes:
    return b"kinfolk letter" + json.dumps([dict(place), text, dict(alike)], sort_keys=True).encode()


def _derived(secret: bytes, shown: bytes, receiver: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=b"kinfolk letter" + shown + receiver).derive(secret)


def _halves(public: str) -> tuple[bytes, bytes]:
    try:
        both = bytes.fromhex(public)
    except ValueError:
        both = b""
    if len(both) != 2 * _KEY:
        raise KinfolkError("site.key", public, "is no public key of a site; provision it again")
    return both[:_KEY], both[_KEY:]


@dataclass(frozen=True)
class Trust:
    """Whom a site believes: the authority of its federation, and its word about this site."""

    federation: str
    authority: str  # public keys
    bond: str
    owner: str = ""  # of this site, which may own others; empty: it is its own

    @property
    def name(self) -> str:
        """The federation's name, and a mark by which to tell it from another of this name."""
        return f"{self.federation} ({self.authority[:8]})"

    def holds(self, site: str, public: str, owner: str, word: str) -> bool:
        """Whether the authority has said that these keys are that site's, and whose it is."""
        return bonded(self.authority, self.federation, site, public, owner, word)


def bond(authority: Identity, federation: str, site: str, public: str, owner: str = "") -> str:
    """The word of a federation's authority that these keys are this site's; given at provisioning.

    >>> authority, ann = Identity.new(), Identity.new()
    >>> word = bond(authority, "lungs", "ann", ann.public, "clinic")
    >>> [bonded(authority.public, "lungs", "ann", ann.public, who, word) for who in ("clinic", "ann")]
    [True, False]
    """
    return authority.sign(_bond(federation, site, public, owner or site)).hex()


def bonded(authority: str, federation: str, site: str, public: str, owner: str, word: str) -> bool:
    """Whether the authority with these public keys has given its word."""
    try:
        key = Ed25519PublicKey.from_public_bytes(_halves(authority)[0])
        key.verify(bytes.fromhex(word), _bond(federation, site, public, owner or site))
    except (InvalidSignature, ValueError):
        return False
    return True


def _bond(federation: str, site: str, public: str, owner: str) -> bytes:
    return b"kinfolk site" + json.dumps([federation, site, public, owner]).encode()
