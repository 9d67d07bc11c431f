"""The Kubernetes API as Meridian uses it: a port with two implementations (`kube.py`, `memory_cluster.py`) and one contract.

Objects are plain manifests (decoded JSON). Every read is a quorum read. Failures are the typed errors below; observers turn
them into values with `find` and `find_all`, actors let them rise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from meridian_api.meta import API_VERSION

Manifest = dict[str, Any]
FIELD_MANAGER = "meridian-operator"


@dataclass(frozen=True)
class Resource:
    """Where the API server keeps a kind. Every one is namespaced."""

    api_version: str
    kind: str
    plural: str


RESOURCES: dict[str, Resource] = {
    r.kind: r
    for r in (
        Resource(API_VERSION, "Release", "releases"),
        Resource(API_VERSION, "InferencePool", "inferencepools"),
        Resource(API_VERSION, "IndexEpoch", "indexepochs"),
        Resource(API_VERSION, "TenantPolicy", "tenantpolicies"),
        Resource(API_VERSION, "ServingConfig", "servingconfigs"),
        Resource("serving.kserve.io/v1beta1", "InferenceService", "inferenceservices"),
        Resource("apps/v1", "Deployment", "deployments"),
        Resource("batch/v1", "Job", "jobs"),
        Resource("coordination.k8s.io/v1", "Lease", "leases"),
        Resource("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
        Resource("v1", "Pod", "pods"),
        Resource("v1", "Service", "services"),
        Resource("v1", "ConfigMap", "configmaps"),
        Resource("v1", "Event", "events"),
    )
}


class Key(NamedTuple):
    """Names one of our objects, whatever its uid: what the queue holds."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class Ref(NamedTuple):
    """One exact object: deleting it by `uid` never hits a namesake that was created since."""

    kind: str
    namespace: str
    name: str
    uid: str


class ClusterError(Exception):
    """Something the API server, or the way to it, refused."""


class NotFound(ClusterError):
    """No object of that name (or no such kind is served)."""


class AlreadyExists(ClusterError):
    """`create` found the name taken; read it live and compare owners (K-10)."""


class Conflict(ClusterError):
    """The resourceVersion or uid is not the live one: read and decide again (K-13)."""


class Refused(ClusterError):
    """Schema, CEL, admission or RBAC said no; the same write will be refused again."""


class ForeignOwner(ClusterError):
    """The name belongs to an object whose controller is not ours; it is left alone (T-51)."""


class Unreachable(ClusterError):
    """No answer in time, 429, or a 5xx: nothing is known about the effect of a write."""


@dataclass(frozen=True)
class Subject:
    """Whom a reviewed token belongs to. `pod` is the pod that it is bound to, where it is bound to one."""

    name: str
    pod: str | None = None


class Cluster(Protocol):
    """All methods raise ClusterError's children only, and answer or fail within about 10 s."""

    async def serves(self, kind: str) -> bool:
        """Whether discovery knows the kind (KServe's CRDs may be absent)."""
        ...

    async def get(self, kind: str, namespace: str, name: str) -> Manifest:
        """The live object. Raises NotFound."""
        ...

    async def list(self, kind: str, namespace: str, labels: Mapping[str, str] | None = None) -> list[Manifest]:
        """All live objects, consistent (no resourceVersion), each with apiVersion and kind.

        Raises NotFound for a kind that is not served.
        """
        ...

    async def apply(self, manifest: Manifest) -> Manifest:
        """Server-side apply as `meridian-operator`, forced, without status. The manifest carries metadata.namespace and,
        for a child, one controller ownerReference: raises ForeignOwner when the live object is another's (`is_foreign`).
        """
        ...

    async def create(self, manifest: Manifest) -> Manifest:
        """Raises AlreadyExists."""
        ...

    async def replace(self, manifest: Manifest) -> Manifest:
        """Update under metadata.resourceVersion (required). Raises Conflict or NotFound."""
        ...

    async def replace_status(self, manifest: Manifest) -> Manifest:
        """Update only `status` under metadata.resourceVersion (required). Raises Conflict or NotFound."""
        ...

    async def delete(self, ref: Ref) -> None:
        """Delete in the background if the live uid is `ref.uid`; absent or replaced counts as done (K-21)."""
        ...

    async def review_token(self, token: str, audience: str) -> Subject | None:
        """The subject of a ServiceAccount token that is valid for `audience` (TokenReview); None for any other token."""
        ...


@dataclass(frozen=True)
class Unreadable:
    """A source that did not answer, as a value for `decide`: not the same as an absent object."""

    source: str
    why: str


async def find(cluster: Cluster, kind: str, namespace: str, name: str) -> Manifest | None | Unreadable:
    """The live object, None when there is none, Unreadable when nobody knows."""
    try:
        return await cluster.get(kind, namespace, name)
    except NotFound:
        return None
    except ClusterError as error:
        return Unreadable(f"{kind}/{name}", str(error)[:300])


async def find_all(
    cluster: Cluster, kind: str, namespace: str, labels: Mapping[str, str] | None = None
) -> tuple[Manifest, ...] | Unreadable:
    """All live objects of a kind, or Unreadable. A kind of others that is not served has none; one of ours cannot be missing,
    so its absence (a CRD that is being installed again, K-05) is never taken for "nothing is demanded".
    """
    try:
        return tuple(await cluster.list(kind, namespace, labels))
    except NotFound as error:
        return Unreadable(kind, str(error)[:300]) if RESOURCES[kind].api_version == API_VERSION else ()
    except ClusterError as error:
        return Unreadable(kind, str(error)[:300])


def ref(manifest: Manifest) -> Ref:
    """The exact object that `manifest` was read from."""
    meta = manifest["metadata"]
    return Ref(manifest["kind"], meta["namespace"], meta["name"], meta["uid"])


def controller_uid(manifest: Manifest) -> str | None:
    """The uid of the object's controller, if it has one."""
    owners = manifest.get("metadata", {}).get("ownerReferences") or ()
    return next((o["uid"] for o in owners if o.get("controller")), None)


def is_foreign(live: Manifest, manifest: Manifest) -> bool:
    """Whether `live` is not the controller's of `manifest` to change: it has another controller, or none and is not marked as ours.

    An owner that was deleted with `--cascade=orphan` leaves its children marked and without controller: they are adopted (K-23).
    """
    wanted, has = controller_uid(manifest), controller_uid(live)
    if wanted is None:
        return False
    if has is None:
        return (live["metadata"].get("labels") or {}).get("app.kubernetes.io/part-of") != "meridian"
    return has != wanted


def owner_reference(owner: Manifest) -> dict[str, Any]:
    """What a child carries: deletion follows by garbage collection, so that no finalizer is needed (K-21)."""
    meta = owner["metadata"]
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": False,
    }
