"""Every metric, once: a row in METRICS, and one line where the state changes.

Each actor counts in a `Metrics` of its own. A scrape collects the samples of all actors, adds equal series up,
and renders them in Prometheus' text format. Names are those that vLLM's dashboards know, with our prefix.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from prometheus_client import Metric as MetricFamily

PREFIX = "actorlm:"

_SECONDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0),
)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0)
_STEP_TOKENS = tuple(float(2**power) for power in range(15))
_FEW = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)


class Metric(NamedTuple):
    """One family. `labels` come after `model_name`, which every family has; `buckets` are upper bounds."""

    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


METRICS: dict[str, Metric] = {
    "num_requests_running": Metric("gauge", "Requests in the running batch.", ("engine",)),
    "num_requests_waiting": Metric("gauge", "Requests waiting to be computed.", ("engine",)),
    "num_waiting_tokens": Metric("gauge", "Known tokens of the requests that wait.", ("engine",)),
    "kv_cache_usage_perc": Metric("gauge", "Share of the KV blocks in use, 0 to 1.", ("engine",)),
    "prefix_cache_queries": Metric("counter", "Prompt tokens looked up in the prefix cache.", ("engine",)),
    "prefix_cache_hits": Metric("counter", "Prompt tokens found in the prefix cache.", ("engine",)),
    "num_preemptions": Metric("counter", "Requests preempted to free KV blocks.", ("engine",)),
    "engine_steps": Metric("counter", "Steps computed.", ("engine",)),
    "iteration_tokens_total": Metric(
        "histogram", "Tokens computed in a step, prompt and generated.", ("engine",), _STEP_TOKENS
    ),
    "request_queue_time_seconds": Metric(
        "histogram", "Time from a request's arrival at its replica to its first step.", ("engine",), _SECONDS
    ),
    "request_prefill_time_seconds": Metric(
        "histogram", "Time from a request's first step to its first token.", ("engine",), _SECONDS
    ),
    "request_decode_time_seconds": Metric(
        "histogram", "Time from a request's first token to its end.", ("engine",), _SECONDS
    ),
    "request_inference_time_seconds": Metric(
        "histogram", "Time from a request's first step to its end, of those that had a token.", ("engine",), _SECONDS
    ),
    "request_prefill_kv_computed_tokens": Metric(
        "histogram", "Prompt tokens of a request that were computed, not found in the cache.", ("engine",), _TOKENS
    ),
    "request_num_preemptions": Metric("histogram", "How often a request was preempted.", ("engine",), _FEW),
    "cache_config_info": Metric(
        "gauge",
        "The KV cache of a replica, in labels; its value is 1.",
        ("engine", "block_size", "num_gpu_blocks", "enable_prefix_caching"),
    ),
    "engine_requests_started": Metric("counter", "Requests that the balancer has sent to a replica.", ("engine",)),
    "engine_expected_work": Metric(
        "gauge", "What a replica has left to do, as the balancer sees it, in tokens; a generated one is 4.", ("engine",)
    ),
    "prefix_affinity_tokens": Metric(
        "counter", "Prompt tokens that replicas were believed to hold when requests were sent there.", ("engine",)
    ),
    "checkpoint_bytes_read": Metric(
        "gauge", "Bytes of the checkpoint's tensors that a worker has read: its own share.", ("engine", "rank")
    ),
    "prompt_tokens": Metric("counter", "Prompt tokens of finished requests."),
    "prompt_tokens_cached": Metric("counter", "Those of them that came from the prefix cache."),
    "generation_tokens": Metric("counter", "Tokens generated."),
    "request_success": Metric("counter", "Choices ended, by reason; abort and error included.", ("finished_reason",)),
    "requests_accepted": Metric("counter", "Choices accepted."),
    "requests_resumed": Metric("counter", "Next attempts of choices, by the role that was lost.", ("lost",)),
    "admission_rejections": Metric(
        "counter", "Choices refused by a queue or a limit after they were accepted here, by code.", ("reason",)
    ),
    "time_to_first_token_seconds": Metric("histogram", "Time to the first token.", (), _SECONDS),
    "inter_token_latency_seconds": Metric("histogram", "Time between tokens of one choice.", (), _SECONDS),
    "request_time_per_output_token_seconds": Metric(
        "histogram", "Mean time between the tokens of a finished choice.", (), _SECONDS
    ),
    "e2e_request_latency_seconds": Metric("histogram", "Time from acceptance to the end.", (), _SECONDS),
    "request_prompt_tokens": Metric("histogram", "Prompt tokens of a choice.", (), _TOKENS),
    "request_generation_tokens": Metric("histogram", "Generated tokens of a choice.", (), _TOKENS),
    "request_params_n": Metric("histogram", "Choices of a request.", (), _FEW),
    "request_params_max_tokens": Metric("histogram", "max_tokens of a choice.", (), _TOKENS),
    "build_info": Metric("gauge", "The versions that run, in labels; its value is 1.", ("version", "python")),
    "mailbox_depth": Metric("gauge", "Messages waiting in an actor's mailbox.", ("actor",)),
    "mailbox_high_water": Metric("gauge", "The largest depth that the mailbox has had.", ("actor",)),
    "mailbox_capacity": Metric("gauge", "Messages that the mailbox holds at most.", ("actor",)),
    "actor_messages": Metric("counter", "Messages an actor has processed.", ("actor",)),
    "actor_restarts": Metric("counter", "Restarts of an actor after it died.", ("actor",)),
    "actor_memory_bytes": Metric("gauge", "Resident memory of an actor's process.", ("actor",)),
    "actor_open_fds": Metric("gauge", "Open descriptors of an actor's process.", ("actor",)),
    "actor_cpu_seconds": Metric("counter", "Processor time of an actor's process.", ("actor",)),
    "socket_messages": Metric(
        "counter", "Messages through a socket, sent or received.", ("actor", "socket", "direction")
    ),
    "bad_frames": Metric("counter", "Frames dropped because they were no valid message.", ("actor",)),
    "connections_refused": Metric("counter", "Connections between actors refused for want of a key.", ("actor",)),
}

Series = tuple[str, tuple[str, ...]]


class Metrics:
    """The counts of one actor. A series is (metric or metric part, label values)."""

    def __init__(self) -> None:
        self._values: dict[Series, float] = {}

    def add(self, metric: str, amount: float = 1.0, labels: tuple[str, ...] = ()) -> None:
        """Raises a counter."""
        key = (metric, labels)
        self._values[key] = self._values.get(key, 0.0) + amount

    def set(self, metric: str, value: float, labels: tuple[str, ...] = ()) -> None:
        """Sets a gauge, or a counter whose total is kept elsewhere."""
        self._values[metric, labels] = value

    def observe(self, metric: str, value: float, count: int = 1, labels: tuple[str, ...] = ()) -> None:
        """Puts `count` equal observations into a histogram."""
        bounds = METRICS[metric].buckets
        place = bisect_left(bounds, value)
        bound = f"{bounds[place]:g}" if place < len(bounds) else "+Inf"
        self.add(f"{metric}_bucket", count, (*labels, bound))
        self.add(f"{metric}_sum", value * count, labels)

    def samples(self) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """All series with their values. Histogram buckets are not yet cumulative."""
        return ((metric, labels, value) for (metric, labels), value in self._values.items())


def render(samples: Iterable[tuple[str, tuple[str, ...], float]], model_name: str) -> bytes:
    """Adds equal series up and writes them in Prometheus' text format, every family of METRICS included."""
    from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - frontends alone need it

    total: dict[Series, float] = {}
    for metric, labels, value in samples:
        total[metric, labels] = total.get((metric, labels), 0.0) + value
    registry = CollectorRegistry()
    registry.register(_Families(total, model_name))
    return generate_latest(registry)


