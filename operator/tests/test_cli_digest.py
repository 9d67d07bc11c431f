"""`meridian digest` prints what a Release pins, or one sentence about why it cannot."""

import argparse

import pytest

from meridian_api.digest import configmap_digest
from meridian_cli import digest

DIGEST = configmap_digest({"a": "é"})
CONFIG_MAP = "kind: ConfigMap\nmetadata: {name: prompt-1}\nimmutable: true\ndata: {a: é}\n"


def run(tmp_path, content: str | bytes) -> tuple[int, str]:
    path = tmp_path / "f.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return digest.run(argparse.Namespace(what=[str(path)])), f"meridian digest: {path}: "


def test_the_digest_is_that_which_a_release_pins(tmp_path, capsys):
    assert run(tmp_path, CONFIG_MAP)[0] == 0
    assert capsys.readouterr().out == f"prompt-1 {DIGEST}\n"


def test_the_config_maps_of_a_list_are_found(tmp_path, capsys):
    items = "{kind: ConfigMap, metadata: {name: prompt-1}, immutable: true, data: {a: é}}"
    code, _ = run(tmp_path, f"kind: List\nitems: [{items}, {{kind: Secret}}, null]\n---\nkind: List\n")
    assert code == 0
    assert capsys.readouterr().out == f"prompt-1 {DIGEST}\n"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"kind: ConfigMap # \xe9\n", "not a text file in UTF-8"),
        ("kind: ConfigMap\ndata: {a: b}\n", "a ConfigMap without metadata.name, by which a Release would find it"),
        ("kind: ConfigMap\nmetadata: x\n", "a ConfigMap without metadata.name, by which a Release would find it"),
        (
            "kind: ConfigMap\nmetadata: {name: x}\nbinaryData: {a: AAEC}\n",
            "x has binaryData, which no digest covers: a pin would not hold it",
        ),
        ("kind: ConfigMap\nmetadata: {name: x}\ndata: [a]\n", "the data of x is not a table of texts"),
        ("kind: ConfigMap\nmetadata: {name: x}\ndata: {a: 2026-01-01}\n", "a in the data of x is not a text: quote it"),
        ("kind: Secret\n", "no ConfigMap of that name, and no file with one"),
    ],
)
def test_what_cannot_be_pinned_is_told_in_one_sentence(tmp_path, capsys, content, told):
    code, prefix = run(tmp_path, content)
    assert code == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == f"{prefix}{told}\n"


def test_what_cannot_be_pinned_does_not_hide_the_others(tmp_path, capsys):
    code, _ = run(tmp_path, f"kind: ConfigMap\n---\n{CONFIG_MAP}")
    assert code == 1
    assert capsys.readouterr().out == f"prompt-1 {DIGEST}\n"
