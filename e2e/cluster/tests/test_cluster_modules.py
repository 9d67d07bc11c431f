"""What is compiled is pinned: every module names its versions and the sums of all it needs."""

import re

import pytest

from meridian_cluster import binaries, down, layout, site_packages, toolchain

MODULES = sorted({program.module for program in binaries.PROGRAMS.values()})


@pytest.mark.parametrize("module", MODULES)
def test_a_module_pins_all_it_compiles(module):
    folder = binaries.GOMOD / module
    text = (folder / "go.mod").read_text()
    assert (folder / "go.sum").stat().st_size > 1000
    packages = [p.package for p in binaries.PROGRAMS.values() if p.module == module]
    required = re.findall(r"^(?:require )?\s*([a-z][\w./-]+) v[\w.+-]+", text, re.MULTILINE)
    for package in packages:
        if package != ".":
            assert package in text, f"{package} is not declared as a tool"
            assert any(package.startswith(f"{name}/") for name in required), package
    assert "latest" not in text


def test_kubernetes_and_its_staging_modules_are_one_version():
    text = (binaries.GOMOD / "kubernetes" / "go.mod").read_text()
    assert f"k8s.io/kubernetes v{binaries.KUBERNETES}" in text
    staged = re.findall(r"=> k8s\.io/[\w-]+ v0\.([\d.]+)", text)
    assert len(staged) > 25
    assert set(staged) == {binaries.KUBERNETES.partition(".")[2]}


def test_kserve_is_the_released_version():
    text = (binaries.GOMOD / "kserve" / "go.mod").read_text()
    assert "github.com/kserve/kserve v0.19.0" in text


def test_the_cache_key_changes_with_the_sources(tmp_path, monkeypatch):
    monkeypatch.setattr(binaries, "GOMOD", tmp_path)
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "go.mod").write_text("module m\n")
    first = binaries.module_key("m")
    assert binaries.module_key("m") == first
    (tmp_path / "m" / "main.go").write_text("package main\n")
    assert binaries.module_key("m") != first


def test_assets_of_setup_envtest_come_first(tmp_path, monkeypatch):
    (tmp_path / "kube-apiserver").touch()
    monkeypatch.setenv("KUBEBUILDER_ASSETS", str(tmp_path))
    assert binaries.present("kube-apiserver") == tmp_path / "kube-apiserver"


@pytest.mark.parametrize("extra", ["operator", "dataplane", "engine"])
def test_the_lock_pins_every_package_of_an_image_with_hashes(extra):
    names = site_packages.closure(extra)
    text = site_packages.locked(names, (layout.repository() / "requirements.lock").read_text())
    assert len(re.findall(r"^\S+==", text, re.MULTILINE)) == len(names)
    assert text.count("--hash=sha256:") >= len(names)


def test_an_image_carries_no_package_of_another():
    assert "kopf" in site_packages.closure("operator")
    assert "kopf" not in site_packages.closure("dataplane")
    assert "pytest" not in site_packages.closure("operator")


def test_a_package_that_the_lock_does_not_pin_is_named():
    with pytest.raises(KeyError, match="absent"):
        site_packages.locked(["absent"], "a==1 \\\n    --hash=sha256:00\n")


def test_only_mounts_below_our_folders_are_ours_innermost_first():
    table = (
        "a /var/lib/meridian/x ext4 rw 0 0\n"
        "b /var/lib/meridian/x/y\\040z ext4 rw 0 0\n"
        "c /var/lib/meridian2 ext4 rw 0 0\n"
        "d / ext4 rw 0 0\n"
    )
    assert down.mounts(table, layout.STATE) == [
        "/var/lib/meridian/x/y z",
        "/var/lib/meridian/x",
    ]


def test_every_debian_package_is_found_by_a_file_of_it():
    assert all(path.startswith("/") for path in toolchain.PACKAGES.values())
