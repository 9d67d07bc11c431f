"""Which release answers. Takes an Identified; gives a Pinned; refuses with 503 `no_eligible_target`; writes nothing.

The arm is a hash of tenant, conversation and the candidate's salt against its weight: the same in every replica and after every
restart, and monotone: a conversation that has the candidate at 5 % has it at 50 %.
"""

from __future__ import annotations

import hashlib

from meridian_api.serving import Candidate
from meridian_dataplane.calls import Identified, Pinned
from meridian_dataplane.refusals import no_eligible_target

OUT_OF_CONTACT_S = 60.0


def pin(identified: Identified, *, contact_age: float) -> Pinned:
    """One manifest and one deadline for the whole request (S-20)."""
    snapshot, caller = identified.snapshot, identified.caller
    conversation = identified.received.conversation_id or identified.received.request_id
    candidate = snapshot.candidate
    # Out of contact a replica cannot hear of a rollback, so it gives nothing to a release on trial.
    tries = (
        candidate is not None
        and caller.tenant.canary_eligible
        and contact_age <= OUT_OF_CONTACT_S
        and is_candidate(caller.tenant_id, conversation, candidate)
    )
    manifest = candidate.manifest if candidate is not None and tries else snapshot.serving
    if manifest.index.region not in caller.tenant.allowed_regions:
        raise no_eligible_target()
    deadline = identified.received.arrived_at + manifest.settings.deadline_ms / 1000
    return Pinned(identified, manifest, "candidate" if tries else "serving", deadline)


def is_candidate(tenant: str, conversation: str, candidate: Candidate) -> bool:
    """Pure. `bucket` is uniform in 0..2^64; the candidate has the part below its weight."""
    exact = "\0".join((candidate.salt, tenant, conversation)).encode()
    bucket = int.from_bytes(hashlib.sha256(exact).digest()[:8])
    return bucket * 100 < candidate.weight_percent << 64
