from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import socket
import ssl
import time
from email.utils import format_datetime

import h2.config
import h2.connection
import h2.events
import pytest

from treadle.tools.http import HttpTool
from treadle.tools.protocol import ToolCall
from treadle.work.http_guard import is_public


async def test_get_gives_the_parsed_body_and_the_helper(run, web):
    outcome = await run(
        "http",
        {
            "method": "GET",
            "url": web.url + "/echo",
            "params": {"page": 2, "tag": ["a", "b"], "on": True, "off": None},
        },
    )
    assert outcome.status == "ok"
    assert outcome.result["data"]["method"] == "GET"
    assert outcome.result["data"]["query"] == [["page", "2"], ["tag", "a"], ["tag", "b"], ["on", "true"]]
    assert outcome.result["status_code"] == 200
    assert outcome.http["status"] == 200
    assert outcome.http["headers"]["content-type"] == "application/json"
    assert outcome.http["request_id"] == "req-1"


async def test_endpoint_is_another_name_for_url_and_one_is_needed(run, web):
    assert (await run("http", {"endpoint": web.url + "/echo"})).status == "ok"
    outcome = await run("http", {"method": "GET"})
    assert outcome.error["kind"] == "schema"
    assert "url" in outcome.error["message"]


@pytest.mark.parametrize(
    ("url", "begins"), [("file:///etc/passwd", "'file'"), ("ftp://host/x", "'ftp'"), ("/etc/x", "'nothing'")]
)
async def test_an_address_of_another_kind_is_told_by_its_beginning(run, url, begins):
    outcome = await run("http", {"url": url})
    assert outcome.error["code"] == "BAD_URL"
    assert f"the address begins with {begins}" in outcome.error["message"]


@pytest.mark.parametrize("field", ["json", "body", "payload", "data"])
async def test_mappings_are_sent_as_json_under_every_spelling(run, web, field):
    outcome = await run("http", {"url": web.url + "/echo", "method": "POST", field: {"a": [1, None]}})
    assert json.loads(outcome.result["data"]["body"]) == {"a": [1, None]}
    assert outcome.result["data"]["headers"]["content-type"] == "application/json"


async def test_bodies_of_other_kinds(run, web):
    url = web.url + "/echo"
    assert (await run("http", {"url": url, "json": {}})).result["data"]["method"] == "POST", (
        "a body means POST"
    )
    text = await run("http", {"url": url, "method": "PUT", "body": "plain"})
    assert text.result["data"]["body"] == "plain"
    form = await run(
        "http",
        {"url": url, "data": {"a": 1}, "headers": {"content-type": "application/x-www-form-urlencoded"}},
    )
    assert form.result["data"]["body"] == "a=1"
    assert (await run("http", {"url": url, "form": {"b": 2}})).result["data"]["body"] == "b=2"
    query = await run("http", {"url": url, "method": "GET", "payload": {"q": "x"}})
    assert (query.result["data"]["query"], query.result["data"]["body"]) == ([["q", "x"]], "")


async def test_unsafe_methods_carry_the_idempotency_key(run, web):
    async def sent(**config):
        outcome = await run("http", {"url": web.url + "/echo", **config}, idempotency_key="key-7")
        return outcome.result["data"]["headers"].get("idempotency-key")

    assert await sent(method="GET") is None
    for method in ("POST", "PUT", "PATCH", "DELETE"):
        assert await sent(method=method) == "key-7"
    assert await sent(method="POST", headers={"Idempotency-Key": "mine"}) == "mine"
    assert await sent(method="POST", idempotency_key=False) is None


async def test_a_connection_is_used_again(run, web):
    ports = {(await run("http", {"url": web.url + "/echo"})).result["data"]["peer"] for _ in range(3)}
    assert len(ports) == 1


