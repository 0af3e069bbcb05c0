"""What outcomes come to: figures, the table, the plot."""

import io
import xml.dom.minidom

import msgspec
import pytest
from rich.console import Console

from actorlm.bench.plot import svg
from actorlm.bench.recording import Outcome
from actorlm.bench.serve import Run
from actorlm.bench.serve_report import Failures, Report, report
from actorlm.bench.serve_table import print_report
from actorlm.bench.traffic import Traffic


def outcome(began, times=(), ended=None, **changes):
    defaults = {
        "whole": True,
        "failure": None,
        "message": None,
        "prompt_tokens": 10,
        "output_tokens": 5,
        "counted": True,
    }
    ended = ended if ended is not None else (times[-1] if times else began)
    return Outcome(began=began, ended=ended, times=list(times), **defaults | changes)


def failed(began, kind, message="", times=()):
    return outcome(began, times, whole=False, failure=kind, message=message, prompt_tokens=0, output_tokens=0)


def made(*outcomes, planned=None, cpu_s=0.5, interrupted=False):
    run = Run("a-model", list(outcomes), interrupted, peak=len(outcomes), cpu_s=cpu_s)
    return report(run, Traffic(num_prompts=planned or len(outcomes)), "http://here")


def shown(result):
    screen = io.StringIO()
    print_report(result, Console(file=screen, width=120))
    return screen.getvalue()


TWO = (outcome(10, [11, 12, 14]), outcome(12, [15, 16], ended=20, output_tokens=2))


def test_throughput_is_of_the_whole_time():
    figures = made(*TWO).throughput
    assert (figures.seconds, figures.input_tokens, figures.output_tokens) == (10, 20, 7)
    assert (figures.requests_per_s, figures.input_tokens_per_s, figures.output_tokens_per_s) == (0.2, 2, 0.7)
    assert figures.counted


def test_latencies_are_pooled():
    latency = made(*TWO).latency
    assert (latency.time_to_first_token_ms.count, latency.time_to_first_token_ms.mean) == (2, 2000)
    assert (latency.between_events_ms.count, latency.between_events_ms.mean) == (3, pytest.approx(4000 / 3))
    assert (latency.time_per_output_token_ms.count, latency.time_per_output_token_ms.mean) == (2, (750 + 1000) / 2)
    assert (latency.end_to_end_ms.mean, latency.end_to_end_ms.max) == (6000, 8000)


def test_what_failed_is_counted_by_kind_and_in_no_figure():
    bad = failed(10, "HTTP 500", "oops", times=[10.5, 10.6])
    result = made(*TWO, bad, failed(11, "HTTP 500", "later"), failed(11, "cut off"))
    assert result.failures == [Failures("HTTP 500", 2, "oops"), Failures("cut off", 1, "")]
    assert (result.requests.complete, result.requests.failed) == (2, 3)
    assert result.latency == made(*TWO).latency
    assert result.throughput == made(*TWO).throughput
    assert "HTTP 500" in shown(result)


def test_interrupted_streams_count_for_what_was_seen_of_them():
    result = made(*TWO, outcome(10, [13], ended=14, whole=False), planned=5)
    counts = result.requests
    assert (counts.complete, counts.interrupted, counts.not_sent, counts.failed) == (2, 1, 2, 0)
    assert result.latency.time_to_first_token_ms.count == 3
    assert result.latency.end_to_end_ms.count == 2
    assert result.throughput.output_tokens == 7


def test_without_usage_the_table_says_so():
    assert "gave no usage" in shown(made(outcome(1, [2, 3], counted=False)))
    assert "gave no usage" not in shown(made(*TWO))


def test_a_busy_client_says_so():
    assert made(*TWO, cpu_s=5.0).client.cpu_us_per_event == 1e6
    assert "may be the client's" in shown(made(*TWO, cpu_s=9.0))
    assert "may be the client's" not in shown(made(*TWO, cpu_s=5.0))


def test_the_table_has_the_figures():
    table = shown(made(*TWO))
    for figure in ("a-model at http://here", "2 of 2", "2,000.00", "0.7 (7 in all)"):
        assert figure in table


@pytest.mark.parametrize("outcomes", [(), (failed(1, "HTTP 500"),), (outcome(1, ended=2, output_tokens=0),)])
def test_nothing_measured_is_no_figure(outcomes):
    result = made(*outcomes, planned=1)
    assert result.latency.time_to_first_token_ms is None
    assert result.client.cpu_us_per_event is None
    assert "-" in shown(result)
    assert svg(result, outcomes).count("nothing measured") >= 3


def test_json_can_be_read_back():
    result = made(*TWO, failed(1, "HTTP 500"))
    assert msgspec.json.decode(msgspec.json.encode(result), type=Report) == result
    assert [each.sent_ms for each in result.each] == [9000, 11000, 0]


def test_the_plot_is_an_svg_with_every_panel():
    result = msgspec.structs.replace(made(*TWO), model="<&>")
    many = [outcome(at / 100, [at / 100 + 1, at / 100 + 2]) for at in range(1000)]
    for outcomes in (TWO, many, TWO[:1], [outcome(1, [1])]):
        drawn = xml.dom.minidom.parseString(svg(result, outcomes))
        texts = " ".join(node.firstChild.data for node in drawn.getElementsByTagName("text") if node.firstChild)
        for title in ("time to first token", "between events", "end to end", "events a second", "<&>"):
            assert title in texts
        for line in drawn.getElementsByTagName("polyline"):
            points = [tuple(map(float, point.split(","))) for point in line.getAttribute("points").split()]
            assert len(points) <= 1000
            assert all(0 <= x <= 460 and 0 <= y <= 270 for x, y in points)
