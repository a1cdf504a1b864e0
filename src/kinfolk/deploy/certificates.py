"""Certificates in kits: whose they are, who has signed them, and how long they are good.

NVFlare's provisioning makes them for 360 days. A site's kit for Flower has that of its authority alone. One
that has expired is refused by the other end with words of TLS; here it is said before that, where somebody
can act.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID

from kinfolk.errors import KinfolkError

# Days before the end of a certificate from which on it is told.
SOON = 30
# NVFlare's first, then Flower's; a kit has the files of one of them.
_NAMES, _ROOTS = ("client.crt", "server.crt", "server.pem", "ca.crt"), ("rootCA.pem", "ca.crt")


def days_left(kit: Path, whose: str = "", now: datetime | None = None) -> int:
    """For how many days the certificate in a kit is good; one that is none, or another's, is an error.

    >>> days_left(Path("nowhere"))
    Traceback (most recent call last):
    kinfolk.errors.KinfolkError: kit = 'nowhere': has no certificate; is it a kit of a server, site or person?
    """
    startup, now = kit / "startup", now or datetime.now(UTC)
    path = next((startup / name for name in _NAMES if (startup / name).exists()), None)
    if path is None:
        remedy = "has no certificate; is it a kit of a server, site or person?"
        raise KinfolkError("kit", str(kit), remedy)
    signer = next((startup / name for name in _ROOTS if (startup / name).exists()), startup / _ROOTS[0])
    own, root = _read(path), _read(signer)
    try:
        own.verify_directly_issued_by(root)
    except (ValueError, TypeError, InvalidSignature) as error:
        remedy = "is not signed by the authority of this kit; unpack the kit again"
        raise KinfolkError("certificate", str(path), remedy) from error
    names = [str(name.value) for name in own.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    if whose and path != signer and names != [whose]:
        remedy = f"is that of {' '.join(names) or 'nobody'}, not of {whose}; unpack the kit again"
        raise KinfolkError("certificate", str(path), remedy)
    if now < own.not_valid_before_utc:
        remedy = (
            f"is good from {own.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on; set the clock of this machine"
        )
        raise KinfolkError("certificate", str(path), remedy)
    left = min(own.not_valid_after_utc, root.not_valid_after_utc) - now
    if left.total_seconds() <= 0:
        ended = min(own.not_valid_after_utc, root.not_valid_after_utc)
        remedy = f"has expired on {ended:%Y-%m-%d}; ask whoever made the kits for a new one"
        raise KinfolkError("certificate", str(path), remedy)
    return left.days


def warning(kit: Path, whose: str = "") -> str:
    """What there is to say of a certificate that ends soon; empty if it does not."""
    left = days_left(kit, whose)
    return f"the certificate of {kit.name} ends in {left} days; ask for a new kit" if left < SOON else ""


def _read(path: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise KinfolkError(
            "certificate", str(path), f"cannot be read ({error}); unpack the kit again"
        ) from error