async def test_cookies_do_not_travel_from_task_to_task(run, web):
    await run("http", {"url": web.url + "/cookie"})
    again = await run("http", {"url": web.url + "/cookie"})
    assert "cookie" not in again.result["data"]["headers"]


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (400, "client_error", False),
        (401, "auth", False),
        (403, "auth", False),
        (404, "not_found", False),
        (408, "timeout", True),
        (409, "client_error", False),
        (429, "rate_limit", True),
        (500, "server_error", True),
        (501, "server_error", False),
        (503, "server_error", True),
    ],
)
async def test_an_answer_that_is_not_2xx_is_an_error_that_keeps_the_body(run, web, status, kind, retryable):
    outcome = await run("http", {"url": f"{web.url}/status/{status}"})
    assert outcome.status == "error"
    assert outcome.error["kind"] == kind
    assert outcome.error["retryable"] is retryable
    assert outcome.error["code"] == f"HTTP_{status}"
    assert outcome.error["http_status"] == status
    assert outcome.http["status"] == status
    assert outcome.result["data"] == {"said": str(status)}


async def test_retry_after_is_read_as_seconds_or_as_a_date(run, web):
    outcome = await run("http", {"url": web.url + "/status/429?after=7"})
    assert outcome.error["retry_after"] == 7
    later = format_datetime(datetime.datetime.fromtimestamp(time.time() + 600, datetime.UTC), usegmt=True)
    outcome = await run("http", {"url": web.url + "/status/503", "params": {"after": later}})
    assert 500 < outcome.error["retry_after"] <= 600
    assert "retry_after" not in (await run("http", {"url": web.url + "/status/429?after=soon"})).error


@pytest.mark.parametrize("odd", ["\N{SUPERSCRIPT TWO}", "9" * 400, "Mon, 01 Jan 0001 00:00:00 -0000"])
async def test_a_retry_after_that_nobody_can_wait_for_is_passed_over(run, web, odd):
    outcome = await run("http", {"url": web.url + "/status/503", "params": {"after": odd}})
    assert (outcome.error["code"], outcome.error["retryable"]) == ("HTTP_503", True)
    assert outcome.error.get("retry_after", 0.0) == 0.0


async def test_bodies_are_parsed_by_what_they_say_they_are(run, web):
    async def data(**query):
        return await run("http", {"url": web.url + "/raw", "params": query})

    assert (await data(type="text/plain", body="[1]")).result["data"] == "[1]"
    assert (await data(type="application/problem+json", body='{"a": 1.5}')).result["data"] == {"a": 1.5}
    assert (await data(body='{"a": 1}')).result["data"] == {"a": 1}, "no type: JSON if it is"
    assert (await data(body="a: 1")).result["data"] == "a: 1"
    assert (await data(type="application/json", body="")).result["data"] is None
    assert (await data(type="application/json", body='{"n": 123456789012345678901234567890}')).result[
        "data"
    ] == {"n": "123456789012345678901234567890"}
    broken = await data(type="application/json", body="{oops")
    assert broken.error["kind"] == "parse"
    assert broken.result["data"] == "{oops"
    forced = await run("http", {"url": web.url + "/raw?type=application/json&body=1", "response": "bytes"})
    assert forced.result["data"] == b"1"


async def test_redirects_are_followed_unless_told_otherwise(run, web):
    url = f"{web.url}/redirect?to=/echo"
    assert (await run("http", {"url": url})).result["url"] == web.url + "/echo"
    outcome = await run("http", {"url": url, "follow_redirects": False})
    assert outcome.error["code"] == "HTTP_302"
    assert outcome.http["headers"]["location"] == "/echo"
    loop = await run("http", {"url": f"{web.url}/redirect?to=/redirect%3Fto%3D/redirect%253Fto%253D"})
    assert loop.status == "error"


async def test_no_connection_and_no_answer(run, web):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        outcome = await run("http", {"url": url})
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("connection", True)
    assert (await run("http", {"url": web.url + "/drop"})).error["kind"] == "connection"
    assert (await run("http", {"url": "http://does-not-exist.invalid/"})).error["kind"] == "connection"


