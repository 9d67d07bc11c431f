"""One release in full: every reference of a Release resolved, or each one that does not resolve, by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import ValidationError

from meridian_api.digest import configmap_digest
from meridian_api.meta import ConfigMapRef
from meridian_api.names import derived_name
from meridian_api.serving import Manifest, ServingIndex, ServingTenant, ServingTool, Target
from meridian_api.tool_schema import schema_fault
from meridian_api.v1alpha1.indexepoch import IndexEpochSpec
from meridian_api.v1alpha1.inferencepool import InferencePoolSpec
from meridian_api.v1alpha1.release import ModelRef, ReleaseSpec, Tool

_MESSAGE_LIMIT = 500


@dataclass(frozen=True)
class Problem:
    """One thing that is missing or does not fit, named so that a person can put it right."""

    reason: str
    message: str


@dataclass(frozen=True)
class Sources:
    """One look at everything a snapshot is compiled from. Specs by name; what cannot be parsed is in `unreadable`."""

    service: str
    region: str
    namespace: str
    releases: Mapping[str, ReleaseSpec]
    pools: Mapping[str, InferencePoolSpec]
    epochs: Mapping[str, IndexEpochSpec]
    tenants: tuple[ServingTenant, ...]
    config_maps: Mapping[str, Mapping[str, str]]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """`kind/name` to the error, for objects that a newer or older schema let in (K-35)."""
    revoked_subjects: tuple[str, ...] = ()


def compile_manifest(sources: Sources, name: str) -> Manifest | tuple[Problem, ...]:
    """One release in full, or every reference of it that does not resolve."""
    release = sources.releases.get(name)
    if release is None:
        return (_missing(sources, "Release", name),)
    if release.service != sources.service:
        return (Problem("WrongService", f"release {name} is for service {release.service}, not {sources.service}"),)
    found: list[Problem] = []
    prompt = _config_map(sources, release.prompt, found)
    system_prompt = prompt.get("system.txt", "")
    if prompt and not system_prompt.strip():
        found.append(Problem("PromptEmpty", f"ConfigMap {release.prompt.name} has no text under system.txt"))
    primary = _target(sources, release.models.primary, found)
    fallback = _target(sources, release.models.fallback, found) if release.models.fallback else None
    index = _index(sources, release, found)
    tools = tuple(filter(None, [_tool(sources, tool, found) for tool in release.tools]))
    if found or primary is None or index is None:
        return tuple(found)
    return Manifest(
        release=name,
        app_version=release.app.version,
        prompt=release.prompt.name,
        system_prompt=system_prompt,
        history_format=prompt.get("format.txt", "").strip() or "1",
        primary=primary,
        fallback=fallback,
        index=index,
        tools=tools,
        settings=release.settings,
    )


def _missing(sources: Sources, kind: str, name: str) -> Problem:
    unreadable = sources.unreadable.get(f"{kind}/{name}")
    if unreadable:
        return Problem(f"{kind}Invalid", f"{kind} {name} cannot be read: {unreadable}"[:_MESSAGE_LIMIT])
    return Problem(f"{kind}NotFound", f"{kind} {name} does not exist")


def _config_map(sources: Sources, reference: ConfigMapRef, found: list[Problem]) -> Mapping[str, str]:
    """Its data; empty with a problem in `found` when it is missing or is not what was pinned."""
    data = sources.config_maps.get(reference.name)
    if data is None:
        found.append(_missing(sources, "ConfigMap", reference.name))
        return {}
    actual = configmap_digest(data)
    if actual != reference.digest:
        found.append(
            Problem(
                "DigestMismatch",
                f"ConfigMap {reference.name} has digest {actual}, the release pins {reference.digest}",
            )
        )
        return {}
    return data


def _target(sources: Sources, reference: ModelRef, found: list[Problem]) -> Target | None:
    pool = sources.pools.get(reference.pool)
    if pool is None:
        found.append(_missing(sources, "InferencePool", reference.pool))
        return None
    if reference.version not in {version.name for version in pool.versions}:
        known = ", ".join(version.name for version in pool.versions)
        found.append(
            Problem(
                "VersionNotFound", f"InferencePool {reference.pool} has no version {reference.version} (has {known})"
            )
        )
        return None
    if pool.region != reference.region:
        found.append(
            Problem(
                "RegionMismatch",
                f"InferencePool {reference.pool} is in {pool.region}, the release says {reference.region}",
            )
        )
        return None
    if pool.engine is None:
        found.append(
            Problem(
                "ProviderNotServed",
                f"InferencePool {reference.pool} has provider {pool.provider}, which is not served yet",
            )
        )
        return None
    host = f"{derived_name(reference.pool, reference.version)}.{sources.namespace}.svc.cluster.local"
    return Target(
        pool=reference.pool,
        version=reference.version,
        region=pool.region,
        model=pool.model,
        provider=pool.provider,
        # A headless Service: the port is the engine's own.
        base_url=f"http://{host}:{pool.engine.port}",
        price=pool.price,
    )


def _index(sources: Sources, release: ReleaseSpec, found: list[Problem]) -> ServingIndex | None:
    name = release.index.epoch
    epoch = sources.epochs.get(name)
    if epoch is None:
        found.append(_missing(sources, "IndexEpoch", name))
        return None
    if epoch.embedding.ident != release.index.embedding_model:
        found.append(
            Problem(
                "EmbeddingMismatch",
                f"IndexEpoch {name} was made with {epoch.embedding.ident}, the release says {release.index.embedding_model}",
            )
        )
        return None
    return ServingIndex(epoch=name, region=epoch.region, embedding=epoch.embedding, normaliser=epoch.normaliser)


def _tool(sources: Sources, reference: Tool, found: list[Problem]) -> ServingTool | None:
    data = _config_map(sources, reference.config_map, found)
    if not data:
        return None
    where = f"ConfigMap {reference.config_map.name}, tool.json"
    try:
        tool = ServingTool.from_wire(json.loads(data["tool.json"]))
    except KeyError:
        found.append(Problem("ToolInvalid", f"ConfigMap {reference.config_map.name} has no key tool.json"))
        return None
    except (ValidationError, ValueError, RecursionError) as wrong:
        found.append(Problem("ToolInvalid", f"{where}: {wrong}"[:_MESSAGE_LIMIT]))
        return None
    fault = schema_fault(tool.parameters)
    if fault is not None:
        found.append(Problem("ToolInvalid", f"{where}: parameters of {tool.name}: {fault}"[:_MESSAGE_LIMIT]))
        return None
    if (tool.name, tool.schema_version) != (reference.name, reference.schema_version):
        found.append(
            Problem(
                "ToolMismatch",
                f"{where} declares {tool.name} {tool.schema_version},"
                f" the release names {reference.name} {reference.schema_version}",
            )
        )
        return None
    return tool
