"""Whoever asks too often, too much or too slowly is refused, in bounded memory, and nothing secret is in the logs."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
import ssl
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from tests import nursery

from treadle import Engine
from treadle.server.access import AccessOptions
from treadle.server.app import create_app
from treadle.server.connections import ClientPatience, bounded
from treadle.server.rates import RateLimit, address_key

from .conftest import APPROVAL, FLOW, deployed
from .test_access import client, made, treadle
from .test_serve import serving


@asynccontextmanager
async def listening(engine: Engine, patience: ClientPatience, **options: Any) -> AsyncIterator[int]:
    """A server of this process on a socket; its port."""
    app = create_app(engine, patience=patience, **options)
    config = uvicorn.Config(
        app, port=0, log_config=None, lifespan="off", http=bounded(patience), access_log=False
    )
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield int(server.servers[0].sockets[0].getsockname()[1])
    finally:
        app.state.draining.set()
        server.force_exit = True
        await server.shutdown()


# So many requests at once, over as many connections; `make flood` sends 10,000.
FLOOD = int(os.environ.get("TREADLE_FLOOD", "2000"))
FLOODING = 50


def memory_kb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1])
    raise AssertionError("no such process")


# --- too often ---


def test_a_bucket_fills_with_time_and_names_are_bounded() -> None:
    now = 0.0
    limit = RateLimit(2, keys_max=100, now=lambda: now)
    assert [limit.take("a") for _ in range(3)] == [True, True, False]
    assert limit.spent("a")
    now = 0.5
    assert [limit.take("a") for _ in range(2)] == [True, False]
    now = 60
    assert [limit.take("a") for _ in range(3)] == [True, True, False], "it holds a second's worth"
    for number in range(10_000):
        limit.take(f"k{number}")
    assert len(limit) == 100


def test_one_party_has_one_key() -> None:
    assert address_key("2001:db8::1") == address_key("2001:db8::ffff:1")
    assert address_key("2001:db8:0:1::1") != address_key("2001:db8:0:2::1")
    assert address_key("::ffff:10.0.0.1") == address_key("10.0.0.1") != address_key("10.0.0.2")


async def test_more_than_the_limit_is_429_for_that_token_only(engine: Engine) -> None:
    app = create_app(engine, access=AccessOptions(rate=5))
    first, second = await made(engine, "viewer"), await made(engine, "operator")
    async with client(app, first) as http:
        answers = [await http.get("/runs") for _ in range(20)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) >= 10
        assert refused[0].json()["code"] == "RATE_LIMITED"
        assert int(refused[0].headers["retry-after"]) >= 1
        assert (await http.get("http://localhost/readyz")).status_code == 200, "probes are apart"
    async with client(app, second) as http:
        assert (await http.get("/runs")).status_code == 200


async def test_who_guesses_tokens_is_refused_without_a_look_and_others_go_on(engine: Engine) -> None:
    good = await made(engine, "viewer")
    app = create_app(engine, access=AccessOptions(rate=5))
    async with client(app) as http:
        mine = {"Authorization": f"Bearer {good}"}
        assert (await http.get("/runs", headers=mine)).status_code == 200
        found = []
        for number in range(30):
            wrong = f"tdl_{number:016x}_{'A' * 43}"
            answer = await http.get("/runs", headers={"Authorization": f"Bearer {wrong}"})
            found.append(answer.status_code)
        assert set(found) == {401, 429}
        assert found[-1] == 429
        assert (await http.get("/runs", headers=mine)).status_code == 200


async def flood(port: int, first: int, count: int) -> Counter[int]:
    """So many requests, each with another token, as fast as this machine takes them: all are on their way before the
    first answer is read. How each was answered."""
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(FLOODING)]
    each = count // FLOODING
    found: Counter[int] = Counter()

    async def send(nth: int, writer: asyncio.StreamWriter) -> None:
        for number in range(first + nth * each, first + (nth + 1) * each):
            token = f"Authorization: Bearer tdl_{number:016x}_{'A' * 43}"
            writer.write(_head("GET", "/api/v1/runs", token))
        await writer.drain()

    async def read(reader: asyncio.StreamReader) -> None:
        for _ in range(each):
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)
            found[int(head.split(b" ", 2)[1])] += 1
            length = re.search(rb"(?i)content-length: (\d+)", head)
            assert length is not None, head
            await reader.readexactly(int(length[1]))

    sending = [send(nth, writer) for nth, (_, writer) in enumerate(connections)]
    await asyncio.gather(*sending, *(read(reader) for reader, _ in connections))
    for _, writer in connections:
        writer.close()
    return found


def test_a_flood_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    token = treadle(
        tmp_path, "token", "create", "--user", "ann", "--role", "admin", "--store", "sqlite:///t.db"
    )
    mine = {"Authorization": f"Bearer {token.stdout.strip()}"}
    with serving(tmp_path, "--rate-limit", "2/s") as (process, said):
        runs, port = f"{said['url']}/api/v1/runs", int(said["url"].rpartition(":")[2])
        assert httpx.get(runs, headers=mine).status_code == 200
        asyncio.run(flood(port, 0, 500))
        before = memory_kb(process.pid)
        found = asyncio.run(flood(port, 500, FLOOD))
        grown = memory_kb(process.pid) - before
        assert (found.keys() <= {401, 429}, found.total()) == (True, FLOOD), "each is answered"
        assert found[429] > FLOOD * 0.9
        assert grown < 30_000, f"{grown} KB more after {FLOOD:,} refused requests"
        assert httpx.get(runs, headers=mine, timeout=60).status_code == 200, "who has a token goes on"


# --- too much ---


async def test_a_body_above_the_limit_is_refused_before_it_is_read(engine: Engine) -> None:
    async with listening(engine, ClientPatience(), body_max=1000) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head("POST", "/api/v1/runs", "Content-Length: 100000000"))
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head("POST", "/api/v1/runs", "Transfer-Encoding: chunked"))
        writer.write(b"800\r\n" + b"x" * 2048 + b"\r\n")
        assert b" 413 " in await asyncio.wait_for(reader.readline(), 10)
        # Whoever goes on sending is cut.
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            while True:
                writer.write(b"800\r\n" + b"x" * 2048 + b"\r\n")
                await asyncio.wait_for(writer.drain(), 10)
                await asyncio.sleep(0.05)
        writer.close()


async def test_what_amounts_to_nothing_is_refused_before_it_fills_the_memory(engine: Engine) -> None:
    """A head, the head of a chunk or what follows the last one, without an end."""
    chunked = _head("POST", "/api/v1/runs", "Transfer-Encoding: chunked")
    begins = (
        b"GET /api/v1/runs?" + b"q" * 100,
        b"GET /api/v1/runs HTTP/1.1\r\nHost: localhost\r\nX: ",
        chunked + b"5;name=",
        chunked + b"2\r\n{}\r\n0\r\nX: ",
    )
    async with listening(engine, ClientPatience()) as port:
        for begin in begins:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(begin)
            found = asyncio.ensure_future(_end(reader))
            sent = 0
            while not found.done() and sent < 50_000_000:
                writer.write(b"x" * 8192)
                sent += 8192
                with suppress(ConnectionError):
                    await writer.drain()
                await asyncio.sleep(0)
            assert sent < 50_000_000, begin
            assert (await found)[:12] in (b"HTTP/1.1 400", b""), "told, or cut while it went on"
            writer.close()


async def test_a_request_names_its_host_once(engine: Engine) -> None:
    async with listening(engine, ClientPatience()) as port:
        for hosts, status in (((), 400), (("Host: localhost",) * 2, 400), (("Host: localhost",), 200)):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write("\r\n".join(("GET /healthz HTTP/1.1", *hosts, "Connection: close", "", "")).encode())
            assert f" {status} ".encode() in (await _end(reader))[:20], hosts
            writer.close()


def _head(method: str, path: str, *more: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more, "", ""]
    return "\r\n".join(lines).encode()


# --- too slowly ---


async def test_a_head_that_does_not_come_is_cut(engine: Engine) -> None:
    async with listening(engine, ClientPatience(head_s=0.3)) as port:
        for sent in (b"", b"GET /api/v1/runs HTTP/1.1\r\nHost: lo"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(sent)
            began = time.monotonic()
            assert await _end(reader) == b""
            assert time.monotonic() - began < 8
            writer.close()
        # Also one that sends a byte now and then, and one that had a request answered before.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head("GET", "/healthz"))
        assert b" 200 " in await reader.readline()
        dripping = asyncio.ensure_future(_drip(writer))
        await _end(reader)
        dripping.cancel()
        writer.close()


async def _end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(-1), 10)
    except ConnectionError:
        return b""


async def _drip(writer: asyncio.StreamWriter) -> None:
    for byte in b"GET /api/v1/runs HTTP/1.1\r\n" + b"X: " + b"y" * 1000:
        writer.write(bytes([byte]))
        await asyncio.sleep(0.05)


async def test_a_body_that_does_not_come_is_cut(engine: Engine) -> None:
    async with listening(engine, ClientPatience(body_s=0.3)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_head("POST", "/api/v1/runs", "Content-Length: 100") + b"{")
        found = await asyncio.wait_for(reader.read(-1), 10)
        assert b" 408 " in found.splitlines()[0]
        assert b"BODY_TOO_SLOW" in found
        writer.close()


async def test_a_reader_that_does_not_read_is_cut(engine: Engine) -> None:
    app_options: dict[str, Any] = {}
    async with listening(engine, ClientPatience(reader_s=0.3), **app_options) as port:
        async with client(create_app(engine)) as http:
            await deployed(http, greet=FLOW)
            for number in range(300):
                await http.post(
                    "/runs", json={"workflow": "greet", "id": f"r{number}", "reference": "x" * 2000}
                )
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        for _ in range(200):
            writer.write(_head("GET", "/api/v1/runs?limit=1000"))
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await asyncio.sleep(2)
            while True:
                await asyncio.wait_for(reader.readexactly(1024), 10)
        writer.close()


async def test_a_thousand_streams_are_open_at_once_and_the_server_answers(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 4_000:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4_000, hard), hard))
    (tmp_path / "approval.yaml").write_text(APPROVAL)
    with serving(tmp_path, "--deploy", "approval.yaml") as (process, said):
        api = f"{said['url']}/api/v1"
        async with httpx.AsyncClient(timeout=60) as http:
            await http.post(f"{api}/runs", json={"workflow": "approval", "id": "p"})
        port = int(said["url"].rpartition(":")[2])
        before = memory_kb(process.pid)
        streams = []
        for first in range(0, 1_000, 100):
            opened = [asyncio.open_connection("127.0.0.1", port) for _ in range(first, first + 100)]
            streams += await asyncio.gather(*opened)
            for _, writer in streams[-100:]:
                writer.write(_head("GET", "/api/v1/runs/p/events", "Accept: text/event-stream"))
            for reader, _ in streams[-100:]:
                assert b" 200 " in await asyncio.wait_for(reader.readline(), 60)
        async with httpx.AsyncClient(timeout=60) as http:
            stats = (await http.get(f"{api}/stats")).json()
            assert stats["streams"] == 1_000
            grown = memory_kb(process.pid) - before
            assert grown < 200_000, f"{grown} KB for 1,000 streams"
            await http.post(f"{api}/runs/p/cancel")

        async def ends(reader: asyncio.StreamReader) -> bool:
            return b"event: end" in await asyncio.wait_for(reader.read(-1), 120)

        assert all(await asyncio.gather(*(ends(reader) for reader, _ in streams)))
        for _, writer in streams:
            writer.close()


# --- browsers, TLS, logs ---


async def test_pages_of_elsewhere_may_not_ask_unless_they_are_named(engine: Engine) -> None:
    asked = {"Origin": "https://console.example", "Access-Control-Request-Method": "GET"}
    token = await made(engine, "viewer")
    async with client(create_app(engine), token) as http:
        answer = await http.options("/runs", headers=asked)
        assert "access-control-allow-origin" not in answer.headers
        assert "access-control-allow-origin" not in (await http.get("/runs", headers=asked)).headers
    named = AccessOptions(origins=["https://console.example"])
    async with client(create_app(engine, access=named), token) as http:
        answer = await http.options("/runs", headers=asked)
        assert answer.headers["access-control-allow-origin"] == "https://console.example"
        assert "access-control-allow-credentials" not in answer.headers
        other = {**asked, "Origin": "https://evil.example"}
        assert "access-control-allow-origin" not in (await http.get("/runs", headers=other)).headers
    with_star = treadle(Path.cwd(), "serve", "--cors", "*", "--port", "0", "--store", "memory:")
    assert with_star.returncode == 2


def certificate(folder: Path) -> tuple[Path, Path]:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files


def test_it_serves_over_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    half = treadle(tmp_path, "serve", "--tls-cert", str(cert), "--port", "0")
    assert (half.returncode, "go together" in half.stderr) == (2, True)
    with serving(tmp_path, "--tls-cert", str(cert), "--tls-key", str(key)) as (_, said):
        assert said["url"].startswith("https://")
        url = said["url"].replace("127.0.0.1", "localhost")
        trusting = ssl.create_default_context(cafile=str(cert))
        assert httpx.get(f"{url}/readyz", verify=trusting).json()["ready"] is True
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/readyz")


async def test_nothing_secret_is_in_the_logs(engine: Engine, caplog: pytest.LogCaptureFixture) -> None:
    token = await made(engine, "admin")
    caplog.set_level(logging.DEBUG)
    # The client's own lines are the test's, not the server's.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    async with listening(engine, ClientPatience()) as port:
        mine = {"Authorization": f"Bearer {token}", "X-Request-Id": "req-1"}
        wrong = {"Authorization": f"Bearer {token[:-4]}AAAA"}
        base = f"http://127.0.0.1:{port}/api/v1"
        async with httpx.AsyncClient() as http:
            await http.get(f"{base}/runs", params={"search": "query-value"}, headers=mine)
            await http.get(f"{base}/runs", headers=wrong)
            body = {"workflow": "nope", "input": "body-value"}
            await http.post(f"{base}/runs", json=body, headers=mine)
            await http.post(f"{base}/tokens", json={"user": "bob", "roles": ["viewer"]}, headers=mine)
    lines = [record.getMessage() for record in caplog.records]
    ours = [line for line in lines if "request=req-1" in line]
    assert any("GET" in line and " 200 " in line and "user=admin" in line for line in ours)
    told = "\n".join(
        f"{record.getMessage()} {record.args!r} {record.exc_info!r}" for record in caplog.records
    )
    for hidden in (token.rpartition("_")[2], token[:-4], "query-value", "body-value"):
        assert hidden not in told


def test_the_server_does_not_print_tokens(tmp_path: Path) -> None:
    token = treadle(
        tmp_path, "token", "create", "--user", "ann", "--role", "admin", "--store", "sqlite:///t.db"
    )
    mine = {"Authorization": f"Bearer {token.stdout.strip()}"}
    command = ["-m", "treadle.cli", "serve", "--port", "0", "--store", "sqlite:///t.db"]
    with (tmp_path / "log").open("w") as log:
        process = nursery.Process(command, cwd=tmp_path, stdout=nursery.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert httpx.get(f"{url}/api/v1/runs?search=hidden-value", headers=mine).status_code == 200
        finally:
            process.terminate()
            process.communicate(timeout=30)
    told = (tmp_path / "log").read_text()
    assert token.stdout.strip() not in told
    assert "hidden-value" not in told
