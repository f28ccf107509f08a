"""The wire: the real SDKs against a local server that speaks each API, streaming included."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest

from treadle import Engine
from treadle.agent import AskRequest, ChooseRequest, ProviderError, ToolSpec, TurnRequest
from treadle.kernel.errors import TreadleError
from treadle.performers.agent.models import Providers
from treadle.performers.agent.models.anthropic import AnthropicModel
from treadle.performers.agent.models.openai import OpenAIModel
from treadle.performers.agent.models.prices import cost
from treadle.performers.agent.models.prompt import choice_of, data_of, retry_after


class Wire:
    """Answers each request with the next of `answers`: (status, headers, body parts), or a trick."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.requests: list[dict[str, Any]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {
                    k.lower(): v for k, v in (line.split(": ", 1) for line in lines[1:] if ": " in line)
                }
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(
                    {"line": lines[0], "headers": headers, "body": json.loads(body or b"{}")}
                )
                answer = self.answers.pop(0)
                if answer == "hang":
                    await asyncio.sleep(3600)
                if answer == "close":
                    return
                status, more, parts = answer
                fields = {"connection": "close", **more}
                writer.write(f"HTTP/1.1 {status} X\r\n".encode())
                writer.write("".join(f"{k}: {v}\r\n" for k, v in fields.items()).encode() + b"\r\n")
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    found = Wire()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield found
    server.close()


async def key(name: str) -> str:
    return "sk-test-1234567890"


def sse(*events: Any, named: bool) -> tuple[int, dict[str, str], list[bytes]]:
    parts = []
    for event in events:
        name = f"event: {event['type']}\n" if named else ""
        text = event if isinstance(event, str) else json.dumps(event)
        parts.append(f"{name}data: {text}\n\n".encode())
    return 200, {"content-type": "text/event-stream"}, parts


# --- Anthropic ----------------------------------------------------------------------------------


def claude(*blocks: dict[str, Any], stop: str = "end_turn", usage: Any = None, end: bool = True) -> Any:
    """A streamed message of these content blocks."""
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-haiku-4-5",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1000, "output_tokens": 1, **(usage or {})},
    }
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        if block["type"] == "text":
            start, deltas = (
                {"type": "text", "text": ""},
                [{"type": "text_delta", "text": p} for p in block["text"]],
            )
        else:
            start = {**block, "input": {}}
            text = block["input"] if isinstance(block["input"], str) else json.dumps(block["input"])
            deltas = [
                {"type": "input_json_delta", "partial_json": text[:3]},
                {"type": "input_json_delta", "partial_json": text[3:]},
            ]
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    events.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 500},
        }
    )
    if end:
        events.append({"type": "message_stop"})
    return sse(*events, named=True)


def text(*parts: str) -> dict[str, Any]:
    return {"type": "text", "text": list(parts)}


def use(name: str, input: Any, id: str = "toolu_1") -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": input}


PING = ToolSpec("ping", "Ping a host", {"type": "object", "properties": {"host": {"type": "string"}}})


def request(**more: Any) -> TurnRequest:
    async def context() -> dict[str, Any]:
        return {"input": {"host": "db1"}}

    return TurnRequest(
        node="a",
        iteration=1,
        attempt=0,
        turn=1,
        nth=1,
        instruction="Do it.",
        context=context,
        model="m-1",
        **more,
    )


