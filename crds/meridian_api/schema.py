"""From a pydantic model to the structural schema that a CustomResourceDefinition may carry.

The API server refuses much of what pydantic emits (`$ref`, `anyOf`, `const`, numeric `exclusiveMinimum`), so each is
rewritten here or refused with the field's path: what cannot be said structurally must not be in the API.
"""

from __future__ import annotations

import typing
from typing import Any

from pydantic import BaseModel

from meridian_api.meta import ApiModel

Schema = dict[str, Any]

_KEPT = {
    "type", "format", "description", "default", "enum", "pattern", "minLength", "maxLength", "minimum", "maximum",
    "minItems", "maxItems", "minProperties", "maxProperties", "required", "nullable",
    "x-kubernetes-list-type", "x-kubernetes-list-map-keys", "x-kubernetes-validations",
}  # fmt: skip


class Unstructural(TypeError):
    """A field's type has no structural schema; the message names the field."""


def structural(model: type[ApiModel]) -> Schema:
    """`openAPIV3Schema` of `model`, with its RULES and IMMUTABLE as CEL. Raises Unstructural."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    schema = _inline(raw, raw.get("$defs", {}), model.__name__)
    _add_rules(schema, model)
    return schema


def _inline(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    if "$ref" in node:
        target = defs[node["$ref"].removeprefix("#/$defs/")]
        node = {**target, **{k: v for k, v in node.items() if k != "$ref"}}
    if "anyOf" in node:
        return _optional(node, defs, path)
    if "allOf" in node or "oneOf" in node or "prefixItems" in node:
        raise Unstructural(f"{path}: unions and fixed tuples have no structural schema; use 'exactly one of' with CEL")
    out = {key: value for key, value in node.items() if key in _KEPT}
    if "default" in out:
        out["default"] = _without_nulls(out["default"])
    if "const" in node:
        out["enum"] = [node["const"]]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if exclusive in node:
            out |= {bound: node[exclusive], exclusive: True}
    if "properties" in node:
        out["properties"] = {k: _inline(v, defs, f"{path}.{k}") for k, v in node["properties"].items()}
    if "items" in node:
        out["items"] = _inline(node["items"], defs, f"{path}[]")
    extra = node.get("additionalProperties")
    if isinstance(extra, dict):
        out["additionalProperties"] = _inline(extra, defs, f"{path}{{}}")
    if "type" not in out:
        raise Unstructural(f"{path}: no type; free-form fields are not part of the API")
    return out


def _without_nulls(value: Any) -> Any:
    """A default as the server wants it: an unset field is absent."""
    if isinstance(value, dict):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _optional(node: Schema, defs: dict[str, Schema], path: str) -> Schema:
    """`X | None` is simply an optional X: absent, never null."""
    real = [option for option in node["anyOf"] if option.get("type") != "null"]
    if len(real) != 1:
        raise Unstructural(f"{path}: a union of {len(real)} types has no structural schema")
    kept = {k: v for k, v in node.items() if k != "anyOf" and not (k == "default" and v is None)}
    return _inline({**real[0], **kept}, defs, path)


def _add_rules(schema: Schema, model: type[ApiModel]) -> None:
    """Puts each model's rules on its own level, walking schema and model together."""
    rules = [{"rule": rule.cel, "message": rule.message} for rule in model.RULES if rule.cel]
    required = set(schema.get("required", ()))
    rules += [_immutable(name, optional=name not in required) for name in model.IMMUTABLE]
    if rules:
        schema["x-kubernetes-validations"] = rules
    for name, field in model.model_fields.items():
        wire = field.alias or name
        for nested in _models_in(field.annotation):
            target = schema["properties"][wire]
            _add_rules(target.get("items", target), nested)


def _immutable(name: str, *, optional: bool) -> Schema:
    # Defaulted fields count as optional: an object stored before the default existed lacks them.
    # `self == oldSelf` on an optional field lets it appear or vanish: the rule stands on its parent, with has().
    same = f"self.{name} == oldSelf.{name}"
    cel = f"has(self.{name}) == has(oldSelf.{name}) && (!has(self.{name}) || {same})" if optional else same
    return {"rule": cel, "message": f"{name} is immutable: create a new object", "fieldPath": f".{name}"}


def _models_in(annotation: Any) -> list[type[ApiModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation] if issubclass(annotation, ApiModel) else []
    return [model for part in typing.get_args(annotation) for model in _models_in(part)]
