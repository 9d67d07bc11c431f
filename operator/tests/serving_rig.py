"""A small installation in memory for the tests of `serving`: the world of `serving_world` as stored objects, and a key."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from serving_world import CONFIG_MAPS, EPOCH, NAMESPACE, POOL, manifest, release_wire, tenant_wire

from meridian_api.serving import Snapshot
from meridian_operator.cluster import Key
from meridian_operator.converge import Kind, World, converge
from meridian_operator.memory_cluster import MemoryCluster
from meridian_operator.plan import Switch
from meridian_operator.serving.sign import load_key, open_own
from meridian_operator.serving.stored import envelope_of
from meridian_operator.servingconfig.decide import decide
from meridian_operator.servingconfig.observe import observe
from meridian_operator.settings import Settings

KIND = Kind("ServingConfig", observe, decide)
KEY = Key("ServingConfig", NAMESPACE, "support")


class NoStore:
    async def read(self, sql: str, parameters: tuple[object, ...] = ()) -> list[dict[str, Any]]:
        return []

    async def ensure(self, action: object) -> None:
        return


def write_key(folder: Path, key_id: str = "key-1") -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (folder / "private.pem").write_bytes(pem)
    (folder / "keyId").write_text(key_id)


@dataclass
class Rig:
    folder: Path
    cluster: MemoryCluster = field(default_factory=MemoryCluster)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    epoch: int = 3

    def __post_init__(self) -> None:
        write_key(self.folder)
        self.put("InferencePool", "qwen", POOL)
        self.put("IndexEpoch", "epoch-1", EPOCH)
        self.put("Release", "support-1", release_wire())
        self.put("Release", "support-2", release_wire(rollbackTo="support-1"))
        self.tenants("acme")
        for name, data in CONFIG_MAPS.items():
            body = {**manifest("ConfigMap", name, {}), "apiVersion": "v1", "data": data}
            body.pop("spec")
            self.cluster.put(body)

    def put(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        self.cluster.put(manifest(kind, name, spec))

    def tenants(self, *names: str) -> None:
        """Exactly these TenantPolicies."""
        for kind, _, name in list(self.cluster.objects):
            if kind == "TenantPolicy" and name not in names:
                self.cluster.remove(kind, NAMESPACE, name)
        for name in names:
            self.put("TenantPolicy", name, tenant_wire(name))

    @property
    def world(self) -> World:
        settings = Settings(
            replica="operator-0", owner_dsn="", evidence_dsn="", dataplane_image="", signing_dir=str(self.folder)
        )
        return World(self.cluster, NoStore(), settings, lambda: self.now, lambda: self.epoch)  # type: ignore[arg-type]

    async def look(self, times: int = 1) -> None:
        """Passes of the kind ServingConfig, a minute apart."""
        for _ in range(times):
            self.now += timedelta(minutes=1)
            await converge(KEY, KIND, self.world)

    @property
    def stored(self) -> dict[str, Any]:
        return self.cluster.objects["ServingConfig", NAMESPACE, "support"]

    @property
    def copy(self) -> dict[str, Any]:
        return self.cluster.objects["ConfigMap", NAMESPACE, "meridian-config-support"]

    @property
    def snapshot(self) -> Snapshot:
        return open_own(envelope_of(self.stored), load_key(self.folder))

    def status(self, **status: Any) -> None:
        self.cluster.put({**self.stored, "status": {**self.stored.get("status", {}), **status}})

    def switch(self, serving: str, candidate: str | None = None, weight: int = 0) -> Switch:
        stored = self.cluster.objects.get(("ServingConfig", NAMESPACE, "support"))
        version = stored["metadata"]["resourceVersion"] if stored else None
        return Switch("support", serving, candidate, weight, "salt" if candidate else "", version, "a test")
