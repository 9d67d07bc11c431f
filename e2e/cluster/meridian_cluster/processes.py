"""Host processes that outlive the command that started them, found again by a recorded identity.

A pid alone is not an identity: it is recycled. A record holds the pid, the start time that the
kernel gives that process, and the boot it belongs to; a process that does not match all three is
somebody else's and is never signalled.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from meridian_cluster import layout


@dataclass(frozen=True)
class Identity:
    """What makes a process itself."""

    pid: int
    start_ticks: int  # field 22 of /proc/PID/stat, in clock ticks since boot
    boot: str


def identify(pid: int) -> Identity | None:
    """The identity of a live process; None when there is none (a zombie counts as gone)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # The command name is in parentheses and may itself hold spaces and parentheses.
    fields = stat.rsplit(")", 1)[1].split()
    if fields[0] in "ZX":
        return None
    return Identity(pid=pid, start_ticks=int(fields[19]), boot=boot)


def _record(name: str) -> Path:
    return layout.RUN / f"{name}.json"


def running(name: str) -> Identity | None:
    """The live process recorded under this name, or None."""
    try:
        recorded = Identity(**json.loads(_record(name).read_text()))
    except (OSError, ValueError, TypeError):
        return None
    return recorded if identify(recorded.pid) == recorded else None


def names() -> tuple[str, ...]:
    """Every name with a record, live or not, in alphabetical order."""
    return tuple(sorted(path.stem for path in layout.RUN.glob("*.json")))


def start(
    name: str,
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    user: str | None = None,
    cwd: Path | None = None,
) -> bool:
    """Start a process in its own session with its log in the state folder, and record it.

    Returns False when it runs already. `env` is added to this process's environment.
    """
    if running(name):
        return False
    layout.prepare_state()
    with (layout.LOGS / f"{name}.log").open("ab") as log:
        child = subprocess.Popen(
            [str(part) for part in argv],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
            user=user,
            group=user,
            extra_groups=[] if user else None,
            cwd=cwd or "/",
        )
    identity = identify(child.pid)
    if identity is None:
        raise RuntimeError(f"{name} ended at once: {log_tail(name)}")
    _record(name).write_text(json.dumps(asdict(identity)))
    return True


def stop(name: str, *, grace: float = 5.0, first: signal.Signals = signal.SIGTERM) -> bool:
    """End a recorded process: `first`, then SIGKILL after `grace` seconds. True if it ran."""
    identity = running(name)
    if identity:
        end(identity, grace=grace, first=first)
    _record(name).unlink(missing_ok=True)
    return identity is not None


def end(identity: Identity, *, grace: float, first: signal.Signals = signal.SIGTERM) -> None:
    """Signal a process that is still the one it was, and wait until it is gone."""
    for number, patience in ((first, grace), (signal.SIGKILL, 5.0)):
        if identify(identity.pid) != identity:
            return
        try:
            os.kill(identity.pid, number)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if identify(identity.pid) != identity:
                return
            time.sleep(0.05)


def resident_bytes(identity: Identity) -> int:
    """Resident memory of a process in bytes; 0 when it is gone."""
    try:
        return int(Path(f"/proc/{identity.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def log_tail(name: str, lines: int = 8) -> str:
    """The last lines of a process's log, for an error message."""
    try:
        text = (layout.LOGS / f"{name}.log").read_text(errors="replace")
    except OSError:
        return "(no log)"
    return "\n".join(text.splitlines()[-lines:])
