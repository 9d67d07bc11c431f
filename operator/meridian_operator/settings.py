"""The operator's settings: from the environment, once, in `__main__`. An unknown MERIDIAN_ variable is refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import get_type_hints

PREFIX = "MERIDIAN_"
# What the kubelet injects for Services called meridian-*, unless the pod sets enableServiceLinks: false.
_SERVICE_LINK = re.compile(
    r"^MERIDIAN_[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_[0-9]+_(TCP|UDP).*)?)$"
)


class BadSettings(ValueError):
    """One line per wrong or missing variable."""


@dataclass(frozen=True)
class Settings:
    """Each field is read from MERIDIAN_<FIELD>; fields without a default are required."""

    replica: str
    """Name of this pod: the holder in the Lease."""
    owner_dsn: str
    evidence_dsn: str
    dataplane_image: str
    """By digest; the image of evaluation and index Jobs."""
    namespace: str = "meridian"
    region: str = "eu-1"
    port: int = 8090
    prometheus_url: str = "http://10.200.0.1:9090"
    orders_url: str = "http://orders.meridian.svc.cluster.local"
    orders_token_secret: str = ""
    """Secret with key `token` for the order service, mounted into evaluation Jobs; empty: none is sent."""
    signing_dir: str = "/etc/meridian/signing"
    """Mounted Secret `meridian-signing`: private.pem and keyId."""
    config_audience: str = "meridian-config"
    dataplane_service: str = "meridian-dataplane"
    """Service whose ready endpoints must acknowledge every change of traffic."""
    dataplane_service_account: str = "meridian-dataplane"
    """The only subject that the long poll answers; of the same namespace."""
    database_secret: str = "meridian-postgres"  # noqa: S105 - the name of a Secret
    keys_config_map: str = "meridian-keys"
    job_service_account: str = "default"
    kubeconfig: str = ""
    """Path; empty: in-cluster."""
    resync_seconds: float = 30.0
    lease_name: str = "meridian-operator"
    lease_seconds: float = 12.0
    renew_seconds: float = 2.0
    """A holder trusts its Lease for `lease_seconds - renew_seconds`: longer than any stall of a busy small machine."""


def from_environment(env: Mapping[str, str]) -> Settings:
    """Raises BadSettings naming every wrong, missing and unknown variable at once, never a value."""
    types = get_type_hints(Settings)
    values: dict[str, object] = {}
    wrong: list[str] = []
    for field in fields(Settings):
        variable = PREFIX + field.name.upper()
        if variable not in env:
            if field.default is field.default_factory:  # both MISSING
                wrong.append(f"{variable} is required")
            continue
        try:
            values[field.name] = types[field.name](env[variable])
        except ValueError:
            wrong.append(f"{variable} is not a valid {types[field.name].__name__}")
    known = {PREFIX + field.name.upper() for field in fields(Settings)}
    for variable in sorted(env):
        if variable.startswith(PREFIX) and variable not in known and not _SERVICE_LINK.match(variable):
            wrong.append(f"{variable} is not a setting of the operator")
    if wrong:
        raise BadSettings("; ".join(wrong))
    return Settings(**values)  # type: ignore[arg-type]
