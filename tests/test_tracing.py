"""Traces are an extra, and are asked for by an endpoint that makes sense."""

import sys

import pytest

from actorlm import tracing
from actorlm.config import ObservabilityConfig
from actorlm.errors import ConfigError


def test_nothing_is_needed_without_an_endpoint(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    tracing.check(ObservabilityConfig())


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter.otlp.proto.http"])
def test_without_the_extra_an_endpoint_is_refused(monkeypatch, missing):
    tracing.check(ObservabilityConfig(otlp_endpoint="http://127.0.0.1:4318"))
    found = tracing.find_spec

    def find(name):
        if name.startswith(missing):
            raise ModuleNotFoundError(name)
        return found(name)

    monkeypatch.setattr(tracing, "find_spec", find)
    with pytest.raises(ConfigError, match=r"pip install 'actorlm\[otel\]'"):
        tracing.check(ObservabilityConfig(otlp_endpoint="http://127.0.0.1:4318"))


@pytest.mark.parametrize("endpoint", ["", "localhost:4318", "grpc://a:4317", "http://", "/v1/traces"])
def test_what_is_no_url_is_refused(endpoint):
    with pytest.raises(ConfigError, match="--otlp-endpoint"):
        tracing.check(ObservabilityConfig(otlp_endpoint=endpoint))
