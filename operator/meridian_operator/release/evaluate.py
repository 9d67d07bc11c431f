"""Carries out an EvaluationRequest: the candidate's snapshot compiled and signed, then one Job."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

from meridian_operator.cluster import Manifest, Refused
from meridian_operator.converge import World
from meridian_operator.plan import EvaluationRequest
from meridian_operator.release.objects import EVALUATION, evaluation_config_map, evaluation_job
from meridian_operator.serving.commit import CannotCompile
from meridian_operator.serving.compile import Pointer, Stamp, compile_snapshot
from meridian_operator.serving.gather import gather_sources
from meridian_operator.serving.sign import KeyUnusable, load_key, sign


async def start(request: EvaluationRequest, world: World, owner: Manifest) -> None:
    """Create ConfigMap and Job; both have the Job's name, so that a second try finds the first (K-15).

    The snapshot has generation 1 and is for nobody but this Job. Raises CannotCompile, Refused and other ClusterErrors.
    """
    settings = world.settings
    namespace = owner["metadata"]["namespace"]
    try:
        key = load_key(Path(settings.signing_dir))
    except KeyUnusable as unusable:
        raise Refused(f"signing key: {unusable}") from None
    sources = await gather_sources(world.cluster, namespace, request.service, settings.region, [request.release])
    issued = world.clock().astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    made = compile_snapshot(sources, Pointer(request.release), Stamp(1, world.fence(), issued))
    if isinstance(made, tuple):
        raise CannotCompile(made)
    apart = made.snapshot.model_copy(update={"service": made.snapshot.service + EVALUATION})
    await world.cluster.apply(evaluation_config_map(request, owner, sign(apart, key)))
    await world.cluster.apply(evaluation_job(request, owner, settings))