class _Families:
    """A prometheus_client collector over summed series."""

    def __init__(self, total: dict[Series, float], model_name: str) -> None:
        self._total = total
        self._model_name = model_name

    def collect(self) -> "Iterator[MetricFamily]":
        """Yields one family per row of METRICS."""
        from prometheus_client import metrics_core as core  # noqa: PLC0415 - frontends alone need it

        kinds = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        for name, metric in METRICS.items():
            labels = ("model_name", *metric.labels)
            if metric.kind == "histogram":
                histogram = core.HistogramMetricFamily(PREFIX + name, metric.help, labels=labels)
                for values, _ in self._series(f"{name}_sum", metric):
                    histogram.add_metric([self._model_name, *values], *self._histogram(name, metric.buckets, values))
                yield histogram
                continue
            family = kinds[metric.kind](PREFIX + name, metric.help, labels=labels)
            for values, value in self._series(name, metric):
                family.add_metric([self._model_name, *values], value)
            yield family

    def _series(self, name: str, metric: Metric) -> list[tuple[tuple[str, ...], float]]:
        found = [(labels, value) for (key, labels), value in self._total.items() if key == name]
        return found if found or metric.labels else [((), 0.0)]

    def _histogram(
        self, name: str, bounds: tuple[float, ...], labels: tuple[str, ...]
    ) -> tuple[list[tuple[str, float]], float]:
        cumulative, count = [], 0.0
        for bound in (*(f"{bound:g}" for bound in bounds), "+Inf"):
            count += self._total.get((f"{name}_bucket", (*labels, bound)), 0.0)
            cumulative.append((bound, count))
        return cumulative, self._total.get((f"{name}_sum", labels), 0.0)
