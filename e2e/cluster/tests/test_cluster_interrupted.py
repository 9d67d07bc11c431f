"""An `up` that was interrupted anywhere is followed by one that goes on."""

import subprocess
from pathlib import Path

import pytest

from meridian_cluster import (
    apiserver,
    certificates,
    images,
    installation,
    kept_files,
    layout,
    postgres,
    postgres_roles,
)

HALF = ["", "-----BEGIN PRIVATE KEY-----\nMIIE", '{"half": ']


def test_a_write_that_is_interrupted_leaves_the_former_file(tmp_path, monkeypatch):
    path = tmp_path / "kept"
    kept_files.write(path, "former")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept_files.write(path, "new")
    assert path.read_text() == "former"
    kept_files.write(path, "new")
    assert path.read_text() == "new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["kept"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("half", HALF)
def test_half_a_signing_key_is_made_anew_and_a_whole_one_is_kept(tmp_path, half):
    path = tmp_path / "signing.pem"
    path.write_text(half)
    made = installation.signing_key(path)
    assert installation.signing_key(path) == made
    assert made[0].startswith("-----BEGIN PRIVATE KEY-----")


def test_an_empty_secret_is_made_anew_and_a_whole_one_is_kept(state):
    (layout.SECRETS / "orders-token").touch()
    made = installation.kept_secret("orders-token")
    assert len(made) > 30
    assert installation.kept_secret("orders-token") == made


@pytest.mark.parametrize("half", HALF)
def test_half_a_password_file_is_made_anew_and_a_whole_one_is_kept(tmp_path, half):
    (tmp_path / "postgres-passwords.json").write_text(half)
    made = postgres_roles.kept_passwords(tmp_path)
    assert set(made) == set(postgres_roles.ROLES)
    assert postgres_roles.kept_passwords(tmp_path) == made


CREDENTIALS = ["ca.crt", "ca.key", "apiserver.crt", "apiserver.key", "service-accounts.key", "admin.kubeconfig"]


@pytest.mark.parametrize("half", HALF)
@pytest.mark.parametrize("name", CREDENTIALS)
def test_half_a_credential_is_made_anew_and_fits_the_others(tmp_path, name, half):
    endpoint = apiserver.Endpoint("127.0.0.1", 6443, tmp_path)
    apiserver.write_credentials(endpoint)
    (tmp_path / name).write_text(half)
    apiserver.write_credentials(endpoint)
    authority = certificates.x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    for certificate in ("apiserver", apiserver.TO_KUBELET):
        found = certificates.x509.load_pem_x509_certificate((tmp_path / f"{certificate}.crt").read_bytes())
        found.verify_directly_issued_by(authority)
        key = certificates.kept_key(tmp_path / f"{certificate}.key")
        assert key is not None and key.public_key() == found.public_key()
    assert certificates.kept_key(tmp_path / "service-accounts.key") is not None
    token = kept_files.document(tmp_path / "admin.kubeconfig")["users"][0]["user"]["token"]
    assert token in (tmp_path / "tokens.csv").read_text()


def test_whole_credentials_are_kept(tmp_path):
    endpoint = apiserver.Endpoint("127.0.0.1", 6443, tmp_path)
    apiserver.write_credentials(endpoint)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    apiserver.write_credentials(endpoint)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == made
    assert not [name for name in made if name.endswith(".partial")]


@pytest.mark.parametrize("half", HALF)
def test_half_an_image_record_counts_as_none(tmp_path, monkeypatch, half):
    monkeypatch.setenv("MERIDIAN_CACHE", str(tmp_path))
    (layout.cache("images") / "operator.json").write_text(half)
    assert images.image_refs() == {}


class Initdb:
    """Stands in for initdb: what it makes first and last, and an interruption between the two."""

    def __init__(self) -> None:
        self.interrupted = False
        self.runs = 0

    def __call__(self, command: list[str | Path], **_: object) -> None:
        data = Path(command[command.index("--pgdata") + 1])
        assert not list(data.iterdir()), "initdb refuses a folder with something in it"
        self.runs += 1
        (data / "PG_VERSION").write_text("18\n")
        for name in ("pg_hba.conf", "pg_ident.conf"):
            (data / name).write_text("# initdb's own\n")
        if self.interrupted:
            raise KeyboardInterrupt
        (data / "global").mkdir()


@pytest.fixture
def initdb(monkeypatch):
    fake = Initdb()
    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.setattr(postgres, "binaries", lambda: Path("/nowhere"))
    return fake


@pytest.fixture
def instance(tmp_path):
    return postgres.Instance(tmp_path / "data", tmp_path / "sockets", "127.0.0.1", 5432)


def test_an_interrupted_initdb_leaves_no_database_and_is_run_again(instance, initdb):
    initdb.interrupted = True
    with pytest.raises(KeyboardInterrupt):
        postgres.initialise(instance, None, durable=True)
    assert not instance.data.exists()
    initdb.interrupted = False
    for _ in range(2):
        postgres.initialise(instance, None, durable=True)
    assert initdb.runs == 2, "a complete one is kept"
    assert "map=administrators" in (instance.data / "pg_hba.conf").read_text()
    assert "administrators root postgres" in (instance.data / "pg_ident.conf").read_text()
    assert (instance.data / "global").is_dir()


def test_a_data_folder_without_our_rules_on_which_no_server_ran_is_made_anew(instance, initdb):
    instance.data.mkdir()
    (instance.data / "PG_VERSION").write_text("18\n")
    (instance.data / "pg_hba.conf").write_text("local all all peer\n")
    postgres.initialise(instance, None, durable=True)
    assert initdb.runs == 1
    assert postgres.has_rules(instance)


@pytest.mark.parametrize("lost", ["pg_hba.conf", "pg_ident.conf"])
def test_a_database_that_lost_a_rule_file_gets_it_back_and_loses_nothing_else(instance, initdb, lost):
    postgres.initialise(instance, None, durable=True)
    (instance.data / "postmaster.opts").touch()
    (instance.data / lost).unlink()
    postgres.initialise(instance, None, durable=True)
    assert initdb.runs == 1
    assert postgres.has_rules(instance)
