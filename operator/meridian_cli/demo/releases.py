"""The demo's later releases, rendered for the installation as it is: fresh names, based on what serves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from meridian_cli.kubectl import get

FIRST = "2026-10-28.1"
BETTER, BAD = "2026-11-04", "2026-11-11"


@dataclass(frozen=True)
class Later:
    """A release of the story, ready to apply."""

    name: str
    file: Path


def next_number(existing: set[str]) -> int:
    """The first number that neither later release has used: a second demo on one installation tells the story again."""
    number = 1
    while {f"{BETTER}.{number}", f"{BAD}.{number}"} & existing:
        number += 1
    return number


def render(samples: Path, templates: Path, target: Path) -> tuple[Later, Later]:
    """The better and the bad release, with the digests of the images that `up` built and of the sample's ConfigMaps."""
    from meridian_cluster import images, rendering  # the embedded node's own parts; they need a checkout

    existing = {item["metadata"]["name"] for item in get("releases.meridian.dev").get("items", [])}
    serving = get("servingconfigs.meridian.dev", "support").get("spec", {}).get("serving", FIRST)
    number = next_number(existing)
    texts = {path.name: path.read_text("utf-8") for path in samples.glob("*.yaml")}
    values = rendering.placeholders(images.image_refs(), rendering.configmap_digests(texts))
    target.mkdir(parents=True, exist_ok=True)
    made = []
    for template, date, base in (
        ("release-2-better.yaml", BETTER, serving),
        ("release-3-bad.yaml", BAD, f"{BETTER}.{number}"),
    ):
        text = rendering.render((templates / template).read_text("utf-8"), values)
        text = text.replace(f"name: {date}.1\n", f"name: {date}.{number}\n")
        lines = [f"  rollbackTo: {base}" if line.startswith("  rollbackTo:") else line for line in text.splitlines()]
        (target / template).write_text("\n".join(lines) + "\n", "utf-8")
        made.append(Later(f"{date}.{number}", target / template))
    return made[0], made[1]
