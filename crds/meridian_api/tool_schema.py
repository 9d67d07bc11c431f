"""Is this schema of a tool's arguments one that can be checked with nothing but itself? Both planes ask before it may serve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012


def schema_fault(schema: dict[str, Any]) -> str | None:
    """What keeps `schema` from being used, or None. A reference that leaves it would be fetched, by whoever validates (T-44)."""
    try:
        Draft202012Validator.check_schema(schema)
        resolver = Registry().resolver_with_root(DRAFT202012.create_resource(schema))
        for keyword, reference in _references(schema):
            if not reference.startswith("#"):
                return f"{keyword} {reference} leaves the schema"
            try:
                resolver.lookup(reference)
            except (Unresolvable, ValueError, TypeError, LookupError):
                return f"{keyword} {reference} names nothing in the schema"
    except SchemaError as wrong:
        return f"no JSON Schema: {wrong.message}"
    except RecursionError:
        return "nested too deeply"
    return None


def _references(value: Any) -> Iterator[tuple[str, str]]:
    """Wherever they stand: also in what only another reference would make part of the schema."""
    if isinstance(value, dict):
        for keyword in ("$ref", "$dynamicRef"):
            if isinstance(value.get(keyword), str):
                yield keyword, value[keyword]
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _references(part)
