"""etcd and kube-apiserver: the installation's flags, and throw-away pairs of them for tests.

Clients present tokens from a file; the server presents a certificate of the cluster's own
authority, so that kubeconfigs verify what they talk to.
"""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meridian_cluster import binaries, certificates, kept_files, layout, waiting


@dataclass(frozen=True)
class Account:
    """A client that the API server knows by token."""

    name: str  # of its kubeconfig
    user: str
    groups: tuple[str, ...] = ()


ADMIN = Account("admin", "admin", ("system:masters",))
ACCOUNTS = (
    ADMIN,
    Account("controller-manager", "system:kube-controller-manager"),
    Account("scheduler", "system:kube-scheduler"),
    Account("proxy", "system:kube-proxy"),
    Account("dns", "meridian:dns"),
    Account("discovery", "meridian:discovery"),
    Account("node", f"system:node:{layout.NODE_NAME}", ("system:nodes",)),
)
TO_KUBELET = "apiserver-to-kubelet"  # common name and file name of the client certificate


@dataclass(frozen=True)
class Endpoint:
    """Where one API server listens and keeps its keys."""

    address: str
    port: int
    pki: Path
    etcd_port: int = 2379

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"


def kubeconfig(endpoint: Endpoint, account: str, token: str) -> str:
    """A kubeconfig (JSON, which is YAML) for one account."""
    authority = certificates.authority(endpoint.pki).certificate.read_bytes()
    cluster = {
        "server": endpoint.url,
        "certificate-authority-data": base64.b64encode(authority).decode(),
    }
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "meridian", "cluster": cluster}],
        "users": [{"name": account, "user": {"token": token}}],
        "contexts": [{"name": "meridian", "context": {"cluster": "meridian", "user": account}}],
        "current-context": "meridian",
    }
    return json.dumps(document, indent=1)


def write_credentials(endpoint: Endpoint) -> None:
    """Keys, certificates, the token file and one kubeconfig per account; kept when they exist,
    as running clients hold them."""
    authority = certificates.authority(endpoint.pki)
    certificates.service_account_key(endpoint.pki)
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    names += (f"kubernetes.default.svc.{layout.CLUSTER_DOMAIN}",)
    addresses = dict.fromkeys((endpoint.address, "127.0.0.1", layout.FIRST_SERVICE_ADDRESS))
    certificates.serving(authority, endpoint.pki, "apiserver", dns=names, ips=tuple(addresses))
    certificates.client(authority, endpoint.pki, TO_KUBELET, "system:masters")
    rows = []
    for account in ACCOUNTS:
        path = endpoint.pki / f"{account.name}.kubeconfig"
        token = _token_in(path) if kept_files.document(path) else secrets.token_hex(24)
        kept_files.write(path, kubeconfig(endpoint, account.name, token))
        groups = f',"{",".join(account.groups)}"' if account.groups else ""
        rows.append(f"{token},{account.user},{account.name}{groups}\n")
    kept_files.write(endpoint.pki / "tokens.csv", "".join(rows))


def _token_in(kubeconfig_file: Path) -> str:
    return str(json.loads(kubeconfig_file.read_text())["users"][0]["user"]["token"])


def etcd_command(endpoint: Endpoint, data: Path, *, durable: bool) -> list[str | Path]:
    """etcd on loopback. Without durability it never waits for the disk: for tests only."""
    client = f"http://127.0.0.1:{endpoint.etcd_port}"
    peer = f"http://127.0.0.1:{endpoint.etcd_port + 1 if durable else 0}"
    command: list[str | Path] = [binaries.etcd(), "--data-dir", data, "--log-level", "warn"]
    command += ["--listen-client-urls", client, "--advertise-client-urls", client]
    command += ["--listen-peer-urls", peer]
    return command if durable else [*command, "--unsafe-no-fsync"]


def command(endpoint: Endpoint) -> list[str | Path]:
    """kube-apiserver with the node authoriser, RBAC and ServiceAccount tokens."""
    pki = endpoint.pki
    return [
        binaries.path("kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{endpoint.etcd_port}",
        f"--bind-address={endpoint.address}",
        f"--advertise-address={endpoint.address}",
        f"--secure-port={endpoint.port}",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/service-accounts.key",
        f"--service-account-signing-key-file={pki}/service-accounts.key",
        f"--service-cluster-ip-range={layout.SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        f"--token-auth-file={pki}/tokens.csv",
        "--allow-privileged=true",
        "--enable-admission-plugins=NodeRestriction",
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/{TO_KUBELET}.crt",
        f"--kubelet-client-key={pki}/{TO_KUBELET}.key",
        "--profiling=false",
    ]


def ready(endpoint: Endpoint) -> bool:
    """Whether /readyz says so. The check is anonymous, which RBAC lets do just this."""
    context = ssl.create_default_context(cafile=str(endpoint.pki / "ca.crt"))
    try:
        with urllib.request.urlopen(f"{endpoint.url}/readyz", timeout=2, context=context) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


@dataclass(frozen=True)
class TemporaryServer:
    """A running throw-away API server."""

    kubeconfig: Path
    url: str
    token: str  # of an administrator
    ca: Path


@contextmanager
def temporary() -> Iterator[TemporaryServer]:
    """etcd and kube-apiserver on free loopback ports; everything is gone when the block ends.

    There are no controllers: a namespace that is deleted stays Terminating, ServiceAccounts have
    to exist for nothing, and no pod ever runs. Starts in about four seconds.
    """
    root = Path(tempfile.mkdtemp(prefix="meridian-api-"))
    endpoint = Endpoint("127.0.0.1", waiting.free_port(), root / "pki", waiting.free_port())
    started: list[subprocess.Popen[bytes]] = []
    try:
        write_credentials(endpoint)
        extra = [
            "--disable-admission-plugins=ServiceAccount",
            "--endpoint-reconciler-type=none",
        ]
        for name, line in (
            ("etcd", etcd_command(endpoint, root / "etcd", durable=False)),
            ("apiserver", [*command(endpoint), *extra]),
        ):
            with (root / f"{name}.log").open("wb") as log:
                started.append(
                    subprocess.Popen(
                        [str(part) for part in line], stdin=subprocess.DEVNULL, stdout=log,
                        stderr=log, cwd=root, start_new_session=True,
                    )
                )  # fmt: skip
        waiting.until(
            "the throw-away kube-apiserver",
            lambda: ready(endpoint),
            seconds=90,
            every=0.1,
            why_not=lambda: (root / "apiserver.log").read_text(errors="replace")[-1500:],
        )
        admin = endpoint.pki / "admin.kubeconfig"
        token = _token_in(admin)
        yield TemporaryServer(admin, endpoint.url, token, endpoint.pki / "ca.crt")
    finally:
        for process in reversed(started):  # an API server without its etcd ignores SIGTERM
            process.kill()
            process.wait()
        shutil.rmtree(root, ignore_errors=True)
