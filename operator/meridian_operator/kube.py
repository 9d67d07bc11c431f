"""The real `Cluster`: the one module that knows the Kubernetes client. Its errors are translated here and nowhere else."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from meridian_api.digest import canonical_json, sha256_hex
from meridian_operator.cluster import (
    FIELD_MANAGER,
    RESOURCES,
    AlreadyExists,
    ClusterError,
    Conflict,
    ForeignOwner,
    Manifest,
    NotFound,
    Ref,
    Refused,
    Resource,
    Subject,
    Unreachable,
    controller_uid,
    is_foreign,
)

TIMEOUT = 10.0
"""Seconds for a whole request: one that disappears in the network is given up and tried again (K-24)."""
DISCOVERY_AGE = 30.0
APPLIED = "meridian.dev/applied"
"""Annotation of a child: digest of what was last applied, so that a pass that changes nothing sends nothing."""
_PARALLEL = 200
"""Connections; far above the number of objects that move at once, so that no pass waits for another's request."""


class Kube:
    """Opened by `connect`, closed by `close`."""

    def __init__(self, client: ApiClient, kubeconfig: str) -> None:
        self._client, self._kubeconfig = client, kubeconfig
        self._discovered: dict[str, tuple[float, frozenset[str]]] = {}

    async def close(self) -> None:
        await self._client.close()

    async def serves(self, kind: str) -> bool:
        resource = RESOURCES[kind]
        known = self._discovered.get(resource.api_version)
        if known is None or time.monotonic() - known[0] > DISCOVERY_AGE:
            try:
                found = await self._call("GET", _group(resource))
                names = frozenset(r["name"] for r in found.get("resources") or ())
            except NotFound:
                names = frozenset()
            known = self._discovered[resource.api_version] = (time.monotonic(), names)
        return resource.plural in known[1]

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        return await self._call("GET", _path(kind, namespace, name))

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> list[Manifest]:
        query = {"labelSelector": ",".join(f"{k}={v}" for k, v in labels.items())} if labels else {}
        found = await self._call("GET", _path(kind, namespace), query)
        head = {"apiVersion": RESOURCES[kind].api_version, "kind": kind}
        return [{**head, **item} for item in found["items"]]

    async def apply(self, manifest: Manifest) -> Manifest:
        kind, meta = manifest["kind"], manifest["metadata"]
        path = _path(kind, meta["namespace"], meta["name"])
        body = {k: v for k, v in manifest.items() if k != "status"}
        body["metadata"] = dict(meta)
        if controller_uid(manifest):  # a field of somebody else's object (a replica count) leaves no mark on it
            digest = sha256_hex(canonical_json(body))
            body["metadata"]["annotations"] = {**(meta.get("annotations") or {}), APPLIED: digest}
        try:
            live = await self._call("GET", path)
        except NotFound:
            live = None
        if live is not None:
            if is_foreign(live, manifest):
                raise ForeignOwner(f"{kind} {meta['name']} exists and is not controlled by this object")
            if covers(live, body):
                return live
            body["metadata"]["uid"] = live["metadata"]["uid"]  # a namesake made since then is a Conflict
        query = {"fieldManager": FIELD_MANAGER, "force": "true"}
        return await self._call("PATCH", path, query, body, content="application/apply-patch+yaml")

    async def create(self, manifest: Manifest) -> Manifest:
        path = _path(manifest["kind"], manifest["metadata"]["namespace"])
        try:
            return await self._call("POST", path, {"fieldManager": FIELD_MANAGER}, manifest)
        except Conflict as error:
            raise AlreadyExists(str(error)) from error

    async def replace(self, manifest: Manifest) -> Manifest:
        return await self._put(manifest, "")

    async def replace_status(self, manifest: Manifest) -> Manifest:
        return await self._put(manifest, "/status")

    async def delete(self, ref: Ref) -> None:
        body = {"propagationPolicy": "Background", "preconditions": {"uid": ref.uid}}
        try:
            await self._call("DELETE", _path(ref.kind, ref.namespace, ref.name), {}, body)
        except (NotFound, Conflict):
            return  # gone, or another object of that name

    async def review_token(self, token: str, audience: str) -> Subject | None:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [audience]},
        }
        answer = await self._call("POST", "/apis/authentication.k8s.io/v1/tokenreviews", {}, body)
        status = answer.get("status") or {}
        if not status.get("authenticated") or audience not in (status.get("audiences") or ()):
            return None
        user = status.get("user", {})
        pods = (user.get("extra") or {}).get("authentication.kubernetes.io/pod-name") or (None,)
        return Subject(str(user.get("username", "")), pods[0])

    async def _put(self, manifest: Manifest, subresource: str) -> Manifest:
        meta = manifest["metadata"]
        if not meta.get("resourceVersion"):
            raise Refused("metadata.resourceVersion is required")
        path = _path(manifest["kind"], meta["namespace"], meta["name"]) + subresource
        return await self._call("PUT", path, {"fieldManager": FIELD_MANAGER}, manifest)

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        *,
        content: str = "application/json",
    ) -> Manifest:
        """One request, with the newest token. Raises ClusterError's children."""
        try:
            async with asyncio.timeout(TIMEOUT):
                status, text = await self._send(method, path, query, body, content)
                if status == 401:  # the token was rotated between two looks at the file
                    await configure(self._client.configuration, self._kubeconfig)
                    status, text = await self._send(method, path, query, body, content)
        except (aiohttp.ClientError, TimeoutError, OSError, ConfigException) as error:
            raise Unreachable(f"{method} {path}: {type(error).__name__} {error}") from error
        if not 200 <= status <= 299:
            raise _error(status, text, f"{method} {path}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise Unreachable(f"{method} {path}: the answer is not JSON") from error

    async def _send(
        self, method: str, path: str, query: Mapping[str, str] | None, body: Any, content: str
    ) -> tuple[int, bytes]:
        configuration = self._client.configuration
        auth = await configuration.get_api_key_with_prefix("BearerToken", alias="authorization")
        headers = {"Accept": "application/json", "Content-Type": content}
        if auth:
            headers["Authorization"] = auth
        answer = await self._client.rest_client.request(
            method,
            f"{configuration.host.rstrip('/')}{path}{'?' + urlencode(query) if query else ''}",
            headers=headers,
            body=body,
            _request_timeout=aiohttp.ClientTimeout(total=TIMEOUT, connect=3),
        )
        return answer.status, await answer.read()


async def connect(kubeconfig: str = "") -> Kube:
    """A client by kubeconfig, or in-cluster when `kubeconfig` is empty. Raises ConfigException; connects to nothing yet."""
    configuration = Configuration()
    configuration.connection_pool_maxsize = _PARALLEL
    configuration.retries = False  # retries have one owner: the queue
    await configure(configuration, kubeconfig)
    return Kube(ApiClient(configuration), kubeconfig)


async def configure(configuration: Configuration, kubeconfig: str) -> None:
    """Read server, authority and token (again)."""
    if kubeconfig:
        await load_kube_config(config_file=kubeconfig, client_configuration=configuration)
    else:
        load_incluster_config(client_configuration=configuration)


@dataclass(frozen=True)
class Credentials:
    """How to reach the API server, read anew each time, for the watcher, which has a client of its own."""

    server: str
    token: str | None
    ca_path: str | None
    ca_data: str | bytes | None
    certificate_path: str | None
    private_key_path: str | None


async def credentials(kubeconfig: str = "") -> Credentials:
    """What the kubeconfig, or the pod's token file, says now. Raises ConfigException."""
    fresh = Configuration()
    await configure(fresh, kubeconfig)
    token = await fresh.get_api_key_with_prefix("BearerToken", alias="authorization")
    return Credentials(
        server=fresh.host,
        token=token.split(" ", 1)[-1] if token else None,
        ca_path=fresh.ssl_ca_cert or None,
        ca_data=None if fresh.ssl_ca_cert else fresh.ca_cert_data,
        certificate_path=fresh.cert_file or None,
        private_key_path=fresh.key_file or None,
    )


def covers(live: Any, wanted: Any) -> bool:
    """Whether `live` already says everything that `wanted` does (the server's defaults and other writers' fields aside)."""
    if isinstance(wanted, dict):
        return isinstance(live, dict) and all(k in live and covers(live[k], v) for k, v in wanted.items())
    if isinstance(wanted, list | tuple):
        return (
            isinstance(live, list)
            and len(live) == len(wanted)
            and all(covers(a, b) for a, b in zip(live, wanted, strict=True))
        )
    return bool(live == wanted)


def _error(status: int, text: bytes, what: str) -> ClusterError:
    try:
        said = json.loads(text)
        message, reason = f"{said.get('message', '')}", said.get("reason", "")
    except ValueError:
        message, reason = text[:200].decode(errors="replace"), ""
    told = f"{what}: {status} {message}"
    if status == 404:
        return NotFound(told)
    if status == 409:
        return AlreadyExists(told) if reason == "AlreadyExists" else Conflict(told)
    if status == 429 or status >= 500:
        return Unreachable(told)
    return Refused(told)


def _group(resource: Resource) -> str:
    return f"/apis/{resource.api_version}" if "/" in resource.api_version else f"/api/{resource.api_version}"


def _path(kind: str, namespace: str, name: str = "") -> str:
    resource = RESOURCES[kind]
    path = f"{_group(resource)}/namespaces/{quote(namespace)}/{resource.plural}"
    return f"{path}/{quote(name)}" if name else path
