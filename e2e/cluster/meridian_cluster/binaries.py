"""The programs of the cluster: compiled from declared Go modules, once, or taken from Debian.

Each folder of `e2e/cluster/gomod` is a Go module whose go.mod and go.sum name and pin everything
that goes into its programs. The cache key is a digest of those files, our own sources beside them,
the compiler and the flags, so that a change of any of them compiles again and nothing else does.
Importing this module does nothing; `path` compiles when it must, `present` only looks.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meridian_cluster import layout

GOMOD = Path(__file__).resolve().parents[1] / "gomod"
KUBERNETES = "1.34.4"
# Without these the binaries report v0.0.0-master, and clients refuse such a server.
_VERSION = "k8s.io/component-base/version"
_KUBERNETES_LDFLAGS = (
    f"-X {_VERSION}.gitVersion=v{KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor={KUBERNETES.split('.')[1]}"
)


@dataclass(frozen=True)
class Program:
    """One program and where it comes from."""

    name: str
    module: str  # folder below gomod
    package: str
    ldflags: str = ""


def _kubernetes(name: str) -> Program:
    return Program(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", _KUBERNETES_LDFLAGS)


PROGRAMS = {
    program.name: program
    for program in (
        _kubernetes("kube-apiserver"),
        _kubernetes("kube-controller-manager"),
        _kubernetes("kube-scheduler"),
        _kubernetes("kubelet"),
        _kubernetes("kube-proxy"),
        _kubernetes("kubectl"),
        Program("coredns", "coredns", "."),
        Program("kserve-manager", "kserve", "github.com/kserve/kserve/cmd/manager"),
        Program("helm", "helm", "helm.sh/helm/v3/cmd/helm"),
    )
}
FLAGS = ("-trimpath", "-mod=readonly", "-buildvcs=false")

Report = Callable[[str], None]


def _say_nothing(_: str) -> None:
    return


def module_key(module: str) -> str:
    """16 hex digits that change when anything that goes into the module's programs does."""
    digest = hashlib.sha256()
    folder = GOMOD / module
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in {".mod", ".sum", ".go"}:
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    recipe = [_go_version(), *FLAGS, *(p.ldflags for p in PROGRAMS.values() if p.module == module)]
    digest.update("\0".join(recipe).encode())
    return digest.hexdigest()[:16]


@functools.cache
def _go_version() -> str:
    answer = subprocess.run(["go", "version"], check=True, capture_output=True, text=True)
    return answer.stdout.strip()


def present(name: str) -> Path | None:
    """The program, if it is there without compiling: in KUBEBUILDER_ASSETS (the folder that
    setup-envtest makes), in the cache, or for kubectl and helm on PATH."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / name).exists():
        return Path(assets) / name
    if name in {"kubectl", "helm"} and (found := shutil.which(name)):
        return Path(found)
    cached = _cached(PROGRAMS[name])
    return cached if cached.exists() else None


def _cached(program: Program) -> Path:
    return layout.cache("bin") / f"{program.module}-{module_key(program.module)}" / program.name


def path(name: str, report: Report = _say_nothing) -> Path:
    """The program, compiled first when it is missing."""
    return present(name) or _compile(PROGRAMS[name], report)


def etcd() -> Path:
    """etcd: from KUBEBUILDER_ASSETS or PATH (Debian's package etcd-server); never compiled."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and (Path(assets) / "etcd").exists():
        return Path(assets) / "etcd"
    found = shutil.which("etcd")
    if found is None:
        raise FileNotFoundError("etcd is missing: apt-get install etcd-server")
    return Path(found)


def _compile(program: Program, report: Report) -> Path:
    """Compile one program into the cache. Raises RuntimeError with the compiler's last words."""
    target = _cached(program)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    folder = GOMOD / program.module
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    listing = subprocess.run(
        ["go", "list", "-mod=readonly", "-deps", program.package],
        cwd=folder, env=environment, capture_output=True, text=True,
    )  # fmt: skip
    total = len(listing.stdout.split())
    command = ["nice", "-n", "5", "go", "build", "-v", *FLAGS]
    command += ["-ldflags", f"-s -w {program.ldflags}".strip(), "-o", str(partial)]
    build = subprocess.Popen(
        [*command, program.package], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert build.stderr is not None
    lines: list[str] = []
    began = shown = time.monotonic()
    compiled = 0
    for line in build.stderr:  # one line per package that was not in Go's own cache
        lines.append(line)
        compiled += not line.startswith("go: ")
        if time.monotonic() - shown > 30:
            shown = time.monotonic()
            report(f"{program.name}: {compiled} packages compiled, {total} in all at most")
    if build.wait() != 0:
        raise RuntimeError(f"go build {program.package} failed:\n" + "".join(lines[-15:]))
    partial.rename(target)
    report(f"{program.name}: compiled in {time.monotonic() - began:.0f} s")
    return target


def main(names: list[str]) -> None:
    """`python -m meridian_cluster.binaries [PROGRAM|MODULE ...]`: compile these; all by default."""
    for program in PROGRAMS.values():
        if not names or program.name in names or program.module in names:
            print(path(program.name, lambda text: print(text, file=sys.stderr, flush=True)))


if __name__ == "__main__":
    main(sys.argv[1:])