async def test_claude_calls_tools_and_is_told_their_results(wire):
    model = AnthropicModel(key, base_url=wire.url)
    wire.answers = [claude(text("I will", " ping."), use("ping", {"host": "db1"}), stop="tool_use")]
    said: list[str] = []

    async def progress(message: str) -> None:
        said.append(message)

    reply = await model.turn(request(tools=[PING], progress=progress))
    sent = wire.requests[0]
    assert sent["headers"]["authorization"] == "Bearer sk-test-1234567890"
    assert sent["body"]["model"] == "m-1"
    assert sent["body"]["system"] == "Do it."
    assert '"host": "db1"' in sent["body"]["messages"][0]["content"]
    assert sent["body"]["tools"][0]["input_schema"] == PING.input_schema
    assert sent["body"]["stream"] is True
    assert reply.calls == [{"id": "toolu_1", "tool": "ping", "input": {"host": "db1"}}]
    assert reply.text == "I will ping."
    assert reply.usage == {"input_tokens": 1000, "output_tokens": 500, "usd": 0.0035}

    async def history() -> list[dict[str, Any]]:
        return [
            {"role": "assistant", "text": reply.text, "calls": reply.calls, "native": reply.native},
            {"role": "tool", "results": [{"id": "toolu_1", "tool": "ping", "error": "no route"}]},
        ]

    wire.answers = [claude(text('Done.\n```json\n{"up": false}\n```'))]
    reply = await model.turn(request(tools=[PING], history=history))
    messages = wire.requests[1]["body"]["messages"]
    assert [m["role"] for m in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"][1]["type"] == "tool_use"
    assert messages[2]["content"][0] == {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": "no route",
        "is_error": True,
    }
    assert reply.data["up"] is False
    assert reply.data["summary"].startswith("Done.")
    await model.close()


async def test_claude_hands_in_declared_output(wire):
    model = AnthropicModel(key, base_url=wire.url)
    schema = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
    wire.answers = [claude(use("submit_result", {"n": 3}), stop="tool_use")]
    reply = await model.turn(request(output_schema=schema))
    body = wire.requests[0]["body"]
    assert body["tool_choice"] == {"type": "auto"}, "forced tool use and thinking exclude each other"
    assert body["tools"][0]["input_schema"] == {"type": "object", **schema}
    assert (reply.status, reply.data, reply.calls) == ("success", {"n": 3}, [])
    await model.close()


async def test_claude_streams_progress(wire):
    model = AnthropicModel(key, base_url=wire.url)
    wire.answers = [claude(text("first line\n", "second ", "half\n", "rest"))]
    said: list[str] = []

    async def progress(message: str) -> None:
        said.append(message)

    await model.turn(request(progress=progress))
    assert said == ["first line", "second half"]
    await model.close()


async def test_claude_says_something_beside_declared_output(wire):
    model = AnthropicModel(key, base_url=wire.url)
    wire.answers = [claude(text("Three it is."), use("submit_result", {"n": 3}), stop="tool_use")] * 2
    reply = await model.turn(request(output_schema={"properties": {"n": {}}}))
    assert reply.data == {"summary": "Three it is.", "n": 3}
    reply = await model.turn(request(output_schema={"additionalProperties": False, "properties": {"n": {}}}))
    assert reply.data == {"n": 3}, "a closed schema takes no summary"
    await model.close()


@pytest.mark.parametrize("stop", ["max_tokens", "refusal", "model_context_window_exceeded"])
async def test_claude_hands_in_no_result_that_was_cut_off(wire, stop):
    model = AnthropicModel(key, base_url=wire.url)
    cut = use("submit_result", '{"items": [1, 2], "note": "this was cut o')
    wire.answers = [claude(cut, stop=stop)]
    reply = await model.turn(request(output_schema={"properties": {"items": {"type": "array"}}}))
    assert reply.status == "failed"
    assert "items" not in reply.data
    await model.close()


async def test_claude_calls_tools_beside_handing_in(wire):
    """The call is made and its result told; the history holds no call without an answer."""
    model = AnthropicModel(key, base_url=wire.url)
    both = use("ping", {"host": "x"}), use("submit_result", {"n": 1}, id="toolu_2")
    wire.answers = [claude(text("Both."), *both, stop="tool_use")]
    reply = await model.turn(request(tools=[PING], output_schema={"properties": {"n": {}}}))
    assert reply.calls == [{"id": "toolu_1", "tool": "ping", "input": {"host": "x"}}]
    assert [block.get("name") for block in reply.native] == [None, "ping"]
    await model.close()


@pytest.mark.parametrize(
    ("stop", "error"),
    [("max_tokens", "cut off"), ("refusal", "refused"), ("model_context_window_exceeded", "too long")],
)
async def test_claude_stops_short(wire, stop, error):
    model = AnthropicModel(key, base_url=wire.url)
    wire.answers = [claude(text("half an ans"), stop=stop)]
    reply = await model.turn(request())
    assert reply.status == "failed"
    assert error in reply.data["error"]
    assert reply.data["summary"] == "half an ans"
    await model.close()


async def test_claude_chooses_and_judges(wire):
    model = AnthropicModel(key, base_url=wire.url)
    wire.answers = [claude(text(" `draft` ")), claude(text("yes\nfine"))]
    choices = [{"id": "draft", "description": "needs one"}, {"id": "file", "description": "does not"}]
    reply = await model.choose(
        ChooseRequest(node="a", iteration=1, nth=1, question="Which?", choices=choices, model="r")
    )
    assert reply.choice == "draft"
    assert "needs one" in wire.requests[0]["body"]["messages"][0]["content"]
    assert (await model.ask(AskRequest(instruction="Good?", model="j"))).text == "yes\nfine"
    assert wire.requests[1]["body"]["model"] == "j"
    await model.close()


# --- OpenAI -------------------------------------------------------------------------------------


def gpt(*deltas: dict[str, Any], finish: str | None = "stop") -> Any:
    base = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-4o-mini"}
    chunks: list[Any] = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    if finish is not None:
        chunks.append({**base, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
        usage = {"prompt_tokens": 1_000_000, "completion_tokens": 10, "total_tokens": 1_000_010}
        chunks += [{**base, "choices": [], "usage": usage}, "[DONE]"]
    return sse(*chunks, named=False)


async def test_gpt_calls_tools_and_is_told_their_results(wire):
    model = OpenAIModel(key, base_url=wire.url)
    first = {
        "index": 0,
        "id": "call_1",
        "type": "function",
        "function": {"name": "ping", "arguments": '{"ho'},
    }
    wire.answers = [
        gpt(
            {"role": "assistant", "content": "Pinging"},
            {"tool_calls": [first]},
            {"tool_calls": [{"index": 0, "function": {"arguments": 'st": "db1"}'}}]},
            {
                "tool_calls": [
                    {"index": 1, "id": "call_2", "function": {"name": "ping", "arguments": "{broken"}}
                ]
            },
            finish="tool_calls",
        )
    ]
    reply = await model.turn(request(tools=[PING]))
    sent = wire.requests[0]
    assert sent["headers"]["authorization"] == "Bearer sk-test-1234567890"
    assert sent["body"]["messages"][0] == {"role": "system", "content": "Do it."}
    assert sent["body"]["tools"][0]["function"]["name"] == "ping"
    assert reply.calls == [
        {"id": "call_1", "tool": "ping", "input": {"host": "db1"}},
        {"id": "call_2", "tool": "ping", "input": "{broken"},
    ]
    assert reply.usage == {"input_tokens": 1_000_000, "output_tokens": 10, "usd": 0.150006}

    async def history() -> list[dict[str, Any]]:
        return [
            {"role": "assistant", "text": reply.text, "calls": reply.calls, "native": reply.native},
            {"role": "tool", "results": [{"id": "call_1", "tool": "ping", "output": {"up": True}}]},
        ]

    wire.answers = [gpt({"content": '{"up": true}'})]
    reply = await model.turn(request(tools=[PING], history=history))
    messages = wire.requests[1]["body"]["messages"]
    assert messages[2]["tool_calls"][0]["id"] == "call_1"
    assert messages[3]["role"] == "tool"
    assert json.loads(messages[3]["content"]) == {"up": True}
    assert reply.data == {"summary": '{"up": true}', "up": True}
    await model.close()


async def test_gpt_is_asked_for_declared_output(wire):
    model = OpenAIModel(key, base_url=wire.url, model="any-name")
    schema = {"type": "object", "properties": {"n": {}}}
    wire.answers = [gpt({"content": '{"n": 1}'})]
    reply = await model.turn(request(output_schema=schema))
    assert wire.requests[0]["body"]["response_format"]["json_schema"]["schema"] == schema
    assert reply.data == {"n": 1}
    await model.close()


@pytest.mark.parametrize(("finish", "error"), [("length", "cut off"), ("content_filter", "filter")])
async def test_gpt_stops_short(wire, finish, error):
    model = OpenAIModel(key, base_url=wire.url)
    wire.answers = [gpt({"content": "half"}, finish=finish)]
    reply = await model.turn(request())
    assert reply.status == "failed"
    assert error in reply.data["error"]
    await model.close()


# --- what goes wrong, with both -----------------------------------------------------------------

BOTH = pytest.mark.parametrize("kind", [AnthropicModel, OpenAIModel])


def failed(status: int, **headers: str) -> Any:
    body = json.dumps({"type": "error", "error": {"type": "x", "message": "the server says no"}}).encode()
    names = {k.replace("_", "-"): v for k, v in headers.items()}
    return status, {"content-type": "application/json", "content-length": str(len(body)), **names}, [body]


@BOTH
@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        (429, True),
        (529, True),
        (500, True),
        (503, True),
        (408, True),
        (504, True),
        (400, False),
        (409, False),
        (401, False),
        (404, False),
        (422, False),
    ],
)
async def test_statuses(wire, kind, status, retryable):
    model = kind(key, base_url=wire.url)
    wire.answers = [failed(status, retry_after="7")]
    with pytest.raises(ProviderError) as caught:
        await model.turn(request())
    assert caught.value.details["retryable"] is retryable
    assert caught.value.details.get("retry_after_s") == (7.0 if retryable else None)
    assert "the server says no" in caught.value.message
    assert len(wire.requests) == 1, "the SDK itself must not retry"
    await model.close()


@pytest.mark.parametrize(
    ("error", "retryable"),
    [
        ({"type": "overloaded_error"}, True),
        ({"type": "rate_limit_error"}, True),
        ({"type": "api_error"}, True),
        ({"type": "server_error", "code": None}, True),
        ({"type": "requests", "code": "rate_limit_exceeded"}, True),
        ({"type": "BadGateway", "code": 502}, True),
        ({"type": "invalid_request_error"}, False),
        ({"type": "something_else"}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("begun", [0, 2])
@BOTH
async def test_errors_in_the_middle_of_an_answer(wire, kind, begun, error, retryable):
    """The status has been sent by then: the error's own kind says whether asking again may help."""
    model = kind(key, base_url=wire.url)
    whole = claude(text("half")) if kind is AnthropicModel else gpt({"content": "ha"}, {"content": "lf"})
    body = json.dumps({"type": "error", "error": {"message": "the server says no", **error}})
    named = "event: error\n" if kind is AnthropicModel else ""
    broken = f"{named}data: {body}\n\n".encode()
    wire.answers = [(200, {"content-type": "text/event-stream"}, [*whole[2][:begun], broken])]
    with pytest.raises(ProviderError, match="the server says no") as caught:
        await model.turn(request())
    assert caught.value.details["retryable"] is retryable
    await model.close()


@BOTH
async def test_a_question_that_was_cut_off_or_refused_has_no_answer(wire, kind):
    model = kind(key, base_url=wire.url)
    asked = ChooseRequest(
        node="a", iteration=1, nth=1, question="?", choices=[{"id": "go", "description": ""}]
    )
    if kind is AnthropicModel:
        short = [claude(text("go"), stop=stop) for stop in ("max_tokens", "refusal")]
    else:
        refused = gpt({"refusal": "I would rather not"})
        short = [gpt({"content": "go"}, finish="length"), refused]
    for answer in short:
        wire.answers = [answer, answer]
        for ask in (model.choose(asked), model.ask(AskRequest(instruction="Good?"))):
            with pytest.raises(ProviderError, match="no answer") as caught:
                await ask
            assert caught.value.details["retryable"] is False
    await model.close()


@BOTH
async def test_a_provider_adds_no_tools_of_its_own(wire, kind):
    """N8: what is in disallowed_tools must be unusable; without built-in tools, all of them are. A
    skill's tool of such a name is not meant."""
    model = kind(key, base_url=wire.url)
    answer = claude(text("no")) if kind is AnthropicModel else gpt({"content": "no"})
    wire.answers = [answer, answer]
    banned = ["web_search", "ping"]
    await model.turn(request(disallowed_tools=banned))
    await model.turn(request(tools=[PING], disallowed_tools=banned))
    without, with_skill = [asked["body"] for asked in wire.requests]
    assert not {"tools", "tool_choice", "functions", "mcp_servers", "web_search_options"} & set(without)
    (sent,) = with_skill["tools"]
    assert (sent["name"] if kind is AnthropicModel else sent["function"]["name"]) == "ping"
    await model.close()


@BOTH
async def test_names_of_tools_fit_and_come_back(wire, kind):
    model = kind(key, base_url=wire.url)
    long = "server__" + "x" * 80
    names = ["ping", "git.hub/list issues", "git_hub_list issues", long, long + "y", "submit_result", "größe"]
    tools = [ToolSpec(name, "", {"type": "object"}) for name in names]
    answer = claude(text("no")) if kind is AnthropicModel else gpt({"content": "no"})
    wire.answers = [answer]
    more = {"output_schema": {"type": "object"}}
    await model.turn(request(tools=tools, **more))
    listed = wire.requests[0]["body"]["tools"]
    sent = [tool["name"] if kind is AnthropicModel else tool["function"]["name"] for tool in listed]
    assert len(set(sent)) == len(sent), "no two tools share a name"
    assert all(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", name) for name in sent)
    assert sent[0] == "ping"
    for name, fitted in zip(names, sent, strict=False):
        if kind is AnthropicModel:
            wire.answers = [claude(use(fitted, {}), stop="tool_use")]
        else:
            part = {
                "index": 0,
                "id": "c",
                "type": "function",
                "function": {"name": fitted, "arguments": "{}"},
            }
            wire.answers = [gpt({"tool_calls": [part]}, finish="tool_calls")]
        reply = await model.turn(request(tools=tools, **more))
        assert [call["tool"] for call in reply.calls] == [name]
    await model.close()


@BOTH
async def test_a_key_that_was_exchanged_needs_no_restart(wire, kind):
    keys = ["sk-old-1234567890", "sk-new-1234567890"]

    async def current(name: str) -> str:
        return keys.pop(0)

    model = kind(current, base_url=wire.url)
    good = claude(text("hi")) if kind is AnthropicModel else gpt({"content": "hi"})
    wire.answers = [failed(401), good, good]
    with pytest.raises(ProviderError):
        await model.turn(request())
    for _ in range(2):
        assert (await model.turn(request())).text == "hi"
    used = [sent["headers"].get("x-api-key") or sent["headers"]["authorization"] for sent in wire.requests]
    assert [key.rpartition(" ")[2] for key in used] == ["sk-old-1234567890", *["sk-new-1234567890"] * 2]
    await model.close()


@BOTH
async def test_time_outs_and_lost_connections_are_worth_another_try(wire, kind):
    model = kind(key, base_url=wire.url, timeout_s=0.2)
    wire.answers = ["hang", "close"]
    for code in ("PROVIDER_TIMEOUT", "PROVIDER_CONNECTION"):
        with pytest.raises(ProviderError) as caught:
            await model.turn(request())
        assert caught.value.code == code
        assert caught.value.details["retryable"] is True
    await model.close()


def plain(kind: Any, said: str, calls: dict[str, Any] | None = None) -> dict[str, Any]:
    """An answer as a server writes it that knows no streams."""
    if kind is AnthropicModel:
        blocks = [{"type": "text", "text": said}] if said else []
        blocks += [use(name, input) for name, input in (calls or {}).items()]
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "claude-haiku-4-5",
            "content": blocks,
            "stop_reason": "tool_use" if calls else "end_turn",
            "usage": {"input_tokens": 1000, "output_tokens": 500},
        }
    made = [
        {"id": "toolu_1", "type": "function", "function": {"name": name, "arguments": json.dumps(input)}}
        for name, input in (calls or {}).items()
    ]
    message = {"role": "assistant", "content": said or None, **({"tool_calls": made} if made else {})}
    return {
        "id": "c1",
        "object": "chat.completion",
        "model": "gpt-4o-mini",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if made else "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 500},
    }


def document(value: Any, kind: str = "application/json; charset=utf-8") -> Any:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return 200, {"content-type": kind, "content-length": str(len(body))}, [body]


@BOTH
async def test_a_server_that_does_not_stream_is_understood(wire, kind):
    model = kind(key, base_url=wire.url)
    wire.answers = [
        document(plain(kind, "", {"ping": {"host": "db1"}})),
        document(plain(kind, '{"n": 3}'), "application/json"),
        document(plain(kind, "none"), "text/plain"),
    ]
    reply = await model.turn(request(tools=[PING]))
    assert reply.calls == [{"id": "toolu_1", "tool": "ping", "input": {"host": "db1"}}]
    assert {reply.usage[name] for name in ("input_tokens", "output_tokens")} == {1000, 500}
    assert reply.usage["usd"] > 0
    reply = await model.turn(request(output_schema={"properties": {"n": {"type": "integer"}}}))
    assert reply.data == {"n": 3}
    assert (await model.ask(AskRequest(instruction="?", nth=1, model="m"))).text == "none"
    assert len(wire.requests) == 3, "asked once each"
    await model.close()


@BOTH
async def test_a_document_with_an_error_is_an_error(wire, kind):
    model = kind(key, base_url=wire.url)
    wire.answers = [
        document({"error": {"type": "overloaded_error", "message": "try later"}}),
        document({"error": "no such model"}),
        document({"hello": 1}),
        document(b'{"cut'),
    ]
    found = []
    for _ in range(4):
        with pytest.raises(ProviderError) as caught:
            await model.turn(request())
        found.append((caught.value.message, caught.value.details["retryable"]))
    assert found[0] == ("HTTP 529: try later", True)
    assert "no such model" in found[1][0]
    assert [message.startswith("the provider's answer cannot be read") for message, _ in found[2:]] == [
        True
    ] * 2
    await model.close()


@BOTH
@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"type": "error", "error": {"type": "x", "message": "slow down"}}', "HTTP 429: slow down"),
        (b'{"error": {"message": "slow down", "type": "requests", "code": null}}', "HTTP 429: slow down"),
        (b'{"message": "slow down"}', "HTTP 429: slow down"),
        (b"slow down", "HTTP 429: slow down"),
        (b"", "HTTP 429"),
    ],
)
async def test_a_refusal_is_told_once_in_the_words_of_the_server(wire, kind, body, said):
    model = kind(key, base_url=wire.url)
    wire.answers = [(429, {"content-type": "application/json", "content-length": str(len(body))}, [body])]
    with pytest.raises(ProviderError) as caught:
        await model.turn(request())
    assert caught.value.message == said
    await model.close()


@BOTH
async def test_a_truncated_answer_is_no_answer(wire, kind):
    model = kind(key, base_url=wire.url)
    cut = claude(text("half"), end=False) if kind is AnthropicModel else gpt({"content": "half"}, finish=None)
    broken = (200, {"content-type": "text/event-stream", "content-length": "9999"}, cut[2][:2])
    wire.answers = [cut, broken]
    for _ in range(2):
        with pytest.raises(ProviderError) as caught:
            await model.turn(request())
        assert caught.value.details["retryable"] is True
    await model.close()


@BOTH
@pytest.mark.parametrize(
    "body",
    [
        b"data: {not json\n\n",
        b"event: message_start\ndata: [1, 2]\n\n",
        b"\xff\xfe\x00",
        b"<html>hello</html>",
        b"",
    ],
)
async def test_a_malformed_answer_is_a_clear_error(wire, kind, body):
    model = kind(key, base_url=wire.url)
    wire.answers = [(200, {"content-type": "text/event-stream"}, [body])]
    with pytest.raises(ProviderError):
        await model.turn(request())
    await model.close()


@BOTH
async def test_a_missing_key_says_what_to_do(kind):
    async def none(name: str) -> None:
        return None

    with pytest.raises(ProviderError, match="API_KEY"):
        await kind(none).turn(request())


# --- the whole way: engine, SDK, wire ------------------------------------------------------------


@pytest.mark.house
@pytest.mark.parametrize("kind", ["claude", "gpt"])
async def test_a_run_waits_out_a_rate_limit_calls_a_tool_and_remembers(wire, tmp_path, flow, kind):
    from treadle import Engine
    from treadle.agent import Skill

    net = Skill("net", name="Net")
    net.tool("ping", description="Ping", input_schema=PING.input_schema, idempotent=True)(
        lambda input, ctx: {"up": input["host"]}
    )
    limited = failed(429, retry_after="0")
    if kind == "claude":
        model: Any = AnthropicModel(key, base_url=wire.url)
        asks = claude(text("Pinging.\n"), use("ping", {"host": "db1"}), stop="tool_use")
        wire.answers = [limited, asks, claude(use("submit_result", {"ok": True})), claude(text("b"))]
    else:
        model = OpenAIModel(key, base_url=wire.url)
        part = {
            "index": 0,
            "id": "c1",
            "type": "function",
            "function": {"name": "ping", "arguments": '{"host": "db1"}'},
        }
        asks = gpt({"content": "Pinging.\n"}, {"tool_calls": [part]}, finish="tool_calls")
        wire.answers = [limited, asks, gpt({"content": '{"ok": true}'}), gpt({"content": "b"})]
    output = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    wf = flow({"a": {"skills": ["net"], "output": output}, "b": {}}, ("a", "b", {"when": "it is up"}))
    (tmp_path / "flow.json").write_text(json.dumps(wf))
    wire.answers.append(claude(text("fine")) if kind == "claude" else gpt({"content": "fine"}))
    engine = Engine(f"sqlite:///{tmp_path}/t.db")
    engine.register(net)
    engine.models[kind] = model
    engine.deploy(str(tmp_path / "flow.json"))
    async with engine:
        run = await engine.start("wf", {"host": "db1"}, model=kind)
        result = await run.result(timeout=60)
        shown = await run.show()
        told = [event["type"] async for event in run.events()]
    await model.close()
    assert result["results"]["a"]["data"] == {"ok": True}
    assert result["results"]["a"]["toolCalls"] == [
        {"tool": "ping", "input": {"host": "db1"}, "output": {"up": "db1"}}
    ]
    assert result["results"]["b"]["data"] == {"summary": "fine"}
    assert [step["node"] for step in result["trace"]["steps"]] == ["a", "b"]
    assert "node:progress" in told
    assert shown["stats"]["usage"]["input_tokens"] > 0
    # The third request is the second turn: it carries the first answer and the tool's result.
    messages = wire.requests[2]["body"]["messages"]
    assert json.dumps(messages[-1]).count("db1") == 1
    assert len(wire.requests) == 5


# --- around them --------------------------------------------------------------------------------


def test_retry_after_in_all_its_forms():
    assert retry_after({"retry-after": "12"}) == 12.0
    assert retry_after({"retry-after-ms": "1500"}) == 1.5
    date, later = "Sun, 15 Nov 2026 08:00:00 GMT", "Sun, 15 Nov 2026 08:00:30 GMT"
    assert retry_after({"retry-after": later, "date": date}) == 30.0
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({}) is None


def test_data_is_found_in_text():
    assert data_of("plain", None) == {"summary": "plain"}
    assert data_of('{"a": 1}', None) == {"summary": '{"a": 1}', "a": 1}
    assert data_of('{"a": 1}', {"properties": {"a": {}}}) == {"a": 1}, "declared output, and nothing else"
    assert data_of('So: {"a": 1}', {"properties": {"a": {}}}) == {"summary": 'So: {"a": 1}', "a": 1}
    assert data_of('So: {"a": 1}', {"properties": {"summary": {"type": "object"}}}) == {"a": 1}
    assert data_of('{"summary": "s"}', None) == {"summary": "s"}
    assert data_of('```json\n{"a": 1}\n``` or ```\n{"b": 2}\n```', None)["a"] == 1
    assert data_of("```python\n{}\n``` {", None) == {"summary": "```python\n{}\n``` {"}
    assert data_of('So: {"a": 1} ok', None) == {"summary": 'So: {"a": 1} ok', "a": 1}
    assert data_of('So: {"a": 1}', {"additionalProperties": False}) == {"a": 1}
    assert data_of("{broken", None) == {"summary": "{broken"}


def test_choices_are_found_in_answers():
    asked = ChooseRequest(
        node="a",
        iteration=1,
        nth=1,
        question="",
        choices=[{"id": "go", "description": ""}, {"id": "stop", "description": ""}],
    )
    assert choice_of("go", asked) == "go"
    assert choice_of("I would go there.", asked) == "go"
    assert choice_of("none", asked) is None
    assert choice_of("go or stop", asked) == "go or stop"
    assert choice_of("Do not take go.", asked) == "Do not take go"
    assert choice_of("I wouldn't go.", asked) == "I wouldn't go"
    assert choice_of("Not go, because nobody waits.\n\n**stop**", asked) == "stop"
    assert choice_of("Answer: `stop`", asked) == "stop"
    assert choice_of("Neither go nor stop fits.\nnone", asked) is None


def test_an_answer_without_end_is_read_in_one_pass():
    """Before, each newline behind a fence was tried as the end of it: minutes for this one."""
    text = "```" + "\n" * 200_000
    assert data_of(text, None) == {"summary": text}


def test_prices_may_be_overridden(tmp_path, monkeypatch):
    assert cost("claude-haiku-4-5-20251001", input_tokens=1_000_000, output_tokens=0) == 1.0
    assert cost("gpt-5-2025-08-07", input_tokens=1_000_000, output_tokens=0) == 1.25
    assert cost("gpt-5.9", input_tokens=10, output_tokens=10) is None, "another model has another price"
    assert cost("nobody", input_tokens=10, output_tokens=10) is None
    (tmp_path / "p.json").write_text('{"nobody": [1, 2]}')
    monkeypatch.setenv("TREADLE_PRICES", str(tmp_path / "p.json"))
    assert cost("nobody", input_tokens=1_000_000, output_tokens=1_000_000) == 3.0


@pytest.mark.parametrize(
    "text", [None, "no", "[]", '{"m": 3}', '{"m": [1]}', '{"m": ["x", 1]}', '{"m": [-1, 1]}']
)
async def test_prices_that_cannot_be_read_cost_nothing(wire, tmp_path, monkeypatch, flow, text, in_house):
    """Nothing is asked, so nothing is paid for and then thrown away."""
    for name in ("ANTHROPIC_API_KEY", "TREADLE_MODEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-1234567890")
    monkeypatch.setenv("OPENAI_BASE_URL", wire.url)
    monkeypatch.setenv("TREADLE_PRICES", str(tmp_path / "prices.json"))
    if text is not None:
        (tmp_path / "prices.json").write_text(text)
    (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
    async with Engine("memory:") as engine:
        engine.deploy(str(tmp_path / "flow.json"))
        with pytest.raises(TreadleError, match=r"TREADLE_PRICES.*prices\.json") as refused:
            await engine.start("wf", model="openai:m")
        assert (refused.value.code, refused.value.cls) == ("PRICES_INVALID", "user")
        # Nobody named a provider, but the one that would be asked cannot be used: no run is made. Where a worker
        # elsewhere asks, it is the one to say so.
        with pytest.raises(TreadleError, match="TREADLE_PRICES"):
            run = await engine.start("wf")
            assert in_house, "whoever does the work itself refuses the start"
            await run.result(60)
    assert wire.requests == []


def test_providers_are_chosen_by_spec(monkeypatch):
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "TREADLE_MODEL"):
        monkeypatch.delenv(name, raising=False)

    async def resolve(name: str, options: Any) -> str:
        return "x"

    fake = AnthropicModel(key)
    providers = Providers({"fake": fake, "other": fake}, resolve=resolve, learn=lambda n, v: None)
    assert providers.get({"model": "fake"}) is fake
    found = providers.get({"model": "openai:my-model"})
    assert isinstance(found, OpenAIModel)
    assert found.default_model == "my-model"
    assert providers.get({"model": "openai:my-model"}) is found
    with pytest.raises(ProviderError, match="no provider 'nobody'"):
        providers.get({"model": "nobody"})
    with pytest.raises(ProviderError, match="no model is chosen"):
        providers.get({})
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert isinstance(providers.get({}), OpenAIModel)


async def test_folders_do_not_share_their_keys(monkeypatch, tmp_path):
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)

    async def resolve(name: str, options: Any) -> str:
        raise TreadleError("there is none")

    providers = Providers({}, resolve=resolve, learn=lambda n, v: None)
    found = []
    for team in ("one", "two"):
        (tmp_path / team).mkdir()
        (tmp_path / team / ".env").write_text(f"ANTHROPIC_API_KEY=key-of-team-{team}\n")
        model = providers.get({"model": "anthropic", "base": str(tmp_path / team)})
        assert isinstance(model, AnthropicModel)
        found.append((await model._connected()).api_key)
    assert found == ["key-of-team-one", "key-of-team-two"]
    await providers.close()


@pytest.mark.house
@pytest.mark.parametrize(("provider", "package"), [("anthropic", "anthropic"), ("openai", "httpx2")])
async def test_a_provider_whose_package_is_missing_is_told_with_the_command(
    tmp_path, flow, monkeypatch, provider, package
):
    """B7: never a bug in Treadle; and no run is begun."""
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"treadle.performers.agent.models.{provider}", raising=False)
    (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
    async with Engine(f"sqlite:///{tmp_path}/t.db") as engine:
        with pytest.raises(TreadleError, match=r"pip install 'treadle\[agent\]'") as raised:
            await engine.start(engine.load(str(tmp_path / "flow.json"))[0], model=provider)
        assert (raised.value.code, raised.value.cls) == ("EXTRA_MISSING", "user")
        assert await engine.list() == []


def test_the_command_says_which_package_is_missing(tmp_path, flow):
    (tmp_path / "flow.json").write_text(json.dumps(flow("a")))
    code = "import sys; sys.modules['anthropic'] = None; from treadle.cli.main import main; main()"
    command = [sys.executable, "-c", code, "run", "flow.json", "--model", "anthropic", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert json.loads(done.stdout)["error"]["code"] == "EXTRA_MISSING"
