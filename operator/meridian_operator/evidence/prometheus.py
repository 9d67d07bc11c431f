"""Readings of a release's metrics from Prometheus: numbers with their age, or why there is none. Never raises.

`prometheus-api-client` is synchronous and is imported on first use, in a thread; a query has 2 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from meridian_operator.evidence.readings import Metrics, Reading, judged_fresh, parse

QUERY_SECONDS = 2.0
MIN_WINDOW_SECONDS, MAX_WINDOW_SECONDS = 15, 600


Query = Callable[[str], list[Any]]


def window(seconds_in_phase: float) -> int:
    """Seconds of a look: as long as the phase, so that slow traffic is seen too, within 15 s and 10 min."""
    return int(min(max(seconds_in_phase, MIN_WINDOW_SECONDS), MAX_WINDOW_SECONDS))


def queries(release: str, arm: str, seconds: int) -> dict[str, str]:
    """PromQL by name. A missing error series counts as zero errors; missing requests make every ratio empty."""
    who = f'release="{release}",arm="{arm}"'
    total = f'sum(increase(meridian_requests_total{{{who},outcome!~"cancelled|refused"}}[{seconds}s]))'
    errors = f'sum(increase(meridian_requests_total{{{who},outcome="error"}}[{seconds}s]))'

    def p95(metric: str) -> str:
        return f"1000 * histogram_quantile(0.95, sum by (le) (rate({metric}_bucket{{{who}}}[{seconds}s])))"

    return {
        "age": f"time() - max(timestamp(meridian_requests_total{{{who}}}))",
        "requests": total,
        "error_ratio": f"({errors} or vector(0)) / ({total} > 0)",
        "ttft_p95_ms": p95("meridian_time_to_first_token_seconds"),
        "answer_p95_ms": p95("meridian_answer_duration_seconds"),
    }


async def read_metrics(url: str, release: str, arm: str, seconds: int) -> Metrics:
    """All readings of one look, asked at the same time."""
    return await read_with(lambda promql: _ask(url, promql), release, arm, seconds)


async def read_with(query: Query, release: str, arm: str, seconds: int) -> Metrics:
    """`read_metrics` with the query function given; it may raise anything."""
    asked = queries(release, arm, seconds)
    answers = dict(zip(asked, await asyncio.gather(*(_reading(query, q) for q in asked.values())), strict=True))
    return judged_fresh(answers)


async def _reading(query: Query, promql: str) -> Reading:
    try:
        return parse(await asyncio.wait_for(asyncio.to_thread(query, promql), QUERY_SECONDS + 0.5))
    except TimeoutError:
        return Reading(None, "Timeout", f"no answer in {QUERY_SECONDS:.0f} s")
    except Exception as error:  # noqa: BLE001 - observing: whatever the client raises is "unreachable", as a value
        return Reading(None, "Unreachable", f"{type(error).__name__}: {error}"[:200])


def _ask(url: str, promql: str) -> list[Any]:
    return _client(url).custom_query(promql, timeout=QUERY_SECONDS)  # pyright: ignore[reportArgumentType]


@lru_cache(maxsize=4)
def _client(url: str) -> Any:
    from prometheus_api_client import PrometheusConnect
    from urllib3.util.retry import Retry

    connect: Any = PrometheusConnect  # the package ships no types, and its classes hide behind __getattr__
    return connect(url=url, retry=Retry(total=0))
