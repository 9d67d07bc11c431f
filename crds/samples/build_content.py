"""Writes the sample's ConfigMaps from the files under `content/`.

The files in `content/` are the source: one Markdown file for each document, so that a change of one
sentence is a diff of one line. Releases and epochs name ConfigMaps, so this script packs the files
into four YAML templates. The output depends on the files alone; a test fails when it is stale.

Usage: python crds/samples/build_content.py          writes the templates
       python crds/samples/build_content.py --check  exits 1 and names the stale ones
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent
CONTENT = HERE / "content"
TEMPLATES = HERE / "templates" / "support"
TENANTS = ("acme-eu", "globex")
# Raised when the meaning of the conversation history in a prompt changes; the data plane reads it.
HISTORY_FORMAT = "1"
# The API server refuses larger objects.
MAX_CONFIGMAP_BYTES = 1024 * 1024
HEADER = "# Written by crds/samples/build_content.py from crds/samples/content; change it there.\n"


def read_document(path: Path) -> dict[str, object]:
    """One document as the index reads it. Raises ValueError when file and front matter disagree."""
    _, front, body = path.read_text(encoding="utf-8").split("---\n", 2)
    document = yaml.safe_load(front)
    if document["docId"] != path.stem:
        raise ValueError(f"{path.name}: docId is {document['docId']}, name the file after it")
    record: dict[str, object] = {key: document[key] for key in ("docId", "version", "title", "sourceUri", "aclGroups")}
    record["text"] = body.strip() + "\n"
    return record


def documents(tenant: str) -> list[dict[str, object]]:
    """All documents of a tenant, by id."""
    return [read_document(path) for path in sorted((CONTENT / tenant).glob("*.md"))]


def golden_cases() -> list[dict[str, object]]:
    """The golden set, in the order of the file."""
    lines = (CONTENT / "golden-support-1.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def json_lines(records: list[dict[str, object]]) -> str:
    """One JSON object a line, readable (not escaped) and ending with a newline."""
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def config_map(name: str, data: dict[str, str]) -> dict[str, object]:
    """An immutable ConfigMap: a Release pins its digest, so a change needs a new name anyway."""
    size = sum(len(value.encode()) for value in data.values())
    if size >= MAX_CONFIGMAP_BYTES:
        raise ValueError(f"{name}: {size} bytes do not fit into a ConfigMap; split the documents")
    metadata = {
        "name": name,
        "namespace": "meridian",
        "labels": {"app.kubernetes.io/part-of": "meridian"},
    }
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "immutable": True,
        "data": data,
    }


def prompt(name: str) -> dict[str, object]:
    text = (CONTENT / "prompts" / f"{name}.txt").read_text(encoding="utf-8")
    return config_map(name, {"system.txt": text, "format.txt": HISTORY_FORMAT})


def tool(name: str) -> dict[str, object]:
    text = (CONTENT / "tools" / f"{name}.json").read_text(encoding="utf-8")
    json.loads(text)  # a broken schema must fail here, not in a release
    return config_map(name, {"tool.json": text})


def template_files() -> dict[str, list[dict[str, object]]]:
    """File name to the objects in it."""
    return {
        "10-prompts.yaml": [prompt("prompt-support-1"), prompt("prompt-support-2")],
        "11-tools.yaml": [tool("tool-get-order-2")],
        "12-golden.yaml": [config_map("golden-support-1", {"golden.jsonl": json_lines(golden_cases())})],
        "20-documents.yaml": [
            config_map(f"documents-{tenant}", {"documents.jsonl": json_lines(documents(tenant))}) for tenant in TENANTS
        ],
    }


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as literal blocks."""


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def render(objects: list[dict[str, object]]) -> str:
    """YAML of the objects, each line of data on its own line (no folding)."""
    body = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**9)
    return HEADER + "---\n" + body


def stale() -> list[str]:
    """Names of the templates whose text differs from what the content gives."""
    names = []
    for name, objects in template_files().items():
        path = TEMPLATES / name
        if not path.exists() or path.read_text(encoding="utf-8") != render(objects):
            names.append(name)
    return names


def main(arguments: list[str]) -> int:
    if "--check" in arguments:
        for name in (names := stale()):
            print(f"{name} is stale: run python crds/samples/build_content.py", file=sys.stderr)
        return 1 if names else 0
    TEMPLATES.mkdir(parents=True, exist_ok=True)
    for name, objects in template_files().items():
        (TEMPLATES / name).write_text(render(objects), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
