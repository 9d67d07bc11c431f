"""The database's roles, their passwords and their connection strings.

Four roles, none a superuser and none able to bypass row-level security: the owner (migrations and
partitions, used by the operator), the data plane, the index Job, and the operator's reader of
evidence.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg import conninfo, sql

from meridian_cluster import kept_files

ROLES = ("meridian_owner", "meridian_app", "meridian_ingest", "meridian_evidence")
ATTRIBUTES = "login nosuperuser nobypassrls nocreatedb nocreaterole noreplication"


@dataclass(frozen=True)
class Dsns:
    """Connection strings (URIs) to one database, one for each role.

    `superuser` works on the Unix socket of this machine only; no pod ever gets it.
    """

    owner: str
    app: str
    ingest: str
    evidence: str
    superuser: str


def accepts(dsn: str) -> bool:
    """Whether the server answers a query on this connection string."""
    try:
        with psycopg.connect(dsn, connect_timeout=2) as connection:
            connection.execute("select 1")
        return True
    except psycopg.OperationalError:
        return False


def kept_passwords(folder: Path) -> dict[str, str]:
    """One random password for each role, the same on every call, in a file only root may read."""
    path = folder / "postgres-passwords.json"
    kept: dict[str, str] = kept_files.document(path)
    if kept:
        return kept
    passwords = {role: secrets.token_urlsafe(24) for role in ROLES}
    kept_files.write(path, json.dumps(passwords))
    return passwords


def provision(superuser_dsn: str, host: str, port: int, passwords: Mapping[str, str], database: str) -> Dsns:
    """Create or correct the roles, the database and its extension. Idempotent."""
    with psycopg.connect(superuser_dsn, autocommit=True) as connection:
        for role in ROLES:
            known = connection.execute("select 1 from pg_roles where rolname = %s", [role]).fetchone()
            statement = "alter role {} {}" if known else "create role {} {}"
            connection.execute(
                sql.SQL(statement).format(
                    sql.Identifier(role),
                    sql.SQL(f"{ATTRIBUTES} password {{}}").format(sql.Literal(passwords[role])),
                )
            )
        # Only the named roles may connect to any database, and none may create in `public`.
        connection.execute("revoke connect on database postgres from public")
    return create_database(superuser_dsn, host, port, passwords, database)


def create_database(superuser_dsn: str, host: str, port: int, passwords: Mapping[str, str], database: str) -> Dsns:
    """Create a database owned by meridian_owner, with the vector extension; kept if it exists."""
    name = sql.Identifier(database)
    with psycopg.connect(superuser_dsn, autocommit=True) as connection:
        query = "select 1 from pg_database where datname = %s"
        if not connection.execute(query, [database]).fetchone():
            connection.execute(sql.SQL("create database {} owner meridian_owner").format(name))
            connection.execute(sql.SQL("revoke connect on database {} from public").format(name))
        for role in ROLES:
            connection.execute(sql.SQL("grant connect on database {} to {}").format(name, sql.Identifier(role)))
    inside = superuser_dsn.replace("/postgres?", f"/{database}?")
    with psycopg.connect(inside, autocommit=True) as connection:
        connection.execute("create extension if not exists vector")

    def dsn(role: str) -> str:
        return f"postgresql://{role}:{passwords[role]}@{host}:{port}/{database}"

    return Dsns(*(dsn(role) for role in ROLES), superuser=inside)


def fresh_database(dsns: Dsns, database: str) -> Dsns:
    """Another, empty database on the same server with the same roles: isolation between tests
    that share one throw-away server."""
    parts = [conninfo.conninfo_to_dict(dsn) for dsn in (dsns.owner, dsns.app, dsns.ingest, dsns.evidence)]
    passwords = {str(part["user"]): str(part["password"]) for part in parts}
    superuser = dsns.superuser.replace(f"/{parts[0]['dbname']}?", "/postgres?")
    return create_database(superuser, str(parts[0]["host"]), int(str(parts[0]["port"])), passwords, database)
