"""One real PostgreSQL for the session (started on first use), and an empty, described database for each module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import hypothesis  # noqa: F401  its plugin imports it at the very end otherwise, where CPython 3.11.7 may fail (gh-106905)
import psycopg
import pytest
from store_writing import SCHEMA

from meridian_cluster import postgres, postgres_roles
from meridian_cluster.postgres_roles import Dsns

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Dsns]:
    with postgres.temporary() as dsns:
        yield dsns


@pytest.fixture(scope="module")
def store(postgres_server: Dsns, request: pytest.FixtureRequest) -> Dsns:
    """An empty database with schema.sql run in it, for one module."""
    name = request.module.__name__.rpartition(".")[2][:60]
    dsns = postgres_roles.fresh_database(postgres_server, name)
    with psycopg.connect(dsns.owner) as connection:
        connection.execute(SCHEMA.read_bytes())
    return dsns


@pytest.fixture(scope="module")
def make_epoch(store: Dsns) -> Callable[[str, str], None]:
    """Partitions, as the operator makes them."""

    def make(tenant: str, epoch: str) -> None:
        with psycopg.connect(store.owner) as connection:
            connection.execute("select meridian.ensure_epoch(%s, %s)", [tenant, epoch])

    return make