@pytest.mark.parametrize(
    "config",
    [
        {"spec": {"timeout": {"connect": 5, "read": 0.2}}},
        {"timeout": {"read": 0.2}},
        {"timeout": 0.2},
        {"timeout": "200ms"},
    ],
)
async def test_time_limits_in_every_spelling(run, web, config):
    outcome = await run("http", {"url": web.url + "/slow", **config})
    assert (outcome.error["kind"], outcome.error["retryable"]) == ("timeout", True)


async def test_the_callers_time_limit_covers_the_whole_call(run, web):
    assert (await run("http", {"url": web.url + "/slow"}, timeout_s=0.2)).error["kind"] == "timeout"


@pytest.mark.parametrize("url", ["ftp://x/y", "not a url", "http://", "/relative"])
async def test_a_bad_url_is_the_tasks_fault(run, url):
    outcome = await run("http", {"url": url})
    assert outcome.error["kind"] in ("client_error", "schema")
    assert outcome.error["retryable"] is False


async def test_a_large_answer_is_refused(run, web):
    outcome = await run("http", {"url": web.url + "/big/100000", "max_bytes": 50_000})
    assert (outcome.error["kind"], outcome.error["code"]) == ("storage_quota", "RESPONSE_TOO_LARGE")
    assert len((await run("http", {"url": web.url + "/big/100000"})).result["data"]) == 100_000


async def test_tool_internal_retries_give_one_outcome(run, web):
    web.failures_left = 2
    outcome = await run("http", {"url": web.url + "/flaky", "spec": {"retries": 2}})
    assert outcome.status == "ok"
    assert len(web.log) == 3
    web.failures_left = 5
    outcome = await run("http", {"url": web.url + "/flaky", "spec": {"retries": 1}})
    assert outcome.error["http_status"] == 503


BASIC = "Basic " + base64.b64encode(b"ann:pw").decode()


@pytest.mark.parametrize(
    ("auth", "secret", "header", "value"),
    [
        ("tok", "abc", "authorization", "Bearer abc"),
        ("tok", {"access_token": "abc", "token_type": "Bearer"}, "authorization", "Bearer abc"),
        ("tok", {"username": "ann", "password": "pw"}, "authorization", BASIC),
        ("tok", {"header": "X-Key", "value": "k1"}, "x-key", "k1"),
        ("tok", {"api_key": "k2"}, "x-api-key", "k2"),
        ({"type": "bearer", "credential": "tok"}, "abc", "authorization", "Bearer abc"),
        ({"type": "header", "credential": "tok", "header": "X-T", "prefix": "T "}, "abc", "x-t", "T abc"),
        ({"type": "basic", "username": "ann", "password": "pw"}, None, "authorization", BASIC),
    ],
)
async def test_credentials_become_headers(run, web, auth, secret, header, value):
    async def resolve(name: str):
        assert name == "tok"
        return secret

    outcome = await run("http", {"url": web.url + "/echo", "auth": auth}, secret=resolve)
    assert outcome.result["data"]["headers"][header] == value
    if isinstance(auth, str):
        outcome = await run("http", {"url": web.url + "/echo", "credential": auth}, secret=resolve)
        assert outcome.result["data"]["headers"][header] == value


async def test_a_missing_credential_is_an_auth_error_and_no_request(run, web):
    outcome = await run("http", {"url": web.url + "/echo", "auth": "nobody"})
    assert outcome.error["kind"] == "auth"
    assert "'nobody'" in outcome.error["message"]
    assert web.log == []
    odd = await run("http", {"url": web.url + "/echo", "auth": {"type": "magic", "token": "x"}})
    assert odd.error["kind"] == "schema"


