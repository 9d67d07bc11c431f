"""The API server's rules that Meridian relies on, in memory: the double of `kube.py`, held to the same contract in tests."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Mapping

from meridian_operator.cluster import (
    RESOURCES,
    AlreadyExists,
    ClusterError,
    Conflict,
    ForeignOwner,
    Manifest,
    NotFound,
    Ref,
    Refused,
    Subject,
    controller_uid,
    is_foreign,
)

# The server fills or keeps these; an apply neither sets nor removes them.
_SERVER_OWNED = ("uid", "resourceVersion", "generation", "creationTimestamp")


class MemoryCluster:
    """Objects by (kind, namespace, name), with resourceVersions, uids, generations, ownership and garbage collection."""

    def __init__(self, *, absent: tuple[str, ...] = ()) -> None:
        self.objects: dict[tuple[str, str, str], Manifest] = {}
        self.writes: list[tuple[str, str, str]] = []
        """(verb, kind, name) of every write that changed something."""
        self.fail: Callable[[str, str, str], ClusterError | None] = lambda verb, kind, name: None
        """Asked before every call; an answer is raised."""
        self.tokens: dict[tuple[str, str], Subject] = {}
        """User names by (token, audience)."""
        self._absent = absent
        self._versions = itertools.count(1)

    async def serves(self, kind: str) -> bool:
        return kind not in self._absent

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        await self._enter("get", kind, name)
        return copy.deepcopy(self._live(kind, namespace, name))

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> list[Manifest]:
        await self._enter("list", kind, "")
        return [
            copy.deepcopy(found)
            for (k, ns, _), found in sorted(self.objects.items())
            if k == kind and ns == namespace and (labels or {}).items() <= found["metadata"].get("labels", {}).items()
        ]

    async def apply(self, manifest: Manifest) -> Manifest:
        kind, namespace, name = _identity(manifest)
        await self._enter("apply", kind, name)
        live = self.objects.get((kind, namespace, name))
        if live is None:
            return self._store("apply", {k: v for k, v in manifest.items() if k != "status"}, live=None)
        if is_foreign(live, manifest):
            raise ForeignOwner(f"{kind} {name} exists and is not controlled by this object")
        merged = _merge(live, {k: v for k, v in manifest.items() if k != "status"})
        return self._store("apply", merged, live=live)

    async def create(self, manifest: Manifest) -> Manifest:
        kind, namespace, name = _identity(manifest)
        await self._enter("create", kind, name)
        if (kind, namespace, name) in self.objects:
            raise AlreadyExists(f"{kind} {name}")
        return self._store("create", manifest, live=None)

    async def replace(self, manifest: Manifest) -> Manifest:
        kind, _, name = _identity(manifest)
        await self._enter("replace", kind, name)
        live = self._guarded(manifest)
        body = {k: v for k, v in manifest.items() if k != "status"}
        if "status" in live:
            body["status"] = live["status"]
        if kind == "ServingConfig":
            _grows(live, body)
        return self._store("replace", body, live=live)

    async def replace_status(self, manifest: Manifest) -> Manifest:
        kind, _, name = _identity(manifest)
        await self._enter("replace_status", kind, name)
        live = self._guarded(manifest)
        return self._store("replace_status", {**live, "status": manifest.get("status", {})}, live=live)

    async def delete(self, ref: Ref) -> None:
        await self._enter("delete", ref.kind, ref.name)
        live = self.objects.get((ref.kind, ref.namespace, ref.name))
        if live is None or live["metadata"]["uid"] != ref.uid:
            return
        self.writes.append(("delete", ref.kind, ref.name))
        self.remove(ref.kind, ref.namespace, ref.name)

    async def review_token(self, token: str, audience: str) -> Subject | None:
        await self._enter("review_token", "ConfigMap", "")
        return self.tokens.get((token, audience))

    # What other actors do in tests: people, KServe, the kubelet.

    def put(self, manifest: Manifest) -> Manifest:
        """Create or overwrite, status included, unrecorded. Answers the stored object."""
        live = self.objects.get(_identity(manifest))
        stored = self._store("put", {**(live or {}), **manifest}, live=live)
        if self.writes and self.writes[-1][0] == "put":
            self.writes.pop()
        return stored

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """Delete with everything it controls, unrecorded."""
        gone = self.objects.pop((kind, namespace, name))
        for k, ns, n in [i for i, o in self.objects.items() if controller_uid(o) == gone["metadata"]["uid"]]:
            if (k, ns, n) in self.objects:
                self.remove(k, ns, n)

    async def _enter(self, verb: str, kind: str, name: str) -> None:
        await asyncio.sleep(0)
        if (error := self.fail(verb, kind, name)) is not None:
            raise error
        if kind in self._absent or kind not in RESOURCES:
            raise NotFound(f"{kind} is not served")

    def _live(self, kind: str, namespace: str, name: str) -> Manifest:
        try:
            return self.objects[kind, namespace, name]
        except KeyError:
            raise NotFound(f"{kind} {name}") from None

    def _guarded(self, manifest: Manifest) -> Manifest:
        live = self._live(*_identity(manifest))
        given = manifest["metadata"].get("resourceVersion")
        if not given:
            raise Refused("metadata.resourceVersion is required")
        if given != live["metadata"]["resourceVersion"]:
            raise Conflict(f"{manifest['kind']} {manifest['metadata']['name']} has changed")
        return live

    def _store(self, verb: str, body: Manifest, *, live: Manifest | None) -> Manifest:
        stored = copy.deepcopy(body)
        old = live["metadata"] if live else {}
        meta = {k: v for k, v in stored["metadata"].items() if k not in _SERVER_OWNED}
        meta |= {k: old[k] for k in _SERVER_OWNED if k in old}
        stored["metadata"] = meta
        if live is not None and stored == live:
            return copy.deepcopy(live)
        version = next(self._versions)
        if live is None:
            born = f"2026-01-01T{version // 3600 % 24:02}:{version // 60 % 60:02}:{version % 60:02}Z"
            meta |= {"uid": f"uid-{version}", "generation": 1, "creationTimestamp": born}
        elif stored.get("spec") != live.get("spec"):
            meta["generation"] = old["generation"] + 1
        meta["resourceVersion"] = str(version)
        self.objects[_identity(stored)] = stored
        self.writes.append((verb, stored["kind"], meta["name"]))
        return copy.deepcopy(stored)


def _identity(manifest: Manifest) -> tuple[str, str, str]:
    return manifest["kind"], manifest["metadata"]["namespace"], manifest["metadata"]["name"]


def _merge(live: Manifest, wanted: Manifest) -> Manifest:
    """Server-side apply in small: what is wanted wins, what it does not mention stays, lists are replaced."""
    merged = dict(live)
    for key, value in wanted.items():
        both = isinstance(value, dict) and isinstance(live.get(key), dict)
        merged[key] = _merge(live[key], value) if both else value
    return merged


def _grows(live: Manifest, body: Manifest) -> None:
    for counter in ("generation", "leaseEpoch"):
        if body["spec"][counter] < live["spec"][counter]:
            raise Refused(f"{counter} only grows")
