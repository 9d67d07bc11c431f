"""The stored ServingConfig as decisions need it, and when it has to be written again."""

from __future__ import annotations

from dataclasses import dataclass

from meridian_api.serving import Envelope, Snapshot
from meridian_operator.cluster import Manifest
from meridian_operator.serving.compile import Pointer, same_content


@dataclass(frozen=True)
class Stored:
    """What the API server holds for a service. `snapshot` is None when the payload cannot be opened; `why` says the reason."""

    manifest: Manifest
    envelope: Envelope
    highest_accepted: int
    snapshot: Snapshot | None
    why: str = ""
    has_a_double: bool = False
    """A replica holds this generation with other bytes: of a history that was deleted, or that a restored etcd lost."""

    @property
    def next_generation(self) -> int:
        """Above everything that was ever stored here or accepted anywhere: after a restore of an older etcd too (F-07)."""
        return max(self.envelope.generation, self.highest_accepted) + 1


def envelope_of(manifest: Manifest) -> Envelope:
    """The envelope in a ServingConfig's spec. Raises KeyError or ValueError when the spec is not whole."""
    spec = manifest["spec"]
    return Envelope(
        generation=spec["generation"],
        payload=spec["payload"],
        signature=spec["signature"],
        key_id=spec["keyId"],
        digest=spec["digest"],
    )


def doubled(manifest: Manifest, envelope: Envelope) -> bool:
    """Whether a report names this generation and other bytes."""
    reports = (manifest.get("status") or {}).get("replicas") or ()
    same = [r.get("digest") for r in reports if r.get("generation") == envelope.generation]
    return any(digest and digest != envelope.digest for digest in same)


def reason_to_write(stored: Stored | None, wanted: Snapshot, key_id: str) -> str | None:
    """Why `wanted` has to become a new generation; None when what is stored serves alike (K-17, K-27)."""
    if stored is None:
        return "nothing is stored yet"
    if stored.snapshot is None:
        return f"the stored payload cannot be used: {stored.why}"
    if Pointer.of(stored.snapshot) != Pointer.of(wanted):
        return "traffic changes"
    if not same_content(stored.snapshot, wanted):
        return "tenants, pools, epochs or texts changed"
    if stored.highest_accepted > stored.envelope.generation:
        return f"a replica has accepted generation {stored.highest_accepted} already"
    if wanted.shrink_confirmed and not stored.snapshot.shrink_confirmed:
        return "two lists say that tenants are gone which replicas still hold"
    if stored.has_a_double:
        return f"a replica holds another generation {stored.envelope.generation}"
    if stored.envelope.key_id != key_id:
        return f"the signing key is {key_id} now"
    return None