@pytest.mark.parametrize("secret", ["a-token", {"header": "X-Key", "value": "a-token"}])
async def test_a_redirect_to_another_place_does_not_get_the_credential(run, web, secret):
    async def resolve(name: str):
        return secret

    port = web.server_address[1]
    task = {"url": web.url + "/redirect", "auth": "tok", "headers": {"X-Mine": "kept"}}
    away = await run("http", {**task, "params": {"to": f"http://localhost:{port}/echo"}}, secret=resolve)
    seen = away.result["data"]["headers"]
    assert "a-token" not in "".join(seen.values())
    assert seen["x-mine"] == "kept"
    home = await run("http", {**task, "params": {"to": "/echo"}}, secret=resolve)
    assert "a-token" in "".join(home.result["data"]["headers"].values())


async def test_a_proxy_of_the_environment_is_used(web, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", web.url)
    tool = HttpTool()
    outcome = await tool.run({"url": "http://far-away.invalid/echo"}, ToolCall())
    await tool.close()
    assert outcome.result["data"]["headers"]["host"] == "far-away.invalid"


# --- SSRF ---


@pytest.fixture
async def guarded(web):
    """A safe tool that may reach the test server by its port, and believes a resolver of ours."""

    async def resolver(host: str, port: int) -> list[str]:
        return {"rebind.example": ["10.0.0.5"], "mixed.example": ["93.184.215.14", "127.0.0.1"]}.get(
            host, [host]
        )

    port = web.server_address[1]
    tool = HttpTool(ssrf_safe=True, allow=[f"127.0.0.1:{port}"], resolver=resolver)
    yield tool
    await tool.close()


async def test_the_safe_option_reaches_what_is_allowed(guarded, web):
    assert (await guarded.run({"url": web.url + "/echo"}, ToolCall())).status == "ok"


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/",
        "http://[::1]/",
        "http://169.254.169.254/latest/meta-data",
        "http://10.1.2.3/",
        "http://[::ffff:127.0.0.1]/",
        "http://0.0.0.0/",
        "http://rebind.example/",
        "http://mixed.example/",
    ],
)
async def test_inside_addresses_are_refused(guarded, url):
    outcome = await guarded.run({"url": url}, ToolCall())
    assert (outcome.error["kind"], outcome.error["code"]) == ("client_error", "SSRF_BLOCKED")


@pytest.mark.parametrize("target", ["http://127.0.0.1:1/x", "http://rebind.example/x"])
async def test_every_hop_of_a_redirect_is_checked(guarded, web, target):
    outcome = await guarded.run({"url": web.url + "/redirect", "params": {"to": target}}, ToolCall())
    assert outcome.error["code"] == "SSRF_BLOCKED"
    assert len(web.log) == 1


async def test_a_task_can_ask_for_safety_and_cannot_refuse_it(run, web, monkeypatch):
    assert (await run("http", {"url": web.url + "/echo", "ssrf_safe": True})).error["code"] == "SSRF_BLOCKED"
    monkeypatch.setenv("TREADLE_HTTP_SSRF_SAFE", "1")
    tool = HttpTool()
    assert (await tool.run({"url": web.url + "/echo", "ssrf_safe": False}, ToolCall())).error[
        "code"
    ] == "SSRF_BLOCKED"
    await tool.close()


async def test_names_are_resolved_by_the_system_too(run, web):
    port = web.server_address[1]
    outcome = await run("http", {"url": f"http://localhost:{port}/echo", "ssrf_safe": True})
    assert outcome.error["code"] == "SSRF_BLOCKED"


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.215.14", True),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", True),
        ("100.64.0.1", False),
        ("192.168.1.1", False),
        ("224.0.0.1", False),
        ("fe80::1", False),
        ("fd00::1", False),
        ("2002:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:5db8:d70e::", True),
        ("64:ff9b::5db8:d70e", True),
        # Teredo: through a server that is public, to a client that is us.
        ("2001:0:4136:e378::80ff:fffe", False),
        ("::127.0.0.1", False),
        ("::ffff:0:127.0.0.1", False),
        ("64:ff9b:1::7f00:1", False),
        ("fec0::1", False),
        ("192.0.0.8", False),
        ("0.0.0.0", False),
    ],
)
def test_what_is_public(address, public):
    assert is_public(ipaddress.ip_address(address)) is public


