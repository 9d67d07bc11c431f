"""The KServe SDK's types, without the SDK's model server.

`import kserve` runs the package's `__init__`, which imports FastAPI, gRPC and a model server: 70 MiB and ten seconds of CPU on a
small machine, in which the Lease would be lost. The types need none of it, so the package is entered below its `__init__`.
"""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any


def load() -> None:
    """Make `kserve.models` and `kserve.api_client` importable; a third of a second. Idempotent; for a thread."""
    if "kserve" not in sys.modules:
        spec = importlib.util.find_spec("kserve")
        if spec is None or spec.submodule_search_locations is None:
            raise ImportError("the package kserve is not installed (extra `operator`)")
        package = types.ModuleType("kserve")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = spec
        sys.modules["kserve"] = package
    import kserve.api_client
    import kserve.models.v1beta1_inference_service  # noqa: F401


def inference_service(predictor: dict[str, Any], metadata: dict[str, Any]) -> dict[str, Any]:
    """An InferenceService with `predictor`'s fields (snake_case, as the SDK spells them), as a manifest.

    Raises TypeError for a field that the SDK's V1beta1PredictorSpec does not have.
    """
    load()
    from kserve.api_client import ApiClient
    from kserve.models.v1beta1_inference_service import V1beta1InferenceService
    from kserve.models.v1beta1_inference_service_spec import V1beta1InferenceServiceSpec
    from kserve.models.v1beta1_predictor_spec import V1beta1PredictorSpec

    built = V1beta1InferenceService(
        api_version="serving.kserve.io/v1beta1",
        kind="InferenceService",
        metadata=metadata,
        spec=V1beta1InferenceServiceSpec(predictor=V1beta1PredictorSpec(**predictor)),
    )
    manifest: Any = ApiClient().sanitize_for_serialization(built)
    return dict(manifest)
