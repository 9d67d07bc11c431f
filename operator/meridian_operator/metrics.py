"""What the operator says about itself on /metrics. Labels are bounded: kinds and phases, never names."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

reconcile_seconds = Histogram(
    "meridian_operator_reconcile_seconds",
    "One pass over one object",
    ["kind", "outcome"],
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30),
)
queue_keys = Gauge("meridian_operator_queue_keys", "Objects that have a worker", ["kind"])
status_writes = Counter("meridian_operator_status_writes_total", "Status writes that changed something", ["kind"])
objects = Gauge("meridian_operator_objects", "Objects by phase as of the last resync", ["kind", "phase"])
resync_age = Gauge("meridian_operator_resync_age_seconds", "Seconds since the last completed resync")
leading = Gauge("meridian_operator_leading", "1 while this replica holds the Lease")
lease_epoch = Gauge("meridian_operator_lease_epoch", "Epoch of the Lease while held")
