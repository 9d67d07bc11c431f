"""The engine's metrics under vLLM's own names, so that dashboards and scaling rules written for
vLLM read them."""

from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from meridian_predictor.slots import Slots

_FIRST_TOKEN_S = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_TOKEN_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.4,
    0.5,
    0.75,
    1.0,
    2.5,
)
_REQUEST_S = (
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    40.0,
    50.0,
    60.0,
    120.0,
)
CACHE_TOKENS_PER_SLOT = 8192  # what a slot's share of the KV cache holds; only the usage gauge reads it


@dataclass(frozen=True)
class Metrics:
    """The series of one engine in a registry of its own. Times are in seconds."""

    registry: CollectorRegistry
    model_name: str
    running: Gauge
    waiting: Gauge
    cache_usage: Gauge
    first_token: Histogram
    per_token: Histogram
    latency: Histogram
    queue_time: Histogram
    prompt_tokens: Counter
    generation_tokens: Counter
    success: Counter


def engine_metrics(model_name: str) -> Metrics:
    disable_created_metrics()
    registry = CollectorRegistry()
    labels = ["model_name"]
    metrics = Metrics(
        registry=registry,
        model_name=model_name,
        running=Gauge("vllm:num_requests_running", "Requests in a slot.", labels, registry=registry),
        waiting=Gauge("vllm:num_requests_waiting", "Requests in the queue.", labels, registry=registry),
        cache_usage=Gauge("vllm:kv_cache_usage_perc", "KV cache in use, 0 to 1.", labels, registry=registry),
        first_token=Histogram(
            "vllm:time_to_first_token_seconds",
            "Arrival to first token.",
            labels,
            buckets=_FIRST_TOKEN_S,
            registry=registry,
        ),
        per_token=Histogram(
            "vllm:time_per_output_token_seconds",
            "Between tokens.",
            labels,
            buckets=_TOKEN_S,
            registry=registry,
        ),
        latency=Histogram(
            "vllm:e2e_request_latency_seconds",
            "Arrival to last token.",
            labels,
            buckets=_REQUEST_S,
            registry=registry,
        ),
        queue_time=Histogram(
            "vllm:request_queue_time_seconds",
            "Arrival to slot.",
            labels,
            buckets=_REQUEST_S,
            registry=registry,
        ),
        prompt_tokens=Counter("vllm:prompt_tokens", "Prefill tokens.", labels, registry=registry),
        generation_tokens=Counter("vllm:generation_tokens", "Generated tokens.", labels, registry=registry),
        success=Counter(
            "vllm:request_success",
            "Ended requests.",
            [*labels, "finished_reason"],
            registry=registry,
        ),
    )
    for series in (
        metrics.running,
        metrics.waiting,
        metrics.cache_usage,
        metrics.prompt_tokens,
        metrics.generation_tokens,
    ):
        series.labels(model_name)  # a scrape before the first request finds them at 0
    for reason in ("stop", "length", "abort"):
        metrics.success.labels(model_name, reason)
    return metrics


def observe_slots(metrics: Metrics, slots: Slots, cached_tokens: int) -> None:
    """Sets the gauges at scrape time. `cached_tokens`: prompt and generated tokens of the sequences
    that run."""
    metrics.running.labels(metrics.model_name).set(slots.running)
    metrics.waiting.labels(metrics.model_name).set(slots.waiting)
    metrics.cache_usage.labels(metrics.model_name).set(min(cached_tokens / (slots.size * CACHE_TOKENS_PER_SLOT), 1.0))
