"""A small web site that answers by path and remembers what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Site(BaseHTTPRequestHandler):
    """Answers by path; remembers what it was asked."""

    asked: list[dict[str, Any]]
    release: threading.Event

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        type(self).asked.append(
            {
                "method": self.command,
                "path": self.path,
                "body": body,
                "key": self.headers.get("Idempotency-Key"),
            }
        )
        count = sum(1 for one in type(self).asked if one["path"] == self.path)
        status = {
            "/404": 404,
            "/429": 429 if count < 3 else 200,
            "/500": 500,
            "/401": 401,
            "/missing": 404,
        }.get(self.path.split("?")[0], 200)
        if self.path == "/slow":
            type(self).release.wait(10)
        if self.path == "/pick":
            status = 500 if json.loads(body)["fail"] else 200
        answer: dict[str, Any] = {"path": self.path, "count": count}
        if self.path.startswith("/ok?"):  # three pages
            page = int(self.path.partition("page=")[2].partition("&")[0])
            answer = {"data": [page], "paging": {"page": page, "hasMore": page < 3}}
        payload = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = do_PUT = _answer

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def serve() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    handler = type("OneSite", (Site,), {"asked": [], "release": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler.asked
    finally:
        handler.release.set()
        server.shutdown()
        server.server_close()
        thread.join()
