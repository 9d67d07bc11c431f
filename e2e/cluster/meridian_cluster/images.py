"""The images that pods run: built from the project's Dockerfiles, imported into containerd.

A build's key is a digest of everything that goes into it; an image whose key has not changed is
neither built nor imported again. Pods name images by the digest of their manifest, so what runs is
what was built. Every image is built by buildah on its own storage.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meridian_cluster import base_image, binaries, containers, kept_files, layout, site_packages

Report = Callable[[str], None]
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", "tests")
_BUILT_IN = Path(__file__).resolve().parents[1] / "images"  # Dockerfiles of the cluster's own


@dataclass(frozen=True)
class Image:
    """One of the project's images: its Dockerfile and the packages that it carries."""

    name: str
    dockerfile: str  # folder of it, from the root of the source tree
    extra: str
    sources: tuple[str, ...]

    @property
    def repository(self) -> str:
        return f"docker.io/meridian/{self.name}"


_API = "crds/meridian_api"
IMAGES = (
    Image("operator", "operator", "operator", (_API, "operator/meridian_operator")),
    Image("dataplane", "dataplane", "dataplane", (_API, "dataplane/meridian_dataplane")),
    Image("predictor", "e2e/predictor", "engine", (_API, "e2e/predictor/meridian_predictor")),
    Image("orders", "e2e/orders", "engine", (_API, "e2e/orders/meridian_orders")),
)


def image_refs() -> dict[str, str]:
    """`docker.io/meridian/NAME@sha256:...` of each of the project's images that has been built."""
    refs = {}
    for image in IMAGES:
        record = kept_files.document(_record(image.name))
        if record:
            refs[image.name] = f"{image.repository}@{record['digest']}"
    return refs


def _record(name: str) -> Path:
    return layout.cache("images") / f"{name}.json"


def folder_digest(*folders: Path) -> str:
    """A digest of the files below some folders: names and contents, caches left out."""
    digest = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts and "tests" not in path.parts:
                digest.update(f"{path.relative_to(folder.parent)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def build_project_images(report: Report) -> dict[str, str]:
    """Build and import what has changed; every image by its digest."""
    base_image.ensure(report)
    root = layout.repository()
    for image in IMAGES:
        site = site_packages.install(image.extra)
        sources = [root / source for source in image.sources]
        dockerfile = root / image.dockerfile / "Dockerfile"
        key = hashlib.sha256(f"{site.name} {folder_digest(*sources)} {dockerfile.read_text()}".encode()).hexdigest()

        def context(folder: Path, *, site: Path = site, sources: list[Path] = sources) -> None:
            _copy(site, folder / "site")
            for source in sources:
                shutil.copytree(source, folder / "src" / source.name, ignore=_IGNORED)
            site_packages.compile_folder(folder / "src", "/opt/meridian/src")

        _ensure(image.name, f"{image.repository}:local", dockerfile, key, context, report)
    return image_refs()


def build_cluster_images(report: Report) -> None:
    """The sandbox of every pod, and the KServe controller."""

    def pause(folder: Path) -> None:
        source = _BUILT_IN / "pause" / "pause.c"
        subprocess.run(["gcc", "-static", "-Os", "-s", "-o", folder / "pause", source], check=True)

    def kserve(folder: Path) -> None:
        shutil.copyfile(binaries.path("kserve-manager"), folder / "manager")
        (folder / "manager").chmod(0o755)

    _ensure(
        "pause", containers.PAUSE, _BUILT_IN / "pause" / "Dockerfile",
        folder_digest(_BUILT_IN / "pause"), pause, report,
    )  # fmt: skip
    _ensure(
        "kserve", KSERVE, _BUILT_IN / "kserve" / "Dockerfile",
        folder_digest(_BUILT_IN / "kserve") + binaries.module_key("kserve"), kserve, report,
    )  # fmt: skip


KSERVE = "docker.io/meridian/kserve-controller:local"


def prune() -> None:
    """Forget every image that is not the newest build of its name. Only while nothing runs: a
    release of an older build may still be served."""
    records = [kept_files.document(path) for path in layout.cache("images").glob("*.json")]
    kept = {record["digest"] for record in records if record}
    stale = [name for name, digest in containers.images().items() if digest not in kept]
    if stale:
        containers.ctr("images", "rm", "--sync", *stale, check=False)


def _copy(source: Path, target: Path) -> None:
    """Copy a tree by hard links where the file system allows it: contexts are large and short."""
    subprocess.run(["cp", "-al", source, target], check=True)


def _ensure(
    name: str,
    tag: str,
    dockerfile: Path,
    key: str,
    context: Callable[[Path], None],
    report: Report,
) -> None:
    """Build when the key has changed, import when containerd does not have that build."""
    record = _record(name)
    known = kept_files.document(record)
    present = containers.images()
    if known.get("key") == key and present.get(tag) == known.get("digest"):
        return
    report(f"image {name}: building and importing")
    work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=layout.cache("images")))
    try:
        (work / "context").mkdir()
        context(work / "context")
        base_image.buildah(
            "bud", "--quiet", "--isolation", "chroot", "--pull-never", "--layers", "--timestamp",
            "0", "-f", dockerfile, "-t", tag, work / "context",
        )  # fmt: skip
        archive = work / "image.tar"
        base_image.buildah("push", "--quiet", tag, f"docker-archive:{archive}:{tag}")
        containers.ctr("images", "import", archive)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    digest = containers.images()[tag]
    by_digest = f"{tag.rsplit(':', 1)[0]}@{digest}"
    containers.ctr("images", "tag", "--force", tag, by_digest)
    kept_files.write(record, json.dumps({"key": key, "digest": digest, "tag": tag}))
