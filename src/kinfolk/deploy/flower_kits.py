"""Kits for Flower: certificates, a key for every node, a secret for every runtime, and where the server is.

Flower makes none of these itself. `startup/` of a kit holds what its processes are given; `flower.json` says
whose it is. Nodes are known by their keys, whoever may start runs by a key that the authority vouches for.
"""

from __future__ import annotations

import ipaddress
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kinfolk.deploy.letters import Identity, bond
from kinfolk.errors import KinfolkError
from kinfolk.experiment.record import write_bytes, write_text

CARD = "flower.json"
DAYS = 360
_SCRIPT = """#!/usr/bin/env bash
# `kinfolk deploy serve` and `kinfolk site join` start this, and start it again when it ends.
exec python3 -m kinfolk.deploy.flower_start "$(cd "$(dirname "$0")/.." && pwd)"
"""


@dataclass(frozen=True)
class Card:
    """Whose kit a folder is, and what it knows of others.

    >>> Card.read(Path("nowhere"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: kit = 'nowhere': is no kit for Flower: it has no flower.json
    """

    folder: Path
    part: str  # server, site or admin
    name: str
    federation: str
    host: str
    port: int
    authority: str  # public keys
    word: str = ""  # of the authority, about an admin
    nodes: Mapping[str, str] | None = None  # at the server: the public key of each site's node

    @staticmethod
    def read(folder: Path) -> Card:
        """The card of a kit."""
        try:
            told: dict[str, Any] = json.loads((folder / CARD).read_text(encoding="utf-8"))
            return Card(folder, **told)
        except FileNotFoundError as error:
            raise KinfolkError("kit", str(folder), f"is no kit for Flower: it has no {CARD}") from error
        except (OSError, ValueError, TypeError) as error:
            raise KinfolkError("kit", str(folder / CARD), f"cannot be read ({error})") from error

    def write(self) -> None:
        """Into its folder."""
        told = {key: value for key, value in vars(self).items() if key != "folder"}
        write_text(self.folder / CARD, json.dumps(told, indent=1))

    def file(self, name: str) -> Path:
        """A file of `startup/`."""
        return self.folder.absolute() / "startup" / name


def make(
    federation: str,
    host: str,
    port: int,
    sites: Sequence[str],
    admins: Sequence[str],
    authority: Identity,
    out: Path,
) -> None:
    """Make the kits of a federation in a folder, one folder for each by its name."""
    root, own = _Authority.new(f"{federation} authority"), authority.public
    write_bytes(out / "authority" / "ca.key", _private(root.key), "key")
    cards = [Card(out / site, "site", site, federation, host, port, own) for site in sites]
    nodes: dict[str, str] = {}
    for card in cards:
        key = ec.generate_private_key(ec.SECP384R1())
        write_bytes(card.file("node.key"), _openssh(key), "key")
        nodes[card.name] = _public(key)
    server = Card(out / host, "server", host, federation, host, port, own, nodes=nodes)
    key, certificate = root.certify(host)
    write_bytes(server.file("server.key"), _private(key), "key")
    write_bytes(server.file("server.pem"), certificate, "key")
    for card in (server, *cards):
        write_bytes(card.file("superexec.secret"), secrets.token_bytes(32), "key")
        write_text(card.file("sub_start.sh"), _SCRIPT)
    for admin in admins:
        identity = Identity.new()
        word = bond(authority, federation, admin, identity.public)
        cards.append(Card(out / admin, "admin", admin, federation, host, port, own, word))
        identity.save(cards[-1].file("admin.key"))
    for card in (server, *cards):
        write_bytes(card.file("ca.crt"), root.shown, "key")
        card.write()


@dataclass(frozen=True)
class _Authority:
    """Vouches for the server's certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @staticmethod
    def new(name: str) -> _Authority:
        key = ec.generate_private_key(ec.SECP384R1())
        constraints = x509.BasicConstraints(ca=True, path_length=0)
        made = _blank(name, _called(name), key).add_extension(constraints, critical=True)
        identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        usage = _usage(signs_certificates=True)
        made = made.add_extension(identifier, critical=False).add_extension(usage, critical=True)
        return _Authority(key, made.sign(key, hashes.SHA384()))

    @property
    def shown(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def certify(self, host: str) -> tuple[ec.EllipticCurvePrivateKey, bytes]:
        """A key of the server, and its certificate: for its host, and for whoever is on its machine."""
        key = ec.generate_private_key(ec.SECP384R1())
        names: list[x509.GeneralName] = [x509.DNSName("localhost")]
        names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        made = _blank(host, self.certificate.subject, key)
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (x509.SubjectAlternativeName(names), False),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
            (by, False),
            (_usage(signs_certificates=False), True),
        ):
            made = made.add_extension(extension, critical=critical)
        certificate = made.sign(self.key, hashes.SHA384())
        return key, certificate.public_bytes(serialization.Encoding.PEM)


def _blank(name: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    """A certificate of `name` by `issuer`, without what it may be used for."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_called(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _called(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    kind = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def _openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    """As Flower's SuperNode reads its key."""
    kind = serialization.PrivateFormat.OpenSSH
    return key.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())


def _public(key: ec.EllipticCurvePrivateKey) -> str:
    kind = serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(serialization.Encoding.PEM, kind).decode()
