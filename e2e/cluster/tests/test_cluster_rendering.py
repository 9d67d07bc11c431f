"""Samples are written with the digests of what was built, or not at all."""

import pytest

from meridian_api.digest import configmap_digest
from meridian_cluster import chart, layout, rendering

REF = "docker.io/meridian/predictor@sha256:" + "a" * 64
REFS = {name: REF.replace("predictor", name) for name in ("operator", "dataplane", "predictor")}


def test_images_and_digests_are_filled_in():
    values = rendering.placeholders({"predictor": REF}, {"prompt-support-1": "sha256:1"})
    text = "image: ${PREDICTOR_IMAGE}\ndigest: ${DIGEST:prompt-support-1}\nshell: ${HOME} $x\n"
    assert rendering.render(text, values) == (f"image: {REF}\ndigest: sha256:1\nshell: ${{HOME}} $x\n")


@pytest.mark.parametrize("name", ["DIGEST:prompt-9", "ORDERS_IMAGE"])
def test_an_unknown_name_is_named_and_nothing_is_rendered(name):
    with pytest.raises(rendering.Unknown, match=name):
        rendering.render(f"x: ${{{name}}}", {"PREDICTOR_IMAGE": REF})


def test_digests_are_those_of_the_configmaps_in_the_templates():
    text = "kind: ConfigMap\nmetadata: {name: a}\ndata: {x: 'é'}\n---\nkind: Other\n"
    assert rendering.configmap_digests({"f.yaml": text}) == {"a": configmap_digest({"x": "é"})}


def test_every_placeholder_of_the_tracked_templates_has_a_value():
    folder = layout.repository() / "crds" / "samples" / "templates" / layout.SERVICE
    texts = {path.name: path.read_text() for path in folder.glob("*.yaml")}
    values = rendering.placeholders(REFS, rendering.configmap_digests(texts))
    for text in texts.values():
        assert "${" not in rendering.render(text, values)


def test_the_charts_values_name_images_by_digest_and_the_issuer_that_runs():
    values = chart.values(REFS)
    assert values["images"]["operator"] == REFS["operator"]
    issuer = values["identity"]["issuers"][0]
    assert issuer["jwksUrl"] == f"{issuer['issuer']}/.well-known/jwks.json"


def test_the_charts_values_are_known_to_the_chart():
    yaml = pytest.importorskip("yaml")
    path = layout.repository() / "charts" / "meridian" / "values.yaml"
    known = yaml.safe_load(path.read_text())
    assert set(chart.values(REFS)) <= set(known)
