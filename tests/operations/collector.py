"""A collector of traces: a real OTLP/HTTP receiver that keeps the spans it was sent."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Status

SOON_S = 60.0


@dataclass(frozen=True)
class Told:
    """A span as it arrived."""

    trace: str
    id: str
    parent: str
    name: str
    start_ns: int
    end_ns: int
    error: str | None
    service: str
    attributes: dict[str, Any] = field(compare=False)
    events: tuple[str, ...] = ()


class Collector:
    def __init__(self, url: str) -> None:
        self.url = url
        self.spans: list[Told] = []
        # What is answered instead of taking spans.
        self.status = 200
        self.refuses: Callable[[Told], bool] = lambda span: False
        self.asked = 0

    def take(self, body: bytes) -> int:
        self.asked += 1
        found = [*_spans(ExportTraceServiceRequest.FromString(body))]
        if any(map(self.refuses, found)):
            return 400
        if self.status == 200:
            self.spans += found
        return self.status

    def of(self, run: str) -> list[Told]:
        return [span for span in self.spans if span.attributes.get("treadle.run") == run]

    def once(self, run: str) -> dict[str, Told]:
        """The spans of a run by id: what is told twice is the same."""
        found: dict[str, Told] = {}
        for span in self.of(run):
            assert found.setdefault(span.id, span) == span, "one id, two spans"
        return found

    def until(self, holds: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + SOON_S
        while not (found := holds()):
            assert time.monotonic() < deadline, [span.name for span in self.spans]
            time.sleep(0.02)
        return found

    def ended(self, run: str) -> dict[str, Told]:
        """The spans of a run that has ended, by id."""
        self.until(lambda: any(span.name.startswith("run ") for span in self.of(run)))
        return self.once(run)


def _spans(request: ExportTraceServiceRequest) -> Iterator[Told]:
    for group in request.resource_spans:
        about = {item.key: _value(item.value) for item in group.resource.attributes}
        for scope in group.scope_spans:
            for span in scope.spans:
                failed = span.status.code == Status.STATUS_CODE_ERROR
                yield Told(
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.name,
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    span.status.message if failed else None,
                    about["service.name"],
                    {item.key: _value(item.value) for item in span.attributes},
                    tuple(event.name for event in span.events),
                )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


@contextmanager
def collecting() -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/traces"
            self.send_response(collector.take(body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, args=[0.02], daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
