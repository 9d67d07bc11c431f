"""The kinds: what each observes and decides."""

from __future__ import annotations

from typing import Any

from meridian_operator.converge import Kind
from meridian_operator.indexepoch import decide as _epoch_decide
from meridian_operator.indexepoch import observe as _epoch_observe
from meridian_operator.inferencepool import decide as _pool_decide
from meridian_operator.inferencepool import observe as _pool_observe
from meridian_operator.release import decide as _release_decide
from meridian_operator.release import observe as _release_observe
from meridian_operator.servingconfig import decide as _config_decide
from meridian_operator.servingconfig import observe as _config_observe
from meridian_operator.tenantpolicy import decide as _tenant_decide
from meridian_operator.tenantpolicy import observe as _tenant_observe

KINDS: dict[str, Kind[Any]] = {
    "Release": Kind("Release", _release_observe.observe, _release_decide.decide),
    "InferencePool": Kind("InferencePool", _pool_observe.observe, _pool_decide.decide),
    "IndexEpoch": Kind("IndexEpoch", _epoch_observe.observe, _epoch_decide.decide),
    "TenantPolicy": Kind("TenantPolicy", _tenant_observe.observe, _tenant_decide.decide),
    "ServingConfig": Kind("ServingConfig", _config_observe.observe, _config_decide.decide),
}
