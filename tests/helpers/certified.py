"""What kits of NVFlare hold besides its start scripts: certificates, and the server's port."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID


def certify(
    folder: Path, name: str = "north", begins: int = -1, days: int = 361, foreign: bool = False
) -> Path:
    """Give the kit in a folder a root and a certificate, good from so many days on for so many days."""
    authority, key, other = (generate_private_key(SECP256R1()) for _ in range(3))
    startup = folder / "startup"
    startup.mkdir(parents=True, exist_ok=True)
    (startup / "rootCA.pem").write_bytes(_certificate("lungs", "lungs", authority, authority, -1000, 3650))
    signed = _certificate(name, "lungs", other if foreign else authority, key, begins, days)
    (startup / "client.crt").write_bytes(signed)
    return folder


def serving(folder: Path, port: int) -> None:
    """Make the kit in a folder that of a server on a port."""
    service = {"service": {"target": f"localhost:{port}"}}
    (folder / "startup" / "fed_server.json").write_text(json.dumps({"servers": [service]}))


def _certificate(
    name: str,
    issuer: str,
    signs: EllipticCurvePrivateKey,
    key: EllipticCurvePrivateKey,
    begins: int,
    days: int,
) -> bytes:
    def of(word: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, word)])

    now = datetime.now(UTC) + timedelta(days=begins)
    made = (
        x509.CertificateBuilder().subject_name(of(name)).issuer_name(of(issuer)).public_key(key.public_key())
    )
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now)
    return made.not_valid_after(now + timedelta(days=days)).sign(signs, SHA256()).public_bytes(Encoding.PEM)
