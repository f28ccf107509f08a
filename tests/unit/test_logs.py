"""No secret in the lines of libraries, whichever of their loggers writes them."""

from __future__ import annotations

import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from treadle import Engine

SECRET = "TOPSECRET12345678"
FLOW = """
metadata: {{name: a, version: "1"}}
keychain: [{{name: api, kind: x}}]
workflow:
  - step: a
    tool:
      kind: http
      url: "{url}/x"
      params: {{key: "{{{{ keychain.api.token }}}}"}}
      headers: {{X-Key: "{{{{ keychain.api.token }}}}"}}
"""


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None:
        """Tests stay quiet."""


@pytest.fixture
def url():
    server = HTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


async def test_what_libraries_log_of_a_request_holds_no_secret_in_any_engine(tmp_path, url, caplog):
    (tmp_path / "a.yaml").write_text(FLOW.format(url=url))
    caplog.set_level(logging.DEBUG)
    engine = Engine(f"sqlite:///{tmp_path}/t.db", secrets={"api": {"token": SECRET}})
    engine.deploy(str(tmp_path / "a.yaml"))
    async with engine:
        run = await engine.start("a")
        await run.result(10)
        assert (await engine.replay(run.id))["equal"]
        logging.getLogger("httpcore.made_later").info("key %s", SECRET)
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("http")]
    assert any("[redacted:api.token]" in line for line in lines)
    assert any(record.name.startswith("httpcore.") for record in caplog.records)
    assert SECRET not in caplog.text
