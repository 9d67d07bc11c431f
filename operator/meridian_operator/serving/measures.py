"""What distribution says about itself on /metrics. Services are few and declared by administrators, so they may be labels."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

polls = Counter("meridian_operator_config_polls_total", "Answered long polls", ["code"])
waiting = Gauge("meridian_operator_config_waiting", "Long polls that wait now")
generation = Gauge("meridian_operator_config_generation", "Generation last read here", ["service"])
refused = Counter(
    "meridian_operator_config_refused_total", "Reports of a replica that refused a generation", ["service"]
)
