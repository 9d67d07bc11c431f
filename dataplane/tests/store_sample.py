"""The sample as the Jobs get it: content as mounted files, a signed snapshot, an index build's environment."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from meridian_api.digest import sha256_hex
from meridian_api.serving import Snapshot, pack
from meridian_dataplane.adapters import embedding

TEMPLATES = Path(__file__).parents[2] / "crds/samples/templates/support"
TENANTS = ("acme-eu", "globex")


def config_maps(name: str) -> dict[str, dict[str, str]]:
    """Name -> data of the ConfigMaps in one template file."""
    return {one["metadata"]["name"]: one["data"] for one in yaml.safe_load_all((TEMPLATES / name).read_text())}


def mount_sources(folder: Path) -> Path:
    """The documents of both tenants, each source named after its tenant."""
    for tenant in TENANTS:
        (folder / tenant).mkdir(parents=True)
        text = config_maps("20-documents.yaml")[f"documents-{tenant}"]["documents.jsonl"]
        (folder / tenant / "documents.jsonl").write_text(text)
    return folder


def mount_golden(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name, text in config_maps("12-golden.yaml")["golden-support-1"].items():
        (folder / name).write_text(text)
    return folder / "golden.jsonl"


def epoch_value(name: str, uid: str, tenants: Sequence[str] = TENANTS, **changed: Any) -> str:
    """MERIDIAN_EPOCH."""
    reference = {"name": "documents", "digest": "sha256:" + "0" * 64}
    spec = {
        "region": "eu-1",
        "tenants": list(tenants),
        "embedding": {"revision": embedding.REVISION},
        "sources": [{"name": tenant, "tenant": tenant, "configMap": reference} for tenant in tenants],
        **changed,
    }
    return json.dumps({"name": name, "uid": uid, "spec": spec})


def snapshot(epoch: str, engine: str, prompt: str = "prompt-support-1") -> Snapshot:
    """The sample's first release, with the engine at `engine`."""
    tool = json.loads(config_maps("11-tools.yaml")["tool-get-order-2"]["tool.json"])
    prompts = {name: next(iter(data.values())) for name, data in config_maps("10-prompts.yaml").items()}
    policies = [one["spec"] for one in yaml.safe_load_all((TEMPLATES / "00-tenants.yaml").read_text())]
    kept = ("tenantId", "identity", "tier", "allowedRegions", "overflow", "budgets", "roles", "canaryEligible")
    target = {
        "pool": "support-llm",
        "version": "v12",
        "region": "eu-1",
        "model": "support-llm",
        "provider": "Deployment",
        "baseUrl": engine,
        "price": {"inputUsd": 1.0, "cachedInputUsd": 1.0, "outputUsd": 4.0},
    }
    manifest = {
        "release": "2026-10-28.1",
        "appVersion": "0.1.0",
        "prompt": prompt,
        "systemPrompt": prompts[prompt],
        "historyFormat": "1",
        "primary": target,
        "index": {
            "epoch": epoch,
            "region": "eu-1",
            "embedding": {"model": embedding.MODEL, "revision": embedding.REVISION, "dimension": embedding.DIMENSION},
            "normaliser": "nfkc-1",
        },
        "tools": [tool],
        "settings": {},
    }
    return Snapshot.from_wire(
        {
            "service": "support",
            "region": "eu-1",
            "generation": 1,
            "leaseEpoch": 1,
            "issuedAt": "2026-10-28T00:00:00Z",
            "serving": manifest,
            "tenants": [{**{name: policy[name] for name in kept}, "cache": {}} for policy in policies],
        }
    )


def mount_snapshot(folder: Path, value: Snapshot) -> tuple[Path, Path]:
    """(configuration mount, keys folder) with `value` signed."""
    key, packed = Ed25519PrivateKey.generate(), pack(value)
    mount, keys = folder / "config", folder / "keys"
    mount.mkdir(parents=True)
    keys.mkdir()
    envelope = {
        "generation": value.generation,
        "payload": base64.b64encode(packed).decode(),
        "signature": base64.b64encode(key.sign(packed)).decode(),
        "keyId": "test",
        "digest": sha256_hex(packed),
    }
    (mount / "envelope.json").write_text(json.dumps(envelope))
    (keys / "test.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    return mount, keys
