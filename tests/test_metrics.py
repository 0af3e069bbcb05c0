"""Metrics of several actors become one page."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from actorlm.metrics import METRICS, Metrics, render


def _page(*all_metrics):
    samples = [sample for metrics in all_metrics for sample in metrics.samples()]
    families = text_string_to_metric_families(render(samples, "m").decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def test_d08_equal_series_of_several_frontends_add_up():
    first, second = Metrics(), Metrics()
    first.add("request_success", 2, ("stop",))
    second.add("request_success", 3, ("stop",))
    second.add("request_success", 1, ("abort",))
    page = _page(first, second)
    assert page["actorlm:request_success_total", (("finished_reason", "stop"), ("model_name", "m"))] == 5
    assert page["actorlm:request_success_total", (("finished_reason", "abort"), ("model_name", "m"))] == 1


def test_gauges_of_several_engines_stay_apart():
    metrics = Metrics()
    metrics.set("num_requests_running", 3, ("0",))
    metrics.set("num_requests_running", 4, ("1",))
    page = _page(metrics)
    assert page["actorlm:num_requests_running", (("engine", "1"), ("model_name", "m"))] == 4


@pytest.mark.parametrize(("value", "bucket"), [(0.001, "0.001"), (0.0011, "0.005"), (61.0, "+Inf")])
def test_histograms_are_cumulative(value, bucket):
    metrics = Metrics()
    metrics.observe("time_to_first_token_seconds", value, count=2)
    page = _page(metrics)
    name, model = "actorlm:time_to_first_token_seconds", ("model_name", "m")
    assert page[f"{name}_bucket", (("le", bucket), model)] == 2
    assert page[f"{name}_bucket", (("le", "+Inf"), model)] == page[f"{name}_count", (model,)] == 2
    assert page[f"{name}_sum", (model,)] == pytest.approx(2 * value)


def test_histograms_of_several_engines_stay_apart():
    first, second = Metrics(), Metrics()
    first.observe("request_queue_time_seconds", 0.5, labels=("0",))
    first.observe("request_queue_time_seconds", 50, labels=("0",))
    second.observe("request_queue_time_seconds", 2, labels=("1",))
    page = _page(first, second)
    name = "actorlm:request_queue_time_seconds"
    for engine, count, total in (("0", 2, 50.5), ("1", 1, 2)):
        labels = (("engine", engine), ("model_name", "m"))
        assert page[f"{name}_count", labels] == page[f"{name}_bucket", (labels[0], ("le", "+Inf"), labels[1])] == count
        assert page[f"{name}_sum", labels] == total
    assert page[f"{name}_bucket", (("engine", "0"), ("le", "1"), ("model_name", "m"))] == 1


def test_every_family_is_on_an_idle_page():
    page = render([], "m").decode()
    for name, metric in METRICS.items():
        suffix = "_total" if metric.kind == "counter" else ""
        assert f"# TYPE actorlm:{name}{suffix} {metric.kind}\n" in page, name
        assert metric.help in page