# --- TLS and HTTP/2 ---


def _certificate(folder):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "cert.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret = folder / "key.pem"
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return pem, secret


async def _speak_h2(reader, writer):
    """A server of four lines of HTTP/2: answers every request with its path."""
    link = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
    link.initiate_connection()
    writer.write(link.data_to_send())
    try:
        while data := await reader.read(65536):
            for event in link.receive_data(data):
                if isinstance(event, h2.events.RequestReceived):
                    path = dict(event.headers)[":path"]
                    link.send_headers(event.stream_id, [(":status", "200"), ("content-type", "text/plain")])
                    link.send_data(event.stream_id, path.encode(), end_stream=True)
            writer.write(link.data_to_send())
    except (ConnectionError, ssl.SSLError):
        writer.transport.abort()
    finally:
        writer.close()


async def test_http2_over_tls_with_one_connection_for_all(run, tmp_path):
    pem, secret = _certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem, secret)
    context.set_alpn_protocols(["h2"])
    links = []

    def accept(reader, writer):
        links.append(asyncio.create_task(_speak_h2(reader, writer)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0, ssl=context)
    url = f"https://localhost:{server.sockets[0].getsockname()[1]}"
    refused = await run("http", {"url": url + "/a"})
    assert (refused.error["kind"], refused.error["code"], refused.error["retryable"]) == (
        "connection",
        "TLS",
        False,
    )
    trusted = {"verify_ssl": str(pem)}
    first = await run("http", {"url": url + "/a", **trusted})
    assert first.error is None
    before = len(links)
    many = await asyncio.gather(*(run("http", {"url": f"{url}/{n}", **trusted}) for n in range(5)))
    assert [outcome.result["data"] for outcome in many] == [f"/{n}" for n in range(5)]
    assert {outcome.http["version"] for outcome in (first, *many)} == {"HTTP/2"}
    assert len(links) == before, "all five went over the connection of the first"
    assert (await run("http", {"url": url + "/b", "verify_ssl": False})).result["data"] == "/b"
    server.close()
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)


async def test_a_closed_port_names_the_address_and_says_that_it_refused(run):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for safe in (False, True):
        url = f"http://user:secretword@127.0.0.1:{port}/path?key=secretword"
        tool = HttpTool(ssrf_safe=safe, allow=["127.0.0.1"])
        outcome = await tool.run({"url": url}, ToolCall())
        await tool.close()
        assert outcome.error["code"] == "NO_CONNECTION"
        assert outcome.error["message"] == (
            f"127.0.0.1:{port}: the connection was refused; nothing listens there"
        )


async def test_a_name_that_is_not_known_and_an_answer_that_does_not_come_are_told_with_their_place(run, web):
    outcome = await run("http", {"url": "http://no-such-host.invalid/x"})
    assert outcome.error["message"] == "no-such-host.invalid:80: the name of this host is not known"
    outcome = await run("http", {"url": web.url + "/slow", "timeout": {"read": 0.1}})
    assert outcome.error["message"] == web.url.removeprefix("http://") + " did not answer in time"
    outcome = await run("http", {"url": web.url + "/drop"})
    assert "the server broke off" in outcome.error["message"]


@pytest.mark.parametrize(
    "config",
    [
        {"url": "http://user:hunter2hunter2/morehunter@127.0.0.1:1/"},
        {"url": "http://127.0.0.1:1/", "headers": {"X-Key": "hunter2hunter2\nmorehunter"}},
        {"url": "hunter2hunter2://127.0.0.1:1/"},
    ],
)
async def test_what_is_wrong_with_an_address_or_header_is_told_without_quoting_it(run, config):
    outcome = await run("http", config)
    assert outcome.error is not None
    assert "hunter2hunter2/" not in str(outcome)
    assert "hunter2hunter2'" not in str(outcome).replace("begins with 'hunter2hunter2'", "")
