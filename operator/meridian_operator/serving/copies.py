"""The copy of the stored bytes that data-plane pods mount, for a start without control plane (F-12)."""

from __future__ import annotations

import json

from meridian_api.serving import Envelope
from meridian_operator.cluster import Manifest, owner_reference


def config_map(owner: Manifest, envelope: Envelope) -> Manifest:
    """ConfigMap `meridian-config-<service>`, owned by the ServingConfig `owner`."""
    service = owner["metadata"]["name"]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"meridian-config-{service}",
            "namespace": owner["metadata"]["namespace"],
            "labels": {"app.kubernetes.io/part-of": "meridian", "meridian.dev/service": service},
            "ownerReferences": [owner_reference(owner)],
        },
        "data": {"envelope.json": json.dumps(envelope.to_wire(), sort_keys=True)},
    }
