"""What the installation in the cluster needs before its chart: kinds, keys, secrets, orders."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from meridian_cluster import certificates, kept_files, kubectl, layout, rendering
from meridian_cluster.postgres_roles import Dsns

POSTGRES_SECRET = "meridian-postgres"
SIGNING_SECRET = "meridian-signing"
KEYS = "meridian-keys"
ORDERS_SECRET = "meridian-orders"


def apply_kinds() -> int:
    """Apply the generated CRDs, wait until they are served, and return how many there are.

    The admission policies come with the chart.
    """
    kinds = sorted((layout.repository() / "crds").glob("*.yaml"))
    if kinds:
        kubectl.apply_text("\n---\n".join(path.read_text() for path in kinds))
        kubectl.established(*(f"{path.stem.partition('_')[2]}.meridian.dev" for path in kinds))
    return len(kinds)


def kept_secret(name: str) -> str:
    """A random text that is made once and kept in a file only root may read."""
    path = layout.SECRETS / name
    if not kept_files.whole(path):
        kept_files.write(path, secrets.token_urlsafe(32))
    return path.read_text()


def signing_key(path: Path) -> tuple[str, str, str]:
    """The Ed25519 key that signs ServingConfigs: private PEM, public PEM, key id.

    Made once; the id is derived from the public key, so that it can never name another one.
    """
    key = certificates.kept_key(path)
    if key is None:
        key = ed25519.Ed25519PrivateKey.generate()
        kept_files.write(path, certificates.private_pem(key))
    public = key.public_key()
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return path.read_text(), pem.decode(), f"key-{hashlib.sha256(der).hexdigest()[:12]}"


def apply_secrets(dsns: Dsns) -> None:
    """The namespace with the connection strings, the signing key and the order service's token."""
    private, public, key_id = signing_key(layout.SECRETS / "signing.pem")
    kubectl.apply(
        [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": layout.NAMESPACE}},
            _secret(
                POSTGRES_SECRET,
                {
                    "owner-dsn": dsns.owner,
                    "app-dsn": dsns.app,
                    "ingest-dsn": dsns.ingest,
                    "evidence-dsn": dsns.evidence,
                },
            ),
            _secret(SIGNING_SECRET, {"private.pem": private, "keyId": key_id}),
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": KEYS, "namespace": layout.NAMESPACE},
                "data": {f"{key_id}.pem": public},
            },
            _secret(ORDERS_SECRET, {"token": kept_secret("orders-token")}),
        ]
    )


def _secret(name: str, data: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": layout.NAMESPACE},
        "stringData": data,
    }


def apply_orders(refs: dict[str, str]) -> bool:
    """Apply the order service. False when its template does not exist."""
    template = layout.repository() / "e2e" / "orders" / "deploy.yaml.tmpl"
    if not template.exists():
        return False
    kubectl.apply_text(rendering.render(template.read_text(), rendering.placeholders(refs, {})))
    return True
