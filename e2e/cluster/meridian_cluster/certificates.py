"""A certificate authority for one cluster, and the serving certificates that it signs.

Made once and kept in the state folder; a certificate that ends within 30 days, or whose names have
changed, is made anew. Clients do not get certificates: they present tokens.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from meridian_cluster import kept_files

AUTHORITY_LIFE = dt.timedelta(days=3650)
SERVING_LIFE = dt.timedelta(days=365)
RENEW_BEFORE = dt.timedelta(days=30)


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM files."""

    certificate: Path
    key: Path


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pair(folder: Path, name: str) -> Pair:
    return Pair(folder / f"{name}.crt", folder / f"{name}.key")


def kept_key(path: Path) -> PrivateKeyTypes | None:
    """The private key in this file; None when there is none, or half of one from a run that was interrupted."""
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except (FileNotFoundError, ValueError):
        return None


def _good(pair: Pair) -> x509.Certificate | None:
    """The certificate, when both files are whole, belong together, and it is far from its end."""
    key = kept_key(pair.key)
    try:
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    if key is None or key.public_key() != certificate.public_key():
        return None
    left = certificate.not_valid_after_utc - dt.datetime.now(dt.UTC)
    return certificate if left > RENEW_BEFORE else None


def _write(pair: Pair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    pair.certificate.parent.mkdir(parents=True, exist_ok=True)
    kept_files.write(pair.key, private_pem(key))
    kept_files.write(pair.certificate, certificate.public_bytes(serialization.Encoding.PEM), mode=0o644)


def private_pem(key: PrivateKeyTypes) -> bytes:
    """A private key as a file holds it: PKCS 8 without a passphrase."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, life: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))  # clocks of pods and host are the same
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def authority(folder: Path, name: str = "ca") -> Pair:
    """The certificate authority in this folder; made when it is missing."""
    pair = _pair(folder, name)
    if _good(pair):
        return pair
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("meridian embedded cluster")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder(subject, subject, key.public_key(), AUTHORITY_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    _write(pair, certificate, key)
    return pair


def serving(by: Pair, folder: Path, name: str, *, dns: Sequence[str], ips: Sequence[str]) -> Pair:
    """A serving certificate for these names and addresses, signed by an authority; kept if good."""
    names: list[x509.GeneralName] = [x509.DNSName(entry) for entry in dns]
    names += [x509.IPAddress(ipaddress.ip_address(entry)) for entry in ips]
    return _issue(by, _pair(folder, name), _name(name), names, ExtendedKeyUsageOID.SERVER_AUTH)


def client(by: Pair, folder: Path, user: str, group: str) -> Pair:
    """A client certificate by which the API server proves itself to the kubelet; kept if good."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, group),
            x509.NameAttribute(NameOID.COMMON_NAME, user),
        ]
    )
    names = [x509.DNSName(user)]
    return _issue(by, _pair(folder, user), subject, names, ExtendedKeyUsageOID.CLIENT_AUTH)


def _signed(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    """Every authority made here has the same name, so only the signature tells a former one's certificates."""
    try:
        certificate.verify_directly_issued_by(signer)
    except (ValueError, InvalidSignature):
        return False
    return True


def _issue(
    by: Pair,
    pair: Pair,
    subject: x509.Name,
    names: Sequence[x509.GeneralName],
    usage: x509.ObjectIdentifier,
) -> Pair:
    signer = x509.load_pem_x509_certificate(by.certificate.read_bytes())
    kept = _good(pair)
    if kept and _signed(kept, signer):
        extension = kept.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        if list(extension) == list(names):
            return pair
    signing_key = serialization.load_pem_private_key(by.key.read_bytes(), password=None)
    if not isinstance(signing_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"{by.key} is not an elliptic-curve key")
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _builder(subject, signer.subject, key.public_key(), SERVING_LIFE)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .sign(signing_key, hashes.SHA256())
    )
    _write(pair, certificate, key)
    return pair


def service_account_key(folder: Path) -> Path:
    """The RSA key that signs ServiceAccount tokens; made when it is missing."""
    path = folder / "service-accounts.key"
    if kept_key(path) is None:
        folder.mkdir(parents=True, exist_ok=True)
        kept_files.write(path, private_pem(rsa.generate_private_key(65537, 2048)))
    return path
