"""`meridian up`: from nothing to a running installation, step by step, and again without harm."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meridian_cluster import (
    binaries,
    chart,
    containers,
    control_plane,
    dns,
    images,
    installation,
    issuer,
    kserve,
    layout,
    network,
    node,
    postgres,
    prometheus,
    rendering,
    toolchain,
)
from meridian_cluster.narration import Narrator

STEPS = 14


@contextmanager
def alone(say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock that `up` and `down` share; says who holds it while it waits."""
    layout.prepare_state()
    with (layout.STATE / "lock").open("a+") as lock:  # not "w": the other's pid is in it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            say(f"another meridian up or down runs (pid {lock.read().strip() or 'unknown'}); waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def compile_all(narrator: Narrator) -> None:
    """Compile what is missing, saying what is left."""
    missing = [name for name in binaries.PROGRAMS if binaries.present(name) is None]
    if missing:
        narrator.say(f"to compile: {', '.join(missing)} (about 15 minutes for all, once)")
    for index, name in enumerate(missing):
        binaries.path(name, narrator.say)
        left = missing[index + 1 :]
        narrator.say(f"left: {', '.join(left)}" if left else "nothing left to compile")


def up(*, quiet: bool = False) -> None:
    """Bring everything up. Raises what the first failing step raised; run it again after a fix."""
    toolchain.check_machine()
    narrator = Narrator(STEPS, quiet=quiet)
    with alone(narrator.say):
        _machine(narrator)
        _cluster(narrator)
        refs = _images(narrator)
        _installation(narrator, refs)
    _what_next(narrator)


def _machine(narrator: Narrator) -> None:
    with narrator.step("Debian packages"):
        toolchain.install(narrator.say)
    with narrator.step("Kubernetes, CoreDNS, KServe and helm, compiled from Go modules"):
        compile_all(narrator)
    with narrator.step(f"Network: {layout.NODE_ADDRESS} on lo, nothing leaves the machine"):
        network.open_up()


def _cluster(narrator: Narrator) -> None:
    with narrator.step("Control plane: etcd, API server, controllers", "/readyz"):
        control_plane.up()
    with narrator.step("Container runtime and the cluster's own images", "containerd"):
        containers.up()
        images.build_cluster_images(narrator.say)
    with narrator.step("Node: kubelet, kube-proxy, CoreDNS", "node Ready"):
        node.up()
        dns.up()
    with narrator.step("KServe's kinds and controller", "kinds Established"):
        kserve.install()
    with narrator.step("Prometheus and the development token issuer", "both to answer"):
        prometheus.up()
        if not issuer.up():
            narrator.say("skipped the issuer: its package is not installed")


def _images(narrator: Narrator) -> dict[str, str]:
    with narrator.step("Images of the operator, data plane, predictor and order service"):
        return images.build_project_images(narrator.say)


def _installation(narrator: Narrator, refs: dict[str, str]) -> None:
    with narrator.step("PostgreSQL 18 with pgvector", "its socket"):
        dsns = postgres.up()
    with narrator.step("Kinds, keys and secrets", "kinds Established"):
        narrator.say(f"{installation.apply_kinds()} kinds of meridian.dev")
        installation.apply_secrets(dsns)
    with narrator.step("Samples with the digests of these images"):
        folder = rendering.render_samples(refs)
        narrator.say(f"rendered into {folder}" if folder else "no templates")
    with narrator.step("KServe", "its controller"):
        kserve.wait()
    with narrator.step("The installation: order service, and the chart by helm", "every Deployment"):
        if not installation.apply_orders(refs):
            narrator.say("skipped the order service: e2e/orders/deploy.yaml.tmpl does not exist")
        if not chart.install(refs):
            narrator.say("skipped the chart: charts/meridian/Chart.yaml does not exist")
        chart.wait()


def _what_next(narrator: Narrator) -> None:
    if narrator.quiet:
        return
    folders = ["$PWD/.venv/bin"]
    if not shutil.which("kubectl"):
        folders.append(str(binaries.path("kubectl").parent))
    print(
        f"""
Up in {narrator.elapsed():.0f} s. What to do next:

  export KUBECONFIG={layout.ADMIN_KUBECONFIG}
  export PATH={":".join(folders)}:$PATH
  kubectl -n {layout.NAMESPACE} get pods
  kubectl -n {layout.NAMESPACE} apply --server-side -f crds/samples/{layout.SERVICE}/
  kubectl -n {layout.NAMESPACE} get releases,inferencepools.meridian.dev,indexepochs,tenantpolicies
  meridian ask --tenant acme-eu --group customers "How long may a customer return unworn shoes?"
  meridian status          what runs here, its health and its logs
  meridian demo            the whole story, narrated
  meridian down            ends it and leaves nothing behind
"""
    )
