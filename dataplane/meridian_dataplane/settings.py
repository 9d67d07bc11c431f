"""What a process is told by its environment, read once, typed, frozen. What concerns answers is in the snapshot instead."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

# Variables of the Jobs that share this image; each Job reads its own.
_OF_JOBS = frozenset(
    {
        "MERIDIAN_EPOCH",
        "MERIDIAN_EVALUATION",
        "MERIDIAN_GOLDEN_FILE",
        "MERIDIAN_INGEST_DSN",
        "MERIDIAN_ORDERS_URL",
    }
)
# The kubelet adds these for every Service of the namespace whose name begins with our prefix, unless the pod says otherwise.
_SERVICE_LINK = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP)(_[A-Z]+)?)?)$")


class SettingsError(Exception):
    """The environment does not describe a data plane; one line per fault."""


@dataclass(frozen=True)
class Issuer:
    """An OIDC issuer that an administrator registered."""

    issuer: str
    jwks_url: str


@dataclass(frozen=True)
class Settings:
    """Seconds unless the name says otherwise. Secrets are never shown by repr."""

    service: str
    region: str
    replica: str
    database_dsn: str = field(repr=False)
    issuers: tuple[Issuer, ...] = ()
    endpoints: Mapping[str, str] = field(default_factory=dict)
    """Tool endpoints by name; a tool that names another one cannot be called (T-44)."""
    orders_token_file: Path | None = None
    config_url: str | None = None
    config_token_file: Path | None = None
    config_mount: Path = Path("/etc/meridian/config")
    state_dir: Path = Path("/var/lib/meridian")
    public_keys_dir: Path = Path("/etc/meridian/keys")
    host: str = "0.0.0.0"
    public_port: int = 8080
    admin_port: int = 8081
    retrieval_permits: int = 4
    """Searches that this replica lets the store work on at once; the others wait their turn."""
    grace_seconds: int = 30
    """From SIGTERM to the end of the process; below the pod's terminationGracePeriodSeconds."""
    beat_seconds: int = 3
    """From SIGTERM to not accepting, while endpoints learn that this replica is leaving."""


def _is_service_link(name: str, value: str) -> bool:
    """`MERIDIAN_X_PORT` is one only when it holds an address, so that a mistyped port of ours is still found."""
    bare = name.endswith("_PORT") and not name.endswith("_SERVICE_PORT")
    return bool(_SERVICE_LINK.search(name)) and (not bare or "://" in value)


def _issuers(text: str) -> tuple[Issuer, ...]:
    return tuple(Issuer(str(one["issuer"]), _url(one["jwksUrl"])) for one in json.loads(text))


def _endpoints(text: str) -> dict[str, str]:
    return {str(name): _url(url).rstrip("/") for name, url in json.loads(text).items()}


def _url(text: str) -> str:
    if not re.fullmatch(r"https?://[^\s/@]+(/[^\s]*)?", text):
        raise ValueError("not an http(s) URL without credentials")
    return text


def _port(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 65535:
        raise ValueError("not a port")
    return number


def _permits(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 64:
        raise ValueError("not between 1 and 64")
    return number


def _seconds(text: str) -> int:
    number = int(text)
    if not 0 <= number <= 3600:
        raise ValueError("not between 0 and 3600")
    return number


_PARSERS: dict[str, Callable[[str], Any]] = {
    "issuers": _issuers,
    "endpoints": _endpoints,
    "orders_token_file": Path,
    "config_url": _url,
    "config_token_file": Path,
    "config_mount": Path,
    "state_dir": Path,
    "public_keys_dir": Path,
    "public_port": _port,
    "admin_port": _port,
    "retrieval_permits": _permits,
    "grace_seconds": _seconds,
    "beat_seconds": _seconds,
}


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings from `MERIDIAN_*`. Raises SettingsError naming every variable that is missing, wrong or unknown."""
    known = {f"MERIDIAN_{f.name.upper()}": f for f in fields(Settings)}
    faults: list[str] = []
    values: dict[str, Any] = {}
    for name in sorted(n for n in environ if n.startswith("MERIDIAN_")):
        if name not in known:
            if name not in _OF_JOBS and not _is_service_link(name, environ[name]):
                faults.append(f"{name}: unknown variable")
            continue
        parse = _PARSERS.get(known[name].name, str)
        try:
            values[known[name].name] = parse(environ[name])
        except (ValueError, KeyError, TypeError, AttributeError):
            # The value may be a secret, so it is not repeated.
            faults.append(f"{name}: cannot be read as {known[name].type}")
    for required in ("service", "region", "replica", "database_dsn"):
        if not values.get(required) and f"MERIDIAN_{required.upper()}" not in "".join(faults):
            faults.append(f"MERIDIAN_{required.upper()}: required")
    if faults:
        raise SettingsError("\n".join(faults))
    return Settings(**values)
