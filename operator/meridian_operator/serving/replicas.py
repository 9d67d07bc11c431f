"""Which data-plane pods are ready: those that must acknowledge a change of traffic."""

from __future__ import annotations

from meridian_operator.cluster import Cluster, Manifest

_SERVICE_LABEL = "kubernetes.io/service-name"


async def ready_replicas(cluster: Cluster, namespace: str, service: str) -> frozenset[str]:
    """Names of the pods behind Service `service` that are ready now. Raises ClusterError."""
    slices = await cluster.list("EndpointSlice", namespace, {_SERVICE_LABEL: service})
    return pods(slices, ready_only=True)


async def known_replicas(cluster: Cluster, namespace: str, service: str) -> frozenset[str]:
    """Names of all pods behind it, ready or not. Raises ClusterError."""
    slices = await cluster.list("EndpointSlice", namespace, {_SERVICE_LABEL: service})
    return pods(slices, ready_only=False)


def pods(slices: list[Manifest], *, ready_only: bool) -> frozenset[str]:
    """Pod names in EndpointSlices. A missing `ready` means ready, as the API says."""
    names = set()
    for piece in slices:
        for endpoint in piece.get("endpoints") or ():
            target = endpoint.get("targetRef") or {}
            ready = (endpoint.get("conditions") or {}).get("ready")
            if target.get("kind") == "Pod" and (ready is not False or not ready_only):
                names.add(target["name"])
    return frozenset(names)
