"""Spans of whole trees, as a collector gets them."""

import secrets
import socket
import time
from collections import Counter

import pytest
from collector import Collector
from tree import free_port, until

pytestmark = [pytest.mark.serving]

NULL = ("--model-impl", "null", "--null-step-ms", 5)


@pytest.fixture(scope="module")
def collector():
    one = Collector()
    yield one
    one.close()


@pytest.fixture(scope="module")
def traced_tree(tree_of, collector):
    return tree_of(*NULL, "--otlp-endpoint", collector.endpoint, "--frontends", 2, "--trace-share", 0)


def ask(tree, *, sampled=True, request_id="mine", **fields):
    """Asks below a span of ours; returns its trace and span."""
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    body = {"model": tree.model, "prompt": "abcdef", "max_tokens": 6, "ignore_eos": True} | fields
    headers = {"traceparent": f"00-{trace}-{span}-0{int(sampled)}", "x-request-id": request_id}
    return trace, span, tree.client.post("/v1/completions", json=body, headers=headers)


def test_spans_form_one_tree_below_the_clients(traced_tree, collector):
    trace, parent, answer = ask(traced_tree, n=2, request_id="mine-1", temperature=0.5)
    assert answer.status_code == 200
    spans = collector.of(trace, 1 + 2 * 6)
    assert Counter(span.name for span in spans) == {
        "POST /v1/completions": 1, "llm_request": 2, "detokenizer": 2, "engine": 2,
        "queue": 2, "prefill": 2, "decode": 2,
    }  # fmt: skip
    by_id = {span.id: span for span in spans}
    (http,) = [span for span in spans if span.name == "POST /v1/completions"]
    assert (http.parent, http.kind) == (parent, 2)
    assert http.attributes["http.response.status_code"] == 200
    assert http.attributes["gen_ai.usage.completion_tokens"] == 12
    below = {"llm_request": "POST /v1/completions", "detokenizer": "llm_request", "engine": "llm_request"}
    below |= dict.fromkeys(("queue", "prefill", "decode"), "engine")
    for span in spans:
        assert span.end >= span.begin
        if span is not http:
            assert by_id[span.parent].name == below[span.name]
    for choice in (span for span in spans if span.name == "llm_request"):
        told = choice.attributes
        assert told["gen_ai.request.id"] == "mine-1"
        assert told["gen_ai.request.temperature"] == 0.5
        assert told["gen_ai.request.max_tokens"] == told["gen_ai.usage.completion_tokens"] == 6
        assert told["gen_ai.usage.prompt_tokens"] > 0
        assert told["gen_ai.response.finish_reasons"] == ["length"]
        assert 0 < told["gen_ai.latency.time_to_first_token"] < told["gen_ai.latency.e2e"]
        assert choice.events == ["first token"]
    for engine in (span for span in spans if span.name == "engine"):
        assert engine.attributes["actorlm.actor"] == "engine-0"
        assert engine.attributes["actorlm.tokens"] == 6
        assert engine.attributes["gen_ai.latency.time_in_model_decode"] > 0.02
        parts = [span for span in spans if span.parent == engine.id]
        assert sum(part.end - part.begin for part in parts) == engine.end - engine.begin
    assert set(collector.paths) == {"/v1/traces"}
    assert collector.resources[0]["service.name"] == "actorlm"
    assert collector.resources[0]["service.instance.id"].startswith("frontend-")


def test_a_client_that_does_not_trace_is_not_traced(traced_tree, collector):
    unsampled, _, answer = ask(traced_tree, sampled=False)
    assert answer.status_code == 200
    assert traced_tree.post("/v1/completions", {"model": traced_tree.model, "prompt": "a"}).status_code == 200
    last, _, _ = ask(traced_tree)
    collector.of(last, 7)
    assert not [span for span in collector.spans if span.trace == unsampled]
    assert all(span.parent for span in collector.spans), "with a share of 0 no trace begins here"


