"""Background work of a replica: begun again when it breaks, since a replica that is ready and hears nothing any more is worse."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from meridian_dataplane.telemetry import log_failure

Work = Callable[[], Coroutine[Any, Any, None]]
_FIRST_S, _MOST_S = 0.25, 10.0
"""Between two beginnings; what ran for longer than the most begins at the first again."""


async def kept_alive(work: Work) -> None:
    """Begins `work` again when it ends by a fault of ours; work that returns is done."""
    backoff = _FIRST_S
    while True:
        began = asyncio.get_running_loop().time()
        try:
            await work()
        except Exception as broken:  # noqa: BLE001
            if asyncio.get_running_loop().time() - began > _MOST_S:
                backoff = _FIRST_S
            log_failure("background_work_ended", broken, seconds=round(backoff, 2))
            await asyncio.sleep(backoff * random.uniform(0.5, 1.5))  # noqa: S311
            backoff = min(backoff * 2, _MOST_S)
        else:
            return
