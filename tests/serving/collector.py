"""A collector of traces: it takes OTLP over HTTP, and keeps the spans."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tree import until


def value_of(value):
    kind = value.WhichOneof("value")
    found = getattr(value, kind)
    return [value_of(one) for one in found.values] if kind == "array_value" else found


def attributes_of(pairs):
    return {pair.key: value_of(pair.value) for pair in pairs}


class Collector:
    """Listens on a port of its own; `refuse` answers with that status instead."""

    def __init__(self, refuse=0):
        self.spans = []
        self.resources = []
        self.paths = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.paths.append(self.path)
                if not refuse:
                    collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(refuse or 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def take(self, request):
        for of_resource in request.resource_spans:
            self.resources.append(attributes_of(of_resource.resource.attributes))
            for of_scope in of_resource.scope_spans:
                self.spans += [
                    SimpleNamespace(
                        name=span.name, trace=span.trace_id.hex(), id=span.span_id.hex(),
                        parent=span.parent_span_id.hex(),
                        begin=span.start_time_unix_nano, end=span.end_time_unix_nano, kind=span.kind,
                        attributes=attributes_of(span.attributes), events=[event.name for event in span.events],
                        failed=span.status.code == 2,
                    )
                    for span in of_scope.spans
                ]  # fmt: skip

    def of(self, trace, number):
        """The spans of a trace, once there are so many."""
        return until(lambda: len(found := [s for s in list(self.spans) if s.trace == trace]) >= number and found, 10)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