def test_what_ends_by_a_stop_string_has_all_its_spans(traced_tree, collector):
    trace, _, answer = ask(traced_tree, stop="A", logit_bias={"65": 100}, max_tokens=1000)
    assert answer.json()["choices"][0]["finish_reason"] == "stop"
    spans = collector.of(trace, 7)
    (choice,) = [span for span in spans if span.name == "llm_request"]
    assert choice.attributes["gen_ai.response.finish_reasons"] == ["stop"]


def test_what_a_client_leaves_has_its_spans(traced_tree, collector):
    trace = secrets.token_hex(16)
    body = {"model": traced_tree.model, "prompt": "a", "max_tokens": 100_000, "ignore_eos": True, "stream": True}
    headers = {"traceparent": f"00-{trace}-{'1' * 16}-01"}
    with traced_tree.client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        next(answer.iter_lines())
    spans = collector.of(trace, 7)
    (choice,) = [span for span in spans if span.name == "llm_request"]
    assert choice.attributes["gen_ai.response.finish_reasons"] == ["abort"]


def test_what_outlives_its_engine_is_one_trace(start, collector):
    tree = start(*NULL, "--otlp-endpoint", collector.endpoint, "--max-restarts", 10)
    trace = secrets.token_hex(16)
    body = {"model": tree.model, "prompt": "a", "max_tokens": 200, "ignore_eos": True, "stream": True}
    headers = {"traceparent": f"00-{trace}-{'1' * 16}-01"}
    with tree.client.stream("POST", "/v1/completions", json=body, headers=headers) as answer:
        lines = answer.iter_lines()
        next(lines)
        tree.kill("engine-0")
        assert [line for line in lines if line][-1] == "data: [DONE]"
    spans = collector.of(trace, 7)
    (choice,) = [span for span in spans if span.name == "llm_request"]
    assert choice.events == ["first token", "resumed"]
    assert choice.attributes["gen_ai.usage.completion_tokens"] == 200
    (engine,) = [span for span in spans if span.name == "engine"]
    assert engine.attributes["actorlm.attempt"] == 1
    assert engine.parent == choice.id


def test_a_refusal_has_a_span_with_its_status(traced_tree, collector):
    trace, _, answer = ask(traced_tree, max_tokens=-1)
    assert answer.status_code == 400
    (span,) = collector.of(trace, 1)
    assert span.attributes["http.response.status_code"] == 400
    assert not span.failed


def test_without_a_clients_trace_one_begins_here_if_all_are_traced(start, collector):
    tree = start(*NULL, "--otlp-endpoint", f"{collector.endpoint}/v1/traces", "--log-format", "json", "--log-requests")
    before = len(collector.spans)
    answer = tree.post("/v1/completions", {"model": tree.model, "prompt": "a", "max_tokens": 2})
    assert answer.status_code == 200
    tree.stop()
    spans = until(lambda: len(collector.spans) >= before + 7 and collector.spans[before:], 10)
    assert len({span.trace for span in spans}) == 1
    assert [span.name for span in spans if not span.parent] == ["POST /v1/completions"]


@pytest.mark.parametrize("collector_is", ["away", "refusing", "silent"])
def test_a_dead_collector_costs_nothing(start, collector_is):
    refusing = Collector(refuse=500)
    silent = socket.create_server(("127.0.0.1", 0))
    endpoints = {
        "away": f"http://127.0.0.1:{free_port()}",
        "refusing": refusing.endpoint,
        "silent": f"http://127.0.0.1:{silent.getsockname()[1]}",
    }
    tree = start(*NULL, "--otlp-endpoint", endpoints[collector_is])
    for _ in range(20):
        tree.text("a", max_tokens=2)
    until(lambda: "spans are not delivered" in tree.log, 30)
    for _ in range(20):
        tree.text("a", max_tokens=2)
    began = time.monotonic()
    assert tree.stop() == (0, {})
    assert time.monotonic() - began < 15
    assert tree.log.count("spans are not delivered") == 1
    assert "Traceback" not in tree.log
    assert "lost" not in tree.log
    refusing.close()
    silent.close()


def test_what_is_no_endpoint_is_refused(start):
    tree = start(*NULL, "--otlp-endpoint", "collector:4317", ready=False)
    assert tree.wait() == 2
    assert "--otlp-endpoint collector:4317 is no URL of OTLP over HTTP" in tree.log
